"""Grain: what waits in its queues, its worker processes, and what is left when it is closed."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.backends.loaders import _grain_gate, _torch_workers
from iobench.core import registry
from iobench.core.errors import BackendUnavailable, DatasetError
from iobench.core.protocols import LoadRequest
from tests.build import photos
from tests.capabilities import need_modules

SAMPLES, BATCH = 200, 8
BLOCK = BATCH * 3 * 32 * 32 * 4


@pytest.fixture(scope="module")
def request_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    need_modules(registry.load("loaders", "grain").requires)
    stored = photos.samples(SAMPLES, small=True)
    folder = tmp_path_factory.mktemp("grain")
    form = registry.load("formats", "tar").make()
    dataset = photos.dataset_of(stored, folder)
    root: Path = photos.store(stored, folder, form, "tar")

    def make(**changes: Any) -> LoadRequest:
        asked = {"stage": "read", "batch": BATCH, "order": "shuffled", "transform": "cifar32"}
        return photos.request_of(stored, dataset, root, form, **{**asked, **changes})

    return make


def opened(request: LoadRequest, **options: Any) -> Any:
    return registry.load("loaders", "grain").make(request, **options)


def run(request: LoadRequest, **options: Any) -> list[Any]:
    loader = opened(request, **options)
    try:
        return [b if b.data is None else b._replace(data=b.data.copy()) for b in loader.batches()]
    finally:
        loader.close()


def settled(count: Any) -> int:
    """Return what a counter comes to when nothing more is added."""
    while True:
        before = count()
        time.sleep(0.5)
        if count() == before:
            return int(before)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (4, 1), (2, 4), (3, 2)])
def test_the_stated_queue_is_what_waits_in_it(request_of: Any, workers: int, prefetch: int) -> None:
    """Not Grain's own 500 batches: workers x prefetch, as of a DataLoader."""
    loader = opened(request_of(workers=workers, prefetch=prefetch))
    made: list[int] = []
    for maker in loader._samples._makers:
        maker._reader.read = counted(maker._reader.read, made)
    batches = loader.batches()
    next(batches)
    waiting = settled(lambda: len(made)) - BATCH
    grain_threads = [t for t in threading.enumerate() if t.name.startswith("grain-prefetch")]
    batches.close()
    loader.close()
    assert waiting / BATCH == loader.queue_batches == workers * prefetch
    assert 1 <= len(grain_threads) <= workers


def counted(read: Any, made: list[int]) -> Any:
    def count(index: int) -> Any:
        made.append(index)
        return read(index)

    return count


def test_nothing_is_read_before_the_loop_begins(request_of: Any) -> None:
    loader = opened(request_of(workers=2))
    made: list[int] = []
    for maker in loader._samples._makers:
        maker._reader.read = counted(maker._reader.read, made)
    time.sleep(0.3)
    assert made == []
    loader.close()


def test_an_epoch_that_is_left_reads_nothing_more(request_of: Any) -> None:
    """Grain does not wait for its threads; the readers are closed when they have ended."""
    loader = opened(request_of(workers=3, prefetch=2, batch=40))
    made: list[int] = []
    for maker in loader._samples._makers:
        maker._reader.read = slowly(maker._reader.read, made)
    next(loader.batches())
    loader.close()
    before = len(made)
    time.sleep(0.5)
    assert len(made) == before
    assert all(maker._reader._opened is None for maker in loader._samples._makers)


def slowly(read: Any, made: list[int]) -> Any:
    def wait(index: int) -> Any:
        time.sleep(0.005)
        made.append(index)
        return read(index)

    return wait


@pytest.mark.parametrize("workers", [1, 3])
def test_processes_give_the_batches_that_threads_give(request_of: Any, workers: int) -> None:
    request = request_of(workers=workers, stage="load", digest=True)
    by_threads, by_processes = run(request), run(request, processes=True)
    assert len(by_threads) == len(by_processes) == SAMPLES // BATCH
    for one, other in zip(by_threads, by_processes):
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.labels, other.labels)
        assert np.array_equal(one.data, other.data)
        assert (one.nbytes, one.digests) == (other.nbytes, list(other.digests))
        assert len(one.marks) == len(other.marks)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 2)])
def test_the_stated_queue_of_processes_is_what_waits_in_it(
    request_of: Any, workers: int, prefetch: int
) -> None:
    """A process's queue, as long a one in the trainer's process, and one batch before each."""
    before = blocks()
    loader = opened(request_of(workers=workers, prefetch=prefetch, stage="load"), processes=True)
    batches = loader.batches()
    first = next(batches)
    waiting = settled(lambda: len(blocks() - before)) - 1
    assert first.data.nbytes == BLOCK
    del first
    batches.close()
    loader.close()
    assert waiting == loader.queue_batches == workers * 2 * (prefetch + 1)


def blocks() -> set[Path]:
    """Return the blocks of shared memory that hold a batch's pixels."""
    found = set()
    for path in Path("/dev/shm").glob("psm_*"):
        with contextlib.suppress(FileNotFoundError):  # of a test beside, removed meanwhile
            if path.stat().st_size == BLOCK:
                found.add(path)
    return found


def test_processes_are_up_and_read_nothing_before_the_loop_begins(request_of: Any) -> None:
    request = request_of(workers=2)
    loader = opened(request, processes=True)
    time.sleep(0.5)
    (shard,) = request.format.files(request.dataset, request.root)
    processes = loader.processes()
    assert len(processes) == 2
    for process in processes:
        assert os.fspath(shard) not in files_of(process)
    loader.close()
    loader.close()
    assert not [p for p in processes if Path(f"/proc/{p}").exists()]


def files_of(process: int) -> list[str]:
    return [os.path.realpath(path) for path in Path(f"/proc/{process}/fd").iterdir()]


def test_a_process_that_is_killed_ends_the_epoch(request_of: Any) -> None:
    loader = opened(request_of(workers=2, prefetch=1, batch=2), processes=True)
    batches = loader.batches()
    next(batches)
    os.kill(loader.processes()[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exit code -9"):
        list(batches)
    loader.close()
    assert not [p for p in loader.processes() if Path(f"/proc/{p}").exists()]


@pytest.mark.parametrize("processes", [False, True])
def test_a_sample_that_is_no_jpeg_is_named(tmp_path: Path, processes: bool) -> None:
    need_modules(registry.load("loaders", "grain").requires)
    stored = photos.spoilt(photos.samples(20, small=True), 7, b"no jpeg")
    form = registry.load("formats", "tar").make()
    dataset, root = photos.dataset_of(stored, tmp_path), photos.store(stored, tmp_path, form, "tar")
    asked = {"stage": "load", "transform": "cifar32", "workers": 2}
    with pytest.raises(DatasetError, match="sample 7 of"):
        run(photos.request_of(stored, dataset, root, form, **asked), processes=processes)


def test_a_small_shared_memory_is_told_before_processes_start(
    request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_torch_workers.probes, "shared_memory", lambda: (1 << 20, 1 << 10))
    with pytest.raises(BackendUnavailable, match=r"the grain loader's queue needs .*shm-size"):
        opened(request_of(workers=2, stage="load"), processes=True)


def test_without_workers_processes_are_not_started(request_of: Any) -> None:
    loader = opened(request_of(workers=0), processes=True)
    assert loader.processes() == []
    assert loader.queue_batches == 0
    assert len(list(loader.batches())) == SAMPLES // BATCH
    loader.close()


def test_processes_that_do_not_come_up_are_stopped(
    request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_grain_gate, "_START_S", 0.01)
    before = children()
    with pytest.raises(BackendUnavailable, match="2 worker processes were not up after 0 s"):
        opened(request_of(workers=2), processes=True)
    assert children() <= before


def children() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid}


PLUGGED = """
from iobench.backends.formats.tar import TarFormat
from iobench.core.members import FormatBackend


class Plugged(TarFormat):
    pass


BACKEND = FormatBackend(Plugged, "tar by another name")
"""


def test_processes_read_a_format_that_is_plugged_in(
    request_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats/plugged.py").write_text(PLUGGED)
    monkeypatch.setenv("IOBENCH_PLUGINS", str(tmp_path))
    request = request_of(workers=1)
    plugged = registry.load("formats", "plugged").make()
    batches = run(dataclasses.replace(request, format=plugged), processes=True)
    assert [i for batch in batches for i in batch.ids] == request.ids.tolist()
