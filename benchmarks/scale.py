"""10,000 ranks x 10,000 steps through store, analysis and report, and 1,024 ranks that start.

The ranks are synthetic: processes write their step times, a straggler's among them, with the
product's own code, each rank into a file of its own; the driver moves and stores them as those of a
trial on nodes of 8 ranks, beside small trials that make a scaling study; then ``iobench report``
writes every table and the report.  Limits: 2 GiB of the driver's memory, and of the report's; ten
minutes in all; and so much memory must not grow with the steps.  The control channel: simulated
ranks connect, prove who they are, begin and send results, over the product's listener; the time of
1,024 is limited, and may grow no faster than their number.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suites import arguments, finish
from iobench.core import channel, sockets
from iobench.core.cases import Case, Dataset, Plan, Task, Trial, to_json
from iobench.core.order import multiset_sum
from iobench.core.records import VALID, CacheProof, NodeRecord, RankResult, Record, Startup, Steps
from iobench.host import columns, fingerprint
from iobench.host.agent import LOCAL
from iobench.run import rank_results, store
from iobench.run.listener import Listener
from iobench.worker.sample_times import RING

MOST_BYTES, MOST_S = 2 << 30, 600.0
#: Of the channel: seconds until so many ranks have begun and sent results; growth of a rank's share
#: from a quarter of them; growth of the driver's memory with ten times the steps.
CHANNEL_S, GROWTH, MEMORY_GROWTH = 10.0, 1.5, 1.25
BATCH, PER_NODE, WORKERS = 32, 8, 2
#: This rank's batches come late in every step.
STRAGGLER = 5


def case_of(ranks: int) -> Case:
    nodes = max(1, ranks // PER_NODE)
    return Case(
        label=f"torch:lmdb world_size={ranks}", format="lmdb", trainer="torch", launcher="srun",
        batch=BATCH, workers=WORKERS, world_size=ranks, nodes=nodes, location="/scratch",
    )  # fmt: skip


def trials_of(ranks: int) -> list[Trial]:
    """Return one trial of all ranks, and three each of 1, 8 and a hundredth of them."""
    small = sorted({1, PER_NODE, max(PER_NODE, ranks // 100 // PER_NODE * PER_NODE)})
    rows = [(n, 3) for n in small] + [(ranks, 1)]
    return [
        Trial(f"{k:04}-ladder", case_of(n), "train", "warm", block=block)
        for k, (n, block) in enumerate((n, b) for n, blocks in rows for b in range(1, blocks + 1))
    ]


def result_of(trial: Trial, rank: int, steps: int) -> RankResult:
    """Return what a rank might measure: waits with a long tail, a step that all ranks share."""
    ranks = trial.case.world_size
    job, own = np.random.default_rng((1, ranks, trial.block)), np.random.default_rng((2, rank))
    whole = 0.150 + job.lognormal(-5.0, 1.0, steps)
    wait = np.minimum(own.lognormal(-7.0, 1.0, steps), 0.05)
    compute = own.normal(0.080, 0.001, steps)
    if rank == STRAGGLER:
        wait += 0.03
    exchange = np.full(steps, 0.01)
    done = np.cumsum(whole)
    request = done - whole
    ready = request + wait
    made = np.maximum(ready - own.exponential(0.02, steps), 0.0)
    columns: dict[str, Any] = {  # arrays, where a rank has lists
        "request_s": request, "ready_s": ready, "done_s": done,
        "samples": np.full(steps, BATCH), "bytes": own.integers(3_000_000, 4_000_000, steps),
        "begun_s": np.maximum(made - 0.05, 0.0), "made_s": made,
    }  # fmt: skip
    if ranks > 1:
        columns |= {"exchange_s": exchange, "peers_s": whole - wait - compute - exchange}
    ids = np.arange(rank, steps * BATCH * ranks, ranks)[: 4 * RING]
    times: dict[str, Any] = {"id": ids[-RING:]}
    for part in ("read", "decode", "transform"):
        times[f"{part}_s"] = own.gamma(4.0, 1e-3, RING)
    node = f"node{rank // PER_NODE:05}"
    facts = {**_facts(), "pid": 1000 + rank, "host": node, "boot_id": f"{rank // PER_NODE:032}"}
    return RankResult(
        rank, ranks, node, 1000 + rank,
        Steps(warmup=20, **columns),
        Startup(2.0, 0.5, 0.4, 3.0),
        ids_digest=f"{rank:032x}",
        order_digest=f"{rank:032x}",
        ids_sum=multiset_sum(ids),
        bytes_needed=steps * BATCH * 110_000,
        began_s=1.0 + rank * 1e-6,
        fingerprint=facts,
        sample_times=times,
        notes={"trainer": {"comm_s": 0.01} if ranks > 1 else {}, "loader": {}, "queue_batches": 4},
    )  # fmt: skip


@contextlib.contextmanager
def seconds(into: dict[str, float], name: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    into[name] = into.get(name, 0.0) + time.monotonic() - begun


_FACTS: dict[str, Any] = {}


def _facts() -> dict[str, Any]:
    """Return a real fingerprint: this process's."""
    if not _FACTS:
        names = {"numpy": "numpy", "pydantic": "pydantic", "jinja2": "jinja2"}
        _FACTS.update(fingerprint.collect(Path.cwd(), names))
    return _FACTS


def write(trial: Trial, ranks: Sequence[int], steps: int, work: Path) -> list[str]:
    """Write the files of some ranks, as they would themselves; return their Result messages."""
    sent = []
    for rank in ranks:
        result = result_of(trial, rank, steps)
        counts = columns.write(work, result)
        sent.append(json.dumps({**to_json(columns.bare(result)), "columns": counts}))
    return sent


def drive(folder: Path, ranks: int, steps: int) -> dict[str, float]:
    """Store the suite as its driver does, whose ranks are other processes; return the seconds."""
    took: dict[str, float] = {}
    trials = trials_of(ranks)
    cases = tuple({t.case.label: t.case for t in trials}.values())
    samples = ranks * steps * BATCH
    data = Dataset("/scratch", "synthetic", samples, samples * 110_000, 1000, 1, "0" * 32, "none")
    suite = store.Store(folder)
    (folder / store.RUNS).mkdir(parents=True)
    suite.save_plan(Plan("scale", "now", 1, 60.0, data, cases, tuple(trials), phase=2))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context) as pool:
        for trial in trials:
            work, count = Path(tempfile.mkdtemp(dir=folder)), trial.case.world_size
            chunks = [range(first, min(first + 50, count)) for first in range(0, count, 50)]
            with seconds(took, "ranks write"):
                futures = [pool.submit(write, trial, chunk, steps, work) for chunk in chunks]
                texts = itertools.chain.from_iterable(f.result() for f in futures)
                sent = [channel.Result(json.loads(text)) for text in texts]
                del futures
            with seconds(took, "driver stores"):
                attempt = suite.start(trial.id)
                kept = suite.columns(trial.id, attempt)
                said = [
                    channel.Hello(r, r % PER_NODE, count, f"node{r // PER_NODE:05}", 1000 + r, "")
                    for r in range(count)
                ]
                rank_results.keep({"": LOCAL}, said, sent, work, kept)
                found = rank_results.parse(sent, kept, in_memory=False)
                suite.save(record_of(trial, attempt, found))
            shutil.rmtree(work)
    return took


def record_of(trial: Trial, attempt: int, ranks: Sequence[RankResult]) -> Record:
    proof = CacheProof("warm", "cachestat", 1.0, 1.0, 1, 1, 0, held=True)
    mount = {"fstype": "lustre", "device": "mds@o2ib:/scratch"}
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank.host, []).append(rank.rank)
    nodes = tuple(NodeRecord(name, own, proof, mount) for name, own in by_node.items())
    several = nodes if trial.case.nodes > 1 else ()
    return Record(
        trial, attempt, VALID, (), "2026-01-01T00:00:00", 1.0, proof, tuple(ranks), several,
        mount=mount, host="node00000",
    )  # fmt: skip


def measured(command: Sequence[str]) -> tuple[str, float, int]:
    """Run a command; return its output, its seconds and its peak memory in bytes (RSS)."""
    with tempfile.TemporaryFile("w+") as output:
        begun = time.monotonic()
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, (os.getcwd(), os.environ.get("PYTHONPATH")))
            ),
        }
        to = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1)]
        pid = os.posix_spawn(command[0], list(command), env, file_actions=to)
        _, status, usage = os.wait4(pid, 0)
        took = time.monotonic() - begun
        output.seek(0)
        text = output.read()
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} failed: {text}")
    return text, took, usage.ru_maxrss * 1024


def whole(root: Path, ranks: int, steps: int) -> dict[str, Any]:
    """Store and report a suite of so many ranks and steps; return seconds and memory of each."""
    folder = root / f"{ranks}x{steps}"
    own = [sys.executable, "-m", "benchmarks.scale", "--drive", str(folder)]
    text, drive_s, drive_bytes = measured([*own, "--ranks", str(ranks), "--steps", str(steps)])
    stored = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    report = [sys.executable, "-m", "iobench.cli", "report", str(folder)]
    _, report_s, report_bytes = measured(report)
    analysis = json.loads((folder / "analysis.json").read_text())
    page = (folder / "report.html").stat().st_size
    shutil.rmtree(folder)
    stragglers = [s["rank"] for s in analysis["stragglers"]]
    return {
        "ranks": ranks, "steps": steps, "stored_bytes": stored, **json.loads(text),
        "drive_s": drive_s, "drive_bytes": drive_bytes, "report_s": report_s,
        "report_bytes": report_bytes, "page_bytes": page, "complete": analysis["complete"],
        "points": len(analysis["studies"][0]["points"]) if analysis["studies"] else 0,
        "stragglers": stragglers,
    }  # fmt: skip


def simulated_ranks(folder: Path, count: int) -> None:
    """Be so many ranks at once: each joins, begins and sends a result."""
    sockets.allow_files(2 * count + 100)
    key = json.loads((folder / channel.INVITATION).read_text())["key"]

    def connect() -> tuple[channel.ControlChannel, str]:
        line = channel.connect(folder, "")
        line.await_message()
        challenge = line.receive()
        assert isinstance(challenge, channel.Challenge)
        return line, channel.prove(key, challenge.nonce)

    lines = []
    for rank in range(count):
        line, proof = connect()
        line.send(channel.Hello(rank, rank, count, "n1", os.getpid(), proof))
        lines.append(line)
    lifelines = []
    for rank, line in enumerate(lines):
        line.await_message()
        line.receive()
        lifeline, proof = connect()
        lifeline.send(channel.Lifeline(rank, proof))
        lifelines.append(lifeline)
        line.send(channel.Ready())
    for line in lines:
        line.await_message()
        line.receive()
    for rank, line in enumerate(lines):
        result = RankResult(rank, count, "n1", os.getpid(), fingerprint=_facts())
        line.send(channel.Result(to_json(result)))


def channel_start(count: int) -> dict[str, float]:
    """Return seconds and CPU seconds of the driver, from the start of ``count`` ranks on."""
    case = dataclasses.replace(case_of(count), nodes=1)
    nothing, other = os.pipe()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listener = Listener(folder, case, "srun", count)
        data = Dataset("/d", "d", 1, 1, 1, 1, "", "none")
        listener.task = Task(Trial("t", case, "load", "warm"), data)
        context = multiprocessing.get_context("spawn")
        ranks = context.Process(target=simulated_ranks, args=(folder, count))
        ranks.start()
        while not listener.kept(channel.Hello):
            listener.serve(nothing, 60.0)
        begun, used = time.monotonic(), time.process_time()
        for kind in (channel.Ready, channel.Result):
            while not listener.from_all(kind):
                listener.serve(nothing, 60.0)
            if kind is channel.Ready:
                ready_s = time.monotonic() - begun
                listener.send(channel.Go())
        all_s, cpu_s = time.monotonic() - begun, time.process_time() - used
        ranks.join()
        listener.close()
    os.close(nothing)
    os.close(other)
    return {"ranks": count, "ready_s": ready_s, "all_s": all_s, "cpu_s": cpu_s}


def judge(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure everything, print it beside its limits; return the figures and whether all hold."""
    few, many = (channel_start(n) for n in (max(args.channel // 4, 1), args.channel))
    share = (many["cpu_s"] / many["ranks"]) / (few["cpu_s"] / few["ranks"])
    root = Path(tempfile.mkdtemp(prefix="iobench-scale-", dir=args.folder))
    try:
        found = whole(root, args.ranks, args.steps)
        tenth = whole(root, args.ranks, max(args.steps // 10, 50))
    finally:
        shutil.rmtree(root)
    drive, report, gib = found["drive_bytes"], found["report_bytes"], float(1 << 30)
    checks = [
        (f"{args.channel:,} ranks start and send results, s", many["all_s"], CHANNEL_S),
        (f"driver's CPU a rank, against {few['ranks']:,} ranks", share, GROWTH),
        ("store, analysis and report, s", found["drive_s"] + found["report_s"], MOST_S),
        ("memory of the driver, GiB", drive / gib, MOST_BYTES / gib),
        ("memory of analysis and report, GiB", report / gib, MOST_BYTES / gib),
        ("the driver's with 10 x the steps", drive / tenth["drive_bytes"], MEMORY_GROWTH),
        ("the report's with 10 x the steps", report / tenth["report_bytes"], MEMORY_GROWTH),
    ]
    print(f"\n{args.ranks:,} ranks x {args.steps:,} steps")
    stored, page = found["stored_bytes"] / 1e9, found["page_bytes"] / 1e6
    print(f"  stored: {stored:.2f} GB; report.html: {page:.1f} MB")
    for what in ("ranks write", "driver stores", "report_s"):
        print(f"  {what.removesuffix('_s')}: {found[what]:.1f} s")
    print(f"  {args.channel:,} ranks: ready after {many['ready_s']:.2f} s, all results after "
          f"{many['all_s']:.2f} s, {many['cpu_s']:.2f} s of the driver's CPU")  # fmt: skip
    for name, value, limit in checks:
        print(f"  {name}: {value:.2f}, at most {limit:.2f}{'' if value <= limit else '  MISSED'}")
    right = found["complete"] and set(found["stragglers"]) == {STRAGGLER} and found["points"] >= 3
    print(f"  the straggler is named, and the study has its points: {'yes' if right else 'NO'}")
    passed = right and all(value <= limit for _, value, limit in checks)
    return {"whole": found, "tenth": tenth, "channel": [few, many]}, passed


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--channel", type=int, default=1024, help="simulated ranks that start")
    parser.add_argument("--folder", type=Path, help="temporary files go here: 8 GB")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive:
        print(json.dumps(drive(args.drive, args.ranks, args.steps)))
        return 0
    figures, passed = judge(args)
    return finish(args, figures, passed)


if __name__ == "__main__":
    sys.exit(main())
