"""A dataset as a whole: its index, its forms, the proof that they agree, users' trees."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import simplejpeg  # noqa: TID253

from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Dataset
from iobench.core.errors import BackendUnavailable, DatasetError, SpecError
from iobench.data import adopt as userdata
from iobench.data import convert, describe, make
from tests.capabilities import need


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make.make("smoke", tmp_path_factory.mktemp("data") / "set", samples=12)


@pytest.fixture
def dataset(made: Dataset, tmp_path: Path) -> Dataset:
    """A copy that the test may damage."""
    shutil.copytree(made.root, tmp_path / "set")
    return datasets.locate(tmp_path / "set")


def picture(seed: int, *, side: int = 64) -> bytes:
    image = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    return simplejpeg.encode_jpeg(image, quality=80)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three classes of ten files, in spellings that users have."""
    root = tmp_path / "theirs"
    for number, (folder, suffix) in enumerate((("n02", "JPEG"), ("n01", "jpg"), ("n03", "jpeg"))):
        (root / folder).mkdir(parents=True)
        for i in range(10):
            (root / folder / f"{folder}_{i}.{suffix}").write_bytes(picture(number * 10 + i))
    return root


def state(root: Path) -> Dict[str, Any]:
    """Everything of a tree that writing to it would change."""
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_mode)
        for path in [root, *root.rglob("*")]
    }


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


def converted(dataset: Dataset, name: str, content: str) -> Path:
    for module in registry.load("formats", name).requires:
        need({"h5py": "hdf5"}.get(module, module))
    return convert.convert(dataset, name, content=content)


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
    convert.convert(dataset, name, content=content, options=options)
    index = datasets.load_index(dataset)
    form = name if content == "jpeg" else f"{name}-{content}"
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
    with pytest.raises(DatasetError, match="is there with options"):
        convert.convert(dataset, "tar", options={"shard_bytes": 1})


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


# -- users' trees ----------------------------------------------------------------------------


def adopt(tree: Path, out: Path, **changes: Any) -> Dataset:
    settings: Dict[str, Any] = {"max_samples": 1000, "max_bytes": 1 << 30, "seed": 3, **changes}
    return userdata.adopt(tree, out, **settings)


def test_a_users_tree_is_copied_and_never_written(tree: Path, tmp_path: Path) -> None:
    before = state(tree)
    calls: List[Any] = []
    found = adopt(tree, tmp_path / "out", progress=lambda i, n: calls.append((i, n)))
    assert state(tree) == before
    assert (found.samples, found.classes, calls[-1]) == (30, 3, (30, 30))
    index = datasets.load_index(found)
    assert index.keys == sorted(index.keys)
    assert list(index.labels) == [0] * 10 + [1] * 10 + [2] * 10
    assert index.keys[0] == "n01/n01_0"
    copies = {str(p.relative_to(found.jpeg_root)) for p in Path(found.jpeg_root).rglob("*.jpg")}
    assert copies == set(index.files)
    assert (
        Path(found.jpeg_root, index.files[12]).read_bytes()
        == (tree / (index.keys[12] + ".JPEG")).read_bytes()
    )
    assert all(row.ok for row in convert.verify(datasets.locate(tmp_path / "out")))


def test_in_place_references_the_users_files(tree: Path, tmp_path: Path) -> None:
    before = state(tree)
    found = adopt(tree, tmp_path / "out", in_place=True)
    assert found.in_place
    assert found.jpeg_root == str(tree)
    converted(found, "tar", "jpeg")
    assert state(tree) == before
    again = datasets.locate(tmp_path / "out")
    assert [row.ok for row in convert.verify(again)] == [True, True]
    index = datasets.load_index(again)
    assert {name.rpartition(".")[2] for name in index.files} == {"jpg", "JPEG", "jpeg"}
    assert not (tmp_path / "out" / "jpeg").exists()
    assert again.digest == adopt(tree, tmp_path / "copied").digest


def test_the_subset_is_drawn_by_the_seed(tree: Path, tmp_path: Path) -> None:
    keys = {}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        found = adopt(tree, tmp_path / name, seed=seed, max_samples=12)
        keys[name] = datasets.load_index(found).keys
        assert found.samples == 12
        assert describe.info(found)["not_drawn"] == 18
    assert keys["a"] == keys["b"] != keys["c"]
    assert len({key.split("/")[0] for key in keys["a"]}) == 3


def test_the_subset_keeps_within_the_bytes(tree: Path, tmp_path: Path) -> None:
    room = sum(p.stat().st_size for p in tree.rglob("*.*")) // 2
    found = adopt(tree, tmp_path / "out", max_bytes=room)
    assert 0.8 * room < found.bytes <= room


DEFECTS = {
    "n01/text.jpg": (b"hello", "not a JPEG"),
    "n01/empty.jpg": (b"", "not a JPEG (begins with nothing)"),
    "n02/really.png.JPEG": (b"\x89PNG\r\n\x1a\n", "begins with 89504e47"),
    "n02/cut.JPEG": (picture(90)[:-700], "cut short"),
    "n03/headless.jpeg": (b"\xff\xd8\xff\xe0" + bytes(20) + b"\xff\xd9", "header"),
    "n03/README": (b"notes", "not a JPEG"),
    "n03/tab\there.jpg": (picture(91), "a tab or a line end"),
    "top.jpg": (picture(92), "not in a class folder"),
}


def spoil(tree: Path) -> None:
    for name, (data, _) in DEFECTS.items():
        (tree / name).write_bytes(data)


def test_defects_are_named_counted_and_left_out(tree: Path, tmp_path: Path) -> None:
    spoil(tree)
    found = adopt(tree, tmp_path / "out")
    assert found.samples == 30
    facts = describe.info(datasets.locate(tmp_path / "out"))
    told = {row["file"]: row["reason"] for row in facts["left_out"]}
    assert set(told) == set(DEFECTS)
    for name, (_, reason) in DEFECTS.items():
        assert reason in told[name]
    assert all(row.ok for row in convert.verify(found))


def test_a_defect_can_be_fatal(tree: Path, tmp_path: Path) -> None:
    (tree / "n02" / "cut.JPEG").write_bytes(DEFECTS["n02/cut.JPEG"][0])
    with pytest.raises(DatasetError, match=r"n02/cut\.JPEG: cut short"):
        adopt(tree, tmp_path / "out", on_corrupt="fatal")
    with pytest.raises(DatasetError, match="half-written"):
        datasets.locate(tmp_path / "out")
    (tree / "n02" / "cut.JPEG").unlink()
    assert adopt(tree, tmp_path / "out", on_corrupt="fatal").samples == 30


def test_a_full_decode_finds_damage_inside(tree: Path, tmp_path: Path) -> None:
    data = bytearray(picture(93))
    data[-400:-200] = b"\xff\xd0" * 100
    (tree / "n01" / "inside.jpg").write_bytes(data)
    assert adopt(tree, tmp_path / "a").samples == 31
    found = adopt(tree, tmp_path / "b", check="decode")
    assert found.samples == 30
    assert describe.load_left_out(found)[0][0] == "n01/inside.jpg"


def test_cmyk_is_left_out(tree: Path, tmp_path: Path) -> None:
    image = np.random.default_rng(1).integers(0, 256, (64, 64, 4), np.uint8)
    data = simplejpeg.encode_jpeg(image, colorspace="CMYK")
    (tree / "n01" / "print.jpg").write_bytes(data)
    found = adopt(tree, tmp_path / "out")
    ((file, reason),) = describe.load_left_out(found)
    assert file == "n01/print.jpg"
    assert "colours" in reason


def test_equal_stems_keep_their_suffix(tree: Path, tmp_path: Path) -> None:
    (tree / "n01" / "n01_0.jpeg").write_bytes(picture(94))
    index = datasets.load_index(adopt(tree, tmp_path / "out"))
    assert [key for key in index.keys if "n01_0" in key] == ["n01/n01_0.jpeg", "n01/n01_0.jpg"]
    assert len(set(index.files)) == 31


def test_folders_below_a_class_belong_to_it(tree: Path, tmp_path: Path) -> None:
    (tree / "n01" / "more").mkdir()
    (tree / "n01" / "more" / "x.jpg").write_bytes(picture(95))
    index = datasets.load_index(adopt(tree, tmp_path / "out"))
    assert index.labels[index.keys.index("n01/more/x")] == 0


def test_adopting_again_gives_the_same(tree: Path, tmp_path: Path) -> None:
    first = adopt(tree, tmp_path / "out", max_bytes=1 << 29)
    assert adopt(tree, tmp_path / "out", max_bytes=1 << 30) == first
    with pytest.raises(DatasetError, match="seed = 3 not 4"):
        adopt(tree, tmp_path / "out", seed=4)


def test_a_killed_copy_starts_again(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done == 9:
            raise Killed

    with pytest.raises(Killed):
        adopt(tree, out, progress=kill)
    with pytest.raises(DatasetError, match="half-written"):
        datasets.locate(out)
    (out / "jpeg" / "n01" / "stray.jpg").parent.mkdir(exist_ok=True)
    (out / "jpeg" / "n01" / "stray.jpg").write_bytes(b"half")
    found = adopt(tree, out)
    assert found.samples == 30
    assert len(list((out / "jpeg").rglob("*.jpg"))) == 30


def test_trees_that_are_none_are_told(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "x.jpg").write_bytes(picture(1))
    with pytest.raises(DatasetError, match="no ImageFolder tree"):
        adopt(tmp_path / "flat", tmp_path / "out")
    with pytest.raises(DatasetError, match="cannot read"):
        adopt(tmp_path / "absent", tmp_path / "out")
    with pytest.raises(DatasetError, match="lie in one another"):
        adopt(tree, tree / "out")
    with pytest.raises(DatasetError, match="lie in one another"):
        adopt(tree, tmp_path)
    with pytest.raises(DatasetError, match="no usable JPEG"):
        adopt(tree, tmp_path / "small", max_bytes=10)
    assert not (tree / "out").exists()


def test_names_that_are_no_text_survive(tree: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"n01/caf\xe9.jpg")
    (tree / name).write_bytes(picture(96))
    (tree / os.fsdecode(b"n01/bad\xe9.jpg")).write_bytes(b"bad")
    found = adopt(tree, tmp_path / "out")
    assert name in datasets.load_index(found).files
    assert describe.load_left_out(found)[0][0] == os.fsdecode(b"n01/bad\xe9.jpg")
    converted(found, "lmdb", "jpeg")
    assert all(row.ok for row in convert.verify(found))
