"""Is the ceiling what the device gives, is cold `read` at the ceiling, is the right limit named?

    make bench-ceilings                              # 20, 50 and 100 MB/s, and 300 requests/s
    make bench-ceilings ARGS='--below gluster'       # the same below the bricks of a cluster
    make bench-ceilings ARGS='--below gluster --only stall'      # the fetch stalls alone

A device of known speed: a loop device, throttled by a control group, that holds the data itself or
the bricks of a GlusterFS volume (tests/build/gluster.py; its servers' page cache is emptied with
the client's). Figures are medians of repeats. Wanted: the ceiling within 3 % of the throttle, cold
`read` within 5 % of the ceiling, and the mount's limit named as what was throttled. Needs root.

The fetch stall is T(cold) - T(warm) of `train`, on files of the recipe `records`: they are read
whole and hardly decoded, so that a cold epoch waits for the device all the time (readers of one
large file read ahead of others, and the last samples cost no bytes). Of 1 MB each: opening a file
below a cluster takes a millisecond, which is as long as 0.1 MB at 100 MB/s. Its arithmetic:
(bytes on the disk / rate - burst) / samples - T(warm), where each page of the files is read once,
and the burst is what an idle blk-throttle lets through at once, 0.1 s worth of bytes (throtl_slice
in the kernel's block/blk-throttle.c). Wanted: the measured stall within 5 % of it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import suites
from benchmarks.throttle import throttled
from iobench.analysis.evidence import evidence
from iobench.analysis.storage import storage_of
from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.dataset import files_of
from iobench.core.records import VALID, Record
from iobench.data import make
from iobench.run.trial import TrialSettings, run_trial
from tests.build.gluster import gluster
from tests.build.servers import Evicting

RATES_MB_S, IOPS = (20, 50, 100), (300,)
CEILING_WITHIN, READ_WITHIN, STALL_WITHIN = 0.03, 0.05, 0.05
SLICE_S = 0.1
#: Of a file, where the fetch stall is measured.
RECORD_BYTES = 1_000_000
PAGE = 4096
Limit = Callable[[dict[str, int]], contextlib.AbstractContextManager[object]]


@dataclasses.dataclass(frozen=True)
class Row:
    """One throttle; rates in MB/s (1e6), or in samples/s where requests are throttled."""

    below: str
    throttle: str
    ceiling: float
    of_throttle: float
    read: float
    of_ceiling: float
    named: str
    right: bool
    note: str

    @property
    def reached(self) -> bool:
        """Whether all three are as wanted; a sample may be more than one of a device's requests."""
        near = abs(self.of_throttle - 1) <= CEILING_WITHIN or self.named == "IOPS"
        return near and self.of_ceiling >= 1 - READ_WITHIN and self.right


def measured(data: Dataset, settings: TrialSettings, options: argparse.Namespace) -> list[Record]:
    """Run the rungs, ceiling and read in turns."""
    case = Case(
        label="c", format=options.format, loader="torch", trainer="null", location=data.root,
        order="shuffled", batch=32, workers=options.workers,
    )  # fmt: skip
    stages = ["requests", *(["ceiling", "read"] * options.repeats)]
    trials = [Trial(f"{i:02d}-{s}", case, s, "cold", block=i) for i, s in enumerate(stages)]
    records = []
    for trial in trials:
        records.append(run_trial(trial, data, 1, settings))
        if records[-1].status == "FAILED":
            raise SystemExit(f"{trial.id}: {'; '.join(records[-1].reasons)}")
    return records


def row(below: str, limits: dict[str, int], data: Dataset, records: Sequence[Record]) -> Row:
    """Judge one throttle."""
    (kind, limit), case = next(iter(limits.items())), records[0].trial.case
    fio = [r.ceiling for r in records if r.trial.stage == "ceiling"]
    loops = [r.ranks[0].steps for r in records if r.trial.stage == "read"]
    by_bytes = kind == "read_bps"
    ceiling = statistics.median(f["bytes_per_s" if by_bytes else "iops"] for f in fio)
    read = statistics.median(sum(s.bytes if by_bytes else s.samples) / s.done_s[-1] for s in loops)
    plan = Plan("c", "", 1, 1.0, data, (case,), tuple(r.trial for r in records))
    found = storage_of(evidence(plan, records), case)
    named = (found and found.binding) or "nothing"
    odd = {reason for r in records if r.status != VALID for reason in r.reasons}
    unit = 1e6 if by_bytes else 1
    return Row(
        below=below,
        throttle=f"{limit / unit:g} {'MB/s' if by_bytes else '/s'}",
        ceiling=ceiling / unit,
        of_throttle=ceiling / limit,
        read=read / unit,
        of_ceiling=read / ceiling,
        named=named,
        right=named == ("bandwidth" if by_bytes else "IOPS"),
        note="; ".join(sorted(odd)),
    )


@dataclasses.dataclass(frozen=True)
class StallRow:
    """The fetch stall below one throttle, seconds a sample; ``low``, ``high``: its interval."""

    below: str
    throttle: str
    stall: float
    low: float
    high: float
    arithmetic: float
    warm: float
    crossed: float  # of the bytes that the arithmetic has
    note: str

    @property
    def of_arithmetic(self) -> float:
        """The measured stall as a share of the arithmetic one."""
        return self.stall / self.arithmetic

    @property
    def reached(self) -> bool:
        """Whether there is a stall, and it is as large as wanted."""
        return self.arithmetic > 0 and abs(self.of_arithmetic - 1) <= STALL_WITHIN


def stall_arithmetic(nbytes: int, rate: float, samples: int, warm: float) -> float:
    """Return the fetch stall in seconds a sample, from the bytes on the device and its rate."""
    return (nbytes / rate - SLICE_S) / samples - warm


def stall_document(options: argparse.Namespace) -> dict[str, object]:
    """Return the spec of one throttle: train cold and warm, in blocks."""
    return {
        "name": "throttled-stall",
        "budget": "60m",
        "compute_s": 0.5,
        "case": {
            "trainer": "emulated", "trainer_options": {"step_s": options.step_s},
            "order": "shuffled", "batch": options.batch, "workers": options.workers,
        },
        "matrix": {"pipeline": ["torch:jpeg"]},
        "ladder": {
            "stages": ["compute", "train"], "repeats": options.blocks, "digest": False,
            "probe": False,
        },
    }  # fmt: skip


def stall(
    rate: int, data: Dataset, settings: TrialSettings, options: argparse.Namespace
) -> StallRow:
    """Measure the fetch stall below one throttle, and compute it."""
    settings = dataclasses.replace(settings, compute_s=0.5)
    analysis, records = suites.run(stall_document(options), data, settings=settings, quiet=True)
    return stall_row(options.below, rate, data, analysis["pipelines"][0], records)


def stall_row(
    below: str, rate: int, data: Dataset, entry: Mapping[str, Any], records: Sequence[Record]
) -> StallRow:
    """Judge one throttle by what the product says of the case and by arithmetic."""
    cold, epochs = (
        [r for r in records if (r.trial.stage, r.trial.cache) == ("train", cache)]
        for cache in ("cold", "warm")
    )
    sizes = [path.stat().st_size for path in files_of(cold[0].trial.case, data)]
    nbytes = sum(-(-size // PAGE) * PAGE for size in sizes)
    samples = sum(cold[0].ranks[0].steps.samples)
    warm = statistics.fmean(r.ranks[0].steps.done_s[-1] / samples for r in epochs)
    crossed = statistics.fmean(r.cache.bytes_storage or 0 for r in cold)
    found = entry["fetch_stall_s"]
    return StallRow(
        below=below,
        throttle=f"{rate / 1e6:g} MB/s",
        stall=found["value"],
        low=found["low"],
        high=found["high"],
        arithmetic=stall_arithmetic(nbytes, rate, samples, warm),
        warm=warm,
        crossed=crossed / nbytes,
        note="; ".join(sorted({x for r in records if r.status != VALID for x in r.reasons})),
    )


@contextlib.contextmanager
def disk(options: argparse.Namespace) -> Iterator[tuple[Path, TrialSettings, Limit]]:
    """Yield a disk of known speed, how trials run on it, and what limits it."""
    with throttled((256 << 20) + options.samples * 520_000) as mount:

        @contextlib.contextmanager
        def limit(limits: dict[str, int]) -> Iterator[None]:
            mount.limit(**limits)
            yield

        yield mount.path, TrialSettings(limit_s=600.0, enter=mount.prefix), limit


@contextlib.contextmanager
def cluster(options: argparse.Namespace) -> Iterator[tuple[Path, TrialSettings, Limit]]:
    """Yield a volume whose bricks are on a disk of known speed, and the same."""
    with gluster() as volume:
        volume.set("performance.quick-read", "off")

        def limit(limits: dict[str, int]) -> contextlib.AbstractContextManager[None]:
            return volume.throttled(**{f"{kind}_device": value for kind, value in limits.items()})

        yield volume.mount, TrialSettings(limit_s=600.0, agent=Evicting(volume)), limit


BELOW = {"disk": disk, "gluster": cluster}
PARTS = ("rates", "stall")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every throttle; exit 1 where one is not reached."""
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--below", choices=BELOW, default="disk", help="what the device holds")
    parser.add_argument("--rates", type=float, nargs="*", default=RATES_MB_S, help="MB/s (1e6)")
    parser.add_argument("--iops", type=int, nargs="*", default=IOPS, help="requests/s")
    parser.add_argument("--format", default="jpeg")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=PARTS, nargs="*", default=PARTS, help="parts to measure")
    parser.add_argument("--step-s", type=float, default=0.004, help="the trainer's, for stalls")
    parser.add_argument("--batch", type=int, default=4, help="of the trainer")
    parser.add_argument("--blocks", type=int, default=4, help="cold and warm, for a stall")
    options = parser.parse_args(argv)
    limits = [{"read_bps": int(1e6 * rate)} for rate in options.rates]
    rows: list[Row | StallRow] = []

    def add(found: Row | StallRow) -> None:
        rows.append(found)
        print(_line(found), file=sys.stderr, flush=True)

    with BELOW[options.below](options) as (root, settings, limit):
        if "rates" in options.only:
            data = suites.dataset(root, "imagenet-like", options.samples, [options.format])
            for each in limits + [{"read_iops": n} for n in options.iops]:
                with limit(each):
                    add(row(options.below, each, data, measured(data, settings, options)))
        if "stall" in options.only:
            sizes = (RECORD_BYTES, 1)
            count = options.samples // 8
            data = make.make("records", root / "records", samples=count, sizes=sizes)
            for each in limits:
                with limit(each):
                    add(stall(each["read_bps"], data, settings, options))
    print("\n".join(map(_line, rows)))
    figures = [{**vars(r), "reached": r.reached} for r in rows]
    return suites.finish(options, figures, all(r.reached for r in rows))


def _line(r: Row | StallRow) -> str:
    mark = "" if r.reached else "MISSED "
    if isinstance(r, StallRow):
        return (
            f"{r.below:8}{r.throttle:>10}  fetch stall {1e3 * r.stall:.3f} "
            f"[{1e3 * r.low:.3f}, {1e3 * r.high:.3f}] ms, arithmetic {1e3 * r.arithmetic:.3f} ms "
            f"({r.of_arithmetic:.3f} of it)  warm {1e3 * r.warm:.3f} ms  "
            f"{r.crossed:.3f} of the bytes crossed  "
            f"{mark}{r.note}"
        )
    return (
        f"{r.below:8}{r.throttle:>10}  ceiling {r.ceiling:8.2f} ({r.of_throttle:.3f} of it)  "
        f"read {r.read:8.2f} ({r.of_ceiling:.3f} of the ceiling)  {r.named:10} {mark}{r.note}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
