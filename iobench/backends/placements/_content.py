"""What is put somewhere: the index and the stored forms that the cases read, and nothing else."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset
from iobench.core.errors import DatasetError
from iobench.core.inside import DATA_INSIDE
from iobench.host import files as host_files
from iobench.host.probes import last_lines


@dataclasses.dataclass(frozen=True)
class Content:
    """Files of a dataset.  ``names``: where each comes to lie below its root: ``jpeg/a/1.jpg``."""

    dataset: Dataset
    names: tuple[str, ...]
    files: tuple[Path, ...]
    nbytes: int

    def check_space(self, folder: Path, what: str) -> None:
        """Raise DatasetError unless ``folder``'s filesystem has room."""
        host_files.check_space(folder, self.nbytes, len(self.files), what)

    def copy_to(
        self,
        root: Path,
        made: Callable[[Path], None] = lambda folder: None,
        copy: Callable[[Sequence[tuple[Path, Path]]], None] = host_files.copy,
    ) -> None:
        """Copy the index and the files into the folder ``root``.

        ``made`` is given each new folder.  ``copy``: copies the files, (source, target) each.
        """
        shutil.copy(Path(self.dataset.root, datasets.INDEX), root)
        there = {Path(".")}
        for name in self.names:
            for folder in reversed(Path(name).parents):
                if folder not in there:
                    there.add(folder)
                    (root / folder).mkdir()
                    made(root / folder)
        copy([(source, root / name) for name, source in zip(self.names, self.files)])

    def send(self, argv: Sequence[str], uid: int, gid: int, what: str) -> None:
        """Write it as a tar, ``iobench/data/...``, into a program's stdin.

        All is owned by ``uid`` and ``gid``: only to its owner the kernel tells what is cached of a
        file.  Raises DatasetError with the end of the program's standard error.
        """
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=output
                )
            except FileNotFoundError:
                raise DatasetError(
                    f"{what} needs the program {argv[0]}: install it, or use another placement"
                ) from None
            with process:
                assert process.stdin is not None
                try:
                    with process.stdin as pipe:
                        self._write(pipe, uid, gid)
                except BrokenPipeError:
                    pass  # it says itself why it ended
                except BaseException:
                    process.kill()
                    raise
            if process.returncode:
                output.seek(0)
                complaint = last_lines(output.read().decode(errors="replace"), 2)[-400:]
                raise DatasetError(f"{what}: {argv[0]} failed: {complaint or 'no output'}")

    def _write(self, pipe: IO[bytes], uid: int, gid: int) -> None:
        def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid, member.gid, member.uname, member.gname = uid, gid, "", ""
            member.mode = 0o755 if member.isdir() else 0o644
            return member

        top = DATA_INSIDE.lstrip("/")
        cut = _Cut(pipe)
        with tarfile.open(fileobj=cut, mode="w|", dereference=True) as tar:  # type: ignore[call-overload]
            begun: set[str] = set()
            index = Path(self.dataset.root, datasets.INDEX)
            for name, path in [(datasets.INDEX, index), *zip(self.names, self.files)]:
                target = f"{top}/{name}"
                for parent in [*reversed(Path(target).relative_to(top).parents)]:
                    folder = tarfile.TarInfo(str(Path(top, parent)))
                    folder.type = tarfile.DIRTYPE
                    if folder.name not in begun:
                        tar.addfile(owned(folder))
                        begun.add(folder.name)
                tar.add(path, target, recursive=False, filter=owned)
            cut.end = tar.offset + 2 * tarfile.BLOCKSIZE


class _Cut:
    """Passes a tar on up to its end mark, two empty blocks, and drops what pads it to a record.

    Podman's reader stops at the mark, and Podman fails where it writes on to it.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._sent = pipe, 0
        self.end: int | None = None

    def write(self, data: bytes) -> int:
        """Write what lies before the end."""
        left = len(data) if self.end is None else max(0, self.end - self._sent)
        self._pipe.write(data[:left])
        self._sent += len(data[:left])
        return len(data)


def of(dataset: Dataset, cases: Sequence[Case]) -> Content:
    """Return what these cases read.  Raises DatasetError where a file is gone."""
    forms = {c.folder for c in cases if not registry.load("formats", c.format).fileless}
    names: list[str] = []
    files: list[Path] = []
    for form in sorted(forms):
        root = datasets.form_root(dataset, form)
        if form == "jpeg" and dataset.in_place:
            inner = datasets.load_index(dataset).files
        else:
            inner = [str(f.relative_to(root)) for f in root.rglob("*") if f.is_file()]
        names += [f"{form}/{name}" for name in inner]
        files += [root / name for name in inner]
    try:
        nbytes = sum(f.stat().st_size for f in files)
    except OSError as error:
        raise DatasetError(
            f"{error.filename}: {error.strerror}: the files were changed since the dataset was made"
        ) from None
    return Content(dataset, tuple(names), tuple(files), nbytes)


def at(dataset: Dataset, root: Path) -> Dataset:
    """Return the dataset with its root there."""
    return dataclasses.replace(
        dataset, root=str(root), jpeg_root=str(root / "jpeg"), in_place=False
    )
