"""What a tree holds, by content: path, sha256 of every file, target of every link.

Run as a program (``python3 - ROOT < tree.py``) it prints that as JSON, inside any form of an image;
so it needs only the standard library of Python 3.9.  Owners, modes, times and folders do not count,
nor what a runtime writes into its container.
"""

import hashlib
import json
import os
import sys
from typing import Dict, List, Optional

#: Folders and files at the top that belong to the kernel, the machine or the runtime.
_SKIPPED = {"dev", "proc", "sys", "run", "tmp", "mnt", "media", "ch", "home", "root"}
_SKIPPED |= {".singularity.d", "singularity", "environment", ".dockerenv", ".exec", ".run"}
_SKIPPED |= {".shell", ".test", "WEIRD_AL_YANKOVIC"}
#: Mount points of ours: empty in an image.
_MOUNTS = {"iobench/data", "iobench/work", "iobench/jpeg", "iobench/plugins"}
_SKIPPED_FILES = {"hosts", "hostname", "resolv.conf", "mtab", "passwd", "group", "localtime"}
UNREADABLE = "unreadable"
_OPEN_TO_ALL = 0o005


def listing(root: str) -> Dict[str, str]:
    """Return path -> ``sha256 hex``, ``-> target`` or ``unreadable`` of all below ``root``."""
    found: Dict[str, str] = {}
    top = root.rstrip("/")
    for folder, folders, files in os.walk(top or "/", onerror=None):
        below = folder[len(top) :].lstrip("/")
        if not below:
            folders[:] = [name for name in folders if name not in _SKIPPED]
            files = [name for name in files if name not in _SKIPPED]
        folders[:] = [name for name in folders if f"{below}/{name}" not in _MOUNTS]
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in files + links:
            path = f"{below}/{name}" if below else name
            if below == "etc" and name in _SKIPPED_FILES:
                continue
            found[path] = _content(os.path.join(folder, name))
        for name in folders:
            if not os.access(os.path.join(folder, name), os.R_OK | os.X_OK):
                found[f"{below}/{name}/" if below else name + "/"] = UNREADABLE
    return found


def _content(path: str) -> str:
    if os.path.islink(path):
        return "-> " + os.readlink(path)
    if not os.path.isfile(path):
        return "special"
    sha = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                sha.update(block)
    except PermissionError:
        return UNREADABLE
    return sha.hexdigest()


def digest(found: Dict[str, str]) -> str:
    """Return one digest of a whole listing."""
    text = "".join(f"{path} {what}\n" for path, what in sorted(found.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def stamp(path: str) -> str:
    """Return a digest of the names, sizes and times of all files at or below ``path``.

    Detects changed, purged and added files without reading them.  Bytecode that an interpreter
    wrote does not count, nor what lies in a folder that is closed to other users: whoever looks
    finds the same.
    """
    rows = [_row(path, "")] if os.path.isfile(path) else []
    for folder, folders, files in os.walk(path):
        folders[:] = [
            name
            for name in folders
            if name != "__pycache__"
            and os.lstat(os.path.join(folder, name)).st_mode & _OPEN_TO_ALL == _OPEN_TO_ALL
        ]
        rows += [_row(os.path.join(folder, name), os.path.relpath(folder, path)) for name in files]
    text = "\n".join(sorted(rows))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _row(path: str, folder: str) -> str:
    status = os.lstat(path)
    name = os.path.basename(path) if folder else ""
    return f"{folder}/{name} {status.st_size} {status.st_mtime_ns}"


def differences(one: Dict[str, str], other: Dict[str, str]) -> List[str]:
    """Return every path that differs, and how, sorted; what a side could not read does not."""
    blind = tuple(path for path in unread(one, other) if path.endswith("/"))
    result = []
    for path in sorted(set(one) | set(other)):
        here: Optional[str] = one.get(path)
        there: Optional[str] = other.get(path)
        if here == there or UNREADABLE in (here, there) or (blind and path.startswith(blind)):
            continue
        how = "only in the second" if here is None else "only in the first"
        result.append(f"{path}: {how if None in (here, there) else 'differs'}")
    return result


def unread(*listings: Dict[str, str]) -> List[str]:
    """Return the paths that some listing could not read, sorted; folders end in ``/``."""
    return sorted({path for found in listings for path in found if found[path] == UNREADABLE})


if __name__ == "__main__":
    json.dump(listing(sys.argv[1]), sys.stdout)
