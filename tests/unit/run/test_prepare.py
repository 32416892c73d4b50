"""What a dataset and its mount cannot give is said before the first trial."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iobench import convert, prepare, spec
from iobench import dataset as datasets
from iobench.errors import CacheStateError, DatasetError, SpecError
from iobench.model import Dataset
from tests.capabilities import need

DOCUMENT = {
    "name": "t",
    "dataset": {"recipe": "smoke", "samples": 8},
    "case": {"trainer": "null", "batch": 4},
    "matrix": {"pipeline": ["jpeg", "lmdb"]},
    "ladder": {"caches": ["cold", 0.5, "warm"]},
    "contrasts": [{"caches": ["warm", "cold"]}, {"caches": ["cold"], "stage": "read"}],
}


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return datasets.make("smoke", tmp_path / "d", samples=8, workers=1)


def ignore(*_: object) -> None:
    pass


def test_a_batch_that_no_case_can_fill_is_refused(dataset: Dataset) -> None:
    wanted = spec.parse({**DOCUMENT, "case": {"trainer": "null", "batch": 9}})
    with pytest.raises(SpecError, match=r"torch:jpeg.*batch of 9.*smaller batch"):
        prepare.check_batches(spec.expand(wanted), dataset)
    prepare.check_batches(spec.expand(spec.parse(DOCUMENT)), dataset)


def test_files_in_memory_lose_what_has_to_be_cold() -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.fail("/dev/shm cannot be written: nothing in memory to test with")
    wanted = spec.parse(DOCUMENT)
    left, notes = prepare.without_cold(wanted, Dataset("/dev/shm", "t", 8, 0, 1, 1, "", "test"))
    assert left.ladder.caches == ("warm",)
    assert "ceiling" not in left.ladder.stages
    assert [c.caches for c in left.contrasts] == [("warm",)]
    assert len(notes) == 1
    assert "/dev/shm is tmpfs" in notes[0]
    again = spec.parse(left.model_dump(mode="json", exclude_unset=True))
    assert again.model_dump() == left.model_dump(), "a resumed suite plans the same"
    cold = spec.parse({**DOCUMENT, "ladder": {"caches": ["cold"]}})
    with pytest.raises(CacheStateError, match="/dev/shm is tmpfs"):
        prepare.without_cold(cold, Dataset("/dev/shm", "t", 8, 0, 1, 1, "", "test"))


def test_a_form_cut_short_is_found_before_it_is_read(dataset: Dataset) -> None:
    need("lmdb")
    path = convert.convert(dataset, "lmdb") / "data.mdb"
    cases = spec.expand(spec.parse(DOCUMENT))
    prepare.check_forms(cases, dataset)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DatasetError, match=r"lmdb has .* bytes.*delete that folder"):
        prepare.check_forms(cases, dataset)
    row = convert.verify(dataset, ["lmdb"])[0]  # reading past its end would kill this process
    assert not row.ok
    assert "cut short" in row.detail
    path.unlink()
    assert not convert.verify(dataset, ["lmdb"])[0].ok


def test_nothing_is_made_in_a_users_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    with pytest.raises(DatasetError, match="choose another --out"):
        prepare.dataset_for(
            spec.parse(DOCUMENT),
            data=tree,
            out=tree / "out",
            in_place=False,
            say=ignore,
            progress=ignore,
        )
    assert [p.name for p in tree.iterdir()] == ["a"]


def test_a_tree_with_broken_links_loops_and_pipes_is_read(tmp_path: Path) -> None:
    made = datasets.make("smoke", tmp_path / "d", samples=8, workers=1)
    tree = tmp_path / "tree"
    Path(made.jpeg_root).rename(tree)
    folder = next(p for p in tree.iterdir() if p.is_dir())
    (folder / "broken.jpg").symlink_to("/nowhere/at/all")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe.jpg")
    bad = next(folder.glob("0*.jpg"))
    data = bytearray(bad.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2] = b"\xff\x8e"  # whole at both ends, not between
    bad.write_bytes(data)
    found = prepare.dataset_for(
        spec.parse(DOCUMENT),
        data=tree,
        out=tmp_path / "out",
        in_place=False,
        say=ignore,
        progress=ignore,
    )
    left_out = {Path(file).name for file, _ in datasets.load_left_out(found)}
    assert {"broken.jpg", "pipe.jpg", bad.name} <= left_out
    assert found.samples == 7
