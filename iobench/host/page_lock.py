"""Hold files' pages in memory: mapped and locked by processes that do nothing else.

Kernels page out what was not touched lately (DAMON, ballooning clouds), files that a trial has just
read among it; locked pages stay.  Run as a program, this module is such a process.  Standard
library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Optional, Sequence, Tuple

_MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
_CAP_IPC_LOCK = 14
#: Mappings that a Python process has besides.
_OTHER_MAPPINGS = 1000
#: The argument of a process that locks what is resident alone.
_RESIDENT = "resident"


@contextlib.contextmanager
def lock(
    files: Sequence[Path], *, resident: bool = False, most: Optional[int] = None
) -> Iterator[str]:
    """Lock every page of ``files`` in memory meanwhile; yield "" or why none is locked.

    ``resident``: lock the pages that are in memory now, and read none.  A process holds at most
    ``most`` files (by default what ``vm.max_map_count`` allows); more files take more processes.
    They end with this one, however that ends.
    """
    most = most or int(_MAX_MAP_COUNT.read_text()) - _OTHER_MAPPINGS
    parts = [files[at : at + most] for at in range(0, len(files), most)]
    with contextlib.ExitStack() as running:
        holders = [_start(part, resident, running) for part in parts]
        reasons = [_answer(holder) for holder in holders]
        reason = next(filter(None, reasons), "")
        if reason:
            running.close()
        yield reason


def limit_bytes() -> Optional[int]:
    """Return how much this user may lock (the hard limit), None for no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if hard == resource.RLIM_INFINITY or _may_lock() else hard


def _may_lock() -> bool:
    """Return whether this process has the machine's CAP_IPC_LOCK, which no limit holds back."""
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return False  # a user namespace's capabilities lock nothing
    status = Path("/proc/self/status").read_text()
    effective = int(status.split("CapEff:")[1].split()[0], 16)
    return bool(effective >> _CAP_IPC_LOCK & 1)


def _start(
    files: Sequence[Path], resident: bool, running: contextlib.ExitStack
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", __file__, *([_RESIDENT] if resident else [])]
    pipe = subprocess.PIPE
    holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
    running.callback(_end, holder)
    assert holder.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # its answer says why
        holder.stdin.write(b"".join(os.fsencode(path) + b"\0" for path in files) + b"\n")
        holder.stdin.flush()
    return holder


def _answer(holder: subprocess.Popen[bytes]) -> str:
    assert holder.stdout is not None
    answer = holder.stdout.readline().decode(errors="replace").strip()
    return "" if answer == "locked" else answer or f"it ended with status {holder.wait()}"


def _end(holder: subprocess.Popen[bytes]) -> None:
    for pipe in (holder.stdin, holder.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
    holder.kill()
    holder.wait()


def _main() -> None:
    """Lock the files named on standard input; keep them until it closes."""
    raw = bytearray()
    while not raw.endswith(b"\0\n"):
        part = os.read(0, 1 << 16)
        if not part:
            return
        raw += part
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    resident = _RESIDENT in sys.argv
    files = bytes(raw[:-2]).split(b"\0")
    try:
        for path in files:
            _lock(libc, path, resident)
        answer = "locked"
    except OSError as error:
        limit = "" if hard == resource.RLIM_INFINITY else f", limit {hard >> 10} KiB (ulimit -l)"
        answer = f"{error.strerror} for {os.fsdecode(path)!r}{limit}"
    os.write(1, f"{answer}\n".encode(errors="replace"))
    os.read(0, 1)


def _lock(libc: ctypes.CDLL, path: bytes, resident: bool) -> None:
    """Map a whole file and lock it, or what is resident of it.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if not size:
            return
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        _check(address == ctypes.c_void_p(-1).value)
        for start, stop in _resident(libc, address, size) if resident else [(0, size)]:
            _check(libc.mlock(address + start, stop - start))
    finally:
        os.close(fd)


def _resident(libc: ctypes.CDLL, address: int, size: int) -> Iterator[Tuple[int, int]]:
    """Yield (start, stop) of the pages of a mapping that are in memory, bytes."""
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    _check(libc.mincore(address, size, pages))
    for run in re.finditer(rb"\x01+", bytes(pages)):
        yield run.start() * mmap.PAGESIZE, min(run.end() * mmap.PAGESIZE, size)


def _check(failed: object) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    _main()
