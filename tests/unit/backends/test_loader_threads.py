"""The threads loader: what is particular to it.  What all loaders promise is a contract test."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, List, Sequence, Tuple

import numpy as np
import pytest

from iobench.backends.loaders.threads import ThreadsLoader
from iobench.core import registry, transforms
from iobench.core.cases import Case, Dataset, Extent
from iobench.core.errors import DatasetError, SpecError
from iobench.core.protocols import LoadRequest
from iobench.worker import remote_loader
from tests.build import photos
from tests.build.photos import Stored
from tests.capabilities import need

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return photos.stored(tmp_path_factory.mktemp("photos"), photos.samples(18))


def request(stored: Stored, format_: Any = None, **changes: Any) -> LoadRequest:
    return photos.request_of(*stored, format_ or photos.Files(), **changes)


def rows(loader: Any) -> np.ndarray:
    """Return the pixels by sample id."""
    found = {}
    for batch in loader.batches():
        found.update(zip(batch.ids.tolist(), np.asarray(batch.data).copy()))
    loader.close()
    return np.stack([found[i] for i in range(len(found))])


def ours() -> List[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("iobench-")]


@pytest.mark.parametrize("transform", ["rrc224", "crop224"])
def test_pixels_depend_on_neither_threads_nor_order(stored: Stored, transform: str) -> None:
    expected = np.empty((18, 3, 224, 224), np.float32)
    for i, sample in enumerate(stored[0]):
        chosen = transforms.transform(transform)
        chosen.apply(transforms.decode(sample.data), transforms.SampleRandom(0, 0, i), expected[i])
    for workers, order in ((0, "stored"), (1, "shuffled"), (3, "window:5"), (5, "shuffled")):
        made = request(stored, workers=workers, order=order, transform=transform, batch=6)
        assert np.array_equal(rows(ThreadsLoader(made)), expected)


def test_torch_and_threads_make_the_same_batches(stored: Stored) -> None:
    need("torch")
    made = request(stored, order="shuffled", workers=2)
    torch, threads = registry.load("loaders", "torch").make(made), ThreadsLoader(made)
    assert threads.queue_batches == torch.queue_batches
    assert np.array_equal(rows(threads), rows(torch))


def test_a_batch_stays_until_the_next_is_asked_for(stored: Stored) -> None:
    """Its memory is used again, by threads that have long caught up, but not before."""
    log = _Log()
    loader = ThreadsLoader(request(stored, log, workers=2, prefetch=1, batch=2))
    memories, reads = set(), 0
    for k, batch in enumerate(loader.batches()):
        before = batch.data.copy()
        reads = min(18, 2 * (k + 1 + loader.queue_batches))
        wait_for(lambda reads=reads: len(log.read) >= reads)
        assert len(log.read) == reads, "more batches ahead than the queue holds"
        assert np.array_equal(batch.data, before)
        memories.add(batch.data.ctypes.data)
    assert reads == 18
    assert len(memories) == loader.queue_batches + 1
    loader.close()


def test_nothing_is_read_before_the_first_batch_is_asked_for(stored: Stored) -> None:
    log = _Log()
    loader = ThreadsLoader(request(stored, log, workers=2, stage="read"))
    assert len(ours()) == 2
    time.sleep(0.05)
    assert not log.read
    assert len(list(loader.batches())) == 4
    assert sorted(log.read) == list(range(16))
    loader.close()
    assert not ours()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_sample_is_named_where_its_batch_is_due(
    stored: Stored, tmp_path: Path, workers: int
) -> None:
    bad = photos.stored(tmp_path, photos.spoilt(stored[0], 9, b"no jpeg"))
    loader = ThreadsLoader(request(bad, workers=workers))
    seen: List[List[int]] = []
    with pytest.raises(DatasetError, match=r"^sample 9 of .*/jpeg: no readable JPEG") as raised:
        seen.extend(batch.ids.tolist() for batch in loader.batches())
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "\n" not in str(raised.value)
    loader.close()
    assert not ours()


def test_an_error_of_another_kind_is_raised_as_it_is(stored: Stored) -> None:
    loader = ThreadsLoader(request(stored, _Broken(), workers=2, stage="read"))
    with pytest.raises(ZeroDivisionError):
        list(loader.batches())
    loader.close()


def test_it_is_left_early(stored: Stored) -> None:
    loader = ThreadsLoader(request(stored, workers=3, prefetch=1, batch=2))
    next(loader.batches())
    loader.close()
    loader.close()
    assert not ours()


def test_a_delay_in_the_decoder_is_slept_once_a_sample(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: List[float] = []
    monkeypatch.setattr(transforms, "delay", slept.append)
    for stage, expected in (("read", 0), ("decode", 16), ("load", 16)):
        slept.clear()
        loader = ThreadsLoader(request(stored, workers=2, stage=stage, decode_delay_s=0.5))
        assert len(list(loader.batches())) == 4
        loader.close()
        assert slept == [0.5] * expected


@pytest.mark.parametrize("form", ["lmdb", "hdf5", "tar", "jpeg"])
def test_readers_of_one_process_work_side_by_side(form: str, tmp_path: Path) -> None:
    """Each thread has a Reader, and LMDB's allows its environment to be open but once."""
    if form in ("lmdb", "hdf5"):
        need(form)
    samples = photos.samples(24)
    format_ = registry.load("formats", form).make()
    stored = photos.stored(tmp_path, samples, format_, form)
    loader = ThreadsLoader(request(stored, format_, workers=4, batch=2, stage="read", digest=True))
    digests = [d for batch in loader.batches() for d in batch.digests]
    loader.close()
    assert digests == photos.digests_of(samples)
    again = format_.open(*stored[1:])  # closed for good: it can be opened anew
    assert bytes(memoryview(again.read(3)[0])) == samples[3].data
    again.close()


# -- Caffe's Python --------------------------------------------------------------------------

SCRIPT = """
import hashlib, sys
from pathlib import Path
import numpy as np
from iobench.backends.loaders import _batches
from iobench.core import dataset, registry
from iobench.core.protocols import LoadRequest

found = dataset.locate(Path(sys.argv[1]))
index = dataset.load_index(found)
for form in sys.argv[2].split(","):
    made = registry.load("formats", form).make()
    for stage, workers in (("read", 2), ("decode", 1), ("load", 0), ("load", 3)):
        request = LoadRequest(
            dataset=found, format_name=form, format=made, root=dataset.form_root(found, form),
            ids=np.arange(found.samples)[::-1].copy(), labels=index.labels, sizes=index.sizes,
            stage=stage, batch=4, workers=workers, prefetch=2, transform="crop224",
        )
        loader = registry.load("loaders", "threads").make(request)
        seen = hashlib.sha256()
        for batch in loader.batches():
            for value in (batch.ids, batch.labels, np.int64(batch.nbytes), batch.data):
                seen.update(b"-" if value is None else np.ascontiguousarray(value).tobytes())
        loader.close()
        print(form, stage, workers, seen.hexdigest())
    times = _batches.probe(request, 3)
    assert all(len(v) == 3 and min(v) > 0 for v in times.values()), times
"""


@pytest.mark.system
def test_caffe_s_python_makes_the_same_batches(tmp_path: Path) -> None:
    """Python 3.9 with libraries of another age: ids, labels, bytes and pixels are the same."""
    need("caffe")
    from iobench.data import convert, make

    found = make.make("smoke", tmp_path / "data", samples=16, seed=1)
    for form in ("lmdb", "hdf5", "tar"):
        convert.convert(found, form)
    stack = registry.installed("caffe")
    seen = {}
    for python, env, path in (
        (stack.python, stack.env, stack.python_path),
        (sys.executable, {}, ()),
    ):
        variables = {**env, "PYTHONPATH": ":".join([str(ROOT), *path]), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [python, "-c", SCRIPT, found.root, "jpeg,lmdb,hdf5,tar"],
            env={**variables, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        seen[python] = done.stdout
    first, second = seen.values()
    assert first == second
    assert len(first.splitlines()) == 16


FORWARD = """
import sys, tempfile, threading, time
import caffe

with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as text:
    text.write('''
        layer { name: "data" type: "Input" top: "data"
          input_param { shape { dim: 32 dim: 3 dim: 224 dim: 224 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
          convolution_param { num_output: 64 kernel_size: 7 } }''')
    text.flush()
    net = caffe.Net(text.name, caffe.TEST)
ticks = [0]

def tick():
    while True:
        ticks[0] += 1
        time.sleep(0.001)

threading.Thread(target=tick, daemon=True).start()
net.forward()
before = ticks[0], time.perf_counter()
net.forward()
while_computing, took = ticks[0] - before[0], time.perf_counter() - before[1]
before = ticks[0]
time.sleep(took)
sys.stdout.write(f"{while_computing} {ticks[0] - before}")
"""


@pytest.mark.system
def test_pycaffe_keeps_the_lock_while_it_computes() -> None:
    """Why threads beside its trainer do not overlap with it, as docs/loaders.md says."""
    need("caffe")
    stack = registry.installed("caffe")
    if stack.own:
        pytest.skip("a Caffe of the user's may do otherwise")
    done = subprocess.run(
        [stack.python, "-c", FORWARD],
        env={"PATH": "/usr/bin:/bin", **stack.env, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    computing, idle = map(int, done.stdout.split())
    assert idle > 20
    assert computing < idle / 4


class _Log(photos.Files):
    """Keeps which samples were read, in this process."""

    def __init__(self) -> None:
        self.read: List[int] = []

    def open(self, dataset: Dataset, root: Path) -> Any:
        return _LogReader(self.files(dataset, root), self.read)


class _LogReader(photos.FilesReader):
    def __init__(self, paths: Sequence[Path], log: List[int]) -> None:
        super().__init__(paths)
        self.log = log

    def __deepcopy__(self, memo: Any) -> _LogReader:
        return _LogReader(self.paths, self.log)

    def read(self, index: int) -> Tuple[Any, int]:
        self.log.append(index)
        return super().read(index)

    def extents(self, index: int) -> Sequence[Extent]:
        return super().extents(index)


class _Broken(photos.Files):
    def open(self, dataset: Dataset, root: Path) -> Any:
        return _BrokenReader(self.files(dataset, root))


class _BrokenReader(photos.FilesReader):
    def read(self, index: int) -> Tuple[Any, int]:
        raise ZeroDivisionError(index)


def wait_for(done: Any, limit_s: float = 20.0) -> None:
    """Wait until it is so, then long enough that one step too far would show."""
    end = time.monotonic() + limit_s
    while not done() and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.03)


def test_a_walk_goes_once_through_an_lmdb_and_only_when_asked_for(
    stored: Stored, tmp_path: Path
) -> None:
    form = registry.load("formats", "lmdb").make()
    form.write(stored[0], tmp_path)
    reader = form.open(stored[1], tmp_path)
    assert reader.walk() == len(stored[0])
    reader.close()
    asked = dataclasses.replace(request(stored, form), root=tmp_path, format_name="lmdb")
    loader = ThreadsLoader(asked, walk=True)
    assert loader._walk() == len(stored[0])
    walks: List[int] = []
    loader._walk = lambda: walks.append(1)
    loader.walk()
    assert walks == [1]
    assert len(rows(loader)) == len(asked.ids) // asked.batch * asked.batch
    loader = ThreadsLoader(asked)
    assert loader._walk is None
    loader.walk()
    loader.close()


def test_what_cannot_be_walked_is_refused(stored: Stored) -> None:
    with pytest.raises(SpecError, match="only lmdb"):
        ThreadsLoader(request(stored), walk=True)
    apart = Case(loader="threads", format="lmdb", loader_options={"walk": True, "apart": True})
    with pytest.raises(SpecError, match="apart"):
        remote_loader.python_of(apart)
