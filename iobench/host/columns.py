"""What of a rank's result grows with its steps: columns in a file of the rank's own.

The rank writes it into its work folder, its node's agent moves it beside the record, and whoever
analyses it reads a column when it needs one and keeps those of one rank: the driver's memory grows
with ranks, not with their steps.  The file is NumPy's ``.npz``, one array a column, which every
image can write and read; a column is checked against its stored checksum and its length.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union, overload

from iobench.core.errors import ResultsError, plain
from iobench.core.records import NO_STEPS, RankResult, Steps

#: Columns of a rank's result as it is sent and stored: name -> number of values.
Counts = Mapping[str, int]
_STEPS = tuple(field.name for field in dataclasses.fields(Steps) if field.name != "warmup")
_MAPPINGS = ("probe", "sample_times")
#: What a file that is damaged or cut short raises when a column of it is read.
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


class Column(Sequence[float]):
    """One column of a file: a sequence that is read whenever it is looked at."""

    __slots__ = ("_count", "_name", "path")

    def __init__(self, path: Path, name: str, count: int) -> None:
        self.path, self._name, self._count = path, name, count

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        try:
            stat = os.stat(self.path)
            found = _opened(self.path, stat.st_size, stat.st_mtime_ns).column(self._name)
            if found.shape != (self._count,):
                raise ValueError(f"{self._name} has {found.shape} values, not {self._count:,}")
        except _DAMAGE as error:
            record = self.path.parent.with_name(f"{self.path.parent.name}.json")
            raise ResultsError(
                f"cannot read {self.path}: {plain(error)}; move {record} away and "
                f"`iobench run --resume --results {record.parents[1]}` runs that trial again"
            ) from error
        return found if dtype is None else found.astype(dtype, copy=False)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> List[float]: ...

    def __getitem__(self, index: Union[int, slice]) -> Any:
        return self.__array__()[index].tolist()

    def __iter__(self) -> Iterator[float]:
        return iter(self.__array__().tolist())

    def __reversed__(self) -> Iterator[float]:
        return reversed(list(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._count:,} values {self._name} of {self.path}>"


class _ColumnFile:
    """An open file of columns, and those of them that were read."""

    def __init__(self, path: Path) -> None:
        import numpy as np

        self._raw = open(path, "rb")  # noqa: SIM115  (closed with this object)
        try:
            self._arrays: Any = np.load(self._raw, allow_pickle=False)
        except BaseException:
            self._raw.close()
            raise
        self._known: Dict[str, Any] = {}

    def column(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._arrays[name]
            self._known[name].flags.writeable = False
        return self._known[name]

    def __del__(self) -> None:
        self._raw.close()


@functools.lru_cache(maxsize=1)  # a rank's columns are looked at one after the other
def _opened(path: Path, size: int, changed_ns: int) -> _ColumnFile:
    return _ColumnFile(path)


def file_of(folder: Path, rank: int) -> Path:
    """Return the file of a rank's columns in a folder."""
    return folder / f"{rank}.npz"


def write(folder: Path, result: RankResult) -> Dict[str, int]:
    """Write the columns of a rank's result into its file in ``folder``, through to the disk.

    Return how long each is; no file is made for a result without any.  Raises OSError.
    """
    columns = _columns(result)
    filled = {name: values for name, values in columns.items() if len(values)}
    if filled:
        import numpy as np

        with open(file_of(folder, result.rank), "wb") as file:
            arrays: Dict[str, Any] = {name: np.asarray(v) for name, v in filled.items()}
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
    return {name: len(values) for name, values in columns.items()}


def bare(result: RankResult) -> RankResult:
    """Return a rank's result without its columns."""
    steps = dataclasses.replace(NO_STEPS, warmup=result.steps.warmup)
    return dataclasses.replace(result, steps=steps, probe={}, sample_times={})


def joined(result: RankResult, counts: Counts, folder: Path) -> RankResult:
    """Return a rank's result with its columns, which its file in ``folder`` holds."""
    path = file_of(folder, result.rank)
    found = {name: Column(path, name, count) for name, count in counts.items()}
    if not found:
        return result
    steps: Dict[str, Any] = {n: found[f"steps.{n}"] for n in _STEPS if f"steps.{n}" in found}
    groups: Dict[str, Dict[str, Any]] = {group: {} for group in _MAPPINGS}
    for name, column in found.items():
        group, _, key = name.partition(".")
        if group in groups:
            groups[group][key] = column if len(column) else []
    return dataclasses.replace(
        result,
        steps=dataclasses.replace(result.steps, **steps),
        probe=groups["probe"],
        sample_times=groups["sample_times"],
    )


def loaded(result: RankResult) -> RankResult:
    """Return a rank's result with its columns in memory."""
    steps: Dict[str, Any] = {name: _values(getattr(result.steps, name)) for name in _STEPS}
    groups: Dict[str, Any] = {
        group: {key: _values(values) for key, values in getattr(result, group).items()}
        for group in _MAPPINGS
    }
    return dataclasses.replace(result, steps=dataclasses.replace(result.steps, **steps), **groups)


def _values(values: Sequence[float]) -> Sequence[float]:
    return list(values) if isinstance(values, Column) else values


def counts_of(result: RankResult) -> Dict[str, int]:
    """Return how long each column of a rank's result is."""
    return {name: len(values) for name, values in _columns(result).items()}


def are_in(folder: Path, result: RankResult) -> bool:
    """Return whether a rank's columns are those of its file in ``folder``."""
    columns = [values for values in _columns(result).values() if len(values)]
    path = file_of(folder, result.rank)
    return all(isinstance(values, Column) and values.path == path for values in columns)


def move(source: str, target: str, ranks: Sequence[int]) -> None:
    """Move the files of these ranks from a work folder of this node into ``target``.

    Raises OSError where one is missing, or ``target`` cannot be written from here.
    """
    folder = Path(target)
    folder.mkdir(exist_ok=True)  # a suite's folder that somebody removed stays away
    for rank in ranks:
        there = file_of(folder, rank)
        shutil.move(str(file_of(Path(source), rank)), str(there))
        fd = os.open(there, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _columns(result: RankResult) -> Dict[str, Sequence[float]]:
    """Return the columns of a rank's result by name; of its steps those that are not empty."""
    steps = {f"steps.{name}": getattr(result.steps, name) for name in _STEPS}
    found = {name: values for name, values in steps.items() if len(values)}
    for group in _MAPPINGS:
        found |= {f"{group}.{key}": values for key, values in getattr(result, group).items()}
    return found
