"""Does taking turns change what is measured?  Three answers.

Uneven steps: arms of equal work in steps of 70/70 ms and of 0/140 ms of CPU time, in turns; the
ratio of their times is 1.000, within 0.005.
Slices: three arms that do the same.  The first runs uninterrupted for a spell of half a second (or
of five slices), then the other two for as long each, in slices, in turns, over and over.  A spell
begins with a start too: what one start costs follows from the ratio of the two, and from it the
ratio of sliced to uninterrupted time.  Wanted: its 95 % interval within 0.5 % of 1, for each
length of a slice and each pipeline; the shortest such slice has no cost that matters.
Data: two arms that do the same, in turns, on the same files or on a copy each, so that neither
finds in a cache of the processor what the other has read; with the allocator of ``fidelity``.
Wanted: over all pipelines, the 95 % interval of the one ratio over the other holds 1 and lies
within 1 % of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import suites
from benchmarks.fidelity import environment_of, epochs_of
from iobench.analysis import ranks
from iobench.analysis.pairs import Pair
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import VALID, Slices
from iobench.equations import stats
from iobench.host.agent import LOCAL
from iobench.run import copies
from iobench.run.block import Arm, end, opened, run_block
from iobench.run.trial import Attempt, TrialSettings, run_trial

UNEVEN, BIAS, AGREE = 0.005, 0.005, 0.01
SLICES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
#: Of arms on the same files or on copies: seconds of a loop and of a turn.
LOOP_S, TURN_S = 8.0, 0.1
#: A round holds about as much of each arm; an uninterrupted spell is so long, or so many slices.
ROUND_S, SPELL_S, SPELL_SLICES = 2.0, 0.5, 5
PIPELINES = ("lmdb", "hdf5", "jpeg", "dali")
#: Of arms in slices: the ends of small batches tell more closely how far a loop is.
BATCH, SMALL_BATCH = 32, 8
#: Loops are so much longer than their rounds take at the rate of an epoch that runs alone.
SPARE = 1.1
FEWEST = 3
#: A loader whose batches cost stated CPU seconds, whatever they hold; the first one, with which the
#: measured time begins, costs none.
BURN = """
import time
from iobench.core.cases import Batch
from iobench.core.members import LoaderBackend

class Burn:
    queue_batches = 0

    def __init__(self, request):
        self._request = request

    def batches(self):
        for k, ids in enumerate(self._request.batches()):
            end = time.thread_time() + ({pattern}[k % 2] if k else 0.0)
            while time.thread_time() < end:
                pass
            yield Batch(None, ids, ids, len(ids))

    def close(self):
        pass

BACKEND = LoaderBackend(Burn, "burns CPU time: {pattern} s a step")
"""


def uneven(found: Dataset, pairs: int) -> dict[str, Any]:
    """Return the ratio of the bursty arm's time to the even one's, as the product finds it."""
    with tempfile.TemporaryDirectory() as plugins:
        folder = Path(plugins, "loaders")
        folder.mkdir()
        (folder / "even.py").write_text(BURN.format(pattern=(0.07, 0.07)))
        (folder / "bursts.py").write_text(BURN.format(pattern=(0.0, 0.14)))
        os.environ["IOBENCH_PLUGINS"] = plugins
        document = {
            "name": "uneven",
            "case": {"trainer": "null", "batch": 8, "workers": 0, "samples": 456},
            "matrix": {"pipeline": ["even:jpeg", "bursts:jpeg"]},
            "ladder": {"stages": ["load"], "caches": ["warm"], "repeats": 1, "probe": False,
                       "digest": False},
            "contrasts": [{"over": "pipeline", "base": "even:jpeg", "caches": ["warm"],
                           "pairs": pairs, "probes": 0, "loop_s": 3.0}],  # one epoch
        }  # fmt: skip
        analysis, _ = suites.run(document, found, quiet=True)
        del os.environ["IOBENCH_PLUGINS"]
    entry = analysis["contrasts"][0]
    return {"ratio": entry["ratio"], "interval": entry["interval"], "verdict": entry["verdict"]}


def case_of(found: Dataset, pipeline: str) -> Case:
    loader, form = ("dali", "jpeg") if pipeline == "dali" else ("torch", pipeline)
    return Case(
        label=pipeline, loader=loader, format=form, trainer="null", location=found.root,
        batch=BATCH, workers=2,
    )  # fmt: skip


def arms_of(found: Dataset, case: Case, epochs: int) -> list[Attempt]:
    return [
        Attempt(
            Trial(str(i), case, "load", "warm", epochs=epochs, slice_s=1.0), found,
            TrialSettings(limit_s=3600.0),
        )
        for i in range(3)
    ]  # fmt: skip


def spell_of(slice_s: float) -> tuple[int, int]:
    """Return how many slices are as long as an uninterrupted spell, and the spells of a round."""
    slices = max(SPELL_SLICES, round(SPELL_S / slice_s))
    return slices, max(1, round(ROUND_S / (slices * slice_s)))


def rounds(arms: Sequence[Arm], slice_s: float, count: int, draw: random.Random) -> int:
    """Let the first arm run in spells and the other two in slices; return the whole rounds."""
    whole, *sliced = arms
    slices, spells = spell_of(slice_s)
    for done in range(count):
        for part in (part for _ in range(spells) for part in draw.sample([[whole], sliced], 2)):
            if part == [whole]:
                whole.turn(slices * slice_s)
                continue
            for arm in draw.sample(sliced, 2) * slices:
                arm.turn(slice_s)
        if any(arm.done for arm in arms):
            return done
    return count


def start_of(ratio: float, slice_s: float) -> float:
    """Return the seconds that a start costs; ``ratio``: time in slices over time in spells.

    A start costs c seconds wherever it is: ratio = (1 + c / slice) / (1 + c / spell).
    """
    slices, _ = spell_of(slice_s)
    return slice_s * (ratio - 1) / (1 - ratio / slices)


def rates(arm: Arm, count: int, turns: int) -> list[float]:
    """Return the arm's steps a second of running time in each round of so many turns.

    Between the ends of two steps the loop is so far into the next one.
    """
    slices = Slices(arm.thawed, arm.stop_s, arm.thaw_s)
    (running,) = ranks.running(arm.attempt.ranks, slices)
    lengths = [end - begun for begun, end in arm.thawed]
    ends = np.cumsum([sum(lengths[k * turns : (k + 1) * turns]) for k in range(count)])
    steps = np.interp([0.0, *ends], running.steps.done_s, np.arange(len(running.steps.done_s)))
    return [float(n) for n in np.diff(steps) / np.diff([0.0, *ends])]


def sliced_over_whole(found: Dataset, pipeline: str, slice_s: float, count: int) -> dict[str, Any]:
    """Return the ratio of times, sliced / uninterrupted, with its 95 % interval over rounds.

    The rounds end with the first loop that does.
    """
    case = dataclasses.replace(case_of(found, pipeline), batch=SMALL_BATCH)
    slices, spells = spell_of(slice_s)
    epochs = epochs_of(case, found, SPARE * (1 + count) * spells * slices * slice_s)
    with contextlib.ExitStack() as stack:
        arms = opened(arms_of(found, case, epochs), LOCAL, stack)
        count = rounds(arms, slice_s, 1 + count, random.Random(f"{pipeline}-{slice_s}"))
        if count < FEWEST:
            raise SystemExit(f"{pipeline}: the loops ended after {count} rounds")
        for arm in arms:
            if not arm.done:
                arm.turn(math.inf)
        end(arms)
    turns = (spells, *[spells * slices] * 2)
    whole, *sliced = (rates(a, count, n)[1:] for a, n in zip(arms, turns, strict=True))
    logs = [math.log(2 * w / (a + b)) for w, a, b in zip(whole, *sliced, strict=True)]
    start = [start_of(x, slice_s) for x in shown(logs)]
    ratio, low, high = (1 + c / slice_s for c in start)
    return {"pipeline": pipeline, "slice_s": slice_s, "ratio": ratio, "low": low, "high": high,
            "start_s": start, "rounds": len(logs), "sd": statistics.stdev(logs)}  # fmt: skip


def equal_pair(
    found: Dataset,
    trial: Trial,
    *,
    apart: bool,
    settings: TrialSettings,
    undo: contextlib.ExitStack,
    draw: random.Random,
) -> tuple[float, float]:
    """Return the seconds a sample of two equal arms of ``trial``, ``apart``: on a copy each."""
    numbers = draw.sample((1, 2), 2) if apart else (0, 0)
    where = draw.getrandbits(32)  # which turn comes first follows from a trial's name
    trials = [
        dataclasses.replace(
            trial, id=f"{where}-{arm}", contrast="c01", arm=arm, block=1, position=i, copy=copy
        )
        for i, (arm, copy) in enumerate(zip("ab", numbers, strict=True))
    ]
    copies.make(trials, found, settings, undo)
    while True:
        records = (
            run_block(trials, found, [1, 1], settings)
            if trial.slice_s
            else [run_trial(each, found, 1, settings) for each in trials]
        )
        if all(record.status == VALID for record in records):
            return Pair(1, 0, *records).seconds_per_sample
        print(*(reason for r in records for reason in r.reasons), file=sys.stderr)


def own_data(found: Dataset, pipeline: str, pairs: int) -> list[tuple[float, float, float]]:
    """Return of each pair of pairs: log ratio of equal arms on the same files, on a copy each, and
    the log of what copies take over what the same files take.
    """
    case, draw, rows = case_of(found, pipeline), random.Random(pipeline), []
    trial = Trial("t", case, "load", "warm", epochs=epochs_of(case, found, LOOP_S), slice_s=TURN_S)
    settings = TrialSettings(limit_s=3600.0)
    with contextlib.ExitStack() as undo:
        for _ in range(pairs):
            seen = {
                apart: equal_pair(
                    found, trial, apart=apart, settings=settings, undo=undo, draw=draw
                )
                for apart in draw.sample((False, True), 2)
            }
            (a, b), (c, d) = seen[False], seen[True]
            rows.append((math.log(a / b), math.log(c / d), math.log((c + d) / (a + b))))
    return rows


def shown(logs: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of so many log ratios with its 95 % interval."""
    found = stats.t_interval(logs)
    return math.exp(found.value), math.exp(found.low), math.exp(found.high)


def agrees(rows: Sequence[tuple[float, float, float]]) -> bool:
    """Tell whether arms on copies give the ratio that arms on the same files do."""
    _, low, high = shown([apart - same for same, apart, _ in rows])
    return 1 - AGREE <= low <= 1 <= high <= 1 + AGREE


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12, help="of the uneven arms; 0: leave it out")
    parser.add_argument("--data-pairs", type=int, default=12, help="of arms on copies; 0: none")
    parser.add_argument("--pipelines", nargs="*", default=list(PIPELINES))
    parser.add_argument("--slices", nargs="+", type=float, default=list(SLICES_S), help="seconds")
    parser.add_argument("--rounds", type=int, default=150, help="of two seconds an arm")
    args = parser.parse_args()
    forms = [p for p in args.pipelines if p in ("lmdb", "hdf5")]
    found = suites.dataset(args.data, "imagenet-like", 1280, forms)
    rows: list[tuple[float, float, float]] = []
    figures: dict[str, Any] = {"data": rows, "slices": []}
    met = True
    if args.pairs:
        figures["uneven"] = row = uneven(found, args.pairs)
        met = abs(row["ratio"] - 1) <= UNEVEN
        limits = "{low:.4f} to {high:.4f}".format(**row["interval"])
        print(f"uneven steps: ratio {row['ratio']:.4f} ({limits}), {row['verdict']}", flush=True)
    for pipeline in args.pipelines if args.data_pairs else ():
        with mock.patch.dict(os.environ, environment_of(case_of(found, pipeline))):
            rows += (here := own_data(found, pipeline, args.data_pairs))
        suites.keep(args, figures)
        parts = zip(
            ("same files", "a copy each", "time of copies / same"),
            zip(*here, strict=True),
            strict=True,
        )
        words = ("{} {:.4f} ({:.4f} to {:.4f})".format(name, *shown(logs)) for name, logs in parts)
        print(f"{pipeline:6} {'; '.join(words)}", flush=True)
    if rows:
        met = met and agrees(rows)
        words_ = "{:.4f} ({:.4f} to {:.4f})".format(*shown([b - a for a, b, _ in rows]))
        print(f"ratio on copies over ratio on the same files: {words_}", flush=True)
    for pipeline in args.pipelines:
        shortest = None
        for slice_s in args.slices:
            row = sliced_over_whole(found, pipeline, slice_s, args.rounds)
            figures["slices"].append(row)
            suites.keep(args, figures)
            good = row["low"] >= 1 - BIAS and row["high"] <= 1 + BIAS
            shortest = shortest or (slice_s if good else None)
            starts = "{:.2f} ({:.2f} to {:.2f})".format(*(1e3 * c for c in row["start_s"]))
            print(
                f"{pipeline:6} {slice_s:5.2f} s  {row['ratio']:.4f} ({row['low']:.4f} to "
                f"{row['high']:.4f})  a start costs {starts} ms  sd {row['sd']:.1%}, "
                f"{row['rounds']} rounds",
                flush=True,
            )
        met = met and shortest is not None
    return suites.finish(args, figures, met)


if __name__ == "__main__":
    sys.exit(main())
