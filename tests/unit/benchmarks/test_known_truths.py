"""Known truths under a fake clock: the stalls that the analysis finds are exactly those put in.

``benchmarks/known_truths.py`` does the same to real pipelines, with intervals.
"""

from __future__ import annotations

import dataclasses

import pytest

from iobench.analysis import evidence
from iobench.core.cases import Trial
from iobench.core.records import Record
from iobench.equations import stalls
from iobench.worker.loop import measure, warmup_steps
from tests.unit.run.test_store import record as stored
from tests.unit.worker.test_loop import Trainer, World, batches, pipeline

BATCH, STEPS, WORKERS = 4, 40, 2


def trial(stage: str, cache: str, block: int, production: float, step: float) -> Record:
    """Return the record of a run whose loader takes ``production`` s a batch and worker."""
    world = World()
    waits = pipeline(production, step, WORKERS, 2 * WORKERS, STEPS)
    warmup = warmup_steps(queue_batches=2 * WORKERS, workers=WORKERS, steps=STEPS)
    measured = measure(
        batches(world, waits, BATCH), Trainer(world, step), warmup=warmup, clock=world.clock
    )
    made = stored()
    ranks = (dataclasses.replace(made.ranks[0], steps=measured.steps),)
    planned = Trial(f"{stage}-{cache}-{block}", made.trial.case, stage, cache, block=block)
    return dataclasses.replace(made, trial=planned, ranks=ranks)


def windows(
    stage: str, cache: str, production: float, step: float, *, whole: bool | None = None
) -> list[stalls.Window]:
    found = [
        evidence.trial_window(trial(stage, cache, block, production, step), whole=whole)
        for block in (1, 2, 3)
    ]
    return [w for w in found if w is not None]


@pytest.mark.parametrize(
    ("delay", "serial", "step"),
    [(0.5, 0.25, 0.125), (1.0, 0.25, 0.25), (0.25, 0.25, 0.5), (0.0, 0.5, 0.125), (4.0, 0.0, 2.0)],
)
def test_a_sleep_in_the_decoder_is_the_prep_stall(delay: float, serial: float, step: float) -> None:
    """max(0, (t+d)/W - s) - max(0, t/W - s), per sample; masked ones give 0."""
    warm = windows("train", "warm", BATCH * (serial + delay), BATCH * step)
    plain = windows("train", "warm", BATCH * serial, BATCH * step)
    compute = windows("compute", "-", 0.0, BATCH * step, whole=False)
    with_delay = stalls.prep_stall(warm, compute)[0].interval
    without = stalls.prep_stall(plain, compute)[0].interval
    expected = stalls.delay_change_s(delay, serial=serial, workers=WORKERS, step=step)
    assert with_delay.value - without.value == expected


@pytest.mark.parametrize(
    ("bytes_", "rate", "step"), [(1024, 1024.0, 0.25), (1024, 512.0, 0.5), (1024, 8192.0, 0.5)]
)
def test_a_slow_device_is_the_fetch_stall_and_no_prep_stall(
    bytes_: int, rate: float, step: float
) -> None:
    """max(0, bytes / rate - s) a sample; the workers share the device."""
    cold = windows("train", "cold", WORKERS * BATCH * bytes_ / rate, BATCH * step)
    epochs = windows("train", "warm", 0.0, BATCH * step, whole=True)
    fetch = stalls.fetch_stall(cold, epochs)
    assert fetch.interval.value == max(0.0, bytes_ / rate - step)
    warm = windows("train", "warm", 0.0, BATCH * step)
    compute = windows("compute", "-", 0.0, BATCH * step, whole=False)
    prep, wait, contention = stalls.prep_stall(warm, compute)
    assert (prep.interval.value, wait.value, contention.value) == (0.0, 0.0, 0.0)
