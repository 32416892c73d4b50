"""Does a cached share of the data give the fetch rate that the equation allows?

    make bench-cached-curve

F = 1 / (x/C + (1-x)/S) (Mohan et al., VLDB 14(5), 2021): x the share of the data's pages in memory,
C the rate from memory, S the rate from storage. That is one reader on a device that rests while the
reader takes samples from memory. The stage `read` on a throttled disk, cold, with shares of the
data cached, and warm; C and S are the two ends of the curve. Wanted: F within 5 %, and no more
bytes from storage than are not cached. Beside it stands min(C, S/(1-x)), what a device gives that
never rests: several readers keep it busy. Needs root.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence

from benchmarks import suites
from benchmarks.throttle import throttled
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import VALID, Record
from iobench.run.trial import TrialSettings, run_trial

SHARES = ("cold", "0.25", "0.5", "0.75", "0.9", "warm")
WITHIN, AMPLIFIED = 0.05, 1.02


@dataclasses.dataclass(frozen=True)
class Row:
    """One cached share; rates in samples/s; ``crossed``: bytes from storage / bytes not cached."""

    cached: float
    rate: float
    resting: float
    busy: float
    crossed: float
    note: str

    @property
    def reached(self) -> bool:
        """Whether rate and bytes are as wanted."""
        return abs(self.rate / self.resting - 1) <= WITHIN and self.crossed <= AMPLIFIED


def fetch_rate(cached: float, memory: float, storage: float) -> float:
    """Return F of the equation above, in the unit of the two rates."""
    return 1 / (cached / memory + (1 - cached) / storage)


def busy_rate(cached: float, memory: float, storage: float) -> float:
    """Return what a device gives that is never left waiting."""
    return min(memory, storage / (1 - cached)) if cached < 1 else memory


def measured(data: Dataset, settings: TrialSettings, options: argparse.Namespace) -> list[Record]:
    """Read at every share, as often as wanted, one share after the other."""
    case = Case(
        label="c", format=options.format, loader="torch", trainer="null", location=data.root,
        order="shuffled", batch=32, workers=options.workers,
    )  # fmt: skip
    trials = [
        Trial(f"{i}-{share}", case, "read", share)
        for i in range(options.repeats)
        for share in SHARES
    ]
    records = [run_trial(trial, data, 1, settings) for trial in trials]
    if failed := [r for r in records if r.status == "FAILED"]:
        raise SystemExit(f"{failed[0].trial.id}: {'; '.join(failed[0].reasons)}")
    return records


def rows(records: Sequence[Record]) -> list[Row]:
    """Judge the curve by its two ends."""
    found = []
    for share in SHARES:
        own = [r for r in records if r.trial.cache == share]
        steps = [r.ranks[0].steps for r in own]
        rate = statistics.median(sum(s.samples) / s.done_s[-1] for s in steps)
        cached = statistics.fmean(r.cache.resident_before or 0.0 for r in own)
        left = sum((1 - (r.cache.resident_before or 0)) * r.cache.bytes_needed for r in own)
        crossed = sum(r.cache.bytes_storage or 0 for r in own)
        odd = {reason for r in own if r.status != VALID for reason in r.reasons}
        amplified = crossed / left if share != "warm" else 0.0
        found.append(Row(cached, rate, rate, rate, amplified, "; ".join(sorted(odd))))
    storage, memory = found[0].rate, found[-1].rate
    return [
        dataclasses.replace(
            row,
            resting=fetch_rate(row.cached, memory, storage),
            busy=busy_rate(row.cached, memory, storage),
        )
        for row in found
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the curve; exit 1 where a share is not reached."""
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=20.0, help="MB/s (1e6) of the disk")
    parser.add_argument("--format", default="jpeg")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    with throttled((256 << 20) + options.samples * 260_000) as mount:
        data = suites.dataset(mount.path, "imagenet-like", options.samples, [options.format])
        mount.limit(read_bps=int(1e6 * options.rate))
        settings = TrialSettings(limit_s=600.0, enter=mount.prefix)
        found = rows(measured(data, settings, options))
    for row in found:
        print(
            f"{row.cached:6.1%} cached  {row.rate:10.1f} samples/s ({row.rate / row.resting:.3f} "
            f"of F, {row.rate / row.busy:.3f} of S/(1-x))  {row.crossed:.3f} of the rest crossed  "
            f"{'' if row.reached else 'MISSED '}{row.note}"
        )
    figures = [{**vars(row), "reached": row.reached} for row in found]
    return suites.finish(options, figures, all(row.reached for row in found))


if __name__ == "__main__":
    sys.exit(main())
