"""Make folders read-only for one command: ``python readonly.py FOLDER ... -- COMMAND ...``.

In a user and a mount namespace of its own, so it needs no root and the host sees nothing of it;
namespaces made below this one cannot take it back.  Run as a file, without the package.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import List, NoReturn

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
#: A remount must keep the flags that the host's mount has: (statvfs, mount).
_KEEP = ((2, 2), (4, 4), (8, 8), (1024, 1024), (2048, 2048), (4096, 1 << 21))


def main(argv: List[str]) -> NoReturn:
    """Become the command; an OSError says which folder could not be made read-only."""
    at = argv.index("--")
    folders, command = argv[:at], argv[at + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    _check(libc.unshare(_NEWUSER | _NEWNS), "a user namespace")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _check(libc.mount(None, b"/", None, _REC | _PRIVATE, None), "private mounts")
    for folder in folders:
        path = os.fsencode(folder)
        flags = _RDONLY | _REMOUNT | _BIND
        _check(libc.mount(path, path, None, _BIND | _REC, None), folder)
        here = os.statvfs(folder).f_flag
        for seen, flag in _KEEP:
            flags |= flag if here & seen else 0
        _check(libc.mount(None, path, None, flags, None), folder)
    os.execvp(command[0], command)


def _check(failed: int, what: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot make read-only: {os.strerror(number)}", what)


if __name__ == "__main__":
    main(sys.argv[1:])
