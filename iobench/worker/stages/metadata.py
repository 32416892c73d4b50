"""How many files a second the mount creates, looks up, opens and removes, by files a directory.

In one directory of empty files that grows from level to level, by 1 to 16 processes: each
operation for :data:`POINT_S` a point.  Unlinked are the files that were created for that.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import random
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from iobench.core import clock
from iobench.core.errors import TrialFailed, plain
from iobench.core.records import NO_STEPS, IoCounters
from iobench.core.stages import Measured, Outcome, Stage
from iobench.host import page_cache
from iobench.worker.rank import RankRun
from iobench.worker.stages._crew import Crew, Spell, span_s

FILES = (1_000, 10_000, 100_000)
#: Its first files say how long the next ones take.
FIRST = 100
PROCESSES = (1, 4, 16)
POINT_S = 0.4
#: A level is left out that takes longer to fill.
FILL_S = 30.0
#: Of the free space and the free inodes, so much is used at most.
SHARE = 0.1
#: More that are created and removed again at a point: a tenth of what is there, or so many.
LEAST_MORE = 256
#: Where the client's names are dropped before: so often at most.
DROPS = 3
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EMLINK)

Spells = List[Spell]
Act = Callable[[str], object]


class Directory:
    """The directory, and those who work in it; ``held``: files from 0 on."""

    def __init__(self, folder: str, crew: Crew, *, dropping: bool) -> None:
        self._folder, self._crew, self._dropping = folder, crew, dropping
        self._draw = random.Random(1)
        self.held = 0
        self.fill_per_s = 0.0

    def why_not(self, files: int) -> str:
        """Return why it shall not hold so many files, "" where it may."""
        there, more = os.statvfs(self._folder), files - self.held
        if more * 4096 > SHARE * there.f_bavail * there.f_frsize:
            return f"{more:,} files more might take over {SHARE:.0%} of the free space"
        if there.f_files and more > SHARE * there.f_favail:
            return f"{more:,} files more are over {SHARE:.0%} of the free inodes"
        if self.fill_per_s and more > FILL_S * self.fill_per_s:
            return f"filling takes over {FILL_S:.0f} s at {self.fill_per_s:,.0f} files/s"
        return ""

    def fill(self, files: int) -> None:
        """Have it hold so many files."""
        before, self.held = self.held, files
        most = max(PROCESSES)
        spells = self._together(create, [range(before + i, files, most) for i in range(most)])
        self.fill_per_s = (files - before) / span_s(spells)

    def empty(self) -> None:
        """Remove all files."""
        most = max(PROCESSES)
        self._together(unlink, [range(i, self.held, most) for i in range(most)])

    def points(self, processes: int) -> Iterable[Dict[str, Any]]:
        """Yield the rates of all operations."""
        yield from self._more(processes)
        for act in (stat, open_):
            spells = self._looked_up(act, processes)
            yield self._point(act, processes, spells)

    def _more(self, processes: int) -> Iterable[Dict[str, Any]]:
        """Create more files and remove them, again and again."""
        more = range(self.held, self.held + max(self.held // 10, LEAST_MORE))
        made: List[Spells] = []
        gone: List[Spells] = []
        while sum(map(span_s, made + gone)) < 2 * POINT_S:
            shares = [more[i::processes] for i in range(processes)]
            made.append(self._together(create, shares, POINT_S))
            shares = [share[: spell.done] for share, spell in zip(shares, made[-1])]
            gone.append(self._together(unlink, shares))
        yield self._point(create, processes, made)
        yield self._point(unlink, processes, gone)

    def _looked_up(self, act: Act, processes: int) -> List[Spells]:
        """Ask for files in random order: each once where the client forgot it before."""
        found: List[Spells] = []
        while sum(map(span_s, found)) < POINT_S and len(found) < (DROPS if self._dropping else 1):
            if self._dropping:
                page_cache.drop_caches(allowed=True, names=True)
            order = self._draw.sample(range(self.held), self.held)
            shares = [order[i::processes] for i in range(processes)]
            found.append(self._together(act, shares, POINT_S, again=not self._dropping))
        return found

    def _together(
        self, act: Act, shares: Sequence[Sequence[int]], most_s: float = math.inf,
        again: bool = False,
    ) -> Spells:  # fmt: skip
        given = [(act, self._folder, share, most_s, again) for share in shares]
        return self._crew.together(acting, given)

    def _point(self, act: Act, processes: int, spells: List[Spells]) -> Dict[str, Any]:
        return {
            "files": self.held,
            "processes": processes,
            "operation": act.__name__.strip("_"),
            "count": sum(s.done for each in spells for s in each),
            "seconds": sum(map(span_s, spells)),
        }


def acting(
    act: Act, folder: str, files: Sequence[int], most_s: float, again: bool
) -> Callable[[], int]:
    """Return what does it to these files, for so long at most; ``again``: round and round.

    It returns to how many.
    """
    names = [f"{folder}/{i:07d}" for i in files]

    def run() -> int:
        end, count = clock.clock() + most_s, 0
        for name in itertools.cycle(names) if again else names:
            act(name)
            count += 1
            if clock.clock() > end:
                break
        return count

    return run


def create(name: str) -> None:
    """Create an empty file."""
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def open_(name: str) -> None:
    """Open a file and close it."""
    os.close(os.open(name, os.O_RDONLY))


#: The others, by the same names.
stat, unlink = os.stat, os.unlink


def _levels(job: RankRun, crew: Crew) -> Tuple[List[Dict[str, Any]], str]:
    """Return the points of all levels that the mount can hold, and why no higher ones."""
    directory = Directory(job.task.scratch, crew, dropping=job.task.allow_drop_caches)
    points: List[Dict[str, Any]] = []
    why = ""
    for files in (FIRST, *FILES):
        if why := directory.why_not(files):
            break
        try:
            directory.fill(files)
            for processes in PROCESSES if files > FIRST else ():
                points += directory.points(processes)
        except OSError as error:
            if error.errno not in _FULL:
                raise TrialFailed(plain(error)) from None
            return points, f"{files:,} files a directory: {error.strerror}"  # the driver removes it
    directory.empty()
    return points, why and f"{files:,} files a directory: {why}"


def _rates(job: RankRun) -> Outcome:
    with Crew(max(PROCESSES)) as crew:
        points, left_out = _levels(job, crew)
    if not points:
        raise TrialFailed(f"no directory of files could be made: {left_out}")
    notes = {"points": points, "left_out": left_out, "dropped": job.task.allow_drop_caches}
    return Measured(NO_STEPS, []), IoCounters(), {"notes": {"metadata": notes}}


BACKEND = Stage(
    _rates,
    "files created, looked up, opened and removed a second, by files a directory",
    rung=3,
    asks="",
    caches=("-",),
    always=True,
    one_rank=True,
    on_host=True,
    of_mount=True,
    named=True,
    writes=True,
    loop_s=25.0,
)
