"""The local launcher: one rank, said so when several are asked for."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest

from iobench.backends.launchers.mpirun import QUIET
from iobench.core import registry
from iobench.core.errors import BackendUnavailable, SpecError
from iobench.core.inside import PYTHON_INSIDE
from iobench.core.protocols import Ranks


def test_argv_is_the_command_alone() -> None:
    command = ["worker", "task.json"]
    argv = registry.load("launchers", "local").make().argv(command, Ranks(1))
    assert argv == command
    assert argv is not command


@pytest.mark.parametrize("world_size", [0, 2])
def test_it_starts_one_rank_only(world_size: int) -> None:
    with pytest.raises(SpecError, match=f"world_size = {world_size}"):
        registry.load("launchers", "local").make().argv(["worker"], Ranks(world_size))


def test_rank_is_0_of_1_whatever_the_environment_says() -> None:
    launcher = registry.load("launchers", "local").make()
    assert launcher.rank({"RANK": "3", "WORLD_SIZE": "4"}) == (0, 1)


# -- mpirun ----------------------------------------------------------------------------------------

RULE = "-" * 74
LOST = """--------------------------------------------------------------------------
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[3838,0],0] on node h1
  Remote daemon: [[3838,0],1] on node h2

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself.
--------------------------------------------------------------------------
"""
ABORTED = f"""{RULE}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULE}
"""
KILLED = f"""{ABORTED}{RULE}
mpirun noticed that process rank 1 with PID 0 on node n17 exited on signal 9 (Killed).
{RULE}
"""
ENDED = f"""{ABORTED}{RULE}
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[25819,1],3]
  Exit code:    7
{RULE}
"""
NEWER = f"""{RULE}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-n17-2077@1,2]
   Exit code:    1
{RULE}
"""


def mpirun(**options: object) -> object:
    return registry.load("launchers", "mpirun").make(**options)


def test_mpirun_is_asked_for_so_many_ranks_of_the_command() -> None:
    assert mpirun().argv(["worker", "a task.json"], Ranks(3)) == [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "3",
        "worker", "a task.json",
    ]  # fmt: skip
    other = mpirun(program="/opt/ompi/bin/mpirun", bind_to="core", oversubscribe=False)
    assert other.argv(["worker"], Ranks(2)) == [
        "/opt/ompi/bin/mpirun", "--allow-run-as-root", "--bind-to", "core", "-np", "2", "worker",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [({"bind_to": "shoe"}, "none, hwthread, core"), ({"program": "-x"}, "name of a program")],
)
def test_mpirun_refuses_impossible_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        mpirun(**options)


def test_mpirun_starts_one_rank_at_least() -> None:
    with pytest.raises(SpecError, match="world_size = 0"):
        mpirun().argv(["worker"], Ranks(0))


def test_a_rank_is_told_who_it_is() -> None:
    env = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "RANK": "9"}
    assert mpirun().rank(env) == (2, 4)
    assert mpirun().local_rank({**env, "OMPI_COMM_WORLD_LOCAL_RANK": "1"}) == 1


def test_without_open_mpi_the_reason_has_a_remedy(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install Open MPI" in mpirun().available()
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\necho 'HYDRA build details: Version 4.1'\n")
    other.chmod(0o755)
    assert "not Open MPI's (HYDRA build details" in mpirun(program=str(other)).available()
    ours = tmp_path / "mpirun.openmpi"
    ours.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    ours.chmod(0o755)
    assert mpirun(program=str(ours)).available() == ""


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("F1121 layer.cpp:9] Check failed\n" + ENDED, (3, 7, "F1121 layer.cpp:9] Check failed")),
        ("a\n" + KILLED + "b\n", (1, -9, "a\nb")),
        ("F1 x\n[n17:9] *** Process received signal ***\n" + KILLED, (1, -9, "F1 x")),
        (NEWER, (2, 1, "")),
        ("Killed by nobody\n", None),
        (ABORTED, None),
        ("", None),
    ],
)
def test_mpirun_says_which_rank_failed_first(text: str, failed: object) -> None:
    found = registry.load("launchers", "mpirun").failure(text)
    assert (found and tuple(found)) == failed


def test_mpirun_says_which_node_it_lost() -> None:
    backend = registry.load("launchers", "mpirun")
    assert backend.lost(LOST) == "h2"
    assert [backend.lost(text) for text in (KILLED, ABORTED, "")] == ["", "", ""]


# -- where it stands in a worker's command ---------------------------------------------------------


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Return a function: a case -> how its worker would be started."""
    from iobench.core import protocols
    from iobench.core.cases import Case
    from iobench.run import command as starting
    from tests.build.datasets import indexed

    data = indexed(tmp_path / "data", 1, size=10, digest="d")
    ours = tmp_path / "bin/mpirun"
    ours.parent.mkdir()
    ours.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    ours.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ours.parent}:/usr/bin:/bin")
    for name in QUIET:
        monkeypatch.delenv(name, raising=False)

    def start(world_size: int = 2, on_host: bool = False, hosts: Any = (), **changes: object):
        keys = {"format": "null", "loader": "null", "trainer": "null", "launcher": "mpirun"}
        case = Case(**{**keys, "world_size": world_size, **changes})
        images = {
            "torch": protocols.ImageUse("torch", "sha256:1", {"docker": "t:1", "rootfs": "/i/t"})
        }
        (tmp_path / "work").mkdir(exist_ok=True)
        return starting.start(
            case, data, tmp_path / "work", images, name="n", on_host=on_host,
            world_size=world_size, hosts=hosts,
        )  # fmt: skip

    return start


def test_mpirun_stands_before_the_worker_and_after_the_runtime(begun) -> None:
    started = begun(runtime="unpacked")
    argv = list(started.argv)
    at = argv.index("mpirun")
    assert argv[0] == "env"
    assert argv[at + 1 : at + 7] == [
        "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2",
    ]  # fmt: skip
    assert argv[at + 7].startswith("/i/t/")
    assert argv[at + 8 : at + 10] == ["-m", "iobench.worker"]
    assert started.ranks_apart


def test_local_and_what_only_looks_at_files_start_one_process(begun) -> None:
    assert "mpirun" not in begun(launcher="local", world_size=1).argv
    only_looks = begun(world_size=1, on_host=True)
    assert "mpirun" not in only_looks.argv
    assert not only_looks.ranks_apart


def test_quiet_defaults_give_way_to_the_users_own(begun, monkeypatch) -> None:
    env = begun().variables
    assert {n: env[n] for n in QUIET} == dict(QUIET)
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    env = begun().variables
    assert "OMPI_MCA_pml" not in env
    assert env["OMPI_MCA_btl"] == "self,vader,tcp"
    assert "OMPI_MCA_pml" not in begun(launcher="local", world_size=1).variables


def test_a_missing_mpirun_is_said_before_anything_starts(begun, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"launcher 'mpirun' cannot run here: no program"):
        begun()


# -- several nodes ---------------------------------------------------------------------------------

HOSTS = Ranks(4, ["h1", "h2"], ["PATH", "LD_LIBRARY_PATH"])


def test_mpirun_over_hosts() -> None:
    assert mpirun().argv(["worker", "i"], HOSTS) == [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--host", "h1:2,h2:2",
        "--map-by", "ppr:2:node", "--bind-to", "none", "-np", "4",
        "-x", "PATH", "-x", "LD_LIBRARY_PATH", "worker", "i",
    ]  # fmt: skip


def test_srun_over_hosts() -> None:
    srun = registry.load("launchers", "srun").make
    assert srun(mpi="pmix").argv(["worker", "i"], HOSTS) == [
        "srun", "--overlap", "--ntasks=4", "--nodes=2", "--ntasks-per-node=2", "--nodelist=h1,h2",
        "--distribution=block", "--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL",
        "--mpi=pmix", "worker", "i",
    ]  # fmt: skip
    assert srun().argv(["worker"], Ranks(2)) == [
        "srun", "--overlap", "--ntasks=2", "--nodes=1", "--relative=0", "--cpu-bind=none",
        "--kill-on-bad-exit=1", "--export=ALL", "worker",
    ]  # fmt: skip
    env = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
    assert (srun().rank(env), srun().local_rank(env)) == ((3, 4), 1)
    with pytest.raises(SpecError, match="srun --mpi=list"):
        srun(mpi="pmix --x")
    with pytest.raises(SpecError, match="none, threads, cores"):
        srun(bind_to="core")


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (
            "--container-image=me#torch:24.01 --container-mounts=/a:/a,/b",
            ["--container-image=me#torch:24.01", "--container-mounts=/a:/a,/b"],
        ),
        ("--environment='/me/my env.toml'", ["--environment=/me/my env.toml"]),
        ("--container=/bundle", ["--container=/bundle"]),
        (
            "--container-name=x --no-container-mount-home",
            ["--container-name=x", "--no-container-mount-home"],
        ),
    ],
)
def test_srun_starts_each_rank_in_a_container_of_the_sites(
    container: str, words: list[str]
) -> None:
    """As pyxis and CSCS's container engine have them: words of srun, before the command."""
    launcher = registry.load("launchers", "srun").make(container=container)
    argv = launcher.argv(["worker", "i"], HOSTS)
    plain = registry.load("launchers", "srun").make().argv(["worker", "i"], HOSTS)
    assert argv == [*plain[:-2], *words, "worker", "i"]
    agents = dataclasses.replace(HOSTS, outside=True)
    assert launcher.argv(["worker", "i"], agents) == plain, "agents are in none"


@pytest.mark.parametrize(
    "container", ["worker", "--task-prolog=/tmp/x", "--container-image=a; --bcast", "--x '"]
)
def test_other_options_of_srun_are_no_container(container: str) -> None:
    with pytest.raises(SpecError, match="container"):
        registry.load("launchers", "srun").make(container=container)


def test_a_container_of_srun_holds_no_other() -> None:
    from iobench.core.cases import Case

    judge = registry.load("launchers", "srun").judge
    keys = {"launcher": "srun", "launcher_options": {"container": "--environment=x"}}
    judge(Case(**keys))
    with pytest.raises(SpecError, match="use runtime 'bare'"):
        judge(Case(runtime="apptainer", **keys))


def test_hydra_over_hosts(tmp_path) -> None:
    hydra = registry.load("launchers", "hydra").make
    assert hydra().argv(["worker", "i"], HOSTS) == [
        "mpiexec.hydra", "-genvall", "-hosts", "h1,h2", "-ppn", "2", "-bind-to", "none", "-n", "4",
        "worker", "i",
    ]  # fmt: skip
    env = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}
    here = hydra().argv(["worker"], Ranks(2))
    assert here[2:6] == ["-hosts", "localhost", "-ppn", "2"], "not all nodes of the batch job"
    assert (hydra().rank(env), hydra().local_rank(env)) == ((3, 4), 1)
    ours = tmp_path / "mpiexec"
    ours.write_text("#!/bin/sh\necho 'HYDRA build details: Version 4.1'\n")
    ours.chmod(0o755)
    assert hydra(program=str(ours)).available() == ""
    ours.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    other = tmp_path / "other"
    ours.rename(other)
    assert "is not Hydra (mpiexec (OpenRTE)" in hydra(program=str(other)).available()


def test_torchrun_is_started_once_a_node_by_another_launcher() -> None:
    torchrun = registry.load("launchers", "torchrun").make
    here = torchrun(program="torchrun").argv(["worker", "i"], Ranks(2))
    assert here == [
        "torchrun",
        "--nproc-per-node=2",
        "--no-python",
        "--log-dir=/dev/null",
        "--standalone",
        "worker",
        "i",
    ]
    argv = torchrun(program="torchrun", by="srun", port=7).argv(["worker", "i"], HOSTS)
    at = argv.index("/bin/sh")
    assert argv[:at] == registry.load("launchers", "srun").make().argv([], Ranks(2, ["h1", "h2"]))
    assert argv[at + 1 :] == [
        "-c",
        "exec torchrun --nproc-per-node=2 --no-python --log-dir=/dev/null --nnodes=2 "
        "--master-addr=h1 --master-port=7 "
        '--node-rank=${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-${PMI_RANK:-0}}} "$@"',
        "sh", "worker", "i",
    ]  # fmt: skip
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "OMPI_COMM_WORLD_RANK": "1"}
    assert (torchrun().rank(env), torchrun().local_rank(env)) == ((3, 4), 1)
    with pytest.raises(SpecError, match="mpirun, srun, hydra"):
        torchrun(by="ssh")


TORCHRUN = """\
[W1126 04:56:46.627453502 socket.cpp:207] [c10d] The hostname cannot be retrieved. err=-3
Error: running container create option: invalid argument
E1126 04:56:46.977000 143 torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_04:56:46
  host      : h1
  rank      : 3 (local_rank: 1)
  exitcode  : 125 (pid: 148)
  error_file: <N/A>
"""


def test_torchrun_says_which_rank_failed_first() -> None:
    failure = registry.load("launchers", "torchrun").failure
    found = failure(TORCHRUN)
    assert (found.rank, found.code) == (3, 125)
    assert found.output == "Error: running container create option: invalid argument"
    assert failure("Error: of another kind") is None


@pytest.mark.parametrize("name", ["mpirun", "srun", "hydra", "torchrun"])
def test_ranks_that_cannot_be_shared_out_are_refused(name: str) -> None:
    launcher = registry.load("launchers", name).make()
    with pytest.raises(SpecError, match="world_size = 3 is not divisible by 2 nodes"):
        launcher.argv(["worker"], Ranks(3, ["h1", "h2"]))


def test_across_nodes_the_launcher_stands_outside_and_shows_ranks_who_they_are(
    begun, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    apptainer = tmp_path / "bin/apptainer"
    apptainer.write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    apptainer.chmod(0o755)
    keys = {"runtime": "apptainer", "runtime_options": {"mode": "sandbox"}, "nodes": 2}
    started = begun(hosts=["h1", "h2"], **keys)
    argv = list(started.argv)
    assert argv[:5] == ["mpirun", "--allow-run-as-root", "--oversubscribe", "--host", "h1:1,h2:1"]
    assert "OMP_NUM_THREADS" in argv
    shell = argv.index("/bin/sh")
    assert "APPTAINERENV_" in argv[shell + 2]
    assert argv.index("mpirun") < shell < argv.index("exec") < argv.index("iobench.worker")
    assert started.variables["OMPI_MCA_btl_vader_single_copy_mechanism"] == "none"
    assert "OMPI_MCA_plm" not in started.variables
    assert started.ranks_apart


# -- one container a rank, or a node ---------------------------------------------------------------


@pytest.fixture
def apptainer(tmp_path) -> dict[str, object]:
    """Return what makes a case run in apptainer, a program that is not called."""
    program = tmp_path / "bin/apptainer"
    program.write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    program.chmod(0o755)
    return {"runtime": "apptainer", "runtime_options": {"mode": "sandbox"}}


def in_order(argv: Any, *words: str) -> bool:
    """Return whether words stand in this order, each once."""
    places = [[i for i, word in enumerate(argv) if word == wanted] for wanted in words]
    return all(len(p) == 1 for p in places) and sorted(places) == places


def test_one_container_a_node_has_torchrun_in_it(begun, apptainer) -> None:
    started = begun(launcher="torchrun", scope="node", **apptainer)
    assert in_order(started.argv, "exec", "torch.distributed.run", "iobench.worker")
    at = list(started.argv).index("torch.distributed.run")
    assert started.argv[at - 2 : at] == [PYTHON_INSIDE, "-m"], "the container's own"
    outside = begun(launcher="torchrun", **apptainer).argv
    assert in_order(outside, "torch.distributed.run", "exec", "iobench.worker")
    assert outside[:2] == [sys.executable, "-m"]


def test_on_several_nodes_another_launcher_starts_the_containers(begun, apptainer) -> None:
    keys = {"launcher": "torchrun", "scope": "node", "nodes": 2, "world_size": 4, **apptainer}
    argv = list(begun(hosts=["h1", "h2"], **keys).argv)
    assert in_order(argv, "mpirun", "exec", "iobench.worker")
    assert argv[argv.index("-np") + 1] == "2", "one a node"
    (script,) = (word for word in argv if "torch.distributed.run" in word)
    assert script.startswith(f"exec {PYTHON_INSIDE} -m torch.distributed.run --nproc-per-node=2")
    assert argv.index("exec") < argv.index(script)
    assert "OMPI_|PMIX_" in argv[argv.index("/bin/sh") + 2], "its number is shown inside"


def test_mpirun_may_stand_outside_on_one_node(begun, apptainer) -> None:
    inside = begun(**apptainer)
    assert in_order(inside.argv, "exec", "mpirun", "iobench.worker")
    assert inside.variables == {}
    outside = begun(scope="rank", **apptainer)
    assert in_order(outside.argv, "mpirun", "exec", "iobench.worker")
    assert outside.variables["OMPI_MCA_plm"] == "isolated"


@pytest.mark.parametrize(
    ("keys", "scope"),
    [
        ({"runtime": "bare"}, ""),
        ({"runtime": "unpacked", "scope": "node"}, ""),
        ({"runtime": "docker"}, "node"),
        ({"runtime": "apptainer", "scope": "rank"}, "rank"),
        ({"runtime": "apptainer", "nodes": 2}, "rank"),
        ({"runtime": "apptainer", "launcher": "srun"}, "rank"),
        ({"runtime": "docker", "launcher": "torchrun", "scope": "node"}, "node"),
    ],
)
def test_the_scope_of_a_case(keys: dict[str, Any], scope: str) -> None:
    from iobench.core.cases import Case

    assert registry.scope_of(Case(**{"launcher": "mpirun", "world_size": 2, **keys})) == scope


# -- srun ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "rank", "code"),
    [
        ("srun: error: n2: task 1: Killed", 1, -9),
        ("srun: error: n2: tasks 3,5-7: Exited with exit code 4", 3, 4),
        ("srun: error: n2: task 0: Segmentation fault (core dumped)", 0, -11),
    ],
)
def test_srun_says_which_rank_failed_first(said: str, rank: int, code: int) -> None:
    text = f"E: own words\n{said}\nslurmstepd: error: *** STEP 1.0 ON n1 CANCELLED ***\n"
    text += "srun: error: n1: task 2: Terminated\n"
    found = registry.load("launchers", "srun").failure(text)
    assert (found.rank, found.code, found.output) == (rank, code, "E: own words")


def test_srun_that_names_no_rank() -> None:
    assert registry.load("launchers", "srun").failure("srun: error: Unable to allocate\n") is None
