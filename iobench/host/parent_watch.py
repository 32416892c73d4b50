"""Ends a process, and all that it started, when the one that holds its other end has gone."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal

_PR_SET_PTRACER, _ANYBODY = 0x59616D61, -1


def end_when_closed(fd: int) -> None:
    """End this process group as soon as the other end of ``fd`` closes, even by ``kill -9``.

    ``fd``: a pipe or a socket on which nothing more arrives.  The kernel itself sends the signal:
    not even a long call into a framework delays it.  It sends it for whatever wakes a reader, and a
    Unix socket's sender wakes one after its message can be read: so whoever wrote here must be
    known to have returned from that call.
    """
    own = os.getpid()
    if os.getpgrp() != own:
        os.setpgid(0, 0)  # a launcher, or a container, that leaves its ranks in its own group
    if own == 1:
        # A SIGKILL from within does not reach the first process of a container, a signal that it
        # handles does.  With it the kernel ends all others.  _exit itself is the handler, because
        # one of Python's would wait for the interpreter.
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGIO, ctypes.cast(libc._exit, ctypes.c_void_p))
        fcntl.fcntl(fd, fcntl.F_SETOWN, own)
    else:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETOWN, -own)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if _closed(fd):  # it went before
        if own != 1:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _closed(fd: int) -> bool:
    """Return whether nobody holds the other end of ``fd`` any more."""
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLRDHUP)
    gone = select.POLLHUP | select.POLLERR | select.POLLRDHUP
    return any(event & gone for _, event in poll.poll(0))


def let_trace() -> None:
    """Let any process of this user trace this one: Yama forbids it to all but its parents.

    The driver's strace is no parent of this process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANYBODY))
