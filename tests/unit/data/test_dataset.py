"""A dataset as a whole: its index, its forms, the proof that they agree, users' trees."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset
from iobench.core.errors import BackendUnavailable, DatasetError, SpecError
from iobench.data import convert, describe, make
from tests.build.trees import converted, state
from tests.capabilities import need


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make.make("smoke", tmp_path_factory.mktemp("data") / "set", samples=12)


@pytest.fixture
def dataset(made: Dataset, tmp_path: Path) -> Dataset:
    """A copy that the test may damage."""
    shutil.copytree(made.root, tmp_path / "set")
    return datasets.locate(tmp_path / "set")


# -- index and markers -----------------------------------------------------------------------


def test_the_index_is_one_line_a_sample(made: Dataset) -> None:
    lines = Path(made.root, "samples.tsv").read_text().splitlines()
    index = datasets.load_index(made)
    assert len(lines) == len(index.keys) == 12
    key, label, size, digest = lines[5].split("\t")
    data = Path(made.root, "jpeg", key + ".jpg").read_bytes()
    assert (int(label), int(size), digest) == (
        index.labels[5],
        len(data),
        datasets.sample_digest(data),
    )
    assert index.keys == sorted(index.keys)
    assert index.labels.dtype == index.sizes.dtype == np.int64
    assert made.bytes == index.sizes.sum()
    assert made.digest == datasets.samples_digest(range(12), index.labels, index.digests)


def test_the_digest_of_samples_does_not_depend_on_their_order() -> None:
    rows = [(3, 1, "aa"), (10, 0, "bb"), (2, 1, "cc")]
    one = datasets.samples_digest(*zip(*rows))
    assert one == datasets.samples_digest(*zip(*reversed(rows)))
    assert one != datasets.samples_digest((3, 10, 2), (1, 1, 1), ("aa", "bb", "cc"))
    assert one != datasets.samples_digest((3, 10, 2), (1, 0, 1), ("aa", "cc", "bb"))
    numpy_ids = np.array([3, 10, 2])
    assert one == datasets.samples_digest(numpy_ids, np.array([1, 0, 1]), ["aa", "bb", "cc"])


@pytest.mark.parametrize(
    "line",
    [
        "../../x\t0\t9\td", "/etc/shadow\t0\t9\td", "a/../../x\t0\t9\td", "\t0\t9\td",
        "k\t0\t9\td\t/etc/shadow", "k\t0\t9\td\t../../../etc/shadow", "k\tx\t9\td",
        "k\t0\t1e9\td", f"k\t{2**63}\t9\td", "k\t0\t" + "9" * 5000 + "\td", "k", "\0\t\t\t",
    ],
)  # fmt: skip
def test_an_index_names_nothing_outside_and_is_one_line_where_damaged(
    line: str, dataset: Dataset
) -> None:
    index = Path(dataset.root, "samples.tsv")
    lines = index.read_text().splitlines()
    index.write_text("\n".join([line, *lines[1:]]) + "\n")
    with pytest.raises(DatasetError, match="line 1 ") as found:
        datasets.load_index(dataset)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": "many"}, {"samples": None}, {"root": 3}, {"jpeg_root": ["/etc"]},
        {"recipe": []}, {"in_place": "yes"}, {"samples": 10**13}, {"samples": -1},
        {"__class__": "x"},
    ],
)  # fmt: skip
def test_a_marker_of_a_stranger_is_one_line(change: Dict[str, Any], dataset: Dataset) -> None:
    marker = Path(dataset.root, "dataset.json")
    marker.write_text(json.dumps({**json.loads(marker.read_text()), **change}))
    with pytest.raises(DatasetError) as found:
        datasets.load_index(datasets.locate(Path(dataset.root)))
    assert "\n" not in str(found.value)


def test_a_moved_dataset_is_found(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "set").rename(tmp_path / "moved")
    found = datasets.locate(tmp_path / "moved")
    assert found.jpeg_root == str(tmp_path / "moved" / "jpeg")
    assert all(row.ok for row in convert.verify(found))


def test_no_dataset_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="iobench data make"):
        datasets.locate(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"root": "x", "future": 1}'])
def test_a_damaged_marker_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(DatasetError, match=r"dataset\.json"):
        datasets.locate(tmp_path)


@pytest.mark.parametrize("damage", ["short", "long", "fields"])
def test_a_damaged_index_is_told(dataset: Dataset, damage: str) -> None:
    path = Path(dataset.root, "samples.tsv")
    lines = path.read_text().splitlines(keepends=True)
    lines = {"short": lines[:-1], "long": [*lines, lines[0]], "fields": ["a\n", *lines[1:]]}[damage]
    path.write_text("".join(lines))
    with pytest.raises(DatasetError, match=r"samples\.tsv"):
        datasets.load_index(dataset)


# -- convert and verify ----------------------------------------------------------------------

FORMS = [("lmdb", "jpeg"), ("lmdb", "raw"), ("hdf5", "jpeg"), ("hdf5", "raw"), ("tar", "jpeg")]


@pytest.mark.parametrize(("name", "content"), FORMS)
def test_verify_proves_that_a_form_holds_the_same(
    dataset: Dataset, name: str, content: str
) -> None:
    root = converted(dataset, name, content)
    form = name if content == "jpeg" else f"{name}-raw"
    assert root == datasets.form_root(dataset, form)
    assert datasets.has_form(dataset, form)
    assert datasets.forms(dataset) == ["jpeg", form]
    calls: List[Any] = []
    rows = convert.verify(dataset, progress=lambda i, n: calls.append((i, n)))
    assert rows == [
        convert.Verification("jpeg", True, 12),
        convert.Verification(form, True, 12),
    ]
    assert calls[-1] == (24, 24)


@pytest.mark.parametrize(
    ("name", "content", "options", "each"),
    [
        ("lmdb", "raw", {"side": 48}, 48 * 48 * 3),
        ("hdf5", "float", {"side": 32}, 32 * 32 * 3 * 4),
        ("hdf5", "raw", {"side": 64, "compression": "gzip"}, 0),
        ("lmdb", "jpeg", {}, -1),
    ],
)
def test_a_form_s_bytes_are_those_it_stores(
    dataset: Dataset, name: str, content: str, options: Dict[str, Any], each: int
) -> None:
    """What a cold trial must fetch: the JPEG files' bytes are not those of pixels."""
    for module in registry.load("formats", name).requires:
        need({"h5py": "hdf5"}.get(module, module))
    form = convert.convert(dataset, name, content=content, options=options).name
    index = datasets.load_index(dataset)
    sizes = datasets.stored_sizes(dataset, form, index.sizes)
    assert sizes.dtype == np.int64
    if each < 0:
        assert np.array_equal(sizes, index.sizes)
    else:
        packed = int(datasets.form_facts(dataset, form)["bytes"]) // dataset.samples
        assert set(sizes.tolist()) == {each or packed}
    assert np.array_equal(datasets.stored_sizes(dataset, "tar", index.sizes), index.sizes)


@pytest.mark.parametrize(("name", "content"), FORMS)
def test_verify_names_the_first_sample_that_differs(
    dataset: Dataset, name: str, content: str
) -> None:
    """The form is written again with samples 7 and on changed: in a bit, then in a label."""
    root = converted(dataset, name, content)
    form = datasets.forms(dataset)[1]
    clean = list(convert._stored(dataset, 256 if content == "raw" else 0, None))

    def flipped(data: Any) -> Any:
        if isinstance(data, bytes):
            return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        out = data.copy()
        out[-1, -1, -1] ^= 1
        return out

    for change in ("data", "label"):
        changed = [
            sample
            if sample.id < 7
            else type(sample)(
                sample.id,
                sample.key,
                flipped(sample.data) if change == "data" else sample.data,
                sample.label if change == "data" else sample.label + 1,
            )
            for sample in clean
        ]
        for path in root.iterdir():
            if path.name != "format.json":
                path.unlink()
        registry.load("formats", name).make().write(iter(changed), root)
        (row,) = convert.verify(dataset, [form])
        assert not row.ok
        assert "sample 7 (c0002/00000007)" in row.detail
        assert ("label" in row.detail) == (change == "label")


def test_verify_sees_a_missing_sample(dataset: Dataset) -> None:
    root = converted(dataset, "tar", "jpeg")
    index = np.load(root / "index.npy")
    np.save(root / "index.npy", index[:-1])
    (row,) = convert.verify(dataset, ["tar"])
    assert row.detail == "11 samples, 12 expected"


def test_verify_sees_a_damaged_and_a_missing_jpeg(dataset: Dataset) -> None:
    path = Path(dataset.jpeg_root, "c0001", "00000004.jpg")
    path.write_bytes(path.read_bytes()[:-1])
    (row,) = convert.verify(dataset)
    assert row.detail == "sample 4 (c0001/00000004) has other bytes"
    with pytest.raises(DatasetError, match=r"00000004\.jpg differs"):
        convert.convert(dataset, "tar")
    path.unlink()
    (row,) = convert.verify(dataset)
    assert "sample 4 (c0001/00000004) cannot be read" in row.detail
    assert not datasets.has_form(dataset, "tar")


def test_converting_twice_keeps_what_is_there(dataset: Dataset) -> None:
    root = converted(dataset, "tar", "jpeg")
    before = state(root)
    assert convert.convert(dataset, "tar") == root
    assert state(root) == before
    other = convert.convert(dataset, "tar", options={"shard_bytes": 1})
    assert other.name == "tar+shard_bytes-1"  # beside it
    assert state(root) == before
    assert len(list(other.glob("*.tar"))) == dataset.samples
    case = Case(format="tar", format_options={"shard_bytes": 1}, layout="+shard_bytes-1")
    assert datasets.files_of(case, dataset)[0].parent == other
    assert datasets.forms(dataset) == ["jpeg", "tar", "tar+shard_bytes-1"]


def test_a_form_of_another_side_is_kept(dataset: Dataset) -> None:
    need("lmdb")
    convert.convert(dataset, "lmdb", content="raw", options={"side": 8})
    with pytest.raises(DatasetError, match="is there with options"):
        convert.convert(dataset, "lmdb", content="raw", options={"side": 16})


@pytest.mark.parametrize("marked", [False, True])
def test_a_killed_conversion_is_done_again(dataset: Dataset, marked: bool) -> None:
    """What a kill leaves: a partial folder, or a whole one that has no marker yet."""
    leftover = Path(dataset.root, "tar" if marked else "tar.partial")
    leftover.mkdir()
    (leftover / "shard-000007.tar").write_bytes(b"half")
    assert not datasets.has_form(dataset, "tar")
    root = convert.convert(dataset, "tar")
    assert sorted(path.name for path in root.iterdir()) == [
        "format.json",
        "index.npy",
        "shard-000000.tar",
    ]
    assert not Path(dataset.root, "tar.partial").exists()


def test_what_cannot_be_converted_is_told(dataset: Dataset) -> None:
    with pytest.raises(SpecError, match="unknown format 'zip'"):
        convert.convert(dataset, "zip")
    with pytest.raises(DatasetError, match="nothing to convert"):
        convert.convert(dataset, "jpeg")
    with pytest.raises(DatasetError, match="cannot hold 'raw'"):
        convert.convert(dataset, "tar", content="raw")
    with pytest.raises(SpecError, match=r"unknown option 'shards'.* allowed: shard_bytes"):
        convert.convert(dataset, "tar", options={"shards": 3})
    with pytest.raises(DatasetError, match=r"iobench data convert .* tar"):
        convert.verify(dataset, ["tar"])


def test_a_format_whose_library_is_missing_is_told(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "importable", lambda module: module != "lmdb")
    with pytest.raises(BackendUnavailable, match="needs lmdb"):
        convert.convert(dataset, "lmdb")


def test_conversion_says_first_that_space_is_short(dataset: Dataset) -> None:
    need("hdf5")
    side = 1 << 20  # 12 samples of 3 TiB
    with pytest.raises(DatasetError, match=r"converting to hdf5-raw needs .* MB free"):
        convert.convert(dataset, "hdf5", content="raw", options={"side": side})


def test_fixed_resolutions_stay_as_they_are(tmp_path: Path) -> None:
    need("hdf5")
    tiny = make.make("cifar-like", tmp_path / "set", samples=10)
    root = convert.convert(tiny, "hdf5", content="raw")
    reader = registry.load("formats", "hdf5").make().open(tiny, root)
    assert reader.read(3)[0].shape == (32, 32, 3)
    reader.close()


def test_info_says_what_is_there(dataset: Dataset) -> None:
    converted(dataset, "tar", "jpeg")
    facts = describe.info(dataset)
    assert facts["samples"] == 12
    assert facts["encodes_per_sample"] <= 1.1
    assert list(facts["forms"]) == ["jpeg", "tar"]
    assert facts["forms"]["tar"]["options"] == {"shard_bytes": 64 << 20}
    assert "left_out" not in facts
