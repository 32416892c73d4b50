"""Room for data: what a filesystem says of its free space and of its inodes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from iobench.core.errors import DatasetError
from iobench.host import files


@pytest.mark.parametrize(
    ("inodes", "free", "refused"),
    [
        (1000, 999, True),
        (1000, 1000, False),
        (0, 0, False),  # btrfs: no table of inodes
        (4, -1, False),  # ceph-fuse: no limit
    ],
)
def test_inodes(
    inodes: int, free: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SimpleNamespace(f_files=inodes, f_favail=free, f_frsize=1, f_blocks=9, f_bavail=9)
    answer.f_bfree = 9
    monkeypatch.setattr(os, "statvfs", lambda folder: answer)
    if refused:
        with pytest.raises(DatasetError, match="999 inodes free"):
            files.check_space(tmp_path, 5, 1000, "the test")
    else:
        files.check_space(tmp_path, 5, 1000, "the test")
