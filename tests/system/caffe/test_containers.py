"""Caffe trains alike in a container and on bare metal: the same order gives the same losses."""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterator

import pytest

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import VALID
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load
from tests.build import containers
from tests.build.rows import first
from tests.capabilities import need

pytestmark = pytest.mark.system

#: (trainer, pipeline, order): Caffe's own layers, with its own random crops, and other loaders.
KINDS = [
    ("caffe", "native:lmdb", "stored"),
    ("caffe", "native:jpeg", "shuffled"),
    ("caffe", "threads:lmdb", "shuffled"),
    ("caffe", "dali:jpeg", "shuffled"),
    ("caffe_train", "native:lmdb", "stored"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return containers.small_dataset(tmp_path_factory.mktemp("photos") / "data", samples=48)


@pytest.fixture(scope="module")
def services() -> Iterator[None]:
    with containers.services():
        yield


@pytest.fixture(scope="module")
def on_bare_metal() -> Dict[str, str]:
    """Losses of each case without a container, by its label; made once."""
    return {}


def case_of(trainer: str, pipeline: str, order: str, data: Dataset) -> Case:
    """Return the case of a small net on bare metal."""
    loader, form, content = load.pipeline(pipeline)
    return Case(
        label=f"{trainer} {pipeline}", loader=loader, format=form, content=content, order=order,
        trainer=trainer, trainer_options={"net": "small", "classes": 48, "losses": True},
        image="caffe", location=data.root, batch=8, workers=1, transform="crop224", seed=3,
    )  # fmt: skip


def losses(case: Case, data: Dataset) -> str:
    """Train one epoch of six steps; return its losses, in as many digits as a float32 has."""
    settings = TrialSettings(images=containers.images_of(case), limit_s=120)
    record = run_trial(Trial("t", case, "train", "-"), data, 1, settings)
    assert (record.status, record.reasons) == (VALID, ())
    facts = record.ranks[0].notes["trainer"]
    assert len(facts["losses"].split()) == 6
    return str(facts["losses"])


@pytest.mark.parametrize("runtime", first(containers.RUNTIMES, containers.FIRST))
@pytest.mark.parametrize(("trainer", "pipeline", "order"), KINDS)
def test_the_losses_are_those_of_bare_metal(
    data: Dataset,
    services: None,
    on_bare_metal: Dict[str, str],
    trainer: str,
    pipeline: str,
    order: str,
    runtime: str,
) -> None:
    bare = case_of(trainer, pipeline, order, data)
    need("caffe")
    inside = dataclasses.replace(bare, runtime=runtime)
    containers.needs(inside)
    if bare.label not in on_bare_metal:
        on_bare_metal[bare.label] = losses(bare, data)
        options = {**bare.trainer_options, "seed": 4}
        other = losses(dataclasses.replace(bare, seed=4, trainer_options=options), data)
        assert other != on_bare_metal[bare.label], "the seed changes nothing: nothing is compared"
    assert losses(inside, data) == on_bare_metal[bare.label]


@pytest.mark.parametrize("runtime", first(containers.RUNTIMES, containers.FIRST))
def test_a_container_has_the_instructions_that_were_chosen_outside(
    data: Dataset,
    services: None,
    on_bare_metal: Dict[str, str],
    runtime: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need("caffe")
    inside = dataclasses.replace(case_of("caffe", "native:lmdb", "stored", data), runtime=runtime)
    containers.needs(inside)
    for core in ("Nehalem", "Haswell"):  # with and without fused multiply-add: other sums
        monkeypatch.setenv("OPENBLAS_CORETYPE", core)
        bare = dataclasses.replace(inside, runtime="bare")
        on_bare_metal.setdefault(core, losses(bare, data))
        assert losses(inside, data) == on_bare_metal[core]
    assert on_bare_metal["Nehalem"] != on_bare_metal["Haswell"], "the choice changes nothing"
