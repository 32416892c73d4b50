"""The one lock: a file ``.lock`` in the folder, locked by the kernel, with its holder's name in it.

POSIX record locks (fcntl, F_SETLK) of a regular file are the ones that most shared filesystems
keep between nodes: NFS (its flock is the same lock), Lustre mounted ``-o flock``, CephFS,
GlusterFS, GPFS (whose flock stays on the node), GFS2.  A directory's lock stays on its node
everywhere.  Open-file-description locks would do without two cares that are taken here (a process
has one lock, and loses it with any descriptor of the file), but FUSE does not release those of a
killed process.

A file has slots.  Whoever works alone locks them all; those who work beside one another lock one
each.  The kernel lets a killed process's lock go, so the name that it left says nothing, but where
the locks do not reach other nodes (:func:`reach`) a name is all that is seen of them: it counts,
and the user is told which file to remove.  Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import shlex
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence

from iobench.core.clock import clock, utc
from iobench.core.errors import IobenchError, one_line
from iobench.host import mounts, probes

NAME = ".lock"
SLOTS, SLOT = 32, 1024
#: Until then a process that was started waits for a lock, seconds.
WAITING_S = 0.5
#: Network filesystem -> mount options that keep its locks on the node.
BETWEEN_NODES = {
    "ceph": (),
    "fuse.ceph-fuse": (),
    "fuse.glusterfs": (),
    "gfs2": ("localflocks",),
    "gpfs": (),
    "lustre": ("localflock", "noflock"),
    "nfs": ("nolock", "local_lock=all", "local_lock=posix"),
    "nfs4": ("nolock", "local_lock=all", "local_lock=posix"),
}
#: Without a mount option it has no locks at all.
NEEDED = {"lustre": "flock"}
#: Of this node alone, beside what /proc/filesystems knows to need a block device.
OWN = frozenset({"overlay", "ramfs", "tmpfs", "zfs", "bcachefs", "devtmpfs"})
SHARED_DISKS = frozenset({"gfs2", "ocfs2"})
_BEEGFS = Path("/proc/fs/beegfs")

#: Files that this process holds: the kernel would let it take them twice.
_HELD: Dict[str, str] = {}


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock, in its own words.  ``ticks``: start of the process, by the kernel."""

    host: str
    pid: int
    job: str
    since: str
    command: str
    boot: str
    ticks: str
    alone: bool = True

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        text = f"`{self.command}` on host {self.host}, pid {self.pid}{job}, since {self.since}"
        return one_line(text, 400)  # it was read from a file that others may write

    @property
    def elsewhere(self) -> bool:
        """Whether it is of another node, not of this one before that was started anew."""
        return self.boot != boot_id() and self.host != socket.gethostname()

    @property
    def runs(self) -> bool:
        """Whether that process is seen on this node."""
        return self.boot == boot_id() and bool(self.ticks) and self.ticks == ticks(self.pid)


def boot_id() -> str:
    """Return the name that this node's kernel drew when it started."""
    return probes.read("/proc/sys/kernel/random/boot_id")


def ticks(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; "" where it is not seen."""
    return (probes.read(f"/proc/{pid}/stat").rpartition(")")[2].split() + [""] * 20)[19]


def command(argv: Sequence[str]) -> str:
    """Return a command line of Python for people: one line, and ``iobench`` for its module."""
    path, *rest = argv or [""]
    ours = path.startswith("iobench.") or Path(path).parts[-3:-1] == ("iobench", "cli")
    return one_line(shlex.join(["iobench" if ours else Path(path).name, *rest]), 120)


def myself(*, alone: bool = True) -> Holder:
    """Return this process as a holder."""
    own = os.getpid()
    return Holder(socket.gethostname(), own, probes.job(), utc(), command(sys.argv), boot_id(),
                  ticks(own), alone)  # fmt: skip


@contextlib.contextmanager
def held(
    folder: Path, busy: Callable[[str], IobenchError], *, alone: bool = True
) -> Iterator[List[Holder]]:
    """Hold ``folder`` while the body runs; yield who holds it beside this process.

    ``alone``: nobody does; else only those who do not want it alone, and a folder that this user
    cannot write is not held.  Raises ``busy`` of words for the holder, and OSError where a file
    cannot be made.
    """
    key = os.path.join(os.path.realpath(folder), NAME)
    if key in _HELD:
        raise busy(_HELD[key])
    try:
        fd = os.open(key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError:
        if alone:
            raise
        yield []
        return
    me = myself(alone=alone)
    file = _File(fd, key, reach(folder))
    try:
        with contextlib.suppress(OSError):  # whoever may write the folder may lock it
            os.fchmod(fd, 0o600 | (os.stat(folder).st_mode & 0o066))
        slot = file.take(me, busy)
        _HELD[key] = str(me)
        try:
            yield [*file.others(slot).values()]
        finally:
            del _HELD[key]
            if alone:
                file.clear()
            else:
                file.write(slot, "")
    finally:
        with contextlib.suppress(OSError):  # of a mount that has gone; it is closed all the same
            os.close(fd)


def named(folder: Path) -> Optional[Holder]:
    """Return whose name stands in a folder's lock: who holds it alone, or was killed doing so.

    Nothing is locked: whoever only looks keeps nobody out.
    """
    with contextlib.suppress(OSError, ValueError, TypeError):
        with open(folder / NAME, "rb") as file:
            text = file.read(SLOT).decode(errors="replace")
        return Holder(**json.loads(text)) if text.strip() else None
    return None


class _File:
    """An open lock file; ``far``: why its locks may not hold between nodes."""

    def __init__(self, fd: int, path: str, far: str) -> None:
        self._fd, self._path, self._far = fd, path, far
        self._dead = ""

    def take(self, me: Holder, busy: Callable[[str], IobenchError]) -> int:
        """Lock all slots or a free one, write who has it and return its number."""
        seen = self.others()
        against = [h for h in seen.values() if me.alone or h.alone]
        if against:
            raise busy(self._words(against[0]))
        for slot in range(1 if me.alone else SLOTS):
            if slot not in seen and self._lock(slot, 0 if me.alone else SLOT):
                if me.alone:
                    self.clear()
                self.write(slot, json.dumps(dataclasses.asdict(me), ensure_ascii=False))
                return slot
        raise busy("a process that has not yet written its name, or whose name cannot be read")

    def others(self, own: Optional[int] = None) -> Dict[int, Holder]:
        """Return slot -> who holds it, as far as this node can know; without one's own."""
        found = ((slot, self._read(slot)) for slot in range(SLOTS) if slot != own)
        return {slot: holder for slot, holder in found if holder and self._counts(slot, holder)}

    def clear(self) -> None:
        """Remove all names, also of processes that were killed: the caller holds all slots."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)

    def write(self, slot: int, text: str) -> None:
        """Write who holds a slot; "": nobody does."""
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
            os.pwrite(self._fd, text.encode()[: SLOT - 1].ljust(SLOT, b"\n"), slot * SLOT)
            os.fsync(self._fd)

    def _read(self, slot: int) -> Optional[Holder]:
        with contextlib.suppress(OSError, ValueError, TypeError):
            text = os.pread(self._fd, SLOT, slot * SLOT).decode(errors="replace")
            return Holder(**json.loads(text)) if text.strip() else None
        return None

    def _counts(self, slot: int, holder: Holder) -> bool:
        if not self._lock(slot, SLOT):
            return True
        if self._dead:
            return holder.elsewhere or holder.runs
        fcntl.lockf(self._fd, fcntl.LOCK_UN, SLOT, slot * SLOT)
        return bool(self._far) and holder.elsewhere

    def _lock(self, slot: int, length: int) -> bool:
        """Lock a slot, or with length 0 all from it on; return whether nobody else has it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, slot * SLOT)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:  # the filesystem has no locks: names are all there is
            self._dead = str(error.strerror)
        return True

    def _words(self, holder: Holder) -> str:
        if not holder.elsewhere or not (self._far or self._dead):
            return str(holder)
        return (
            f"{holder}, as {self._path} says ({self._dead or self._far}, so that its end may not "
            "be seen here: if it has ended, remove that file)"
        )


def reach(path: Path) -> str:
    """Return why locks under ``path`` may not hold between nodes; "" where they do.

    Also where no other node sees that filesystem.  By the mount's type and options: what is true
    between two nodes cannot be tried from one.
    """
    mount = mounts.mount_of(path)
    kind, options = mount.fstype, {*mount.options, *mount.super_options}
    if kind in BETWEEN_NODES:
        local = sorted(options & {*BETWEEN_NODES[kind]})
        if not local and NEEDED.get(kind, "") in {"", *options}:
            return ""
        why = f"is mounted with {local[0]}" if local else f"is not mounted with {NEEDED[kind]}"
        return f"{kind} at {mount.mount_point} {why}: its locks do not hold between nodes"
    if kind == "beegfs":
        configs = [probes.read(file) for file in _BEEGFS.glob("*/config")]
        words = [" ".join(text.split()).replace(" ", "") for text in configs]
        if words and all("tuneUseGlobalFileLocks=1" in text for text in words):
            return ""
        return (
            f"beegfs at {mount.mount_point}: its locks hold between nodes only with "
            "tuneUseGlobalFileLocks"
        )
    if kind in OWN or (kind in _block_based() and kind not in SHARED_DISKS):
        return ""
    return f"{kind} at {mount.mount_point}: whether its locks hold between nodes is not known"


@functools.lru_cache(maxsize=1)
def _block_based() -> List[str]:
    lines = probes.read("/proc/filesystems").splitlines()
    return [line.strip() for line in lines if not line.startswith("nodev")]


def broken(folder: Path) -> str:
    """Return why a lock in ``folder`` does not keep another process of this node out, else "".

    Tried with a file and two processes; OSError where this user cannot write there.
    """
    with tempfile.NamedTemporaryFile(prefix=".iobench-lock-", dir=folder) as file:
        try:
            fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"a file there cannot be locked ({error.strerror})"
        child = os.fork()
        if not child:
            os._exit(_refused(file.name))
        refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "" if refused else "two processes had one lock there"


def _refused(name: str) -> int:
    """Return 1 where a file that another process has locked cannot be locked, else 0."""
    try:
        fcntl.lockf(os.open(name, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 1
    return 0


def unshared(folder: Path, *, waiting: int = 8, wait_s: float = 2.0) -> str:
    """Return why a lock in ``folder`` is not shared with those who wait for it, else "".

    One process turns its lock for writing into one for reading, which ``waiting`` others wait for,
    as LMDB's readers do.  OSError where this user cannot write there.
    """
    with tempfile.NamedTemporaryFile(prefix=".iobench-lock-", dir=folder) as file:
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        left = [_waiting(file.name) for _ in range(waiting)]
        try:
            time.sleep(WAITING_S)
            fcntl.lockf(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            end = clock() + wait_s
            while left and clock() < end:
                left = [pid for pid in left if not os.waitpid(pid, os.WNOHANG)[0]]
                time.sleep(0.01)
            return f"{len(left)} of {waiting} that waited for it did not get it" if left else ""
        finally:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _waiting(name: str) -> int:
    """Start a process that waits until it can lock a file for reading, and ends; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        fcntl.lockf(os.open(name, os.O_RDONLY), fcntl.LOCK_SH)
    finally:
        os._exit(0)


def notice(folder: Path) -> str:
    """Return what a user should know of the locks in ``folder``; "" where they hold."""
    try:
        why = broken(folder)
    except OSError:
        return ""  # nothing is written there
    why = f"locks do not work in {folder}: {why}" if why else reach(folder)
    return why and f"{why}; let no two iobench work there from two nodes at once"
