"""Copies of a dataset in memory or on another disk: made, timed, used and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench import dataset as datasets
from iobench import pairing, placement, spec
from iobench import plan as planning
from iobench.convert import convert, verify
from iobench.errors import DatasetError
from iobench.model import Case, Plan, Trial


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    made = datasets.make("smoke", tmp_path_factory.mktemp("set") / "a", samples=16)
    convert(made, "lmdb")
    return made


def plan_of(dataset, *kinds_and_formats) -> Plan:
    cases = tuple(
        Case(label=f"{kind} {form}", placement=kind, format=form, location=dataset.root)
        for kind, form in kinds_and_formats
    )
    trials = tuple(
        Trial(id=str(i), case=c, stage="load", cache="warm") for i, c in enumerate(cases)
    )
    return Plan("t", "now", 1, 60.0, dataset, cases, trials)


def both(dataset, kind: str) -> Plan:
    return plan_of(dataset, ("bind", "jpeg"), (kind, "jpeg"), (kind, "lmdb"))


@pytest.mark.parametrize("kind", placement.COPIED)
def test_a_copy_holds_the_very_samples_and_goes_away(small, tmp_path, kind) -> None:
    said: list = []
    plan = placement.placed(both(small, kind), str(tmp_path / "disk"), said.append)
    (copy,) = plan.placements
    assert [c.location for c in plan.cases] == [small.root, copy.root, copy.root]
    assert [t.case for t in plan.trials] == list(plan.cases)
    assert copy.kind == kind
    assert copy.seconds > 0
    assert copy.bytes > small.bytes
    there = placement.dataset_of(small, plan.cases[1])
    assert {row.form: row.ok for row in verify(there)} == {"jpeg": True, "lmdb": True}
    assert placement.dataset_of(small, plan.cases[0]) is small
    with placement.present(plan, said.append):
        assert Path(copy.root).is_dir()
    assert not Path(copy.root).exists()
    with placement.present(plan, said.append):  # a resumed suite
        assert datasets.locate(Path(copy.root)).digest == small.digest
    assert not Path(copy.root).exists()
    assert datasets.locate(Path(small.root)) == small


def test_only_the_forms_that_are_read_are_copied(small, tmp_path) -> None:
    wanted = plan_of(small, ("staged", "lmdb"))
    (copy,) = placement.placed(wanted, str(tmp_path / "disk"), print).placements
    assert sorted(p.name for p in Path(copy.root).iterdir()) == [
        "dataset.json", "lmdb", "samples.tsv",
    ]  # fmt: skip


def test_staging_on_the_same_mount_is_said(small, tmp_path) -> None:
    said: list = []
    placement.placed(both(small, "staged"), str(tmp_path / "disk"), said.append)
    assert any("same mount" in line for line in said)


def test_nobody_said_where(small) -> None:
    with pytest.raises(DatasetError, match="stage_to"):
        placement.placed(both(small, "staged"), "", print)


def test_a_copy_that_does_not_fit_leaves_nothing(small, tmp_path, monkeypatch) -> None:
    def full(folder, size, files, what):
        raise DatasetError(f"{what}: no room")

    monkeypatch.setattr(datasets, "check_space", full)
    with pytest.raises(DatasetError, match="no room"):
        placement.placed(both(small, "staged"), str(tmp_path / "disk"), print)
    assert list((tmp_path / "disk").iterdir()) == []


def test_more_than_half_of_the_memory_is_refused(small, monkeypatch) -> None:
    monkeypatch.setattr("iobench.pagecache.effective_memory_bytes", lambda: 1000)
    with pytest.raises(DatasetError, match="memory"):
        placement.placed(both(small, "tmpfs"), "", print)


def test_a_plan_without_copies_stays_as_it_is(small) -> None:
    plan = plan_of(small, ("bind", "jpeg"))
    assert placement.placed(plan, "", print) is plan


def test_what_is_in_memory_is_never_planned_cold(small) -> None:
    wanted = spec.parse(
        {
            "name": "t",
            "case": {"pipeline": "jpeg", "trainer": "null", "batch": 4},
            "matrix": {"placement": ["bind", "tmpfs"]},
            "contrasts": [{"over": "placement", "base": "bind"}],
        }
    )
    cases = spec.expand(wanted)
    trials = planning.ladder(wanted, cases, 16)
    assert {t.cache for t in trials if t.case.placement == "tmpfs"} == {"warm", "-"}
    assert not [t for t in trials if t.case.placement == "tmpfs" and t.stage == "ceiling"]
    assert [c.cache for c in pairing.contrasts(wanted, cases, {})] == ["warm"]
