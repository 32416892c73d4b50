"""A trial from the driver's side: other mounts, unreadable files, a worker that left nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import CacheStateError, TrialFailed
from iobench.core.protocols import Crossed
from iobench.core.records import FAILED, IoCounters
from iobench.data import index
from iobench.host import agent, filesystems
from iobench.run import cache_proof, worker_process
from iobench.run import trial as launch
from tests.build.datasets import indexed
from tests.build.ranks import JOIN, RESULT, started

CASE = Case(format="jpeg", loader="torch")
COLD = Trial("t", CASE, "ceiling", "cold")


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
        index.write_index(Path(out), [index.Row("n0/0", 0, 1, "", "n0/0.jpg")])
        made = Dataset(out, "t", 1, 1, 1, 1, "", "test", in_place=True, jpeg_root=own)
        found = launch.run_trial(
            Trial("t", dataclasses.replace(CASE, location=out), "read", "cold"),
            index.finish(made), 1, launch.TrialSettings(),
        )  # fmt: skip
        assert found.mount == filesystems.describe_mount(Path(own))
        assert found.mount["mount_point"] != filesystems.describe_mount(Path(out))["mount_point"]


class Shared(agent.Agent):
    """A node whose mount counts everybody's bytes."""

    def others(self, path: Path) -> float | None:
        return 1000.0

    def crossed(self, path: Path, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        return Crossed(4096, "the mount's", whole=True)

    def caches(self, path: Path) -> Mapping[str, int]:
        return {"of the client": 7}


@pytest.mark.parametrize(("cache", "kept"), [("cold", {"of the client": 7}), ("warm", {})])
def test_what_others_move_is_of_the_proof_where_all_are_counted(
    cache: str, kept: Mapping[str, int], tmp_path: Path
) -> None:
    trial = Trial("t", CASE, "read", cache)
    attempt = launch.Attempt(trial, small(tmp_path), launch.TrialSettings(agent=Shared()))
    attempt.count()
    attempt.count_again()
    attempt._prove_after(inside=False)
    proof = attempt.proof
    assert (proof.bytes_storage, proof.counter, proof.caches) == (4096, "the mount's", kept)
    assert proof.others_bytes is not None
    assert proof.messages_bytes == cache_proof.MESSAGES_BYTES


@pytest.mark.parametrize("fio_bytes", [0, 4096])
def test_fio_is_counted_by_its_own_bytes_or_the_mount_s(fio_bytes: int, tmp_path: Path) -> None:
    """On FUSE and network filesystems a process's read_bytes stay 0 whatever it reads."""
    for name, crossed in (("posix", fio_bytes), ("whole", 4096)):
        node = agent.Agent() if name == "posix" else Shared()
        attempt = launch.Attempt(COLD, small(tmp_path / name), launch.TrialSettings(agent=node))
        attempt.ceiling = {"storage_bytes": fio_bytes, "io_bytes": 4096}
        attempt._prove_after(inside=False)
        assert attempt.proof.bytes_storage == crossed
        assert attempt.proof.bytes_read == 0


class Broken(agent.Agent):
    """A node whose disk is."""

    def evict(self, files: Iterable[Path]) -> None:
        raise OSError(errno.EIO, "Input/output error", "/d/x.jpg")

    warm = evict


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_file_that_cannot_be_read_fails_the_trial(cache: str, tmp_path: Path) -> None:
    made = small(tmp_path)
    trial = Trial("t", CASE, "load", cache)
    attempt = launch.Attempt(trial, made, launch.TrialSettings(agent=Broken()))
    with pytest.raises(TrialFailed, match=r"/d/x\.jpg: Input/output error"):
        attempt._set_state(None, attempt._nodes[0])  # type: ignore[arg-type]
    (tmp_path / "set/jpeg/n0/0.jpg").unlink()
    attempt = launch.Attempt(trial, made, launch.TrialSettings())
    with pytest.raises((TrialFailed, CacheStateError), match=r"0\.jpg"):
        attempt._set_state(None, attempt._nodes[0])  # type: ignore[arg-type]


def small(folder: Path) -> Dataset:
    """One sample."""
    root = folder / "set"
    (root / "jpeg" / "n0").mkdir(parents=True)
    (root / "jpeg" / "n0" / "0.jpg").write_bytes(b"0")
    return indexed(root, 1, size=1)


FAILED_RANK = f"{JOIN}{RESULT}result('Traceback\\nDatasetError: the lens is dirty')\nsys.exit(1)"


@pytest.mark.parametrize("ask", ["wait_ready", "extents", "prepared"])
def test_what_a_failed_worker_did_not_send_is_its_own_error(tmp_path: Path, ask: str) -> None:
    with started(tmp_path, [FAILED_RANK]) as worker:
        with pytest.raises(TrialFailed, match=r"^DatasetError: the lens is dirty$"):
            getattr(worker, ask)()
        assert [r.error.splitlines()[0] for r in worker.finished()] == ["Traceback"]


def test_a_ceiling_whose_worker_failed_is_a_failed_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> contextlib.AbstractContextManager[worker_process.Worker]:
        return started(tmp_path, [FAILED_RANK])

    monkeypatch.setattr(launch, "worker_of", failing)
    found = launch.run_trial(COLD, small(tmp_path), 1, launch.TrialSettings())
    assert (found.status, found.reasons) == (FAILED, ("DatasetError: the lens is dirty",))
    assert [rank.error.splitlines()[0] for rank in found.ranks] == ["Traceback"]
