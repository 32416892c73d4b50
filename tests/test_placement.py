"""Copies of a dataset in memory or on another disk: made, timed, used and removed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from iobench import dataset as datasets
from iobench import placement
from iobench.convert import convert, verify
from iobench.errors import DatasetError
from iobench.model import Case


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    made = datasets.make("smoke", tmp_path_factory.mktemp("set") / "a", samples=16)
    convert(made, "lmdb")
    return made


def cases(kind: str) -> list:
    return [
        Case(label="one", placement="bind", location="here"),
        Case(label="two", placement=kind, format="jpeg"),
        Case(label="three", placement=kind, format="lmdb"),
    ]


@pytest.mark.parametrize("kind", placement.COPIED)
def test_a_copy_holds_the_very_samples_and_goes_away(small, tmp_path, kind) -> None:
    said = []
    placed, copies = placement.place(small, cases(kind), str(tmp_path / "disk"), said.append)
    (copy,) = copies
    assert (placed[0].location, placed[1].location) == ("here", copy.root)
    assert copy.kind == kind
    assert copy.seconds > 0
    assert copy.bytes > small.bytes
    there = placement.dataset_of(small, placed[1])
    assert {row.form: row.ok for row in verify(there)} == {"jpeg": True, "lmdb": True}
    assert placement.dataset_of(small, placed[0]) is small
    with placement.present(small, placed, copies, said.append):
        assert Path(copy.root).is_dir()
    assert not Path(copy.root).exists()
    with placement.present(small, placed, copies, said.append):  # a resumed suite
        assert datasets.locate(Path(copy.root)).digest == small.digest
    assert not Path(copy.root).exists()
    assert datasets.locate(Path(small.root)) == small


def test_only_the_forms_that_are_read_are_copied(small, tmp_path) -> None:
    wanted = [Case(placement="staged", format="lmdb")]
    _, (copy,) = placement.place(small, wanted, str(tmp_path / "disk"), print)
    assert sorted(p.name for p in Path(copy.root).iterdir()) == [
        "dataset.json", "lmdb", "samples.tsv",
    ]  # fmt: skip


def test_staging_on_the_same_mount_is_said(small, tmp_path) -> None:
    said = []
    placement.place(small, cases("staged"), str(tmp_path / "disk"), said.append)
    assert any("same mount" in line for line in said)


def test_nobody_said_where(small) -> None:
    with pytest.raises(DatasetError, match="stage_to"):
        placement.place(small, cases("staged"), "", print)


def test_a_copy_that_does_not_fit_leaves_nothing(small, tmp_path, monkeypatch) -> None:
    def full(folder, size, files, what):
        raise DatasetError(f"{what}: no room")

    monkeypatch.setattr(datasets, "check_space", full)
    with pytest.raises(DatasetError, match="no room"):
        placement.place(small, cases("staged"), str(tmp_path / "disk"), print)
    assert list((tmp_path / "disk").iterdir()) == []


def test_more_than_half_of_the_memory_is_refused(small, monkeypatch) -> None:
    monkeypatch.setattr("iobench.pagecache.effective_memory_bytes", lambda: 1000)
    with pytest.raises(DatasetError, match="memory"):
        placement.place(small, cases("tmpfs"), "", print)


def test_a_case_that_is_not_copied_keeps_its_dataset(small) -> None:
    case = dataclasses.replace(cases("tmpfs")[0], location="/elsewhere")
    assert placement.dataset_of(small, case) is small
