"""The signals that ask a command to end, held back where they would come at the wrong moment.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Iterator, Set

#: Ctrl-C, a batch system, a terminal that went away.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def held() -> Iterator[Set[int]]:
    """Keep them waiting in this context; yield what was held before.

    A process that is forked meanwhile never gets them: whoever forked it ends it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has gone already
        os.kill(os.getpid(), signal.SIGKILL)
