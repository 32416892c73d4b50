"""Which files the libraries of this process really are: version numbers do not show that.

Another libjpeg by ``LD_PRELOAD``, or another wheel of the same version, is another file.  Files are
known by name, size and a digest of their bytes; of a large one sixteen places are read, so that all
of them together take some ten milliseconds.
"""

from __future__ import annotations

import os
import re
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Dict, Iterable, List, Set

from iobench.host.probes import read

MAPS = Path("/proc/self/maps")
#: Decoders, readers, allocators, thread pools and the C library.
PATTERN = re.compile(
    r"(jpeg|turbo|cv2|opencv|lmdb|hdf5|h5py|libdali|gomp|openblas|mkl|malloc|libnuma|libaio"
    r"|libc[.-])",
    re.IGNORECASE,
)
#: Packages whose Python code stands between the loop and those: a shim on PYTHONPATH, an edit.
SOURCES = ("cv2", "h5py", "lmdb", "simplejpeg", "torch.utils.data")
#: A file up to this size is digested whole; of a larger one so many places of this many bytes.
WHOLE_BYTES, PLACES, PLACE_BYTES = 1 << 20, 16, 1 << 16


def libraries(brought: Iterable[str] = ()) -> Dict[str, str]:
    """Return file name -> ``<size>-<digest>`` of each mapped library that can move a result.

    ``brought``: modules whose own folders count too.  Two files of one name are joined by "+".
    What cannot be read any more (a replaced file) is ``unreadable``.  Nothing is imported; where
    there is no /proc it is {}.
    """
    found: Dict[str, Set[str]] = {}
    for path in sorted(_paths(brought)):
        found.setdefault(os.path.basename(path), set()).add(identity(path))
    return {name: "+".join(sorted(ids)) for name, ids in found.items()}


def sources(brought: Iterable[str] = ()) -> Dict[str, str]:
    """Return package -> digest of its Python files loaded here; ``brought``: beside SOURCES."""
    found: Dict[str, Dict[str, str]] = {}
    packages = (*SOURCES, *brought)
    for name, module in list(sys.modules.items()):
        package = next((p for p in packages if name == p or name.startswith(p + ".")), "")
        path = getattr(module, "__file__", None) or ""
        if package and path.endswith(".py"):
            found.setdefault(package, {})[name] = identity(path)
    return {
        f"{package}/*.py": blake2b(repr(sorted(files.items())).encode(), digest_size=8).hexdigest()
        for package, files in found.items()
    }


def identity(path: str) -> str:
    """Return size and digest of a file's content, ``unreadable`` when it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = blake2b(digest_size=8)
            if size <= WHOLE_BYTES:
                digest.update(file.read())
            else:
                for place in range(PLACES):
                    file.seek((size - PLACE_BYTES) * place // (PLACES - 1))
                    digest.update(file.read(PLACE_BYTES))
    except OSError:
        return "unreadable"
    return f"{size}-{digest.hexdigest()}"


def mapped_files() -> List[str]:
    """Return the files that this process has mapped, by address."""
    lines = read(MAPS).splitlines()
    return list(dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line))


def _paths(brought: Iterable[str]) -> Set[str]:
    """Return the mapped libraries that matter; ``.so`` is somewhere in each name."""
    names = {path: os.path.basename(path) for path in mapped_files()}
    folders = [f"/{module.replace('.', '/')}/" for module in brought]
    return {
        p
        for p, n in names.items()
        if ".so" in n and (PATTERN.search(n) or any(folder in p for folder in folders))
    }
