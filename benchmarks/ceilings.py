"""Is the ceiling what the device gives, is cold `read` at the ceiling, is the right limit named?

    make bench-ceilings                              # 20, 50 and 100 MB/s, and 300 requests/s
    make bench-ceilings ARGS='--below gluster'       # the same below the bricks of a cluster

A device of known speed: a loop device, throttled by a control group, that holds the data itself or
the bricks of a GlusterFS volume (tests/build/gluster.py; its servers' page cache is emptied with
the client's). Figures are medians of repeats. Wanted: the ceiling within 3 % of the throttle, cold
`read` within 5 % of the ceiling, and the mount's limit named as what was throttled. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

from benchmarks import suites
from benchmarks.throttle import throttled
from iobench.analysis.evidence import evidence
from iobench.analysis.storage import storage_of
from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.records import VALID, Record
from iobench.run.trial import TrialSettings, run_trial
from tests.build.gluster import gluster
from tests.build.servers import Evicting

RATES_MB_S, IOPS = (20, 50, 100), (300,)
CEILING_WITHIN, READ_WITHIN = 0.03, 0.05
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


@contextlib.contextmanager
def disk(options: argparse.Namespace) -> Iterator[tuple[Dataset, TrialSettings, Limit]]:
    """Put the data on a disk of known speed."""
    with throttled((256 << 20) + options.samples * 260_000) as mount:

        @contextlib.contextmanager
        def limit(limits: dict[str, int]) -> Iterator[None]:
            mount.limit(**limits)
            yield

        data = suites.dataset(mount.path, "imagenet-like", options.samples, [options.format])
        yield data, TrialSettings(limit_s=600.0, enter=mount.prefix), limit


@contextlib.contextmanager
def cluster(options: argparse.Namespace) -> Iterator[tuple[Dataset, TrialSettings, Limit]]:
    """Put the data on a volume whose bricks are on a disk of known speed."""
    with gluster() as volume:
        volume.set("performance.quick-read", "off")

        def limit(limits: dict[str, int]) -> contextlib.AbstractContextManager[None]:
            return volume.throttled(**{f"{kind}_device": value for kind, value in limits.items()})

        data = suites.dataset(volume.mount, "imagenet-like", options.samples, [options.format])
        yield data, TrialSettings(limit_s=600.0, agent=Evicting(volume)), limit


BELOW = {"disk": disk, "gluster": cluster}


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
    options = parser.parse_args(argv)
    limits = [{"read_bps": int(1e6 * rate)} for rate in options.rates]
    limits += [{"read_iops": n} for n in options.iops]
    rows = []
    with BELOW[options.below](options) as (data, settings, limit):
        for each in limits:
            with limit(each):
                rows.append(row(options.below, each, data, measured(data, settings, options)))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    print("\n".join(map(_line, rows)))
    figures = [{**vars(r), "reached": r.reached} for r in rows]
    return suites.finish(options, figures, all(r.reached for r in rows))


def _line(r: Row) -> str:
    mark = "" if r.reached else "MISSED "
    return (
        f"{r.below:8}{r.throttle:>10}  ceiling {r.ceiling:8.2f} ({r.of_throttle:.3f} of it)  "
        f"read {r.read:8.2f} ({r.of_ceiling:.3f} of the ceiling)  {r.named:10} {mark}{r.note}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
