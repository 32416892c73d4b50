"""The torch loader's options: threads inside its workers, and batches as they are completed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.core import registry
from iobench.core.errors import DatasetError
from tests.build import photos
from tests.build.photos import Stored
from tests.capabilities import need

SAMPLES, BATCH = 18, 3
WAIT_S = 60.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    need("torch")
    return photos.stored(tmp_path_factory.mktemp("photos"), photos.samples(SAMPLES))


def loader(stored: Stored, format_: Any = None, *, workers: int = 2, **options: Any) -> Any:
    form = format_ or photos.Files()
    request = photos.request_of(*stored, form, batch=BATCH, workers=workers)
    return registry.load("loaders", "torch").make(request, **options)


def taken(opened: Any) -> list[Any]:
    found = [b._replace(data=b.data.numpy().copy()) for b in opened.batches()]
    opened.close()
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("threads", [2, 5])  # more threads than a batch has samples, too
def test_threads_make_the_same_batches(stored: Stored, workers: int, threads: int) -> None:
    plain = taken(loader(stored, workers=workers))
    shared = taken(loader(stored, workers=workers, threads=threads))
    for one, other in zip(plain, shared, strict=True):
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.labels, other.labels)
        assert np.array_equal(one.data, other.data)
        assert one.nbytes == other.nbytes


def test_a_thread_names_the_sample_that_it_cannot_decode(stored: Stored, tmp_path: Path) -> None:
    bad = photos.stored(tmp_path, photos.spoilt(stored[0], 7, b"no jpeg"))
    opened = loader(bad, threads=2)
    with pytest.raises(DatasetError, match="sample 7 of"):
        list(opened.batches())


def test_a_worker_killed_before_the_loop_ends_the_epoch(stored: Stored) -> None:
    opened = loader(stored)
    os.kill(opened.processes()[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(opened.batches())
    opened.close()


class Held(photos.Files):
    """Files of which the first is read when ``gate`` is there, and not before."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def open(self, dataset: Any, root: Path) -> Any:
        reader = super().open(dataset, root)
        read, gate = reader.read, self.gate

        def held(index: int) -> Any:
            until = time.monotonic() + WAIT_S
            while index == 0 and not gate.exists() and time.monotonic() < until:
                time.sleep(0.01)
            return read(index)

        reader.read = held
        return reader


def test_without_order_a_slow_batch_holds_up_none_behind_it(stored: Stored, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    batches = (opened := loader(stored, Held(gate), in_order=False)).batches()
    first = next(batches)
    gate.touch()
    rest = list(batches)
    opened.close()
    assert 0 not in first.ids
    ids = np.concatenate([batch.ids for batch in (first, *rest)])
    assert sorted(ids.tolist()) == list(range(SAMPLES))
