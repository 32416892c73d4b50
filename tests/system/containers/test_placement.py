"""Data inside real images and overlays: the same samples, a proven cache state, nothing left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest
import tomllib

from iobench.analysis import suite
from iobench.backends.placements import _engines
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.clock import clock
from iobench.core.records import EXPLORATORY, VALID, Record
from iobench.host import engines, probes
from iobench.plan.resolve import Here, resolve
from iobench.report import contrast_words
from iobench.run import command, placed_folders, placing, store
from iobench.run import suite as scheduler
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load
from tests.build import containers
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
    return containers.small_dataset(tmp_path_factory.mktemp("set") / "data", samples=64)


@pytest.fixture
def services(request: pytest.FixtureRequest, runtime: str) -> None:
    if runtime == "docker":
        request.getfixturevalue("daemon")


def case_of(data: Dataset, runtime: str, kind: str, options: dict[str, str]) -> Case:
    return Case(
        label=f"{runtime} {kind}", loader="threads", format="lmdb", runtime=runtime, placement=kind,
        batch=4, workers=2, prefetch=1, location=data.root, runtime_options=options,
    )  # fmt: skip


@contextlib.contextmanager
def made(data: Dataset, case: Case, forms: dict[str, Any]) -> Iterator[Plan]:
    plan = Plan("t", "now", 1, 60.0, data, (case,), ())
    plan = placing.placed(plan, "", forms, containers.say)
    with placing.present(plan, forms, containers.say) as there:
        yield there


def trial(data: Dataset, plan: Plan, forms: dict[str, Any], stage: str, cache: str) -> Record:
    settings = TrialSettings(images=forms, placements=placing.by_location(plan))
    return run_trial(Trial(id="t", case=plan.cases[0], stage=stage, cache=cache), data, 1, settings)


def bare_digest(data: Dataset) -> str:
    case = case_of(data, "bare", "bind", {})
    record = run_trial(
        Trial(id="t", case=case, stage="digest", cache="-"), data, 1, TrialSettings()
    )
    return record.ranks[0].samples_digest


def left(data: Dataset, forms: dict[str, Any], runtime: str) -> list[str]:
    """Return what is still there of the placements of this process; other tests run beside it."""
    found = [str(p) for p in Path(data.root).parent.glob(f"{placed_folders.PREFIX}*")]
    found += [str(p) for p in containers.image_folder().glob(f"{placed_folders.PREFIX}*")]
    if runtime in _engines.FORMS:
        program = ["docker"] if runtime == "docker" else engines.podman()
        for listing in (["ps", "--all"], ["images"]):
            listing += ["--quiet", "--filter", f"label={engines.owner()}"]
            found += probes.ask([*program, *listing])[1].split()
    return found


@places
def test_cold_and_warm_are_proven_and_the_samples_are_the_same(
    runtime: str, kind: str, options: dict[str, str], data: Dataset, services: None
) -> None:
    case = case_of(data, runtime, kind, options)
    containers.needs(case)
    forms = containers.images_of(case)
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
            patch.setattr("iobench.host.agent.Agent.evict", lambda agent, files: None)
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
    containers.needs(case)
    if runtime == "apptainer":
        need("userns")
        need("fuse")
    monkeypatch.setenv("APPTAINER_USERNS", "1")
    monkeypatch.setattr("iobench.backends.runtimes.apptainer._kernel_mounts", lambda: False)
    monkeypatch.setattr(_engines, "reachable", lambda folder: False)
    forms = containers.images_of(case)
    with made(data, case, forms) as plan:
        place = plan.placements[0]
        assert (place.inside, place.filesystem) == (
            (True, "squashfuse") if runtime == "apptainer" else (True, "overlay2")
        )
        for cache in ("cold", "warm"):
            record = trial(data, plan, forms, "load", cache)
            assert record.status == EXPLORATORY, (record.reasons, record.cache)
            (reason,) = record.reasons
            seen = "fuse.squashfuse" if (runtime, kind) == ("apptainer", "image") else "overlay"
            assert reason.startswith(
                "nothing here counts the bytes that cross this mount (inside the container they "
                f"are on {seen}"
            )
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


@pytest.mark.breadth
def test_a_suite_contrasts_bind_and_image_for_docker_and_apptainer(
    data: Dataset, daemon: None, tmp_path: Path
) -> None:
    wanted = load.parse(tomllib.loads(SPEC))
    for case in load.expand(wanted):
        containers.needs(case)
        containers.images_of(case)
    plan = resolve(wanted, Here(data), 600.0, "now")
    forms = command.images_for(plan.cases, containers.image_folder())
    results = store.create(tmp_path, "places")
    results.save_plan(placing.placed(plan, "", forms, containers.say))
    with placing.present(results.plan(), forms, containers.say) as there:
        results.save_plan(there)
        settings = TrialSettings(images=forms, placements=placing.by_location(there))
        scheduler.Suite(results, settings, lambda *_: None).run()
    found = suite.analyse(results.plan(), results.records())
    assert found.validity.statuses[VALID] == found.validity.planned, found.validity
    assert found.checks.same_bytes.ok is True
    assert found.checks.same_samples.ok is True
    assert [(c.base_name, c.arm_name, c.cache, c.over) for c in found.contrasts] == [
        ("bind", "image", cache, ["placement"]) for cache in ("cold", "warm", "cold", "warm")
    ]
    for contrast in found.contrasts:
        assert contrast.outcome.ratio > 0
        assert (contrast.confounders.status, contrast.confounders.differences) == ("PASS", [])
        assert contrast.staging.seconds > 0
        assert contrast.staging.bytes > data.bytes
        assert "to make" in contrast_words.sentence(contrast)
    assert left(data, forms, "docker") == []


KILLED = """
import os, signal, sys
from iobench.backends.placements import _engines
from iobench.core import registry
place = _engines.Placement("image", sys.argv[2], form=sys.argv[1], base="torch")
class Nothing:
    def send(self, argv, uid, gid, what):
        pass
with _engines.derived(place, sys.argv[3], Nothing()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("runtime", _engines.FORMS)
def test_an_image_that_a_killed_suite_left_is_removed_by_the_next(
    runtime: str, data: Dataset, services: None
) -> None:
    case = case_of(data, runtime, "image", {})
    containers.needs(case)
    forms = containers.images_of(case)
    program = ["docker"] if runtime == "docker" else engines.podman()
    tag = _engines.tag(f"{placed_folders.PREFIX}killed")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, runtime, tag, forms["torch"].forms[runtime]]
    )
    assert killed.returncode == -signal.SIGKILL
    assert probes.ask([*program, "image", "inspect", tag])[0] == 0
    with made(data, case, forms):
        assert probes.ask([*program, "image", "inspect", tag])[0] != 0
        registry.runtime_of(case).sweep(print)  # of a process that runs: left alone
        assert len(left(data, forms, runtime)) == 1
    assert left(data, forms, runtime) == []


STOPPED = """
import os, signal, subprocess, sys, time
from iobench.core import registry
from iobench.core.protocols import Start
runtime = registry.load("runtimes", sys.argv[1]).make()
start = Start(image=sys.argv[2], name=sys.argv[3])
subprocess.Popen(runtime.argv(["sleep", "600"], start), stdin=subprocess.DEVNULL)
until = time.monotonic() + 60
while time.monotonic() < until and not runtime.names(start.name):
    time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("runtime", _engines.FORMS)
def test_a_stopped_container_of_a_killed_driver_is_removed_by_the_next(
    runtime: str, data: Dataset, services: None
) -> None:
    """The driver and what watches over its arms were ended at one blow."""
    case = case_of(data, runtime, "bind", {})
    containers.needs(case)
    forms = containers.images_of(case)
    engine, name = registry.runtime_of(case), f"iobench-killed-{os.getpid()}"
    words = [sys.executable, "-c", STOPPED, runtime, forms["torch"].forms[runtime], name]
    assert subprocess.run(words).returncode == -signal.SIGKILL
    program = ["docker"] if runtime == "docker" else engines.podman()
    show, until, pid = [*program, "inspect", "--format={{.State.Pid}}", name], clock() + 60, 0
    while not pid and clock() < until:  # the daemon may not have made it yet
        failed, found = probes.ask(show)
        pid = 0 if failed else int(found)
    assert pid
    os.kill(pid, signal.SIGSTOP)
    said: list[str] = []
    with placing.present(Plan("t", "now", 1, 60.0, data, (case,), ()), forms, said.append):
        assert engine.names(name) == []
    assert len(said) == 1
    assert not Path(f"/proc/{pid}").exists()
