"""A user's tree: what is taken of it, and what becomes of every file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Dict, List

import pytest

from iobench.core import dataset as datasets
from iobench.core.cases import Dataset
from iobench.core.errors import DatasetError
from iobench.data import accounting, convert, describe
from iobench.data import adopt as userdata
from iobench.data.tree import MOST_VISITS, scan
from tests.build.trees import converted, picture, state


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three classes of ten files, in spellings that users have."""
    root = tmp_path / "theirs"
    for number, (folder, suffix) in enumerate((("n02", "JPEG"), ("n01", "jpg"), ("n03", "jpeg"))):
        (root / folder).mkdir(parents=True)
        for i in range(10):
            (root / folder / f"{folder}_{i}.{suffix}").write_bytes(picture(number * 10 + i))
    return root


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
    copies = {str(p.relative_to(found.jpeg_root)) for p in Path(found.jpeg_root).rglob("*.*")}
    assert copies == set(index.files)
    assert all(
        Path(found.jpeg_root, file).read_bytes() == (tree / file).read_bytes()
        for file in index.files
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
        assert describe.info(found)["files"]["not_drawn"] == 18
    assert keys["a"] == keys["b"] != keys["c"]
    assert len({key.split("/")[0] for key in keys["a"]}) == 3


def test_the_subset_keeps_within_the_bytes(tree: Path, tmp_path: Path) -> None:
    room = sum(p.stat().st_size for p in tree.rglob("*.*")) // 2
    found = adopt(tree, tmp_path / "out", max_bytes=room)
    assert 0.8 * room < found.bytes <= room


DEFECTS = {
    "n01/text.jpg": (b"hello", "not a JPEG"),
    "n01/empty.jpg": (b"", "empty file"),
    "n02/really.png.JPEG": (b"\x89PNG\r\n\x1a\n", "a PNG file"),
    "n02/cut.JPEG": (picture(90)[:-700], "cut short"),
    "n03/headless.jpeg": (b"\xff\xd8\xff\xe0" + bytes(20) + b"\xff\xd9", "header"),
    "n03/README": (b"notes", "not a JPEG"),
    "n03/tab\there.jpg": (picture(91), "tab or line end"),
    "top.jpg": (picture(92), "beside the class folders"),
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


def reasons(found: Dataset) -> Dict[str, str]:
    """Return file -> why it was left out."""
    rows = accounting.read(found)
    return {row.file: row.reason for row in rows if row.kind in accounting.LEFT_OUT}


def test_damage_inside_a_file_is_found(tree: Path, tmp_path: Path) -> None:
    data = bytearray(picture(93))
    data[-400:-200] = b"\xff\xd0" * 100
    (tree / "n01" / "inside.jpg").write_bytes(data)
    found = adopt(tree, tmp_path / "b")
    assert found.samples == 30
    assert "cut short or damaged" in reasons(found)["n01/inside.jpg"]


def test_equal_keys_never_share_a_copy(tree: Path, tmp_path: Path) -> None:
    for name in ("x.jpg", "x.jpeg", "x.jpg.jpg"):
        (tree / "n01" / name).write_bytes(picture(len(name)))
    found = adopt(tree, tmp_path / "out")
    assert found.samples == 33
    assert len(list(Path(found.jpeg_root).rglob("*.*"))) == 33
    assert all(row.ok for row in convert.verify(found))


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
    assert len(list((out / "jpeg").rglob("*.*"))) == 30


def test_names_of_the_greatest_length_are_copied(tree: Path, tmp_path: Path) -> None:
    for name in ("n" * 255, "m" * 251 + ".jpg"):
        (tree / "n01" / name).write_bytes(picture(len(name)))
    found = adopt(tree, tmp_path / "out")
    assert found.samples == 32
    for form in ("tar", "lmdb"):
        converted(found, form, "jpeg")
    assert all(row.ok for row in convert.verify(found))


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
    assert list(reasons(found)) == [os.fsdecode(b"n01/bad\xe9.jpg")]
    converted(found, "lmdb", "jpeg")
    assert all(row.ok for row in convert.verify(found))


def test_links_that_double_at_every_level_end(tree: Path, tmp_path: Path) -> None:
    """2^30 paths lead to the last folder, each once through every level."""
    levels = tmp_path / "levels"
    for level in range(30):
        (levels / str(level)).mkdir(parents=True)
        for name in ("p", "q"):
            (levels / str(level) / name).symlink_to(levels / str(level + 1))
    (levels / "30").mkdir()
    shutil.copy(tree / "n01/n01_0.jpg", levels / "30/one.jpg")
    (tree / "bomb").symlink_to(levels / "0")
    found, left_out = scan(tree)
    assert 1 <= sum(each.folder == "bomb" for each in found) <= MOST_VISITS
    assert {row.kind for row in left_out} == {"links"}


def test_a_circle_of_two_folders_ends(tree: Path) -> None:
    classes = sorted(path for path in tree.iterdir() if path.is_dir())[:2]
    (classes[0] / "x").symlink_to(classes[1])
    (classes[1] / "y").symlink_to(classes[0])
    found, left_out = scan(tree)
    assert len(found) < 2 * (MOST_VISITS + 2) * 30
    assert {row.kind for row in left_out} <= {"links", "loop"}


def test_a_link_to_a_secret_gives_none_of_it_away(tree: Path, tmp_path: Path) -> None:
    """It is named and left out, not copied, and no byte of it is in what is written or said."""
    secret = tmp_path / "shadow"
    secret.write_text("root:$6$SECRET:1:0:99999:7:::\n")
    (tree / "n01/x.jpg").symlink_to(secret)
    made = adopt(tree, tmp_path / "out")
    written = b"".join(p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert b"SECRET" not in written
    assert made.recipe["files"]["left_out"] == {"other": 1}
