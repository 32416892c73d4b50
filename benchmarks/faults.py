"""Inject faults at every moment of a small suite; hold each against the same invariants.

A row is a fault at a moment: a signal, a stream, a variable, a folder, the data, the clock, another
iobench or a limit, while nothing is made yet, while data are prepared, while trials run (cold,
warm, arms in turns), or while the report is written.  benchmarks/fault_process.py and
benchmarks/fault_places.py list them, benchmarks/fault_invariants.py says what must hold.

Runs in a mount namespace of its own, as root, where /tmp and /dev/shm are empty; rows that mount
are left out, and named, for another user.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import fault_invariants as hold
from benchmarks import fault_places, fault_process
from benchmarks.fault_kinds import CONTAINERS, Fault
from benchmarks.fault_scene import IMAGES, LIMIT_S, MOMENTS, SPEC, WHOLE, Ended, Scene, states
from benchmarks.suites import arguments, finish
from iobench.core.cases import Case
from iobench.core.errors import IobenchError
from iobench.run import availability

INSIDE = "IOBENCH_FAULTS_INSIDE"
PRIVATE = ("/tmp", "/dev/shm")
#: A row of each kind, and one while samples are made, for the tests.
FEW = (
    r"^(SIGKILL @turns|SIGTERM @preparing|>/dev/full @report|"
    r"a working folder that is gone @report|32 open files @report|results full @turns|"
    r"lmdb edited @turns|the clock steps back by a day @warm|a second --resume @turns)$"
)
USUAL = {"loader": "threads", "case": "", "digest": "false"}
SUITES = {
    "bare": USUAL,
    "digested": {**USUAL, "digest": "true"},
    "torch": {**USUAL, "loader": "torch"},
    "mpirun": {**USUAL, "case": 'launcher = "mpirun"'},
    **{runtime: {**USUAL, "case": f'runtime = "{runtime}"'} for runtime in CONTAINERS},
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A fault at a moment, and what became of it.  ``broken``: what did not hold."""

    fault: str
    moment: str
    status: str
    said: str
    broken: tuple[str, ...]
    seconds: float

    @property
    def held(self) -> bool:
        """Whether every invariant held."""
        return not self.broken


class Bench:
    """Runs rows in one folder."""

    def __init__(self, folder: Path, seed: int, private: bool) -> None:
        self._folder, self._seed, self._private = folder, seed, private
        self._states: dict[str, Mapping[str, Path | None]] = {}

    def row(self, fault: Fault, moment: str, number: int) -> Row:
        """Strike, at a time drawn for this round, follow the remedy, judge."""
        begun = time.perf_counter()
        spec = SPEC.format(**SUITES[fault.suite])
        made = self._made(fault.suite, spec)
        draw = random.Random(f"{self._seed + number} {fault.name} {moment}")
        when = {**MOMENTS, **WHOLE}[moment]
        scene = Scene(self._folder / "scene", spec, draw)
        where = {"private": self._private, "containers": fault.suite in ("docker", "podman")}
        before, running = hold.Around.now(**where), hold.running()
        with scene.undo:
            scene.begin(made[when.begin])
            kept, plan = hold.digests(scene.suite), hold.planned(made["finished"])
            fault.arrange(scene)
            ended = scene.run(when.command, when, fault.strike)
            broken = [*_first(fault, ended), *_second(scene), *hold.left_running(running)]
            if (ended.status or 0) >= 0 and scene.tmp not in scene.disks:
                broken += hold.left_in(scene.tmp)
            fault.cure(scene)
            broken += hold.consistent(scene.suite)
            broken += [f"changed: {name}" for name in _changed(kept, scene)]
            again = ended.status != 0 or fault.lost_rung
            broken += [
                *_after(scene, ended, when.command, plan, again),
                *hold.left_running(running),
            ]
            broken += hold.left_in(scene.tmp)
        broken += hold.left_lying(before, **where)
        status, took_s = hold.blamed(ended.status), time.perf_counter() - begun
        return Row(fault.name, moment, status, hold.message(ended), tuple(broken), took_s)

    def _made(self, suite: str, spec: str) -> Mapping[str, Path | None]:
        if suite not in self._states:
            folder = self._folder / suite
            folder.mkdir()
            scene = Scene(self._folder / "scene", spec, random.Random(self._seed))
            self._states[suite] = states(folder, scene)
        return self._states[suite]


def _first(fault: Fault, ended: Ended) -> Iterator[str]:
    if not ended.struck:
        yield f"the moment did not come: status {ended.status}, {ended.stderr.strip()[-200:]!r}"
        return
    yield from hold.told(ended, fault.statuses, fault.says, heard=fault.heard)


def _second(scene: Scene) -> Iterator[str]:
    if scene.second is not None:
        done = scene.ended(*scene.second, "second")
        for each in hold.told(done, frozenset((0, 2)), "", heard=True):
            yield f"the second iobench: {each}"


def _after(scene: Scene, ended: Ended, command: str, plan: list[str], again: bool) -> Iterator[str]:
    """Follow the remedy ``again`` until the suite is whole; yield what keeps it from that."""
    if again:
        finished, words = hold.digests(scene.suite), hold.remedy(ended, scene, command)
        done = scene.ended(scene.start(words), words, "first")
        for each in hold.told(done, frozenset((0,)), "", heard=True):
            yield f"the remedy: {each}: {hold.message(done)[:300]}"
        if done.status:
            return
        yield from (f"changed by the remedy: {name}" for name in _changed(finished, scene))
    yield from hold.complete(scene, plan)


def _changed(before: Mapping[str, str], scene: Scene) -> list[str]:
    after = hold.digests(scene.suite)
    return [name for name, digest in before.items() if after.get(name) != digest]


def kinds() -> Mapping[str, Sequence[Fault]]:
    """Return kind -> its faults."""
    return {**fault_process.table(), **fault_places.table()}


def rows(args: argparse.Namespace) -> Iterator[tuple[Fault, str]]:
    """Yield the rows that are asked for."""
    for fault in (each for kind in kinds().values() for each in kind):
        for moment in fault.moments:
            if re.search(args.only, f"{fault.name} @{moment}"):
                yield fault, moment


def markdown(found: list[Row]) -> str:
    """Return the table, with what did not hold below it."""
    moments = [m for m in (*MOMENTS, *WHOLE) if any(r.moment == m for r in found)]
    lines = [f"| fault | {' | '.join(moments)} |", "| --- " * (1 + len(moments)) + "|"]
    for fault in dict.fromkeys(r.fault for r in found):
        marks = [_mark([r for r in found if (r.fault, r.moment) == (fault, m)]) for m in moments]
        lines.append(f"| {fault.replace('|', '&#124;')} | {' | '.join(marks)} |")
    return "\n".join(lines)


def _mark(rounds: list[Row]) -> str:
    if not rounds:
        return ""
    held = [row for row in rounds if row.held]
    mark = held[0].status if held else "FAILS"
    return mark if len(rounds) == 1 else f"{mark}, {len(held)} of {len(rounds)}"


def main() -> int:
    """Run the table; return 1 where an invariant does not hold."""
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose 'fault @moment' this matches")
    parser.add_argument("--few", dest="only", action="store_const", const=FEW, help=FEW)
    parser.add_argument("--list", action="store_true", help="name the rows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="such as 2/3: the second third of the rows")
    parser.add_argument("--rounds", type=int, default=1, help="of all rows, at other moments")
    args = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup had ignored, here and in children
    part, parts = map(int, args.part.split("/"))
    wanted = list(rows(args))[part - 1 :: parts]
    if args.list:
        print("\n".join(f"{fault.name} @{moment}" for fault, moment in wanted))
        return 0
    private = INSIDE in os.environ
    if not os.geteuid() and not private:
        written = [args.data, *([args.json.parent] if args.json else [])]
        _in_own_namespace([Path.cwd(), Path(sys.prefix), *written])
    hold.adopt_orphans()
    args.data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=args.data.resolve()))
    found, absent = [], set()
    undo = contextlib.ExitStack()
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    with undo:
        undo.enter_context(_services(fault for fault, _ in wanted))
        bench = Bench(folder, args.seed, private)
        for number in range(args.rounds):
            for fault, moment in wanted:
                if reason := fault.needs():
                    absent.add(f"{fault.name}: {reason}")
                    continue
                try:
                    row = bench.row(fault, moment, number)
                except (OSError, IobenchError, subprocess.SubprocessError) as error:
                    row = Row(fault.name, moment, "-", "", (f"not judged: {error!r}",), 0.0)
                found.append(row)
                _print(row)
    print(f"\n{markdown(found)}\n")
    for line in sorted(absent):
        print(f"not run: {line}")
    held = sum(row.held for row in found)
    print(f"{held} of {len(found)} rows held, {len(absent)} faults could not be made here")
    return finish(args, [dataclasses.asdict(row) for row in found], held == len(found))


def _services(faults: Iterable[Fault]) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a Docker daemon answers, where a fault is one of its containers."""
    cases = [Case(runtime="docker")] if any(f.suite == "docker" for f in faults) else []
    return availability.services_of(cases, IMAGES, lambda line: print(line, flush=True))


def _print(row: Row) -> None:
    print(f"{'held ' if row.held else 'FAILS'} {row.fault} @{row.moment}: {row.status}, "
          f"{row.seconds:.1f} s: {row.said[:230]}", flush=True)  # fmt: skip
    for each in row.broken:
        print(f"        {each[:600]}", flush=True)


def _in_own_namespace(kept: Sequence[Path]) -> None:
    """Begin again where mounts are this benchmark's own; what is ``kept`` stays where it is."""
    below = sorted({p for path in kept if (p := path.resolve()).is_relative_to("/tmp")})
    script = ["set -e"]
    for i, path in enumerate(below):
        path.mkdir(parents=True, exist_ok=True)
        script.append(f"k{i}=$(mktemp -d -p /run); mount --bind {shlex.quote(str(path))} $k{i}")
    script += [f"mount -t tmpfs own {folder}" for folder in PRIVATE]
    for i, at in enumerate(map(shlex.quote, map(str, below))):
        script.append(f"mkdir -p {at}; mount --bind $k{i} {at}; umount $k{i}; rmdir $k{i}")
    words = ("unshare", "--mount", "/bin/sh", "-c", "\n".join([*script, 'exec "$@"']), "sh")
    os.environ[INSIDE] = str(LIMIT_S)
    os.environ["TMPDIR"] = "/tmp"
    os.execvp(words[0], [*words, sys.executable, "-m", "benchmarks.faults", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
