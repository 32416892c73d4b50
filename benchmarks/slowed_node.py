"""Does a slowed network, or a slowed disk of one node, show as that, and by as much as it must?

    make bench-slowed-node                                     # all three, 20 repeats each
    make bench-slowed-node ARGS='--only disk --repeats 3'

Two hosts (namespaces with addresses of their own and sshd) with a rank each, started by mpirun; an
emulated step, a real exchange of gradients by gloo.  Only h2 is slowed:

bandwidth: its link lets through so many bytes a second each way (tc tbf).  In a ring of two ranks
each sends, and gets, as many bytes as there are gradients: (bytes + headers - burst) / rate, as far
as the backward pass does not hide it.  Headers are counted: what the link lets through while gloo
exchanges as many bytes by itself, acknowledgements too.
latency: a relay in place of its cable holds every frame for d.  Each of the two phases of gloo's
ring asks for a part and gets it: two round trips, 4 d and what the relay takes itself, which a
datagram there and back shows before and after each suite.
Arithmetic is the link's alone, without what ranks do themselves (sums, the mean, wake-ups).  The
truth of both is what the same exchange adds to the same steps of a loop without iobench over the
slow link, before and after each suite: the mean over all repeats, since the link is the same.
disk: its disk is throttled below the page cache.  The truth of the fetch stall is arithmetic:
(pages of its files / rate - slice) / samples - the job's from memory, as in known_truths; the other
rank waits for it what its own work leaves of that time, and the exchange takes no longer.

In every repeat the report must name it: no straggler where the network is slow; rank 1 on h2, to
read, where its disk is.  Target: intervals cover the truth in 17 of 20 repeats, half-widths at most
5 % of a step, means within 10 % of arithmetic.  Repeats that are in DATA/slowed-node/results are
not run again: remove that folder to begin anew.  Needs root, Open MPI, openssh-server, iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import suites
from benchmarks.known_truths import SLICE_S
from iobench.analysis.ranks import steady_mean
from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.core.records import Record, Steps
from iobench.equations import stats
from iobench.run import store
from tests.build import clusters, slowed
from tests.build.hosts import Hosts

NEEDED, LIMIT, WITHIN = 17, 0.05, 0.10
#: Beside a suite: what was measured of the link.
FACTS = "facts.json"
SAMPLES, BATCH, PAGE = 160, 8, 4096
#: Above this share of the truth, what is no part of it counts as wrongly attributed.
ELSEWHERE = 0.10
Analysis = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A measured interval beside what arithmetic says; ``step_s``: of the slowed job.

    ``outside``: what a loop without iobench took, the truth then; 0: arithmetic is.
    """

    name: str
    expected: float
    found: stats.Interval
    step_s: float
    outside: float = 0.0

    def row(self) -> dict[str, Any]:
        low, high = self.found.low, self.found.high
        return {
            "name": self.name,
            "expected": self.expected,
            "value": self.found.value,
            "low": low,
            "high": high,
            "truth": (truth := self.outside or self.expected),
            "covers": low <= truth <= high,
            "half_width": (high - low) / 2 / self.step_s,
        }


@dataclasses.dataclass(frozen=True)
class Slowed:
    """One thing slowed on h2; ``judge``: (what happened to it, analysis, records) -> figures, and
    what the report says wrongly.
    """

    name: str
    stage: str
    caches: Sequence[str]
    slow: Callable[[Hosts], contextlib.AbstractContextManager[Any]]
    judge: Callable[[Slowed, Analysis, Sequence[Record]], tuple[list[Figure], list[str]]]
    step_s: float
    exchange_bytes: int
    buckets: int = 1
    bytes_per_s: int = 0
    delay_s: float = 0.0
    outside_s: float = 0.0  #: what the exchange adds to the steps of a loop without iobench
    wire_bytes: float = 0.0  #: what the link let through for one exchange; 0: by the frames' size
    round_trip_s: float = 0.0  #: measured; 0: twice the delay

    def exposed_s(self) -> float:
        """Return what of an exchange the backward pass does not hide, by arithmetic."""
        if self.delay_s:
            return 2 * (self.round_trip_s or 2 * self.delay_s)
        first_s = self.step_s / 3 + self.step_s * 2 / 3 / self.buckets
        wire = self.wire_bytes or self.exchange_bytes * slowed.FRAME / slowed.PAYLOAD
        return first_s + (wire - slowed.BURST) / self.bytes_per_s - self.step_s


def network(
    truth: Slowed, analysis: Analysis, records: Sequence[Record]
) -> tuple[list[Figure], list[str]]:
    """Judge a slow network: it is communication, and nobody waits for anybody."""
    (case,) = analysis["pipelines"]
    comm, expected_s = case["comm"], truth.exposed_s()
    found = stats.Interval(**{f.name: comm[f.name] for f in dataclasses.fields(stats.Interval)})
    wrong = [f"a straggler: {s}" for s in analysis["stragglers"]]
    if comm["peers_s"] > ELSEWHERE * expected_s:
        wrong.append(f"{1e3 * comm['peers_s']:.1f} ms are a wait for peers")
    if abs(comm["waited_s"] / expected_s - 1) > WITHIN:
        wrong.append(f"the ranks count {1e3 * comm['waited_s']:.1f} ms of exchange")
    return [Figure("communication", expected_s, found, comm["step_s"], truth.outside_s)], wrong


def storage(
    truth: Slowed, analysis: Analysis, records: Sequence[Record]
) -> tuple[list[Figure], list[str]]:
    """Judge a slow disk: its rank's fetch stall, the other's wait, and no communication."""
    (case,) = analysis["pipelines"]
    cold, warm = ([r for r in records if r.trial.cache == c] for c in ("cold", "warm"))
    rates = {c: case["stages"]["train"][c]["seconds_per_sample"]["value"] for c in ("cold", "warm")}
    late = cold[0].ranks[1].steps
    count = sum(late.samples)
    pages = sum(late.bytes) + count * PAGE / 2  # half of each file's last page is no data
    samples = count + sum(cold[0].ranks[0].steps.samples)
    cold_s = pages / truth.bytes_per_s - SLICE_S
    stall_s = cold_s / samples - rates["warm"]
    stall = case["fetch_stall_s"]
    found = stats.Interval(**{f.name: stall[f.name] for f in dataclasses.fields(stats.Interval)})
    each = 2 * BATCH  # samples of a step
    waits = stats.t_interval([statistics.fmean(r.ranks[0].steps.peers_s) for r in cold])
    wait_s = statistics.fmean(idle_s(truth, r.ranks[0].steps, cold_s) for r in cold)
    figures = [
        Figure("fetch stall, a sample", stall_s, found, rates["cold"]),
        Figure("the other's wait, a step", wait_s, waits, each * rates["cold"]),
    ]
    more = {
        f"of rank {r} is exchange": mean_of(cold, r, "exchange_s") - mean_of(warm, r, "exchange_s")
        for r in (0, 1)
    }
    more["is a wait of the slow rank"] = mean_of(cold, 1, "peers_s")
    limit_s = ELSEWHERE * each * stall_s
    wrong = [f"{1e3 * s:.1f} ms a step {what}" for what, s in more.items() if s > limit_s]
    named = [(s["rank"], s["node"], s["cause"], s["cache"]) for s in analysis["stragglers"]]
    if named != [(1, "h2", "read", "cold")]:
        wrong.append(f"stragglers: {named}")
    return figures, wrong


def idle_s(truth: Slowed, steps: Steps, cold_s: float) -> float:
    """Return a step's rest for waiting, where the other's last batch comes at ``cold_s``."""
    waits = sum(ready - asked for asked, ready in zip(steps.request_s, steps.ready_s, strict=True))
    rest = len(steps.done_s) - 1
    return (cold_s - rest * truth.step_s - waits - sum(steps.exchange_s[:rest])) / (rest + 1)


def of_rank(record: Record, rank: int, column: str) -> float:
    steps = record.ranks[rank].steps
    return steady_mean(steps, getattr(steps, column))


def mean_of(records: Sequence[Record], rank: int, column: str) -> float:
    return statistics.fmean(of_rank(r, rank, column) for r in records)


def h2(cluster: Hosts) -> Any:
    return cluster.hosts[1]


RATE, DISK_RATE, DELAY_S = 20_000_000, 4_000_000, 0.02
TRUTHS = (
    Slowed(
        "bandwidth", "compute", ("warm",), lambda c: slowed.bandwidth(c, h2(c), RATE), network,
        step_s=0.06, exchange_bytes=4_000_000, buckets=2, bytes_per_s=RATE,
    ),
    Slowed(
        "latency", "compute", ("warm",), lambda c: slowed.latency(c, h2(c), DELAY_S), network,
        step_s=0.03, exchange_bytes=256, delay_s=DELAY_S,
    ),
    Slowed(
        "disk", "train", ("cold", "warm"),
        lambda c: slowed.disk(h2(c), c.folder / "set", DISK_RATE), storage,
        step_s=0.08, exchange_bytes=16_000, bytes_per_s=DISK_RATE,
    ),
)  # fmt: skip


@contextlib.contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    """Bring up two hosts with the data; what is in ``folder`` beside the results goes before."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.name != "results":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with clusters.with_data(folder, SAMPLES) as cluster:
        yield cluster


def measure(
    truth: Slowed, cluster: Hosts, place: Path, blocks: int, facts: Callable[[], dict[str, float]]
) -> None:
    """Run one suite from h1 into ``place``, all of it or nothing.

    ``facts``: what is measured of the link, kept as the mean of before and after the suite.
    """
    options = {
        "step_s": truth.step_s, "exchange_bytes": truth.exchange_bytes, "buckets": truth.buckets,
    }  # fmt: skip
    words = clusters.command(
        cluster, truth.caches, "--hosts", "h1,h2", stage=truth.stage, repeats=blocks,
        into=place, pipeline="torch:jpeg", transform="rrc224", batch=BATCH, launcher="mpirun",
        trainer_options=options,
    )  # fmt: skip
    before = facts()
    clusters.run_into(cluster, place, words)
    after = facts()
    known = {name: (value + after[name]) / 2 for name, value in before.items()}
    (place / FACTS).write_text(json.dumps(known))


def facts_of(
    slow: Any, truth: Slowed, exchange_s: Callable[[], float]
) -> Callable[[], dict[str, float]]:
    """Return what measures the link that is slow now: nothing of a disk."""
    if truth.stage == "train":
        return dict
    if truth.delay_s:
        return lambda: {"round_trip_s": slow(), "outside_s": exchange_s()}
    before, count = slow(), slowed.STEPS + 1
    exchange_s()
    wire_bytes = (slow() - before) / count
    print(f"the link let through {wire_bytes:,.0f} bytes for {truth.exchange_bytes:,}")
    return lambda: {"wire_bytes": wire_bytes, "outside_s": exchange_s()}


def known(truth: Slowed, places: Sequence[Path]) -> Slowed:
    """Return the truth with the mean of what was measured of its link in all repeats that ran."""
    each = [json.loads((place / FACTS).read_text()) for place in places]
    means: dict[str, Any] = {k: statistics.fmean(f[k] for f in each) for k in each[0]}
    return dataclasses.replace(truth, **means)


def repeat(truth: Slowed, place: Path) -> dict[str, Any]:
    """Judge one suite that has run."""
    found = store.at(place)
    records = found.records()
    analysis = to_json(analyse(found.plan(), records))
    usable = [r for r in records if r.status == "VALID"]
    figures, wrong = truth.judge(truth, analysis, usable)
    return {"figures": [figure.row() for figure in figures], "wrong": wrong}


def study(truth: Slowed, args: argparse.Namespace) -> dict[str, Any]:
    folder = args.data.resolve() / "slowed-node"
    places = [folder / "results" / truth.name / str(i) for i in range(args.repeats)]
    with contextlib.ExitStack() as undo:
        todo = [place for place in places if not (place / "report.html").exists()]
        if todo:
            cluster = undo.enter_context(hosts(folder))
            steps = (cluster, truth.step_s, truth.exchange_bytes, truth.buckets)
            exchange_s = functools.partial(slowed.exchange_s, *steps)
            slow = undo.enter_context(truth.slow(cluster))
            facts = facts_of(slow, truth, exchange_s)
        for i, place in enumerate(places, 1):
            if place in todo:
                measure(truth, cluster, place, args.blocks, facts)
            so_far = repeat(known(truth, places[:i]), place)
            print(f"{truth.name} {i}/{args.repeats} so far{words(so_far)}", flush=True)
    rows = [repeat(known(truth, places), place) for place in places]
    for i, row in enumerate(rows, 1):
        print(f"{truth.name} {i}/{args.repeats}{words(row)}", flush=True)
    return {"truth": truth.name, "rows": rows, **judged(truth.name, rows)}


def words(row: dict[str, Any]) -> str:
    parts = [
        f"{f['name']} {1e3 * f['value']:.3f} [{1e3 * f['low']:.3f}, {1e3 * f['high']:.3f}] ms, "
        f"truth {1e3 * f['truth']:.3f} {'in' if f['covers'] else 'OUT'} (half-width "
        f"{f['half_width']:.1%}), computed {1e3 * f['expected']:.3f}"
        for f in row["figures"]
    ]
    return " | ".join(["", *parts, *row["wrong"]])


def judged(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return and print whether the targets were met over all repeats."""
    summary = {}
    for figures in zip(*(row["figures"] for row in rows), strict=True):
        expected, truth, mean = (
            statistics.fmean(f[key] for f in figures) for key in ("expected", "truth", "value")
        )
        summary[figures[0]["name"]] = {
            "covered": sum(f["covers"] for f in figures),
            "of": len(figures),
            "expected": expected,
            "mean": mean,
            "truth": truth,
            "error": mean / expected - 1,
            "half_width_max": max(f["half_width"] for f in figures),
        }
    wrong = sum(bool(row["wrong"]) for row in rows)
    passed = not wrong and all(
        s["covered"] >= NEEDED * s["of"] / 20
        and s["half_width_max"] <= LIMIT
        and abs(s["error"]) <= WITHIN
        for s in summary.values()
    )
    print(name, "PASS" if passed else "MISS", summary, f"named wrongly {wrong} times", flush=True)
    return {"passed": passed, "wrong": wrong, "summary": summary}


def main() -> int:
    return suites.studies(
        __doc__.splitlines()[0], TRUTHS, study, blocks="blocks a repeat", default=5
    )


if __name__ == "__main__":
    sys.exit(main())
