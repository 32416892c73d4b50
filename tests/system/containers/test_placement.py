"""Data inside real images and overlays: the same samples, a proven cache state, nothing left."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest
import tomllib

from iobench import analysis, containers, placements, reachable, scheduler, spec, store
from iobench.launch import Settings, run_trial
from iobench.model import EXPLORATORY, VALID, Case, Dataset, Plan, Record, Trial
from iobench.placements import engines, folders
from iobench.report import words
from tests import container
from tests.capabilities import need

pytestmark = pytest.mark.system

PLACES = [
    ("docker", "image", {}),
    ("podman", "image", {}),
    ("apptainer", "image", {"mode": "sif"}),
    ("apptainer", "overlay", {"mode": "sif"}),
    ("apptainer", "image", {"mode": "sandbox"}),
    ("apptainer", "overlay", {"mode": "sandbox"}),
    ("charliecloud", "image", {}),
]
places = pytest.mark.parametrize(
    ("runtime", "kind", "options"), PLACES, ids=lambda v: v if isinstance(v, str) else v.get("mode")
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return container.small_dataset(tmp_path_factory.mktemp("set") / "data", samples=64)


@pytest.fixture(scope="module")
def daemon() -> Iterator[None]:
    need("docker")
    with container.daemon():
        yield


@pytest.fixture
def services(request: pytest.FixtureRequest, runtime: str) -> None:
    if runtime == "docker":
        request.getfixturevalue("daemon")


def case_of(data: Dataset, runtime: str, kind: str, options: dict[str, str]) -> Case:
    return Case(
        label=f"{runtime} {kind}", format="lmdb", runtime=runtime, placement=kind, batch=4,
        workers=2, prefetch=1, location=data.root, runtime_options=options,
    )  # fmt: skip


@contextlib.contextmanager
def made(data: Dataset, case: Case, forms: dict[str, Any]) -> Iterator[Plan]:
    plan = Plan("t", "now", 1, 60.0, data, (case,), ())
    plan = placements.placed(plan, "", forms, container.say)
    with placements.present(plan, forms, container.say) as there:
        yield there


def trial(data: Dataset, plan: Plan, forms: dict[str, Any], stage: str, cache: str) -> Record:
    settings = Settings(images=forms, placements=placements.by_location(plan))
    return run_trial(Trial(id="t", case=plan.cases[0], stage=stage, cache=cache), data, 1, settings)


def bare_digest(data: Dataset) -> str:
    case = case_of(data, "bare", "bind", {})
    record = run_trial(Trial(id="t", case=case, stage="digest", cache="-"), data, 1, Settings())
    return record.ranks[0].samples_digest


def left(data: Dataset, forms: dict[str, Any], runtime: str) -> list[str]:
    """Return what is still there of placements."""
    found = [str(p) for p in Path(data.root).parent.glob(f"{folders.PREFIX}*")]
    found += [str(p) for p in container.image_folder().glob(f"{folders.PREFIX}*")]
    if runtime in engines.FORMS:
        program = ["docker"] if runtime == "docker" else containers.podman()
        for listing in (["ps", "--all"], ["images"]):
            listing += ["--quiet", "--filter", f"label={engines.LABEL}"]
            found += containers.ask([*program, *listing])[1].split()
    return found


@places
def test_cold_and_warm_are_proven_and_the_samples_are_the_same(
    runtime: str, kind: str, options: dict[str, str], data: Dataset, services: None
) -> None:
    case = case_of(data, runtime, kind, options)
    container.needs(case)
    forms = container.images_of(case)
    with made(data, case, forms) as plan:
        (place,) = plan.placements
        assert place.seconds > 0
        assert place.bytes > data.bytes
        digest = trial(data, plan, forms, "digest", "-")
        assert (digest.status, digest.reasons) == (VALID, ())
        assert digest.ranks[0].samples_digest == bare_digest(data) != ""
        cold = trial(data, plan, forms, "load", "cold")
        assert (cold.status, cold.reasons) == (VALID, ()), cold.cache
        assert cold.cache.resident_before == 0.0
        assert cold.cache.bytes_storage >= 0.98 * cold.cache.bytes_needed
        warm = trial(data, plan, forms, "load", "warm")
        assert (warm.status, warm.reasons) == (VALID, ()), warm.cache
        assert warm.cache.resident_before == warm.cache.resident_after == 1.0
        inner = cold.ranks[0].fingerprint["mount"]
        if place.form == "sif":
            assert inner["fstype"] == ("squashfs" if kind == "image" else "overlay")
            assert "inside" in cold.cache.method
        else:
            assert Path(place.files).is_dir()
        with pytest.MonkeyPatch.context() as patch:  # a cold that is none is caught
            patch.setattr("iobench.pagecache.evict", lambda files: None)
            Path(place.files).is_file() and Path(place.files).read_bytes()
            lie = trial(data, plan, forms, "load", "cold")
        assert lie.status == "INVALID"
    assert left(data, forms, runtime) == []


@pytest.mark.parametrize(
    ("runtime", "kind"), [("apptainer", "image"), ("apptainer", "overlay"), ("docker", "image")]
)
def test_what_nothing_counts_is_exploratory_with_the_reason(
    runtime: str, kind: str, data: Dataset, services: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """squashfuse reads for a user's worker; docker's store is closed to its group."""
    mode = {"mode": "sandbox" if kind == "overlay" else "sif"} if runtime == "apptainer" else {}
    case = case_of(data, runtime, kind, mode)
    container.needs(case)
    if runtime == "apptainer" and (containers.user_namespaces() or containers.fuse()):
        pytest.skip("no user namespaces, or /dev/fuse is closed")
    monkeypatch.setenv("APPTAINER_USERNS", "1")
    monkeypatch.setattr("iobench.runtimes.apptainer._kernel_mounts", lambda: False)
    monkeypatch.setattr(engines, "reachable", lambda folder: False)
    forms = container.images_of(case)
    with made(data, case, forms) as plan:
        place = plan.placements[0]
        assert (place.inside, place.filesystem) == (
            (True, "squashfuse") if runtime == "apptainer" else (True, "overlay2")
        )
        for cache in ("cold", "warm"):
            record = trial(data, plan, forms, "load", cache)
            assert record.status == EXPLORATORY, (record.reasons, record.cache)
            assert record.reasons == ("nothing here counts the bytes that cross this mount",)
            assert record.cache.resident_before == (0.0 if cache == "cold" else 1.0)


SPEC = """
name = "places"
budget = "10m"
max_repeated_pairs = 0
[dataset]
recipe = "imagenet-like"
[case]
pipeline = "lmdb"
trainer = "null"
batch = 4
prefetch = 1
[matrix]
runtime = ["docker", "apptainer"]
placement = ["bind", "image"]
[ladder]
stages = ["load"]
repeats = 1
caches = ["cold"]
probe = false
[[contrasts]]
over = "placement"
base = "bind"
stage = "load"
caches = ["cold", "warm"]
pairs = 1
"""


def test_a_suite_contrasts_bind_and_image_for_docker_and_apptainer(
    data: Dataset, daemon: None, tmp_path: Path
) -> None:
    wanted = spec.parse(tomllib.loads(SPEC))
    for case in spec.expand(wanted):
        container.needs(case)
        container.images_of(case)
    plan = scheduler.make_plan(wanted, data, 600.0, "now")
    forms = reachable.images_of(plan.cases, container.image_folder())
    results = store.create(tmp_path, "places")
    results.save_plan(placements.placed(plan, "", forms, container.say))
    with placements.present(results.plan(), forms, container.say) as there:
        results.save_plan(there)
        settings = Settings(images=forms, placements=placements.by_location(there))
        scheduler.Suite(results, wanted, settings, lambda *_: None).run()
    document = analysis.analyse(results.plan(), results.records())
    assert document["validity"][VALID] == document["validity"]["planned"], document["validity"]
    assert document["checks"]["same_bytes"]["ok"] is True
    assert document["checks"]["same_samples"]["ok"] is True
    contrasts = document["contrasts"]
    assert [(c["base_name"], c["arm_name"], c["cache"], c["over"]) for c in contrasts] == [
        ("bind", "image", cache, ["placement"]) for cache in ("cold", "warm", "cold", "warm")
    ]
    for contrast in contrasts:
        assert contrast["ratio"] > 0
        assert contrast["confounders"] == {"status": "PASS", "differences": []}
        staging = contrast["staging"]
        assert staging["seconds"] > 0
        assert staging["bytes"] > data.bytes
        assert "to make" in words.sentence(contrast)
    assert left(data, forms, "docker") == []


KILLED = """
import os, signal, sys
from iobench.placements import engines
place = engines.Placement("image", sys.argv[2], form=sys.argv[1], base="torch")
class Nothing:
    def send(self, argv, uid, gid, what):
        pass
with engines.derived(place, sys.argv[3], Nothing()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("runtime", engines.FORMS)
def test_an_image_that_a_killed_suite_left_is_removed_by_the_next(
    runtime: str, data: Dataset, services: None
) -> None:
    case = case_of(data, runtime, "image", {})
    container.needs(case)
    forms = container.images_of(case)
    program = ["docker"] if runtime == "docker" else containers.podman()
    tag = engines.tag(f"{folders.PREFIX}killed")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, runtime, tag, forms["torch"].forms[runtime]]
    )
    assert killed.returncode == -signal.SIGKILL
    assert containers.ask([*program, "image", "inspect", tag])[0] == 0
    with made(data, case, forms):
        assert containers.ask([*program, "image", "inspect", tag])[0] != 0
        engines.sweep(runtime, container.say)  # of a process that runs: left alone
        assert len(left(data, forms, runtime)) == 1
    assert left(data, forms, runtime) == []
