"""What a dataset and its mount cannot give is said before the first trial."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import odd_files
from iobench.core.cases import Dataset
from iobench.core.errors import CacheStateError, DatasetError, SpecError
from iobench.data import accounting, convert, make
from iobench.data.adopt import adopt
from iobench.host.agent import LOCAL
from iobench.plan.resolve import fit
from iobench.run import prepare
from iobench.spec import load
from tests.build.photos import jpeg
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
    return make.make("smoke", tmp_path / "d", samples=8, workers=1)


def ignore(*_: object) -> None:
    pass


def test_a_batch_that_no_case_can_fill_is_refused(dataset: Dataset) -> None:
    wanted = load.parse({**DOCUMENT, "case": {"trainer": "null", "batch": 9}})
    with pytest.raises(SpecError, match=r"torch:jpeg.*batch of 9.*smaller batch"):
        prepare.ready(load.expand(wanted), dataset, ignore)


def test_a_users_image_that_is_too_small_for_the_crop_is_named(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    for i, side in enumerate((256, 200)):
        (tree / "a" / f"{i}.jpg").write_bytes(jpeg(i, side, 300))
    dataset = adopt(tree, tmp_path / "d", max_samples=2, max_bytes=10**9, seed=1)
    document = {"name": "t", "case": {"trainer": "null", "batch": 2, "transform": "crop224"}}
    with pytest.raises(SpecError, match=r"side of 200 pixels \(a/1.jpg\), less than 224"):
        prepare.ready(load.expand(load.parse(document)), dataset, ignore)
    resized = {**document, "case": {"trainer": "null", "batch": 2}}
    prepare.ready(load.expand(load.parse(resized)), dataset, ignore)


def test_files_in_memory_lose_what_has_to_be_cold() -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.fail("/dev/shm cannot be written: nothing in memory to test with")
    wanted = load.parse(DOCUMENT)
    reason = LOCAL.cold(Path("/dev/shm"))
    left, notes = fit(wanted, {}, reason)
    assert left.ladder.caches == ("warm",)
    assert "ceiling" not in left.ladder.stages
    assert [c.caches for c in left.contrasts] == [("warm",)]
    assert len(notes) == 1
    assert "/dev/shm is tmpfs" in notes[0]
    assert fit(left, {}, reason) == (left, []), "nothing more is left out"
    cold = load.parse({**DOCUMENT, "ladder": {"caches": ["cold"]}})
    with pytest.raises(CacheStateError, match="/dev/shm is tmpfs"):
        fit(cold, {}, reason)


def test_a_form_cut_short_is_found_before_it_is_read(dataset: Dataset) -> None:
    need("lmdb")
    path = convert.convert(dataset, "lmdb") / "data.mdb"
    cases = load.expand(load.parse(DOCUMENT))
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
            load.parse(DOCUMENT).dataset,
            data=tree,
            out=tree / "out",
            in_place=False,
            say=ignore,
            progress=ignore,
        )
    assert [p.name for p in tree.iterdir()] == ["a"]


def test_a_tree_with_broken_links_loops_and_pipes_is_read(tmp_path: Path) -> None:
    made = make.make("smoke", tmp_path / "d", samples=8, workers=1)
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
    said: list[str] = []
    found = prepare.dataset_for(
        load.parse(DOCUMENT).dataset,
        data=tree,
        out=tmp_path / "out",
        in_place=False,
        say=said.append,
        progress=ignore,
    )
    kinds = {Path(row.file).name: row.kind for row in accounting.read(found)}
    assert kinds == {"broken.jpg": "absent", "pipe.jpg": "special", "up": "loop", bad.name: "cut"}
    said = [line for line in said if line.startswith("files of ")]
    assert len(said) == 1
    assert "7 of 11 used; 4 left out" in said[0]
    assert found.samples == 7


def test_a_loader_that_turns_pictures_is_refused_before_it_reads_them(tmp_path: Path) -> None:
    plain = odd_files.jpeg(odd_files.picture())
    (tmp_path / "tree" / "a").mkdir(parents=True)
    for n in (1, 6, 8):
        data = odd_files.marked(plain, odd_files.exif(n))
        (tmp_path / "tree" / "a" / f"{n}.jpg").write_bytes(data)
    settings = {"max_samples": 9, "max_bytes": 1 << 30, "seed": 1}
    document = {**DOCUMENT, "case": {"trainer": "null", "batch": 1, "transform": "crop224"}}
    document["matrix"] = {"pipeline": ["native:jpeg", "torch:jpeg"]}
    del document["contrasts"]
    cases = load.expand(load.parse(document))
    kept = adopt(tmp_path / "tree", tmp_path / "kept", in_place=True, **settings)
    with pytest.raises(SpecError, match=r"native:jpeg.*2 pictures have an EXIF orientation"):
        prepare.check_turned(cases, kept)
    prepare.check_turned([case for case in cases if case.loader == "torch"], kept)
    prepare.check_turned(cases, adopt(tmp_path / "tree", tmp_path / "copied", **settings))
