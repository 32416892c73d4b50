"""What every format promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from iobench.backends.caffe import hdf5
from iobench.backends.formats import arrayrecord
from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Dataset
from iobench.core.members import FormatBackend
from iobench.core.protocols import StoredSample
from iobench.data import convert, make
from tests.capabilities import need_modules

SAMPLES = 20
#: Bytes of a unit that holds several samples and is read whole, where they are known: HDF5's heap.
SHARED = {"hdf5": 64 << 10}
#: Takes out the headers of a format's blocks, which lie within samples: (bytes, their offset).
UNBLOCKED = {"arrayrecord": arrayrecord.plain}


def stored_forms() -> List[Tuple[str, str]]:
    """Every (format, content) that puts bytes on disk."""
    pairs = []
    for name in registry.names("formats"):
        backend = registry.load("formats", name)
        if not backend.fileless:
            pairs += [(name, content) for content in sorted(backend.contents)]
    return pairs


every_member = pytest.mark.parametrize("name", registry.names("formats"))
every_form = pytest.mark.parametrize(("name", "content"), stored_forms())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make.make("smoke", tmp_path_factory.mktemp("data") / "set", samples=SAMPLES)


@pytest.fixture
def opened(dataset: Dataset, name: str, content: str) -> Any:
    """(format, folder, expected data and label of each sample, a new reader)."""
    need_modules(registry.load("formats", name).requires)
    form = registry.load("formats", name).make()
    if name == "jpeg":
        root = datasets.form_root(dataset, "jpeg")
    else:
        root = convert.convert(dataset, name, content=content)
    index = datasets.load_index(dataset)
    expected = []
    for file, label in zip(index.files, index.labels, strict=True):
        data: Any = Path(dataset.jpeg_root, file).read_bytes()
        if content != "jpeg":
            data = convert.pixels(data, convert.SIDES[content])
        expected.append((data, int(label)))
    reader = form.open(dataset, root)
    yield form, root, expected, reader
    reader.close()


def same(data: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return data.dtype == np.uint8 and np.array_equal(data, expected)
    return bytes(data) == expected


def check_all(reader: Any, expected: List[Tuple[Any, int]], order: Any) -> None:
    for i in order:
        data, label = reader.read(int(i))
        assert same(data, expected[i][0]), i
        assert type(label) is int
        assert label == expected[i][1]


@every_member
def test_it_is_a_format_backend(name: str) -> None:
    backend = registry.load("formats", name)
    assert isinstance(backend, FormatBackend)
    assert backend.summary
    assert backend.contents <= {"jpeg", "raw", "float"}


@every_form
def test_round_trip_in_any_order(opened: Any) -> None:
    _, _, expected, reader = opened
    assert len(reader) == SAMPLES
    check_all(reader, expected, range(SAMPLES))
    check_all(reader, expected, np.random.default_rng(1).permutation(SAMPLES))


@every_form
def test_what_was_read_is_its_own(opened: Any) -> None:
    """The bytes stay right after the next reads, until the reader is closed."""
    _, _, expected, reader = opened
    kept = [reader.read(i)[0] for i in range(SAMPLES)]
    assert all(same(data, wanted) for data, (wanted, _) in zip(kept, expected, strict=True))
    if isinstance(kept[0], np.ndarray):
        assert kept[0].flags.c_contiguous
    else:
        assert isinstance(kept[0], (bytes, memoryview))


@every_form
def test_a_reader_can_be_pickled_before_and_after_use(opened: Any) -> None:
    _, _, expected, reader = opened
    fresh = pickle.loads(pickle.dumps(reader))
    check_all(fresh, expected, range(3))
    fresh.close()
    check_all(reader, expected, range(3))
    state = pickle.dumps(reader)
    reader.close()  # LMDB is open once in a process
    again = pickle.loads(state)
    check_all(again, expected, range(3))
    again.close()


@every_form
@pytest.mark.parametrize("used", [False, True])
def test_a_fork_opens_its_own_handles(opened: Any, used: bool) -> None:
    """Parent and child read at once, and the child closes without harm to the parent."""
    _, _, expected, reader = opened
    if used:
        check_all(reader, expected, range(4))

    def child() -> None:
        for _ in range(3):
            check_all(reader, expected, range(SAMPLES))
        reader.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    for _ in range(3):
        check_all(reader, expected, range(SAMPLES))
    process.join(60)
    assert process.exitcode == 0
    check_all(reader, expected, range(SAMPLES))


def descriptors() -> set:
    return set(os.listdir("/proc/self/fd"))


@every_form
def test_nothing_is_opened_before_the_first_read(opened: Any) -> None:
    form, root, _, reader = opened
    paths = {str(path.resolve()) for path in form.files(None, root)} if root.name != "jpeg" else ()
    links = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in descriptors()}
    assert not links & set(paths)
    reader.read(0)
    reader.close()
    reader.close()
    assert not {os.path.realpath(f"/proc/self/fd/{fd}") for fd in descriptors()} & set(paths)


@every_form
def test_extents_hold_exactly_the_bytes(
    opened: Any, dataset: Dataset, name: str, content: str
) -> None:
    form, root, expected, reader = opened
    files = {str(path) for path in form.files(dataset, root)}
    owner: Dict[Any, List[int]] = {}
    is_shared = content in registry.load("formats", name).shared
    shared = SHARED.get(name, 1 << 30) if is_shared else 0
    for i, (wanted, _) in enumerate(expected):
        extents = reader.extents(i)
        assert all(extent.path in files for extent in extents)
        held = b""
        for path, offset, length in extents:
            with open(path, "rb") as file:
                part = os.pread(file.fileno(), length, offset)
            assert len(part) == length, "past the end of a file"
            held += UNBLOCKED[name](part, offset) if name in UNBLOCKED else part
        inside = [wanted]
        if content == "raw":  # as it is, or as Caffe's Datum has it: channels first, blue first
            inside = [wanted.tobytes(), wanted[:, :, ::-1].transpose(2, 0, 1).tobytes()]
        elif content == "float":
            inside = [hdf5.planes(wanted).tobytes()]
        assert any(data in held for data in inside), i
        assert len(held) <= max(len(inside[0]) + 4096, shared) + 64, "more than sample and frame"
        for extent in extents:
            owner.setdefault(extent, []).append(i)
    assert shared or all(len(ids) == 1 for ids in owner.values()), "two samples, one range"


@every_form
def test_files_lists_everything_with_samples_in_it(opened: Any, dataset: Dataset) -> None:
    form, root, _, _ = opened
    listed = form.files(dataset, root)
    assert len(set(listed)) == len(listed)
    there = {path for path in root.rglob("*") if path.is_file()}
    assert set(listed) <= there
    rest = sum(path.stat().st_size for path in there - set(listed))
    assert rest < 64 * SAMPLES + 1024, "a large file is not listed: its pages would escape control"


@every_form
def test_the_first_bytes_stay_on_disk_until_read(opened: Any, dataset: Dataset) -> None:
    """Reading brings every page of the sample's own bytes into memory."""
    from iobench.host import page_cache

    form, root, _, reader = opened
    files = form.files(dataset, root)
    for path in files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    page_cache.evict(files)
    reader.read(7)
    resident = page_cache.residency(files).pages * page_cache.residency(files).fraction
    assert resident * 4096 >= sum(extent.length for extent in reader.extents(7)) * 0.99


@every_form
def test_the_same_samples_give_the_same_file_sizes(
    opened: Any, dataset: Dataset, content: str, tmp_path: Path
) -> None:
    form, root, expected, reader = opened
    index = datasets.load_index(dataset)
    reader.close()
    stored = [
        StoredSample(i, key, hdf5.planes(data) if content == "float" else data, label)
        for i, (key, (data, label)) in enumerate(zip(index.keys, expected, strict=True))
    ]
    form.write(iter(stored), tmp_path)
    sizes = [path.stat().st_size for path in form.files(dataset, tmp_path)]
    assert sizes == [path.stat().st_size for path in form.files(dataset, root)]
