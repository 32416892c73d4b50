"""Does a cached share of the data give the fetch rate that the equation allows?

    make bench-cached-curve                                   # both devices
    make bench-cached-curve ARGS='--device throttled'

The stage `read` with shares of the data cached; C, the rate from memory, and S, that from storage,
are the two ends of the curve; x is the share of the data's pages in memory.

disk: one reader of a disk that works on one request at a time and rests while the reader takes
samples from memory (a FUSE filesystem of our own). Its rate is F = 1 / (x/C + (1-x)/S) (Mohan et
al., VLDB 14(5), 2021).
throttled: two readers of a device throttled by a control group. The kernel's throttle lets through
later what it saved while nothing was asked for, up to 0.1 s of it, as a device does that its
readers keep busy. Its rate is min(C, S/(1-x)).

Wanted: within 5 %, and no more bytes from storage than are not cached. Needs root, and fuse3.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import suites
from benchmarks.delayed_mount import delayed
from benchmarks.throttle import throttled
from iobench.backends.filesystems import _fuse, _network
from iobench.core import dataset as datasets
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.protocols import Crossed
from iobench.core.records import VALID, IoCounters, Record
from iobench.host.agent import Agent
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
    law: str
    crossed: float
    note: str

    @property
    def reached(self) -> bool:
        """Whether rate and bytes are as wanted."""
        wanted = self.resting if self.law == "resting" else self.busy
        return abs(self.rate / wanted - 1) <= WITHIN and self.crossed <= AMPLIFIED


def fetch_rate(cached: float, memory: float, storage: float) -> float:
    """Return F of the equation above, in the unit of the two rates."""
    return 1 / (cached / memory + (1 - cached) / storage)


def busy_rate(cached: float, memory: float, storage: float) -> float:
    """Return what a device gives that is never left waiting."""
    return min(memory, storage / (1 - cached)) if cached < 1 else memory


class OwnDaemon(Agent):
    """Counts what our own daemon read, which keeps nothing; nobody else uses its mount."""

    def crossed(self, path: Path, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what the daemon read of the files behind its mount."""
        return _network.counted(moved, _fuse.READ, "rchar of the daemon", "no daemon is seen")

    def others(self, path: Path) -> float:
        """Return 0 bytes/s."""
        return 0.0


Device = contextlib.AbstractContextManager[tuple[Dataset, TrialSettings]]


@contextlib.contextmanager
def disk(options: argparse.Namespace) -> Iterator[tuple[Dataset, TrialSettings]]:
    """Show the data on a disk that serves one request at a time."""
    made = suites.dataset(options.data, "imagenet-like", options.samples, [options.format])
    with (
        tempfile.TemporaryDirectory(prefix="iobench-curve-") as mount,
        delayed(Path(made.root), Path(mount), 0.0, 1e6 * options.rate),
    ):
        yield datasets.locate(Path(mount)), TrialSettings(limit_s=600.0, agent=OwnDaemon())


@contextlib.contextmanager
def group(options: argparse.Namespace) -> Iterator[tuple[Dataset, TrialSettings]]:
    """Put the data on a device that a control group throttles."""
    with throttled((256 << 20) + options.samples * 260_000) as mount:
        data = suites.dataset(mount.path, "imagenet-like", options.samples, [options.format])
        mount.limit(read_bps=int(1e6 * options.rate))
        yield data, TrialSettings(limit_s=600.0, enter=mount.prefix)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A device, the law of its rate, how many read from it, and of how many samples.

    The throttle's first burst, 0.1 s, has to be little beside the shortest of the runs.
    """

    device: Callable[[argparse.Namespace], Device]
    law: str
    workers: int
    samples: int


KINDS = {"disk": Kind(disk, "resting", 1, 1024), "throttled": Kind(group, "busy", 2, 4096)}


def measured(
    data: Dataset, settings: TrialSettings, workers: int, options: argparse.Namespace
) -> list[Record]:
    """Read at every share, as often as wanted, one share after the other."""
    case = Case(
        label="c", format=options.format, loader="torch", trainer="null", location=data.root,
        order="shuffled", batch=32, workers=workers,
    )  # fmt: skip
    trials = [
        Trial(f"{i}-{share}", case, "read", share)
        for i in range(options.repeats)
        for share in SHARES
    ]
    records = [run_trial(trial, data, 1, settings) for trial in trials]
    if failed := [r for r in records if not r.ranks]:
        raise SystemExit(f"{failed[0].trial.id}: {'; '.join(failed[0].reasons)}")
    return records


def rows(records: Sequence[Record], law: str) -> list[Row]:
    """Judge the curve by its two ends and a law: ``resting`` or ``busy``."""
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
        found.append(Row(cached, rate, rate, rate, law, amplified, "; ".join(sorted(odd))))
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
    parser.add_argument("--samples", type=int, help="of every device (1024; throttled: 4096)")
    parser.add_argument("--device", choices=KINDS, nargs="*", default=list(KINDS))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    figures, passed = [], True
    for name in options.device:
        kind = KINDS[name]
        chosen = argparse.Namespace(**{**vars(options), "samples": options.samples or kind.samples})
        with kind.device(chosen) as (data, settings):
            found = rows(measured(data, settings, kind.workers, chosen), kind.law)
        print(f"{name}, {options.rate:g} MB/s, readers: {kind.workers}")
        for row in found:
            print(
                f"{row.cached:6.1%} cached  {row.rate:10.1f} samples/s "
                f"({row.rate / row.resting:.3f} of F, {row.rate / row.busy:.3f} of S/(1-x))  "
                f"{row.crossed:.3f} of the rest crossed  "
                f"{'' if row.reached else 'MISSED '}{row.note}",
                flush=True,
            )
        figures += [{"device": name, **vars(row), "reached": row.reached} for row in found]
        passed = passed and all(row.reached for row in found)
    return suites.finish(options, figures, passed)


if __name__ == "__main__":
    sys.exit(main())
