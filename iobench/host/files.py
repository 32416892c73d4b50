"""Files written whole, datasets held by one writer, free space checked."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
from pathlib import Path
from typing import Any, ContextManager, Iterable, List, Mapping, Tuple

from iobench.core.errors import DatasetError
from iobench.host import locks
from iobench.host.locks import Holder


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` atomically and durably (temporary name, fsync, rename).

    A crash leaves the old file or the new one.  Bytes of a path that are not UTF-8 are written as
    ``\\udcXX``.  Raises OSError; the temporary file is then removed.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace ``path`` by a JSON document atomically and durably."""
    write_text(path, json.dumps(document, indent=1, sort_keys=True) + "\n")


def hold(root: Path) -> ContextManager[List[Holder]]:
    """Keep writers and runs that read it out of ``root``; DatasetError names who is there."""
    return locks.held(
        root,
        lambda who: DatasetError(
            f"{root} is held by {who}: wait for it, or choose another folder by --out"
        ),
    )


def nearest(path: Path) -> Path:
    """Return an absolute path, or the nearest folder above it that is there."""
    return next(p for p in (path, *path.parents) if p.exists())


def copy(pairs: Iterable[Tuple[Path, Path]]) -> None:
    """Copy files, (source, target) each.

    Without their extended attributes: a parallel filesystem keeps a file's layout there.
    """
    for source, target in pairs:
        shutil.copy(source, target)


def settle(path: Path) -> None:
    """Write the dirty pages of the filesystem under ``path`` out (syncfs(2)).

    A dirty page cannot be evicted from the page cache, and a marker must not survive a crash that
    its data did not.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd):
            number = ctypes.get_errno()
            raise DatasetError(f"cannot sync the filesystem of {path}: {os.strerror(number)}")
    finally:
        os.close(fd)


def check_space(folder: Path, need_bytes: int, need_files: int, what: str) -> None:
    """Raise DatasetError unless the filesystem of ``folder`` has room, with 2 % to spare."""
    free = shutil.disk_usage(folder).free
    if need_bytes * 1.02 > free:
        raise DatasetError(
            f"{what} needs {need_bytes / 1e6:,.1f} MB, {folder} has {free / 1e6:,.1f} MB free: "
            f"free some, ask for fewer samples or choose another folder"
        )
    stat = os.statvfs(folder)
    if stat.f_files and 0 <= stat.f_favail < need_files:  # ceph-fuse has no limit: -1
        raise DatasetError(
            f"{what} needs {need_files:,} files, {folder} has {stat.f_favail:,} inodes free: ask "
            f"for fewer samples or choose another folder"
        )
