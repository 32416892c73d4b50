"""Does the `read` stage reach what fio reaches? Cold, same order, sizes and hints, real workers.

    make bench-versus-fio                                    # throttled: 50, 100 and 200 MB/s
    make bench-versus-fio ARGS='--unthrottled --data DIR'    # 16 GB in DIR, runs of 2 s and more

The rates are those of the whole loop, first batch included. Every figure is a median of
interleaved repeats, each a fresh process through the scheduler's own run_trial, with its cache
proof. `extra` is how many more bytes than fio the pipeline made the storage deliver. Where the
floor (0.95 throttled, 0.85 not) is missed, a warm run of the same pipeline tells whether the
reader's own cost binds. Throttled runs need root.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import suites
from benchmarks.throttle import ThrottledMount, throttled
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import VALID, Record
from iobench.run.trial import TrialSettings, run_trial

FORMATS = ("jpeg", "lmdb", "hdf5", "tar")
#: Reading on past a sample brings others in early; once all are in, a shuffled epoch ends at the
#: speed of the library in memory, which is HDF5's own cost and no longer the storage's.
FORMAT_OPTIONS = {"hdf5": {"readahead": False}}
RATES_MB_S = (50, 100, 200)
THROTTLED_FLOOR, UNTHROTTLED_FLOOR = 0.95, 0.85
#: fio's runs must last this long to count (its clock and start-up bursts).
ENOUGH_S = 2.0


@dataclasses.dataclass(frozen=True)
class Row:
    """One format at one speed; rates are bytes of samples in MB (1e6) a second."""

    format: str
    limit_mb_s: float | None
    fio_mb_s: float
    read_mb_s: float
    ratio: float
    extra: float
    floor: float
    fio_s: float
    repeats: int
    note: str

    @property
    def reached(self) -> bool:
        return self.ratio >= self.floor


class Bench:
    """A dataset, the case's settings, and how to enter the slow group."""

    def __init__(self, data: Dataset, options: argparse.Namespace, enter: Sequence[str]) -> None:
        self._data, self._options = data, options
        self._settings = TrialSettings(limit_s=600.0, enter=tuple(enter))
        self._count = 0

    def compare(self, format_name: str, limit: float | None, floor: float) -> Row:
        """Interleave fio and read (fio first in every other pair); return the medians."""
        fio_s, read_s, lasted, extra, notes = [], [], [], [], set()
        for repeat in range(self._options.repeats):
            stages = ("ceiling", "read") if repeat % 2 == 0 else ("read", "ceiling")
            records = {stage: self._run(format_name, stage, "cold") for stage in stages}
            notes |= {reason for r in records.values() if r.status != VALID for reason in r.reasons}
            fio_s.append(1 / records["ceiling"].ceiling["samples_per_s"])
            lasted.append(records["ceiling"].ceiling["runtime_s"])
            read_s.append(_seconds(records["read"]))
            crossed = records["read"].cache.bytes_storage or 0
            extra.append(crossed / (records["ceiling"].ceiling["storage_bytes"] or 1) - 1)
        mean = self._data.bytes / self._data.samples / 1e6
        fio_rate, read_rate = mean / statistics.median(fio_s), mean / statistics.median(read_s)
        if statistics.median(lasted) < ENOUGH_S:
            notes.add(f"fio ran {statistics.median(lasted):.2f} s: too short to count")
        if read_rate < floor * fio_rate:
            notes.add(self._binds(format_name, read_rate, mean))
        return Row(
            format=format_name,
            limit_mb_s=limit,
            fio_mb_s=fio_rate,
            read_mb_s=read_rate,
            ratio=read_rate / fio_rate,
            extra=statistics.median(extra),
            floor=floor,
            fio_s=statistics.median(lasted),
            repeats=self._options.repeats,
            note="; ".join(sorted(notes)),
        )

    def _run(self, format_name: str, stage: str, cache: str) -> Record:
        options = self._options
        case = Case(
            label=f"{options.loader}:{format_name}",
            format=format_name,
            loader=options.loader,
            trainer="null",
            format_options=FORMAT_OPTIONS.get(format_name, {}),
            location=self._data.root,
            order=options.order,
            batch=options.batch,
            workers=options.workers,
        )
        self._count += 1
        trial = Trial(f"{format_name}-{stage}-{self._count}", case, stage, cache)
        record = run_trial(trial, self._data, 1, self._settings)
        if record.status == "FAILED" or (stage == "ceiling" and not record.ceiling):
            raise SystemExit(f"{trial.id}: {'; '.join(record.reasons)}")
        return record

    def _binds(self, format_name: str, read_rate: float, mean: float) -> str:
        """Say what most of the cold time is: the reader's own cost (its warm time), or waiting."""
        record = self._run(format_name, "read", "warm")
        warm = mean / _seconds(record)
        io = record.ranks[0].io
        cores = io.cpu_s / io.wall_s
        own = read_rate / warm  # of the cold time
        what = "the reader's own cost binds" if own > 0.5 else "waiting for storage binds"
        first = record.ranks[0].startup.first_batch_s
        speed = f"warm {warm:.0f} MB/s on {cores:.1f} cores, first batch {first:.2f} s"
        return f"{what}, own cost {own:.0%} of the time: {speed}"


def _seconds(record: Record) -> float:
    """Seconds a sample over the whole loop, from an empty queue to the last batch.

    Not the window after the warm-up: what read-ahead fetched while that lasted (of a small shard,
    everything) crossed the mount in the trial, and fio's time holds all of its bytes too.
    """
    steps = record.ranks[0].steps
    return steps.done_s[-1] / sum(steps.samples)


def _make(root: Path, options: argparse.Namespace) -> Dataset:
    """Make the samples and every format wanted; the JPEGs are the source of the others."""
    return suites.dataset(root, options.recipe, options.samples, options.formats)


@contextlib.contextmanager
def _slow(options: argparse.Namespace) -> Iterator[tuple[ThrottledMount, Dataset]]:
    """A throttled mount with the dataset on it; made while it is still fast."""
    per_format = options.samples * 130_000
    with throttled((512 << 20) + per_format * (1 + len(options.formats))) as mount:
        yield mount, _make(mount.path, options)


def _throttled(options: argparse.Namespace) -> Iterator[Row]:
    with _slow(options) as (mount, data):
        for rate in options.rates:
            mount.limit(read_bps=int(rate * 1e6))
            for name in options.formats:
                yield Bench(data, options, mount.prefix).compare(name, rate, THROTTLED_FLOOR)


def _unthrottled(options: argparse.Namespace) -> Iterator[Row]:
    data = _make(options.data, options)
    for name in options.formats:
        yield Bench(data, options, ()).compare(name, None, UNTHROTTLED_FLOOR)


def _table(rows: Sequence[Row]) -> str:
    widths = {"limit": 8, "fio MB/s": 10, "read MB/s": 11, "ratio": 7, "extra": 7, "floor": 7}
    head = f"{'format':8}" + "".join(f"{name:>{n}}" for name, n in widths.items()) + "  note"
    lines = [head]
    for row in rows:
        limit = f"{row.limit_mb_s:.0f}" if row.limit_mb_s else "none"
        mark = "" if row.reached else "BELOW "
        lines.append(
            f"{row.format:8}{limit:>8}{row.fio_mb_s:>10.1f}{row.read_mb_s:>11.1f}"
            f"{row.ratio:>7.3f}{row.extra:>7.1%}{row.floor:>7.2f}  {mark}{row.note}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; exit 1 when a floor is missed."""
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--unthrottled", action="store_true", help="measure the mount of --data")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES_MB_S, help="MB/s (1e6)")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--loader", default="torch")
    parser.add_argument("--order", default="shuffled")
    parser.add_argument("--recipe", default="imagenet-like")
    parser.add_argument("--samples", type=int, help="[6144 throttled, 28672 not]")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, help="[3 throttled, 5 not]")
    options = parser.parse_args(argv)
    free = options.unthrottled
    options.samples = options.samples or (28672 if free else 6144)
    options.repeats = options.repeats or (5 if free else 3)
    rows: list[Row] = []
    for row in (_unthrottled if free else _throttled)(options):
        rows.append(row)
        print(_table([row]).splitlines()[1], file=sys.stderr, flush=True)
    print(_table(rows))
    figures = [{**vars(r), "reached": r.reached} for r in rows]
    return suites.finish(options, figures, all(row.reached for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
