"""Other drivers on this node: each is announced by a name that the kernel keeps, without a file.

An abstract socket (unix(7)) is seen by every user of the node in /proc/net/unix, whatever /tmp,
/run or home the batch system gives them; it goes with its process, and there is no file to leave,
to forge or to follow.  Who has it is asked of the kernel (SO_PEERCRED), not of the name.  A driver
in another network namespace (a container without the host's network) is not seen.

A second driver disturbs: it is named, and its trials go on.  On the same files it would evict and
fill the page cache behind the first one's back, so it is refused, whoever's it is.  Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pwd
import re
import secrets
import socket
import struct
from pathlib import Path
from typing import Iterable, Iterator, List

from iobench.core.clock import utc
from iobench.core.errors import DatasetError
from iobench.host import locks, probes

#: How the names begin; tests take one of their own.
PREFIX = "iobench"
_NAMES = Path("/proc/net/unix")
#: More are not asked: somebody makes them up.
_MOST = 16
_CREDENTIALS = struct.Struct("iII")


@dataclasses.dataclass(frozen=True)
class Rival:
    """Another driver; pid 0 and user "" where the kernel does not show them.

    ``command``: of this user's own; another's does not belong in a report.
    """

    pid: int
    user: str
    since: str
    command: str

    def __str__(self) -> str:
        who = f" of user {self.user}" if self.user else ""
        pid = f", pid {self.pid}" if self.pid else ""
        since = f", since {self.since}" if self.since else ""
        return f"`{self.command or 'iobench'}`{who}{pid}{since}"


@contextlib.contextmanager
def announced() -> Iterator[None]:
    """Let other drivers on this node see this one while the body runs."""
    with _named(f"run/{utc()}/{secrets.token_hex(8)}"):
        yield


@contextlib.contextmanager
def alone_with(folders: Iterable[Path]) -> Iterator[None]:
    """Be the only driver on this node that sets the cache state of these folders' files.

    Raises DatasetError that names another one.
    """
    with contextlib.ExitStack() as taken:
        for folder in folders:
            status = os.stat(folder)
            name = f"data/{status.st_dev:x}:{status.st_ino:x}"
            try:
                taken.enter_context(_named(name))
            except OSError:
                raise DatasetError(
                    f"{folder} is being measured on this node by {_asked(name, '')}: each would "
                    "change the page cache under the other; wait for it, or measure another copy "
                    "(--out)"
                ) from None
        yield


def seen() -> List[Rival]:
    """Return the other drivers that run on this node now, in the order of their names."""
    pattern = re.compile(rf" @{re.escape(PREFIX)}/(run/([0-9T:+-]+)/[0-9a-f]+)$", re.MULTILINE)
    found = sorted(set(pattern.findall(probes.read(_NAMES))))
    rivals = [_asked(*name) for name in found[:_MOST]]
    return [rival for rival in rivals if rival.pid != os.getpid()]


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Have a name while the body runs; OSError where another process has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
        own.bind(_address(name))
        own.listen(socket.SOMAXCONN)  # who asks is not answered: the kernel has told who this is
        yield


def _address(name: str) -> str:
    return f"\0{PREFIX}/{name}"


@functools.lru_cache(maxsize=4 * _MOST)  # one question each
def _asked(name: str, since: str) -> Rival:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
        own.setblocking(False)
        try:
            own.connect(_address(name))
            told = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return Rival(0, "", since, "")
    pid, uid, _ = _CREDENTIALS.unpack(told)
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return Rival(pid, user, since, _command(pid) if uid == os.getuid() else "")


def _command(pid: int) -> str:
    """Return the command line of a process without its Python; "" where it is not seen."""
    words = probes.read(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        words = words[2:] if words[1] == "-m" else words[1:]
    return locks.command(words)
