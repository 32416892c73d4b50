"""What every runtime promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List

import pytest

from iobench.analysis import syscalls
from iobench.core import inside, registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.members import RuntimeBackend
from iobench.core.protocols import Mount, Start
from iobench.core.records import VALID, Record
from iobench.host import engines, limits, probes
from iobench.run import command as starting
from iobench.run.block import run_block
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load
from tests.build import containers
from tests.build.rows import first, rows
from tests.capabilities import need

members = pytest.mark.parametrize("name", registry.names("runtimes"))
isolated = pytest.mark.parametrize(
    "name", [n for n in registry.names("runtimes") if registry.load("runtimes", n).isolated]
)
VARIANTS = [(n, o) for n in containers.RUNTIMES for o in containers.OPTIONS.get(n, [{}])]
FIRST = [("docker", {}), ("apptainer", {"mode": "sif"})]
variants, first_variants = (
    pytest.mark.parametrize(
        ("name", "options"),
        first(VARIANTS, now),
        ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
    )
    for now in (VARIANTS, FIRST)
)
COMMAND = ("python3", "-m", "iobench.worker", "/tmp/a task.json")
PIPELINES = ("torch:lmdb", "dali:jpeg")
FORMS = ("", "docker", "podman", "sif", "rootfs")


def argv_of(name: str) -> list:
    return (
        registry.load("runtimes", name)
        .make()
        .argv(
            COMMAND,
            Start(
                image="image:1",
                mounts=(Mount(Path("/data"), "/iobench/data"),),
                env={"OMP_NUM_THREADS": "1"},
                name="iobench-test",
            ),
        )
    )


@members
def test_it_is_a_runtime_backend(name: str) -> None:
    backend = registry.load("runtimes", name)
    assert isinstance(backend, RuntimeBackend)
    assert backend.summary
    assert isinstance(backend.make().available(), str)
    assert backend.limits is None or isinstance(backend.limits(), str)


@members
def test_argv_is_a_pure_new_list_that_ends_in_the_command(name: str) -> None:
    first, second = argv_of(name), argv_of(name)
    assert first == second
    assert first is not second
    assert all(isinstance(word, str) for word in first)
    assert tuple(first[-len(COMMAND) :]) == COMMAND


@members
def test_argv_carries_the_environment(name: str) -> None:
    assert any("OMP_NUM_THREADS" in word for word in argv_of(name))


@members
def test_its_form_is_one_that_images_have(name: str) -> None:
    backend = registry.load("runtimes", name)
    assert backend.make().form() in FORMS
    assert backend.make().form() or not backend.isolated


@members
@pytest.mark.system
def test_identity_is_json(name: str, services: None) -> None:
    need(name)
    json.dumps(dict(registry.load("runtimes", name).make().identify("")))


@members
def test_stopping_what_is_not_there_is_harmless(name: str) -> None:
    registry.load("runtimes", name).make().stop("iobench-nobody")


# -- for real --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return containers.small_dataset(tmp_path_factory.mktemp("set") / "data")


@pytest.fixture
def services(request: pytest.FixtureRequest, name: str) -> None:
    """What the runtime ``name`` needs to be up."""
    if name == "docker":
        request.getfixturevalue("daemon")


def case_of(dataset: Dataset, runtime: str, pipeline: str = "torch:lmdb", **fields: object) -> Case:
    loader, form, content = load.pipeline(pipeline)
    case = Case(
        label=pipeline,
        loader=loader,
        format=form,
        content=content,
        runtime=runtime,
        location=dataset.root,
        batch=4,
        workers=2,
        prefetch=1,
    )
    return dataclasses.replace(case, **fields)  # type: ignore[arg-type]


def trial(dataset: Dataset, case: Case, stage: str, cache: str = "-", **settings: object) -> Record:
    images = containers.images_of(case)
    wanted = TrialSettings(images=images, **settings)  # type: ignore[arg-type]
    return run_trial(Trial(id="t", case=case, stage=stage, cache=cache), dataset, 1, wanted)


OnBareMetal = Callable[[str, str], Record]


@pytest.fixture(scope="module")
def on_bare_metal(data: Dataset) -> OnBareMetal:
    """Return what runs a pipeline's stage without a container; each is run once."""

    @functools.cache
    def run(pipeline: str, stage: str) -> Record:
        return trial(data, case_of(data, "bare", pipeline), stage)

    return run


@pytest.mark.system
@variants
@pytest.mark.parametrize("pipeline", rows(PIPELINES, ["torch:hdf5", "torch:jpeg"]))
def test_the_four_pipelines_run_and_deliver_the_same_samples(
    name: str, options: Dict[str, str], pipeline: str, data: Dataset, services: None,
    on_bare_metal: OnBareMetal,
) -> None:  # fmt: skip
    case = case_of(data, name, pipeline, runtime_options=options)
    containers.needs(case)
    digest = trial(data, case, "digest")
    assert (digest.status, digest.reasons) == (VALID, ())
    bare = on_bare_metal(pipeline, "digest")
    assert digest.ranks[0].samples_digest == bare.ranks[0].samples_digest != ""
    assert digest.ranks[0].host == probes.host().name


@pytest.mark.system
@variants
def test_a_cold_trial_is_proven_and_says_what_it_ran_in(
    name: str, options: Dict[str, str], data: Dataset, services: None
) -> None:
    case = case_of(data, name, runtime_options=options)
    containers.needs(case)
    cold = trial(data, case, "load", "cold")
    assert (cold.status, cold.reasons) == (VALID, ())
    assert cold.cache.resident_before == 0.0
    assert cold.ready_s > 0
    assert cold.runtime["image"] == "torch"
    assert cold.runtime["form"] == registry.runtime_of(case).form()
    assert cold.runtime["digest"].startswith("sha256:")
    assert cold.ranks[0].host == probes.host().name
    seen = cold.ranks[0].fingerprint["limits"]["open_files"]
    assert seen == probes.host().open_files[0]


@pytest.mark.system
@first_variants
def test_its_system_calls_are_counted_from_the_host_and_are_those_of_bare(
    name: str, options: Dict[str, str], data: Dataset, services: None, on_bare_metal: OnBareMetal
) -> None:
    need("strace")
    case = case_of(data, name, "torch:jpeg", runtime_options=options)
    containers.needs(case)
    traced = trial(data, case, "calls")
    assert (traced.status, traced.reasons) == (VALID, ())
    bare = on_bare_metal("torch:jpeg", "calls")
    here, there = syscalls.per_sample(traced), syscalls.per_sample(bare)
    for call in ("open", "read", "stat", "lseek"):
        assert here.get(call, 0) == pytest.approx(there.get(call, 0), abs=0.3), call


@pytest.mark.system
@variants
def test_a_cached_fraction_is_set_from_what_the_worker_says_of_its_files(
    name: str, options: Dict[str, str], data: Dataset, services: None
) -> None:
    case = case_of(data, name, "threads:lmdb", runtime_options=options)
    containers.needs(case)
    record = trial(data, case, "load", "0.5")
    assert (record.status, record.reasons) == (VALID, ())
    assert record.cache.resident_before == pytest.approx(0.5, abs=0.1)


@pytest.mark.system
@isolated
def test_a_ceiling_needs_no_runtime(name: str, data: Dataset) -> None:
    need("fio")
    case = case_of(data, name)
    record = run_trial(
        Trial(id="t", case=case, stage="ceiling", cache="cold"), data, 1, TrialSettings()
    )
    assert (record.status, record.reasons) == (VALID, ())


INTRUDE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None)
for folder in sys.argv[1:]:
    libc.mount(None, folder.encode(), None, 32 | 4096, None)  # remount it writable
wrote = []
for folder in sys.argv[1:]:
    try:
        os.close(os.open(folder + "/intruder", os.O_CREAT | os.O_WRONLY))
        wrote.append(folder)
    except OSError:
        pass
for act in (lambda: os.remove("/iobench/data/dataset.json"),
            lambda: os.truncate("/iobench/data/samples.tsv", 0),
            lambda: os.chmod("/iobench/data/samples.tsv", 0o777),
            lambda: os.rename("/iobench/data/samples.tsv", "/iobench/data/other"),
            lambda: os.utime("/iobench/data/samples.tsv")):
    try:
        act()
        wrote.append("dataset")
    except OSError:
        pass
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches",
             "/sys/kernel/mm/transparent_hugepage/enabled"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        wrote.append(path)
    except OSError:
        pass
open("/iobench/work/wrote", "w").write(json.dumps(wrote))
"""


def tree(folder: Path) -> Dict[str, tuple]:
    return {
        str(p): (p.lstat().st_size, p.lstat().st_mtime_ns, p.lstat().st_mode)
        for p in [folder, *folder.rglob("*")]
        if "__pycache__" not in p.parts and not p.name.endswith(".pyc")
    }


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "options"),
    [v for v in VARIANTS if registry.load("runtimes", v[0]).isolated],
)
def test_it_cannot_write_outside_its_result_folder(
    name: str, options: Dict[str, str], data: Dataset, tmp_path: Path, services: None
) -> None:
    case = case_of(data, name, runtime_options=options)
    containers.needs(case)
    runtime = registry.runtime_of(case)
    image = starting.image_of(case, runtime.form(), containers.images_of(case))
    places = ["/iobench/data", "/iobench/code/iobench", "/", "/opt/iobench", "/usr", "/etc"]
    host = [Path(data.root), Path(starting.__file__).parents[1]]
    if os.path.isdir(image):
        host.append(Path(image, "iobench"))
    before = [tree(folder) for folder in host]
    start = Start(image=image, mounts=starting.mounts(data, tmp_path), name="iobench-intruder")
    command = [inside.PYTHON_INSIDE, "-c", INTRUDE, *places, "/iobench/work"]
    done = subprocess.run(
        runtime.argv(command, start), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "wrote").read_text()) == ["/iobench/work"]
    assert [tree(folder) for folder in host] == before
    assert not Path("/intruder").exists()


DRIVER = """
import json, sys
from pathlib import Path
from iobench.core.dataset import locate
from iobench.run.trial import TrialSettings, run_trial
from iobench.core.cases import Case, Trial
from iobench.run.command import ImageUse
case, images, root = json.loads(sys.stdin.read())
images = {name: ImageUse(**use) for name, use in images.items()}
settings = TrialSettings(images=images, decode_delay_s=1.0)
trial = Trial(id="t", case=Case(**case), stage="load", cache="warm")
print(run_trial(trial, locate(Path(root)), 1, settings), flush=True)
"""
#: The same case twice, in turns, without an end in sight.
TURNS = (
    DRIVER.partition("settings =")[0]
    + """
from iobench.run.block import run_block
case = Case(**case)
trials = [Trial(str(i), case, "load", "warm", epochs=1000, slice_s=0.05) for i in range(2)]
run_block(trials, locate(Path(root)), [1, 1], TrialSettings(images=images))
"""
)


def wait_for(condition: object, seconds: float = 30.0) -> bool:
    for _ in range(int(seconds / 0.1)):
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


@pytest.mark.system
@first_variants
def test_it_takes_turns_with_bare_metal(
    name: str, options: Dict[str, str], data: Dataset, services: None
) -> None:
    """Every process of a container is stopped as those of bare metal are, seen from the host."""
    inside = case_of(data, name, runtime_options=options)
    containers.needs(inside)
    images = {**containers.images_of(inside)}
    trials = [
        Trial(str(i), case, "load", "warm", arm=case.runtime, epochs=8, slice_s=0.02)
        for i, case in enumerate([case_of(data, "bare"), inside])
    ]
    records = run_block(trials, data, [1, 1], TrialSettings(images=images))
    assert [(r.status, r.reasons) for r in records] == [(VALID, ())] * 2
    bare, contained = records
    assert bare.ranks[0].order_digest == contained.ranks[0].order_digest
    for record in records:
        assert record.slices.processes == 3, "the worker and its two loaders"
        assert len(record.slices.thawed) >= 3
    turns = sorted(turn for r in records for turn in r.slices.thawed)
    assert all(one[1] < other[0] for one, other in zip(turns, turns[1:]))


def stopped(processes: List[int]) -> bool:
    """Tell whether one of these processes is stopped."""
    states = []
    for pid in processes:
        with contextlib.suppress(OSError):
            states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return "T" in states


@pytest.mark.system
@pytest.mark.parametrize("driver_code", [DRIVER, TURNS], ids=["alone", "in-turns"])
@pytest.mark.parametrize("name", first(registry.names("runtimes"), ["bare", *containers.FIRST]))
def test_kill_9_of_the_driver_leaves_no_process_and_no_container(
    name: str, driver_code: str, data: Dataset, tmp_path: Path, services: None
) -> None:
    need("root")  # to see every process's environment
    case = case_of(data, name)
    containers.needs(case)
    images = containers.images_of(case)
    marker = f"MALLOC_ARENA_MAX={10_000_000 + os.getpid()}"
    key, _, value = marker.partition("=")
    document = [case.__dict__, {k: u.__dict__ for k, u in images.items()}, data.root]
    with open(tmp_path / "said", "wb") as said:
        driver = subprocess.Popen(
            [sys.executable, "-c", driver_code],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            env={**os.environ, key: value},
        )
    assert driver.stdin
    driver.stdin.write(json.dumps(document).encode())
    driver.stdin.close()

    def workers() -> List[int]:
        return [p for p, w in containers.marked(marker).items() if "iobench.worker" in w]

    # the worker and both of its loader processes are at it
    wanted = 3 if driver_code == DRIVER else 6
    seen = wait_for(lambda: sum(1 for p in workers() if not _is_client(p)) >= wanted)
    seen = seen and (driver_code == DRIVER or wait_for(lambda: stopped(workers())))
    lines = [" ".join(words) for words in containers.marked(marker).values()]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert seen, (lines, (tmp_path / "said").read_text())
    assert wait_for(lambda: not containers.marked(marker)), containers.marked(marker)
    names = set(re.findall(r"--name=(iobench-\w+)", "\n".join(lines)))
    count = 1 if driver_code == DRIVER else 2
    assert len(names) == (count if name in ("docker", "podman") else 0)
    for found in names:
        program = ["docker"] if name == "docker" else engines.podman()
        listed = [*program, "ps", "--all", "--quiet", "--filter", f"name={found}"]
        assert wait_for(lambda: not probes.ask(listed)[1]), probes.ask(listed)  # noqa: B023


def _is_client(pid: int) -> bool:
    """Tell whether a process is the runtime's own program, which has the command as arguments."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.partition(".")[0] not in (
            "python3",
            "python",
        )
    except OSError:
        return True


@pytest.mark.system
@variants
def test_limits_are_what_every_arm_sees(
    name: str, options: Dict[str, str], data: Dataset, services: None
) -> None:
    case = case_of(
        data, name, "threads:lmdb", runtime_options=options, cpus=1.5, memory_bytes=3 << 30
    )
    containers.needs(case)
    if limits.refused(case):
        pytest.skip(limits.refused(case))
    record = trial(data, case, "read", "cold")
    assert (record.status, record.reasons) == (VALID, ())
    seen = record.ranks[0].fingerprint["limits"]
    assert (seen["cpus"], seen["memory_bytes"]) == (1.5, 3 << 30)


@pytest.mark.system
@members
def test_a_memory_limit_is_enforced(name: str, data: Dataset, services: None) -> None:
    case = case_of(data, name, memory_bytes=160 << 20)
    containers.needs(case)
    if limits.refused(case):
        pytest.skip(limits.refused(case))
    ended = limits.killed_since()
    record = trial(data, case, "load", "warm", limit_s=30.0)
    assert record.status == "FAILED"
    reason = record.reasons[0]
    if ended():  # apptainer's own process goes on waiting then, until limit_s
        assert re.search("SIGKILL|[Mm]emory", reason), reason
    else:  # its libraries' pages give way to each other, until limit_s
        assert "memory = 160 MiB does not hold the files in use" in reason


NOBODY = ("runuser", "-u", "nobody", "--")
UNPRIVILEGED = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
exec(sys.argv[2])
"""


@pytest.mark.system
@pytest.mark.parametrize("name", ["apptainer", "charliecloud", "unpacked"])
@pytest.mark.parametrize("pipeline", rows(["torch:lmdb"], ["dali:jpeg"]))
def test_a_user_without_root_gets_the_same_samples(
    name: str, pipeline: str, data: Dataset, on_bare_metal: OnBareMetal
) -> None:
    need("readable-clone")
    case = case_of(data, name, pipeline)
    containers.needs(case)
    if name == "apptainer":
        need("open-fuse")
    expected = on_bare_metal(pipeline, "digest").ranks[0].samples_digest
    images = containers.images_of(case)
    script = DRIVER.replace("decode_delay_s=1.0", "").replace(
        '"load", cache="warm"', '"digest", cache="-"'
    )
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        subprocess.run(["cp", "-r", data.root, str(home / "data")], check=True)
        subprocess.run(["chown", "-R", "nobody:nogroup", folder], check=True)
        case = dataclasses.replace(case, location=str(home / "data"))
        done = subprocess.run(
            [*NOBODY, _python_of_all(), "-c", UNPRIVILEGED, json.dumps(_package_paths()), script],
            input=json.dumps(
                [case.__dict__, {k: u.__dict__ for k, u in images.items()}, str(home / "data")]
            ),
            env={**os.environ, "HOME": folder, "TMPDIR": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
        )
    assert f"samples_digest='{expected}'" in done.stdout, (done.stdout, done.stderr)
    assert "'rootless': True" in done.stdout or name == "unpacked"


def _python_of_all() -> str:
    """Return a Python of this version that everybody may run (root's own may be in its home)."""
    for python in (sys.executable, "/usr/bin/python3"):
        code = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        if subprocess.run([*NOBODY, python, "-c", code], capture_output=True).returncode == 0:
            return python
    return pytest.skip("no Python of this version that an ordinary user may run")


def _package_paths() -> List[str]:
    site = Path(pytest.__file__).parent.parent
    return [str(Path(starting.__file__).parents[2]), str(site)]
