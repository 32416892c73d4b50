"""An image archive as `docker save` writes it: read its configuration, unpack its layers.

Pure Python, without root: owners are the caller's, device nodes are left out, setuid bits dropped.
An archive may be a stranger's: nothing outside the root is written, changed, removed or linked to,
and one that unpacks to more than the disk holds is refused before the disk is full.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from iobench.core.errors import ImageError
from iobench.images.disk import discard

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
#: Members that would be, or remove, the folder that they are in or the one above it.
_NO_NAMES = ("..", _WHITEOUT, f"{_WHITEOUT}.", f"{_WHITEOUT}..")
_CHUNK = 1 << 20
#: Bytes of a manifest or configuration that are read; real ones have kilobytes.
_LONGEST = 1 << 24
#: Share of the free space and of the free inodes that unpacking may take.
_ROOM = 0.95
#: What reading an archive that is none raises.
_DAMAGE = (
    tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError,
    KeyError, IndexError, ValueError, TypeError, AttributeError, RecursionError,
)  # fmt: skip


class Contents(NamedTuple):
    """What an archive says about itself."""

    digest: str  # sha256:... of the configuration
    config: Mapping[str, Any]
    layers: tuple[str, ...]  # members of the archive, lowest first
    diffs: tuple[str, ...]  # the layers' digests


def contents(path: Path) -> Contents:
    """Read an archive's manifest and configuration.  Raises ImageError unless both are whole."""
    with _opened(path) as archive:
        manifest = json.loads(_text(archive, "manifest.json"))
        if len(manifest) != 1:
            raise ImageError(f"{path} holds {len(manifest)} images: export one at a time")
        raw = _text(archive, manifest[0]["Config"])
        names = tuple(manifest[0]["Layers"])
        for name in names:
            archive.getmember(name)
        config = json.loads(raw)
        diffs = tuple(map(str, config["rootfs"]["diff_ids"]))
        if len(diffs) != len(names):
            raise ValueError(f"{len(names)} layers and {len(diffs)} digests")
    return Contents("sha256:" + hashlib.sha256(raw).hexdigest(), config, names, diffs)


def check(path: Path) -> None:
    """Compare every layer's digest, which apptainer and podman do not.  Raises ImageError."""
    found = contents(path)
    with _opened(path) as archive:
        for name, diff in zip(found.layers, found.diffs, strict=True):
            _compare(path, name, _Hashing(_file(archive, name)), diff)


def unpack(path: Path, root: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Unpack the layers of the archive at ``path`` under ``root``, which must not exist.

    Every layer's digest is compared with the configuration's.  ``progress(done, layers)`` is
    called after each.  Raises ImageError for a damaged archive; an existing ``root`` is OSError.
    """
    found = contents(path)
    root.mkdir()
    top = Path(os.path.realpath(root))
    modes: dict[Path, int] = {}
    room = _Room(path, top)
    with _opened(path) as archive:
        for done, (name, diff) in enumerate(zip(found.layers, found.diffs, strict=True), 1):
            hashed = _Hashing(_file(archive, name))
            with tarfile.open(fileobj=cast(IO[bytes], hashed), mode="r|*") as layer:
                _apply(room.checked(layer), top, modes)
            _compare(path, name, hashed, diff)
            if progress:
                progress(done, len(found.layers))
    for folder, mode in sorted(modes.items(), reverse=True):
        if folder.is_dir() and os.path.realpath(folder) == str(folder):  # a layer may have put a
            folder.chmod(mode)  # link in its place, which leads anywhere


def _compare(path: Path, name: str, hashed: _Hashing, wanted: str) -> None:
    """Read a layer to its end.  Raises ImageError when its digest is another one."""
    while hashed.read(_CHUNK):
        pass
    if not hashed.compressed and hashed.digest() != wanted:
        raise ImageError(
            f"{path} is damaged: layer {name} has digest {hashed.digest()}, not {wanted}; remove "
            "it and `iobench image build`"
        )


class _Room:
    """What the filesystem below ``root`` still holds, taken by an archive's members."""

    def __init__(self, path: Path, root: Path) -> None:
        facts = os.statvfs(root)
        self._path = path
        self._bytes = _ROOM * facts.f_bavail * facts.f_frsize
        self._members = _ROOM * facts.f_favail if facts.f_files else float("inf")

    def checked(self, layer: tarfile.TarFile) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
        """Yield a layer's members.  Raises ImageError before one for which there is no room."""
        for item in layer:
            self._bytes -= item.size
            self._members -= 1
            if min(self._bytes, self._members) < 0:
                raise ImageError(
                    f"{self._path} unpacks to more than is free: free some space, or choose "
                    "another folder by --images; is it an image that you trust?"
                )
            yield layer, item


class _Hashing:
    """A file that takes the digest of what is read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha = hashlib.sha256()
        self._first = b""

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._first = self._first or data[:4]
        self._sha.update(data)
        return data

    @property
    def compressed(self) -> bool:  # then the recorded digest is that of what it unpacks to
        return self._first[:2] == b"\x1f\x8b" or self._first == b"\x28\xb5\x2f\xfd"

    def digest(self) -> str:
        return "sha256:" + self._sha.hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path) as archive:
            yield archive
    except FileNotFoundError as error:
        raise ImageError(f"{path} is not there: `iobench image build`") from error
    except _DAMAGE as error:
        raise ImageError(
            f"{path} is not a whole image archive ({error}): remove it and `iobench image build`"
        ) from error


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo | str) -> IO[bytes]:
    file = archive.extractfile(member)  # follows a link to a layer that is stored once
    if file is None:
        raise KeyError(f"{member} is not a file")
    return file


def _text(archive: tarfile.TarFile, member: str) -> bytes:
    """Return a member that is a small document."""
    data = _file(archive, member).read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ValueError(f"{member} is longer than {_LONGEST} bytes")
    return data


def _apply(
    members: Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]], root: Path, modes: dict[Path, int]
) -> None:
    fresh: set[Path] = set()  # made by this layer: an opaque folder keeps these
    for layer, item in members:
        above, _, name = item.name.rstrip("/").rpartition("/")
        if name in ("", "."):
            continue
        if name in _NO_NAMES:
            raise ValueError(f"a layer has a member {item.name!r}")
        parent = within(root, above)
        if name == _OPAQUE:
            for entry in list(parent.iterdir()) if parent.is_dir() else []:
                if entry not in fresh:
                    discard(entry)
        elif name.startswith(_WHITEOUT):
            discard(parent / name[len(_WHITEOUT) :])
        else:
            path = parent / name
            _make(layer, item, path, root, modes)
            fresh |= {path, *path.parents}


def _make(
    layer: tarfile.TarFile, item: tarfile.TarInfo, path: Path, root: Path, modes: dict[Path, int]
) -> None:
    for folder in path.parents:
        if folder == root or folder.is_dir():
            break
        folder.unlink(missing_ok=True)  # a file below, a folder here
    if not (item.isdir() and path.is_dir() and not path.is_symlink()):
        discard(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if item.isdir():
        path.mkdir(exist_ok=True)
        modes[path] = (item.mode & 0o777) | 0o700  # at the end: it may forbid what still comes
        return
    if item.issym():
        path.symlink_to(item.linkname)
    elif item.islnk():
        above, _, name = item.linkname.rpartition("/")
        source = within(root, above) / name
        if name in ("", ".", "..") or not (source.is_symlink() or source.is_file()):
            raise ValueError(f"{item.name!r} is a link to {item.linkname!r}, which is no file")
        os.link(source, path, follow_symlinks=False)
    elif item.isreg():
        with open(path, "wb") as file:
            shutil.copyfileobj(_file(layer, item), file, _CHUNK)
        path.chmod((item.mode & 0o777) | 0o600)
        os.utime(path, (item.mtime, item.mtime))


def within(root: Path, name: str) -> Path:
    """Return what ``name`` is below ``root``, links followed as in a root of their own.

    Raises ImageError where that would leave ``root`` or goes in circles.
    """
    path, todo, links = root, [part for part in name.split("/") if part], 0
    while todo:
        part = todo.pop(0)
        if part == ".":
            continue
        if part == "..":
            path = path if path == root else path.parent
            continue
        step = path / part
        if step.is_symlink():
            links += 1
            if links > 40:
                raise ImageError(f"the image's {name} is a circle of links")
            target = os.readlink(step)
            path = root if target.startswith("/") else path
            todo = [piece for piece in target.split("/") if piece] + todo
        else:
            path = step
    return path
