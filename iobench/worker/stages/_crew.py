"""Processes that act at the same moment: what the stages share that ask a mount by several."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from iobench.core import clock
from iobench.host import interrupts

#: Between the message to begin and the moment to.
LEAD_S = 0.003


class Spell(NamedTuple):
    """What one process did, and when by the clock of all."""

    done: Any
    began: float
    ended: float


class Crew:
    """Forked processes that wait for something to do; they end with this one."""

    def __init__(self, members: int) -> None:
        context = multiprocessing.get_context("fork")
        self._lines, self._members = [], []
        for _ in range(members):
            ours, theirs = context.Pipe()
            member = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
            member.start()
            theirs.close()
            self._lines.append(ours)
            self._members.append(member)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self._members:
            member.kill()
        for member in self._members:
            member.join()

    @property
    def pids(self) -> List[int]:
        """Ids of the processes."""
        return [int(member.pid or 0) for member in self._members]

    def together(
        self, prepare: Callable[..., Callable[[], Any]], shares: Sequence[Tuple[Any, ...]]
    ) -> List[Spell]:
        """Have one process for each share call ``prepare(*share)``, then all at once its result.

        Raises what the first of them to fail raised; after a failed ``prepare`` the others wait for
        the end.
        """
        lines = self._lines[: len(shares)]
        for line, share in zip(lines, shares):
            line.send((prepare, share))
        _answers(lines)
        begin_at = clock.clock() + LEAD_S
        for line in lines:
            line.send(begin_at)
        return _answers(lines)


def span_s(spells: Sequence[Spell]) -> float:
    """Return the seconds from the first beginning to the last end."""
    return max(s.ended for s in spells) - min(s.began for s in spells)


def _answers(lines: Sequence[Any]) -> List[Any]:
    answers = [line.recv() for line in lines]
    for failed in answers:
        if isinstance(failed, Exception):
            raise failed
    return answers


def _serve(line: Any, parent: int) -> None:
    interrupts.end_with(parent)
    while True:
        prepare, share = line.recv()
        try:
            act = prepare(*share)
            line.send(None)
            clock.wait_until(line.recv())
            began = clock.clock()
            line.send(Spell(act(), began, clock.clock()))
        except Exception as error:  # noqa: BLE001  (the one who waits raises it)
            line.send(error)
