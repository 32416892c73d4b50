"""Runs the command in a child, so that somebody is left who answers the user.

A filesystem that does not answer holds whoever asks it in the kernel, where no signal is handled.
The parent asks no filesystem: it says what is waited for, passes signals on, and ends where the
child cannot.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from iobench.cli.console import complain
from iobench.cli.start import INTERRUPTED, goes_on
from iobench.core.clock import clock
from iobench.core.errors import one_line
from iobench.host.interrupts import ENDING, end_with
from iobench.host.unanswered import Unanswered

#: Seconds between two looks; that a child which was interrupted gets where a mount is silent; that
#: the kernel gets to end it.
LOOK_S, GRACE_S, KILL_S = 5.0, 10.0, 5.0
#: A mount that is silent for longer is given up: servers that fail over take minutes.
SILENT_S = 1800.0
FAILED = 2
_LIKELY = {signal.SIGKILL: " (out of memory?)"}


def watched(command: Callable[[], int]) -> int:
    """Return the exit status of ``command``, which runs in a child that ends with this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    passed_on = {n for n in ENDING if signal.getsignal(n) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on | {signal.SIGCHLD})
    child = os.fork()
    if child:
        return _watch(child, passed_on)
    end_with(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = command()
    for number in passed_on:  # it ends: Python takes its own handlers down, and others would kill
        signal.signal(number, signal.SIG_IGN)
    return status


def _watch(child: int, passed_on: set[signal.Signals]) -> int:
    unanswered = Unanswered(child, _say)
    look_at, give_up_at = clock() + LOOK_S, float("inf")
    silent, answered_at = False, clock()
    try:
        while True:
            wait_s = max(0.0, min(look_at, give_up_at) - clock())
            info = signal.sigtimedwait(passed_on | {signal.SIGCHLD}, wait_s)
            if info is not None and info.si_signo != signal.SIGCHLD:
                if info.si_code <= 0:  # of a process; the terminal's own went to the child as well
                    os.kill(child, info.si_signo)
                give_up_at = min(give_up_at, clock() + GRACE_S)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                if silent:
                    unanswered.look()  # what does answer now is said
                return _as_child(status)
            if clock() >= look_at:
                silent = unanswered.look()
                look_at = clock() + LOOK_S
                answered_at = answered_at if silent else clock()
            if silent and clock() > answered_at + SILENT_S:
                return _give_up(child, f"a filesystem did not answer for {SILENT_S:.0f} s", FAILED)
            if clock() >= give_up_at:
                if silent:
                    words = "interrupted while a filesystem did not answer"
                    return _give_up(child, words, INTERRUPTED)
                give_up_at = clock() + LOOK_S  # it is cleaning up
    finally:
        unanswered.close()


def _say(words: str) -> None:
    sys.stderr.write(f"\niobench: {one_line(words)}\n")


def _as_child(status: int) -> int:
    """End as the child did."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = signal.Signals(os.WTERMSIG(status))
    complain(
        f"killed by {number.name}{_LIKELY.get(number, '')}; what was finished is kept: {goes_on()}"
    )
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def _give_up(child: int, why: str, status: int) -> int:
    """End a child that a filesystem holds; the kernel may keep it until that answers."""
    os.kill(child, signal.SIGKILL)
    end = clock() + KILL_S
    while clock() < end and not os.waitpid(child, os.WNOHANG)[0]:
        signal.sigtimedwait({signal.SIGCHLD}, end - clock())
    complain(f"{why}; all that was finished is kept: when it does, {goes_on()}")
    return status
