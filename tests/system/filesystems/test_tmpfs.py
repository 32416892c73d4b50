"""Data in memory: the four pipelines are warm, and none is ever cold."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import VALID
from iobench.data import convert, make
from iobench.host import filesystems
from iobench.run import prepare
from iobench.run.trial import TrialSettings, run_trial
from tests.build.attempts import attempted
from tests.build.disks import run, unmount
from tests.capabilities import need

pytestmark = pytest.mark.slow
PIPELINES = [("jpeg", "torch"), ("lmdb", "torch"), ("hdf5", "torch"), ("jpeg", "dali")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """16 samples (2 MB) on a tmpfs of our own."""
    for name in ("root", "torch", "lmdb", "hdf5"):
        need(name)
    mount = tmp_path_factory.mktemp("tmpfs")
    run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(mount))
    try:
        made = make.make("imagenet-like", mount / "set", samples=16, seed=1)
        for form in ("lmdb", "hdf5"):
            convert.convert(made, form)
        yield made
    finally:
        unmount(mount)


def case_of(data: Dataset, form: str, loader: str) -> Case:
    where = {"format": form, "location": data.root}
    return Case(loader=loader, trainer="null", batch=8, workers=1, **where)


@pytest.mark.parametrize(("form", "loader"), PIPELINES)
def test_warm_is_valid(data: Dataset, form: str, loader: str) -> None:
    need(loader)
    trial = Trial("t", case_of(data, form, loader), "read", "warm")
    record = attempted(trial, data, TrialSettings())
    assert (record.status, record.reasons) == (VALID, ())
    assert record.mount["filesystem"] == "tmpfs"


def test_cold_is_refused_before_a_suite_and_in_a_trial(data: Dataset) -> None:
    case = case_of(data, "jpeg", "threads")
    assert filesystems.describe_mount(Path(data.root))["filesystem"] == "tmpfs"
    assert "tmpfs" in prepare.never_cold([case], data)
    record = run_trial(Trial("t", case, "read", "cold"), data, 1, TrialSettings())
    assert record.status != VALID
    assert record.reasons
