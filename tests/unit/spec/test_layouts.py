"""Options that shape what is written have folders of their own: one suite can compare them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Trial
from iobench.core.errors import SpecError
from iobench.core.records import VALID
from iobench.data import make
from iobench.run import prepare
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load
from tests.capabilities import need

TAR = {"pipeline": ["torch:tar"], "format_options": [{}, {"shard_bytes": 50_000}]}
HDF5 = {
    "pipeline": ["torch:hdf5"],
    "format_options": [{"cache_bytes": 0}, {"chunk": 4}, {"chunk": 4, "cache_bytes": 0}],
}


def test_only_what_is_written_otherwise_is_in_the_name() -> None:
    cases = load.expand(load.parse({"name": "x", "matrix": [TAR, HDF5]}))
    assert [case.folder for case in cases] == [
        "tar", "tar+shard_bytes-50000", "hdf5", "hdf5+chunk-4", "hdf5+chunk-4",
    ]  # fmt: skip
    assert not any("layout" in case.label for case in cases)
    assert len({case.pipeline for case in cases}) == 2


@pytest.mark.parametrize("options", [{}, {"shard_bytes": 64 << 20}])
def test_the_usual_layout_has_no_name(options: dict[str, int]) -> None:
    assert registry.layout_of("tar", options) == ""


def test_one_suite_reads_two_layouts(tmp_path: Path) -> None:
    need("torch")
    data = make.make("smoke", tmp_path / "set", samples=16, seed=1)
    cases = load.expand(load.parse({"name": "x", "matrix": TAR}))
    prepare.forms(cases, data, lambda *_: None)
    one, several = (len(datasets.files_of(case, data)) for case in cases)
    assert one == 1 < several


@pytest.mark.parametrize(
    ("pipeline", "options", "order"),
    [
        ("dali:tar", {"shard_bytes": 50_000}, "stored"),
        ("dali:hdf5-raw", {"chunk": 4}, "shuffled"),
        ("torch:hdf5-raw", {"chunk": 4}, "shuffled"),
    ],
)
def test_a_layout_is_read_as_what_it_is(
    pipeline: str, options: dict[str, int], order: str, tmp_path: Path
) -> None:
    need("dali")
    need("hdf5")
    data = make.make("smoke", tmp_path / "set", samples=16, seed=1)
    wanted = {"pipeline": pipeline, "format_options": options, "order": order, "batch": 4}
    (case,) = load.expand(load.parse({"name": "x", "case": {**wanted, "trainer": "null"}}))
    prepare.forms([case], data, lambda *_: None)
    assert "+" in case.folder
    case = dataclasses.replace(case, location=data.root)
    record = run_trial(Trial("t", case, "load", "-"), data, 1, TrialSettings())
    assert (record.status, record.reasons) == (VALID, ())
    assert sum(record.ranks[0].steps.samples) == 16


def test_a_striping_has_a_folder_of_its_own() -> None:
    stripes = [{}, {"count": 4}, {"count": 4, "bytes": 1 << 20, "pool": "flash"}]
    matrix = {"pipeline": ["torch:jpeg", "torch:lmdb"], "striping": stripes}
    cases = load.expand(load.parse({"name": "x", "matrix": matrix}))
    assert [case.folder for case in cases] == [
        "jpeg", "jpeg+stripe_count-4", "jpeg+stripe_bytes-1048576+stripe_count-4+stripe_pool-flash",
        "lmdb", "lmdb+stripe_count-4", "lmdb+stripe_bytes-1048576+stripe_count-4+stripe_pool-flash",
    ]  # fmt: skip
    assert cases[1].label == "torch:jpeg striping=count:4"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"striping": {"cuont": 4}}, "did you mean 'count'"),
        ({"striping": {"count": "4"}}, "a whole number"),
        ({"striping": {"count": -2}}, "at least -1"),
        ({"striping": {"pool": "a/b"}}, "letters, digits"),
        ({"striping": {"count": 0}}, "count = 0 asks for nothing"),
        ({"striping": {"count": 4}, "placement": "tmpfs"}, "allowed: bind"),
        ({"striping": {"count": 4}, "pipeline": "threads:null"}, "has none"),
    ],
)
def test_what_can_be_no_striping_is_refused(case: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        load.parse({"name": "x", "case": case})
