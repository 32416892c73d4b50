"""Options that shape what is written have folders of their own: one suite can compare them."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.data import make
from iobench.run import prepare
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
