"""A trial from the driver's side: other mounts, unreadable files, a worker that left nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench import dataset as datasets
from iobench import launch, mounts, process
from iobench.errors import TrialFailed
from iobench.model import FAILED, CacheProof, Case, Dataset, IoCounters, Trial, to_json
from tests.test_store import record

CASE = Case(format="jpeg", loader="torch")
COLD = Trial("t", CASE, "ceiling", "cold")


class Counts:
    """A filesystem that counts, or does not."""

    def __init__(self, counted: int | None) -> None:
        self._counted = counted

    def storage_bytes(self, io: IoCounters) -> tuple[int | None, str]:
        return self._counted, ""


@pytest.mark.parametrize(("counted", "crossed"), [(0, 4096), (None, None)])
def test_fio_is_believed_only_where_its_counter_is_the_mount_s(
    tmp_path: Path, counted: int | None, crossed: int | None
) -> None:
    """On FUSE and network filesystems a process's read_bytes stay 0 whatever it reads."""
    path = tmp_path / "x"
    path.write_bytes(bytes(4096))
    proof = CacheProof("data-cold", "cachestat", 0.0, bytes_storage=4096)
    assert launch._after(COLD, proof, [path], (), Counts(counted)).bytes_storage == crossed


def test_the_mount_is_that_of_the_files_read_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``OUT`` is on a disk, the user's own files are elsewhere."""

    @contextlib.contextmanager
    def no_worker(*_: object) -> Iterator[None]:
        raise TrialFailed("by the test")
        yield

    monkeypatch.setattr(launch, "worker_of", no_worker)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as own,
        tempfile.TemporaryDirectory(dir=Path(__file__).parent) as out,
    ):
        Path(own, "n0").mkdir()
        Path(own, "n0", "0.jpg").write_bytes(b"0")
        datasets.write_index(Path(out), [datasets.Row("n0/0", 0, 1, "", "n0/0.jpg")])
        made = Dataset(out, "t", 1, 1, 1, 1, "", "test", in_place=True, jpeg_root=own)
        found = launch.run_trial(
            Trial("t", dataclasses.replace(CASE, location=out), "read", "cold"),
            datasets.finish(made), 1, launch.Settings(),
        )  # fmt: skip
        assert found.mount == mounts.describe_mount(Path(own))
        assert found.mount["mount_point"] != mounts.describe_mount(Path(out))["mount_point"]


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_file_that_cannot_be_opened_or_told_of_fails_the_trial(
    cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "/d/x.jpg")

    trial = dataclasses.replace(COLD, cache=cache)
    files: Any = [types.SimpleNamespace(stat=broken)]
    monkeypatch.setattr(launch.pagecache, "evict", broken)
    with pytest.raises(TrialFailed, match=r"/d/x\.jpg: Input/output error"):
        launch._prepare(trial, files, None, launch.Settings())  # type: ignore[arg-type]


def ended(folder: Path, error: str) -> process.Worker:
    """Return a worker that left a result and nothing else."""
    rank = dataclasses.replace(record().ranks[0], error=error)
    (folder / "result.0.json").write_text(json.dumps(to_json(rank)))
    popen: Any = types.SimpleNamespace(returncode=1, poll=lambda: 1)
    return process.Worker(popen, folder, None, COLD, 1.0, 0.0, False)  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", ["extents", "processes"])
def test_what_a_failed_worker_did_not_write_is_its_own_error(tmp_path: Path, ask: str) -> None:
    worker = ended(tmp_path, "Traceback\nDatasetError: the lens is dirty")
    with pytest.raises(TrialFailed, match=r"^DatasetError: the lens is dirty$"):
        getattr(worker, ask)()


def test_a_ceiling_whose_worker_failed_is_a_failed_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def failing(*_: object) -> Iterator[process.Worker]:
        yield ended(tmp_path, "the lens is dirty")

    root = tmp_path / "set"
    (root / "jpeg" / "n0").mkdir(parents=True)
    (root / "jpeg" / "n0" / "0.jpg").write_bytes(b"0")
    datasets.write_index(root, [datasets.Row("n0/0", 0, 1, "", "n0/0.jpg")])
    made = Dataset(str(root), "t", 1, 1, 1, 1, "", "test", jpeg_root=str(root / "jpeg"))
    monkeypatch.setattr(launch, "worker_of", failing)
    found = launch.run_trial(COLD, datasets.finish(made), 1, launch.Settings())
    assert (found.status, found.reasons) == (FAILED, ("the lens is dirty",))
