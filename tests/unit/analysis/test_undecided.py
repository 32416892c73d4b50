"""What kept a contrast from a verdict: cores, arms, kernel, other programs, blocks, the budget."""

from __future__ import annotations

import dataclasses
from typing import Any, List

import pytest

from iobench.analysis import undecided
from iobench.analysis.evidence import Evidence, evidence
from iobench.analysis.verdicts import judged
from iobench.core.cases import Contrast
from iobench.core.records import FAILED
from tests.build import pairs as fixture

BARE, DOCKER = fixture.cases("bare", "docker")


def noisy(
    contrast: Contrast,
    *,
    slice_sd: float = 0.0,
    lost: int = 0,
    stolen: int = 0,
    kernel: float | None = None,
) -> Evidence:
    """Return ten blocks whose pairs vary by some 13 %; of so many the base FAILED, and beside so
    many the hypervisor took a core for half the time.  ``kernel``: this share of what differs is
    time in the kernel; None: no CPU time was counted.
    """
    plan = fixture.plan([BARE, DOCKER], [contrast], upto=10)
    records: List[Any] = []
    for trial in plan.trials:
        wave = 0.2 * ((trial.block * 7919) % 11 - 5) / 5 if trial.arm == DOCKER.label else 0.0
        failed = trial.block <= lost and trial.arm == BARE.label
        record = fixture.record(trial, 1e-3 * (1 + wave))
        (rank,) = record.ranks
        if kernel is not None:
            sys_s = 0.3 + kernel * wave
            io = dataclasses.replace(rank.io, cpu_user_s=1.0 + wave - sys_s, cpu_sys_s=sys_s)
            record = dataclasses.replace(record, ranks=(dataclasses.replace(rank, io=io),))
        if trial.block <= stolen:
            io = dataclasses.replace(rank.io, machine_steal_s=0.5 * rank.io.wall_s)
            record = dataclasses.replace(record, ranks=(dataclasses.replace(rank, io=io),))
        records.append(dataclasses.replace(record, status=FAILED) if failed else record)
    return evidence(dataclasses.replace(plan, slice_sd=slice_sd), records)


def test_a_block_in_turns_lasts_as_long_as_its_shares_together() -> None:
    contrast = fixture.contrast(DOCKER, BARE)
    plan = fixture.plan([BARE, DOCKER], [contrast], upto=10)
    records = [
        dataclasses.replace(fixture.record(trial), wall_s=6.0, at_once=2) for trial in plan.trials
    ]
    assert undecided.block_s(evidence(plan, records), contrast) == 12.0


@pytest.mark.parametrize(
    ("changes", "seen", "words"),
    [
        ({}, {}, []),
        ({"cache": "warm", "slice_s": 0.1, "loop_s": 3.0}, {"slice_sd": 0.03}, ["of the arms"]),
        ({"cache": "warm", "slice_s": 0.1, "loop_s": 3.0}, {"slice_sd": 0.9}, ["of the cores"]),
        ({"cache": "warm"}, {"kernel": 1.0}, ["time in the kernel, which differs by 12.0%"]),
        ({"cache": "warm"}, {"kernel": 0.2}, []),
        ({"cache": "cold"}, {"kernel": 1.0}, []),
        (
            {"cache": "warm", "slice_s": 0.1, "loop_s": 3.0},
            {"slice_sd": 0.03, "kernel": 1.0},
            ["time in the kernel"],
        ),
        (
            {"cache": "warm", "slice_s": 0.1, "loop_s": 3.0},
            {"slice_sd": 0.03, "kernel": 0.2},
            ["of the arms"],
        ),
        ({}, {"lost": 2}, ["2 of 10 blocks gave no pair"]),
        ({}, {"stolen": 3}, ["the hypervisor took cores beside 3 blocks"]),
        ({"looks": (10,), "pairs": 20}, {}, ["the budget held 10 of 20 pairs"]),
    ],
)
def test_each_cause_is_told(
    changes: dict[str, Any], seen: dict[str, Any], words: List[str]
) -> None:
    contrast = fixture.contrast(DOCKER, BARE, **changes)
    found = noisy(contrast, **seen)
    result = judged(found)[contrast.id]
    assert result.outcome.verdict == "INCONCLUSIVE"
    causes = undecided.causes(found, contrast, result)
    assert len(causes) == len(words)
    assert all(word in cause for word, cause in zip(words, causes, strict=True))


def test_a_verdict_has_none() -> None:
    contrast = fixture.contrast(DOCKER, BARE)
    found = noisy(contrast, lost=2)
    result = judged(found)[contrast.id]
    equal = dataclasses.replace(result.outcome, verdict="EQUIVALENT")
    assert undecided.causes(found, contrast, dataclasses.replace(result, outcome=equal)) == ()


def test_a_block_lasts_from_its_first_start_to_its_last_end() -> None:
    contrast = fixture.contrast(DOCKER, BARE)
    found = noisy(contrast)
    assert undecided.block_s(found, contrast) == 1.0, "all arms began together"
    late = {
        i: dataclasses.replace(r, started="2026-11-20T10:00:07.500+00:00", wall_s=4.0)
        if r.trial.arm == DOCKER.label
        else dataclasses.replace(r, started="2026-11-20T10:00:00.000+00:00")
        for i, r in found.last.items()
    }
    assert undecided.block_s(Evidence(found.plan, late), contrast) == 11.5
    earlier = {i: dataclasses.replace(r, started="") for i, r in found.last.items()}
    assert undecided.block_s(Evidence(found.plan, earlier), contrast) is None
