"""Sockets of the control channel: a Unix socket in a folder, or a TCP port between nodes."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from pathlib import Path
from typing import Iterator, Tuple

#: Name in a trial's work folder.
SOCKET = "driver"
#: sockaddr_un has 108 bytes, the last one 0.
_LONGEST_PATH = 107
#: Connections that may wait to be accepted: the ranks of a large job come all at once.
_BACKLOG = 4096
#: Seconds until a dead node's TCP connection counts as closed: idle, then 3 probes.
_KEEPALIVE_S = 5


def listen(folder: Path, host: str = "") -> Tuple[socket.socket, str]:
    """Return a listening socket and its address: in ``folder``, or on a free port of ``host``.

    Raises OSError where there can be none.
    """
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        return made, f"{host}:{made.getsockname()[1]}"
    made = socket.socket(socket.AF_UNIX)
    try:
        with _short(folder / SOCKET) as name:
            made.bind(name)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made, ""


def connect(folder: Path, address: str, limit_s: float) -> socket.socket:
    """Return a connection to ``address``, or where that is "" to the socket in ``folder``.

    Raises OSError where nobody listens.
    """
    if address:
        host, _, port = address.rpartition(":")
        return watched(socket.create_connection((host, int(port)), timeout=limit_s))
    made = socket.socket(socket.AF_UNIX)
    with _short(folder / SOCKET) as name:
        made.connect(name)
    return made


def watched(connected: socket.socket) -> socket.socket:
    """Return a connection that notices a dead node, where it is TCP."""
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        # what is sent and not acknowledged: the kernel would go on for 15 minutes
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000 * _KEEPALIVE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def allow_files(count: int) -> bool:
    """Let this process have so many files open; return whether its hard limit permits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    return True


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name of a socket's path that fits in an address: through its folder's descriptor."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
