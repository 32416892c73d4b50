"""A reader that holds handles: each process opens its own, none is pickled."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict

import numpy as np

from iobench.core.errors import DatasetError
from iobench.core.protocols import Reader

OPEN_SHARDS = 64  # that a reader keeps


def stored_index(path: Path, of: str) -> np.ndarray:
    """Return the index beside a format's files: int64 (samples, 4); ``of``: shards or records.

    Raises DatasetError where it cannot be read or is another array.
    """
    try:
        index: np.ndarray = np.load(path)
    except (OSError, ValueError) as error:
        raise DatasetError(f"cannot read {path}: {error}; convert again") from None
    if index.dtype != np.int64 or index.shape[1:] != (4,) or (index < 0).any():
        raise DatasetError(f"{path} is no index of {of}: convert again")
    return index


class LazyReader(Reader):
    """Opens its files at the first read; a subclass says how, and how they are closed."""

    _pid = 0
    _opened: Any = None  # what :meth:`_open` returned to the process ``_pid``

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_pid": 0, "_opened": None}

    def close(self) -> None:
        """Close what this process opened.  Idempotent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            (self._end if self._pid == os.getpid() else self._leave)(opened)

    def _handles(self) -> Any:
        """Return the handles of this process, opened if need be."""
        if self._pid != os.getpid():
            self.close()
        if self._opened is None:
            self._opened = self._open()
            self._pid = os.getpid()
        return self._opened

    def _open(self) -> Any:
        raise NotImplementedError

    def _end(self, opened: Any) -> None:
        """Close handles."""
        raise NotImplementedError

    def _leave(self, opened: Any) -> None:
        """Drop handles that a fork inherited."""


class ShardReader(LazyReader):
    """Keeps the files of the shards open that were read last; a subclass names them."""

    def _path(self, shard: int) -> str:
        raise NotImplementedError

    def _descriptor(self, shard: int) -> int:
        shards = self._handles()
        if shard not in shards:
            shards[shard] = os.open(self._path(shard), os.O_RDONLY)
            if len(shards) > OPEN_SHARDS:
                os.close(shards.popitem(last=False)[1])
        shards.move_to_end(shard)
        return int(shards[shard])

    def _open(self) -> OrderedDict[int, int]:
        return OrderedDict()

    def _end(self, opened: Any) -> None:
        for fd in opened.values():
            os.close(fd)
