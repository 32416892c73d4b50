"""Which pages of a file are cached, by the system calls cachestat(2) and mincore(2)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Iterable, List, Sequence, Tuple

import numpy as np

from iobench.host.probes import read

PAGE_BYTES = mmap.PAGESIZE
#: statfs(2): an overlay's own mapping is empty, its pages belong to the layer's file.  cachestat
#: and dirty counts are then 0 whatever is cached; mincore follows the mapping and is right.
OVERLAYFS_MAGIC = 0x794C7630
#: statfs(2) of filesystems that keep file data in memory of their own (ZFS: the ARC; GPFS: the
#: pagepool): the page cache, which the kernel reports, holds almost nothing whatever is cached.
OWN_CACHE = {0x2FC12FC1: "zfs", 0x47504653: "gpfs"}
CACHESTAT = 451  # the same number on every architecture but alpha (syscall.tbl, Linux 6.5)
MINCORE_WINDOW_PAGES = 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_Range = ctypes.c_uint64 * 2  # offset, length
_Stat = ctypes.c_uint64 * 5  # cached, dirty, writeback, evicted, recently evicted


def page_spans(spans: Iterable[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """Turn (offset, length) in bytes into sorted, disjoint (first page, page after the last)."""
    merged: List[Tuple[int, int]] = []
    for offset, length in sorted(spans):
        if length <= 0:
            continue
        start, stop = offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def cachestat_works() -> bool:
    """Return whether cachestat(2) is here (ENOSYS before 6.5 and under some seccomp filters)."""
    fd = os.open(__file__, os.O_RDONLY)
    try:
        _cachestat(fd, 0, PAGE_BYTES)
    except OSError as error:
        return error.errno != errno.ENOSYS
    finally:
        os.close(fd)
    return True


def truthful(path: str, status: os.stat_result) -> bool:
    """Return whether the kernel reports this user the file's cached pages correctly.

    Linux 5.2 and later answer mincore only for the owner or a writer, and report "all resident" to
    anybody else (mm/mincore.c, can_do_mincore); cachestat fails with EPERM there.
    """
    # root of the whole machine, not of a user namespace
    root = os.geteuid() == 0 and read("/proc/self/uid_map").split() == ["0", "0", "4294967295"]
    return status.st_uid == os.geteuid() or root or os.access(path, os.W_OK)


def count(fd: int, spans: Sequence[Tuple[int, int]]) -> Tuple[str, int]:
    """Return (method, resident pages) of page ``spans`` (first, past the last).  Raises OSError."""
    if not stacked(fd):
        try:
            found = (_cachestat(fd, a * PAGE_BYTES, (b - a) * PAGE_BYTES)[0] for a, b in spans)
            return "cachestat", sum(found)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP):
                raise
    return "mincore", sum(mincore(fd, start, stop) for start, stop in spans)


def maybe_dirty(fd: int) -> bool:
    """Return False only when the kernel reports that no page of the file waits to be written."""
    try:
        _cached, dirty, writeback = _cachestat(fd, 0, 0)
    except OSError:
        return True
    return bool(dirty or writeback)


def mincore(fd: int, start: int, stop: int) -> int:
    """Return how many pages of [start, stop) are resident, by mapping them.  Raises OSError."""
    resident = 0
    for first in range(start, stop, MINCORE_WINDOW_PAGES):
        pages = min(MINCORE_WINDOW_PAGES, stop - first)
        nbytes = pages * PAGE_BYTES
        address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, first * PAGE_BYTES)
        if address in (None, ctypes.c_void_p(-1).value):
            raise _error("mmap")
        vector = np.empty(pages, np.uint8)
        failed = _libc.mincore(address, nbytes, vector.ctypes.data)
        error = _error("mincore") if failed else None
        _libc.munmap(address, nbytes)
        if error:
            raise error
        resident += int((vector & 1).sum())
    return resident


def _cachestat(fd: int, offset: int, length: int) -> Tuple[int, int, int]:
    """Return (cached, dirty, writeback) pages; length 0 reaches to the end.  Raises OSError."""
    answer = _Stat()
    if _libc.syscall(CACHESTAT, fd, _Range(offset, length), answer, 0):
        raise _error("cachestat")
    return answer[0], answer[1], answer[2]


def stacked(fd: int) -> bool:
    """Return whether the file is on an overlay."""
    return magic(fd) == OVERLAYFS_MAGIC


def own_cache(fd: int) -> str:
    """Return the name of the file's filesystem where that caches outside the page cache, or ""."""
    return OWN_CACHE.get(magic(fd), "")


def magic(fd: int) -> int:
    """Return the file's f_type, the long with which struct statfs begins; 0 without one."""
    answer = (ctypes.c_long * 32)()
    return 0 if _libc.fstatfs(fd, answer) else answer[0]


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
