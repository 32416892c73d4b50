"""What the dynamic loader reads of an ELF file, and how a library forgets where it looks.

Standard library of Python 3.9 only.
"""

import struct
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Tuple

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 15, 29


class Elf(NamedTuple):
    """A dynamic ELF file.  ``dynamic``: (tag, value) each; ``at``: its offset in the file."""

    path: Path
    program: bool
    needed: Tuple[str, ...]
    search: Tuple[str, ...]  # of DT_RUNPATH, else of DT_RPATH
    dynamic: Tuple[Tuple[int, int], ...]
    at: int


def elf(path: Path) -> Optional[Elf]:
    """Return what the loader reads of a 64-bit little-endian ELF file; None for any other file."""
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return None
        offset, (size, count) = (
            struct.unpack_from("<Q", head, 32)[0],
            struct.unpack_from("<HH", head, 54),
        )
        file.seek(offset)
        headers = [struct.unpack("<IIQQQQQQ", file.read(size)[:56]) for _ in range(count)]
        dynamic = next((h for h in headers if h[0] == _PT_DYNAMIC), None)
        if dynamic is None:
            return None
        at = dynamic[2]
        file.seek(at)
        raw = file.read(dynamic[5])
        entries = list(struct.iter_unpack("<qQ", raw[: len(raw) // 16 * 16]))
        used = entries[: next(i for i, e in enumerate(entries) if e[0] == _DT_NULL)]
        table = next(value for tag, value in used if tag == _DT_STRTAB)
        strings = next(
            h[2] + table - h[3] for h in headers if h[0] == _PT_LOAD and h[3] <= table < h[3] + h[5]
        )

        def text(where: int) -> str:
            file.seek(strings + where)
            found = b""
            while b"\0" not in found and (block := file.read(256)):
                found += block
            return found.partition(b"\0")[0].decode()

        needed = tuple(text(value) for tag, value in used if tag == _DT_NEEDED)
        paths = {tag: text(value) for tag, value in used if tag in (_DT_RPATH, _DT_RUNPATH)}
        search = paths.get(_DT_RUNPATH, paths.get(_DT_RPATH, ""))
        program = any(h[0] == _PT_INTERP for h in headers)
        return Elf(
            path, program, needed, tuple(filter(None, search.split(":"))), tuple(entries), at
        )


def forget_path(found: Elf) -> None:
    """Remove DT_RPATH and DT_RUNPATH: then the program's DT_RPATH holds for what it needs."""
    kept = [e for e in found.dynamic if e[0] not in (_DT_RPATH, _DT_RUNPATH)]
    kept += [(_DT_NULL, 0)] * (len(found.dynamic) - len(kept))
    with open(found.path, "r+b") as file:
        file.seek(found.at)
        file.write(b"".join(struct.pack("<qQ", *entry) for entry in kept))


def elves(folder: Path) -> Iterator[Elf]:
    """Yield the ELF files below a folder, links left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and (found := elf(path)):
            yield found
