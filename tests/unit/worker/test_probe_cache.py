"""A serial probe stands in the cache state it was planned for, proven like any other trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import suites
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import TrialFailed
from iobench.core.records import VALID
from iobench.host import agent
from iobench.run.trial import TrialSettings, run_trial
from iobench.worker.stages import probe as probe_stage
from tests.build import pages
from tests.capabilities import need

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return suites.dataset(tmp_path_factory.mktemp("data"), "smoke", 64, ["lmdb"])


@pytest.mark.parametrize("form", ["jpeg", "lmdb"])
def test_cold_and_warm_probes_are_proven(dataset: Dataset, form: str) -> None:
    need("torch")
    case = Case(label="x", format=form, trainer="null", location=dataset.root, batch=8)
    counted = {}
    for cache in ("cold", "warm"):
        trial = Trial("0001-x", case, "probe", cache, contrast="c01", arm="x", block=1)
        record = run_trial(trial, dataset, 1, TrialSettings())
        assert record.status == VALID, record.reasons
        assert record.cache.bytes_needed == dataset.bytes
        assert len(record.ranks[0].probe["read_s"]) == 64
        counted[cache] = record.cache.bytes_storage
    if counted["cold"] is not None:
        assert counted["cold"] >= 0.98 * dataset.bytes
        assert counted["warm"] <= 0.01 * dataset.bytes


def test_a_cold_probe_that_was_not_cold_is_invalid(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch")
    files = [Path(p) for p in Path(dataset.root, "jpeg").rglob("*.jpg")]
    monkeypatch.setattr(agent.Agent, "evict", lambda self, files: None)
    case = Case(label="x", format="jpeg", trainer="null", location=dataset.root, batch=8)
    trial = Trial("0001-x", case, "probe", "cold", contrast="c01", arm="x", block=1)
    with pages.warm(files):
        record = run_trial(trial, dataset, 1, TrialSettings())
    assert record.status == "INVALID"
    assert "not cold" in record.reasons[0]


def test_a_probe_that_does_not_tell_when_its_parts_began_cannot_take_turns() -> None:
    probe_stage._check("own", {"read_s": [1.0, 1.0], "read_at": [0.0, 1.0]})
    for began in ({}, {"read_at": [0.0]}):
        with pytest.raises(TrialFailed, match=r"'own' returns read_s without read_at.*slice_s = 0"):
            probe_stage._check("own", {"read_s": [1.0, 1.0], **began})
