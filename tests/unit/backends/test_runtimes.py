"""Runtimes as lists of words: what is asked of docker, podman, apptainer, ch-run and the host."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List

import pytest

from iobench.backends.placements import _engines
from iobench.backends.runtimes import _readonly
from iobench.core import inside, registry
from iobench.core.errors import SpecError
from iobench.core.protocols import Mount, Runtime, Start
from iobench.host import engines, probes, tools

HOST = probes.Host(1000, 100, (27, 44), "node7", (1024, 4096), 30000, 8 << 30)
ROOT = probes.Host(0, 0, (), "node7", (1024, 4096), 30000, 8 << 30)
COMMAND = [
    "/opt/iobench/bin/python3",
    "-m",
    "iobench.worker",
    "/iobench/work/invitation.json",
]
START = Start(
    image="iobench-torch:0123456789ab",
    mounts=(
        Mount(Path("/scratch/set, 1"), "/iobench/data"),
        Mount(Path("/tmp/work"), "/iobench/work", writable=True),
    ),
    env={"HOME": "/tmp", "OMP_NUM_THREADS": "2"},
    name="iobench-1",
)
PLAIN = Start(image="IMG", mounts=(Mount(Path("/d"), "/iobench/data"), START.mounts[1]))
OCI = [
    "run",
    "--rm",
    "--pull=never",
    "--log-driver=none",
    f"--label={engines.owner()}",
    "--name=iobench-1",
    "--hostname=node7",
    "--user=1000:100",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--read-only",
    "--network=none",
    "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777",
    "--ulimit=nofile=1024:4096",
    "--ulimit=core=0:0",
    "--shm-size=8589934592",
    '--mount=type=bind,"source=/scratch/set, 1",target=/iobench/data,readonly',
    "--mount=type=bind,source=/tmp/work,target=/iobench/work",
    "--env=HOME=/tmp",
    "--env=OMP_NUM_THREADS=2",
    "--workdir=/iobench/work",
    "--entrypoint=",
    "iobench-torch:0123456789ab",
    *COMMAND,
]
APPTAINER_LEAKS = [
    word
    for prefix in ("APPTAINER", "SINGULARITY")
    for leak in ("BIND", "BINDPATH", "MOUNT", "OVERLAY", "OVERLAYIMAGE", "WRITABLE_TMPFS")
    for word in ("-u", f"{prefix}_{leak}")
]


def runtime(name: str, **options: object) -> Runtime:
    return registry.load("runtimes", name).make(**options)


def as_user(patch: pytest.MonkeyPatch, host: probes.Host) -> None:
    for name in ("docker", "podman"):
        module = sys.modules[type(runtime(name)).__module__]
        patch.setattr(module, "host", lambda: host)
    patch.setattr(os, "geteuid", lambda: host.uid)
    docker_maps(patch, "[name=seccomp,profile=builtin name=cgroupns]")


def docker_maps(patch: pytest.MonkeyPatch, security: str, code: int = 0) -> None:
    patch.setattr(engines, "asked_once", lambda *argv: (code, security))


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """What programs answered is kept for a suite: not what these tests' fake ones said."""
    probes.asked_once.cache_clear()
    yield
    probes.asked_once.cache_clear()


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, HOST)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, ROOT)


def words_with(argv: List[str], start: str) -> List[str]:
    return [word for word in argv if word.startswith(start)]


def test_docker(user: None) -> None:
    extra = ["--group-add=27", "--group-add=44"]
    assert runtime("docker").argv(COMMAND, START) == ["docker", "run", *extra, *OCI[1:]]


def test_rootless_docker_runs_as_its_own_root(user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    docker_maps(monkeypatch, "[name=seccomp,profile=builtin name=rootless name=cgroupns]")
    words = [w.replace("--user=1000:100", "--user=0:0") for w in OCI]
    assert runtime("docker").argv(COMMAND, START) == ["docker", *words]
    assert _engines._user("docker") == (0, 0)  # the worker owns the data in the image


def test_docker_that_remaps_users_is_asked_not_to(
    user: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_maps(monkeypatch, "[name=seccomp,profile=builtin name=userns]")
    argv = runtime("docker").argv(COMMAND, START)
    assert {"--userns=host", "--user=1000:100", "--group-add=27"} <= set(argv)
    docker_maps(monkeypatch, "rootless userns: cannot connect", code=1)
    assert runtime("docker").argv(COMMAND, START)[2:5:2] == ["--group-add=27", "--rm"]


def test_docker_limits_and_gpus(root: None) -> None:
    start = Start(image="I", cpus=1.5, memory_bytes=4 << 30, shm_bytes=64 << 20, gpus=True)
    argv = runtime("docker").argv(["true"], start)
    assert "--user=0:0" in argv
    assert words_with(argv, "--cpus") == ["--cpus=1.5"]
    assert words_with(argv, "--memory") == ["--memory=4294967296", "--memory-swap=4294967296"]
    assert words_with(argv, "--shm-size") == ["--shm-size=67108864"]
    assert words_with(argv, "--gpus") == ["--gpus=all"]
    assert not words_with(argv, "--workdir")  # no work folder is shown
    assert not words_with(argv, "--name")


def test_docker_options(user: None) -> None:
    argv = runtime("docker", shm_mb=64, label="disable").argv(["true"], Start(image="I"))
    assert "--shm-size=67108864" in argv
    assert "--security-opt=label=disable" in argv
    assert not words_with(argv, "--gpus")


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_nothing_is_privileged(name: str, root: None) -> None:
    argv = runtime(name).argv(COMMAND, START)
    assert {"--cap-drop=ALL", "--read-only", "--network=none"} <= set(argv)
    forbidden = ("--privileged", "--cap-add", "--device", "--pid=", "--ipc", "--userns", "-v")
    assert not [w for w in argv if w.startswith(forbidden)]


def test_podman_without_root(user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "podman", lambda runtime: ["podman"])
    words = [w.replace("--user=1000:100", "--user=0:0") for w in OCI]
    expected = ["podman", "run", "--ulimit=nproc=30000:30000", *words[1:]]
    assert runtime("podman").argv(COMMAND, START) == expected


def test_podman_as_root(root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "podman", lambda runtime: ["podman"])
    words = [w.replace("--user=1000:100", "--user=0:0") for w in OCI]
    extra = ["--ulimit=nproc=30000:30000", "--pids-limit=-1"]
    assert runtime("podman").argv(COMMAND, START) == ["podman", "run", *extra, *words[1:]]


def test_a_podman_without_the_time_option_removes_too(
    root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman 3.4 (Ubuntu 22.04) refuses ``rm --time``."""
    monkeypatch.setattr(engines, "podman", lambda runtime: [str(tmp_path / "podman")])
    said = tmp_path / "said"
    for refuse, calls in (("--time=0", ["ps", "rm", "kill", "rm"]), ("nothing", ["ps", "rm"])):
        (tmp_path / "podman").write_text(
            f'#!/bin/sh\necho "$@" >> {said}\n[ $1 = ps ] && echo c1 c2 && exit\n'
            f"case \"$*\" in *{refuse}*) echo 'See podman rm --help' >&2; exit 125;; esac\n"
        )
        (tmp_path / "podman").chmod(0o755)
        runtime("podman").stop("iobench-1")
        lines = said.read_text().splitlines()
        assert [line.split()[0] for line in lines] == calls
        assert lines[0].endswith("--filter=name=^iobench-1")
        assert all(line.split()[-2:] == ["c1", "c2"] for line in lines[1:])
        assert ("--time=0" in lines[-1]) == (refuse == "nothing")
        said.unlink()


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_what_was_not_started_is_not_removed(
    name: str, root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "podman", lambda runtime: ["podman"])
    said = tmp_path / "said"
    (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    runtime(name).stop("iobench-1")
    assert said.read_text() == "ps --all --quiet --filter=name=^iobench-1\n"


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_a_rank_in_a_container_of_its_own_is_shown_who_it_is(
    name: str, root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a launcher sets where it starts the rank: the shell's words are run for real."""
    monkeypatch.setattr(engines, "podman", lambda runtime: ["podman"])
    (tmp_path / name).write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (tmp_path / name).chmod(0o755)
    start = dataclasses.replace(START, passed=("OMPI_", "PMIX_"))
    argv = runtime(name, network="host", ipc="host", pid="host").argv(COMMAND, start)
    env = {"OMPI_RANK": "3", "PMIX_A": "x y", "OTHER": "OMPI_9", "MORE": "a\nOMPI_LINE"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        argv, env={**env, "PATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    words = done.stdout.splitlines()
    assert words[0] == "run"
    assert re.fullmatch(r"--name=iobench-1-\d+", words[1])
    assert words[2] == f"--hostname={os.uname().nodename}"
    assert sorted(words[3:5]) == ["--env=OMPI_RANK", "--env=PMIX_A"]
    usual = runtime(name).argv(COMMAND, START)
    kept = [w for w in usual[2:] if not w.startswith(("--name", "--hostname", "--shm-size"))]
    kept = [w.replace("--network=none", "--network=host") for w in kept]
    more = {"--ipc=host", "--pid=host"}
    assert [w for w in words[5:] if w not in more] == kept
    assert more < set(words)


def test_podman_gpus(root: None) -> None:
    argv = runtime("podman").argv(["true"], Start(image="I", gpus=True))
    assert words_with(argv, "--device") == ["--device=nvidia.com/gpu=all"]


def test_podman_says_what_this_host_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified/cgroup.controllers").write_text("hugetlb\n")
    (tmp_path / "runc").touch(mode=0o755)
    monkeypatch.setattr(probes, "CGROUPS", tmp_path)
    monkeypatch.setattr(engines, "SYSTEMD", tmp_path / "absent")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    plain = ["--cgroup-manager=cgroupfs", "--events-backend=none"]
    assert engines.podman() == ["podman", "--runtime=runc", *plain]
    assert engines.podman("crun") == ["podman", "--runtime=crun", *plain]
    (tmp_path / "unified/cgroup.controllers").write_text("")
    assert engines.podman() == ["podman", *plain]
    monkeypatch.setattr(engines, "SYSTEMD", tmp_path)
    assert engines.podman() == ["podman"]
    for name in ("STORAGE_DRIVER", "CONTAINERS_STORAGE_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert engines.podman() == ["podman", "--storage-driver=overlay"]
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    assert engines.podman() == ["podman"]


def programs(folder: Path, patch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        (folder / name).touch(mode=0o755)
    patch.setenv("PATH", str(folder))
    patch.setattr(tools, "FOLDER", folder / "tools")  # else what this clone installed is found


def test_apptainer(user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, "apptainer")
    assert runtime("apptainer").argv(COMMAND, PLAIN) == [
        "env",
        *APPTAINER_LEAKS,
        "apptainer",
        "-q",
        "exec",
        "--containall",
        "--cleanenv",
        "--no-home",
        "--bind",
        "/sys/fs/cgroup:/sys/fs/cgroup:ro",
        "--bind",
        "/d:/iobench/data:ro",
        "--bind",
        "/tmp/work:/iobench/work:rw",
        "--pwd=/iobench/work",
        "IMG",
        "/usr/bin/env",
        *COMMAND,
    ]


def test_apptainers_ranks_share_memory_and_process_ids(
    user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "apptainer")
    start = dataclasses.replace(PLAIN, passed=("OMPI_",), of_one_rank=True)
    argv = runtime("apptainer").argv(COMMAND, start)
    at = argv.index("exec", argv.index("apptainer"))
    assert argv[at + 1 : at + 4] == ["--contain", "--bind", "/dev/shm:/dev/shm"]
    assert "--containall" not in argv
    one_a_node = dataclasses.replace(start, of_one_rank=False)
    assert "--containall" in runtime("apptainer").argv(COMMAND, one_a_node)


def test_apptainer_as_root_gives_its_rights_up(
    root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "singularity")
    argv = runtime("apptainer").argv(["true"], Start(image="I", gpus=True))
    assert argv[argv.index("singularity") - 1] == "SINGULARITY_NO_PRIVS=1"
    assert "--nv" in argv
    assert "/proc/sys:/proc/sys:ro" in argv
    assert "/sys:/sys:ro" in argv
    assert "--nv" not in runtime("apptainer").argv(["true"], Start(image="I"))


def test_a_folder_that_apptainer_has_not_made_is_told_where_the_driver_is(
    user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "apptainer")
    told = "LD_LIBRARY_PATH=/.singularity.d/libs"
    folder = Start(image=str(tmp_path), gpus=True)
    assert told in runtime("apptainer").argv(["true"], folder)
    assert told not in runtime("apptainer").argv(["true"], Start(image=str(tmp_path)))
    (tmp_path / ".singularity.d/env").mkdir(parents=True)
    assert told not in runtime("apptainer").argv(["true"], folder)


def test_apptainer_takes_the_folder_where_a_sif_cannot_be_mounted(
    user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "apptainer")
    monkeypatch.setattr(probes, "fuse", lambda: "")
    assert runtime("apptainer").form() == "sif"
    monkeypatch.setattr(probes, "fuse", lambda: "/dev/fuse is closed to this user: open it")
    assert runtime("apptainer").form() == "rootfs"
    assert runtime("apptainer", mode="sif").form() == "sif"
    assert runtime("apptainer", mode="sandbox").form() == "rootfs"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert runtime("apptainer").form() == "sif"


NEWER = "# ALLOW SETUID-MOUNT SQUASHFS: [yes/no/iflimited]\nallow setuid-mount squashfs = {}\n"


@pytest.mark.parametrize(
    ("conf", "ecl", "kernel"),
    [
        ("", "", True),
        ("allow setuid = yes\n", "", True),  # before 1.3
        (NEWER.format("yes"), "", True),
        (NEWER.format("no") + "limit container owners = root\n", "", False),
        (NEWER.format("iflimited"), "", False),
        (NEWER.format("iflimited") + "limit container owners = NULL\n", "activated = false", False),
        (NEWER.format("iflimited") + "#limit container paths = /sif\n", "", False),
        (NEWER.format("iflimited") + "limit container paths = /sif\n", "", True),
        (NEWER.format("iflimited"), "activated = true\n", True),
    ],
)
@pytest.mark.parametrize("place", ["prefix", "distribution"])
def test_who_mounts_a_sif_of_a_setuid_apptainer_is_what_its_configuration_says(
    user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    conf: str, ecl: str, kernel: bool, place: str,
) -> None:  # fmt: skip
    backend = registry.load("runtimes", "apptainer")
    module = sys.modules[type(backend.make()).__module__]
    (tmp_path / "usr/bin").mkdir(parents=True)
    programs(tmp_path / "usr/bin", monkeypatch, "apptainer")
    monkeypatch.setattr(module, "ETC", tmp_path / "etc")
    monkeypatch.setattr(module, "_setuid", lambda: True)
    folder = tmp_path / ("usr/etc" if place == "prefix" else "etc") / "apptainer"
    folder.mkdir(parents=True)
    (folder / "apptainer.conf").write_text(conf)
    (folder / "ecl.toml").write_text(ecl)
    assert backend.data_images() == ("squashfs" if kernel else "squashfuse")
    mounted = backend.make().identify("a.sif")["mounted"]
    assert mounted == ("kernel squashfs" if kernel else "squashfuse")
    monkeypatch.setattr(module, "_setuid", lambda: False)
    assert backend.data_images() == "squashfuse"


@pytest.mark.parametrize("path", ["/a:b", "/a,b"])
def test_apptainer_refuses_a_path_that_bind_cannot_say(path: str) -> None:
    start = Start(image="I", mounts=(Mount(Path(path), "/iobench/data"),))
    with pytest.raises(SpecError, match="cannot say a path"):
        runtime("apptainer").argv(["true"], start)


def test_apptainer_modes_are_three() -> None:
    with pytest.raises(SpecError, match="auto, sif, sandbox"):
        runtime("apptainer", mode="squash")


def test_charliecloud_shows_root_the_kernels_files_read_only(root: None) -> None:
    argv = runtime("charliecloud").argv(["true"], Start(image="I"))
    assert argv[argv.index("ch-run") - 4 : argv.index("ch-run")] == ["I", "/proc/sys", "/sys", "--"]


def test_charliecloud(user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "eve")
    start = Start(image="IMG", mounts=PLAIN.mounts, env={"HOME": "/tmp"})
    assert runtime("charliecloud").argv(COMMAND, start) == [
        "env",
        "USER=eve",
        sys.executable,
        "-I",
        "-S",
        _readonly.__file__,
        "IMG",
        "/d",
        "--",
        "ch-run",
        "--private-tmp",
        "--no-passwd",
        "--bind=/d:/iobench/data",
        "--bind=/tmp/work:/iobench/work",
        "--cd=/iobench/work",
        "IMG",
        "--",
        "/usr/bin/env",
        "-i",
        f"PATH={inside.PATH_INSIDE}",
        "HOME=/tmp",
        *COMMAND,
    ]


def test_unpacked_keeps_the_hosts_python_out() -> None:
    argv = runtime("unpacked").argv(["printenv"], Start(env={"PYTHONPATH": "/w/code"}))
    leaks = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    unset = [word for name in leaks for word in ("-u", name)]
    assert argv == ["env", *unset, "PYTHONPATH=/w/code", "printenv"]
    dirty = {**os.environ, "PYTHONPATH": "/host", "PYTHONHOME": "/host"}
    done = subprocess.run(argv, env=dirty, capture_output=True, text=True, check=True)
    assert "PYTHONPATH=/w/code" in done.stdout.splitlines()
    assert "PYTHONHOME" not in done.stdout


def test_bare_is_the_command_alone() -> None:
    command = ["python3", "-m", "iobench.worker", "a task.json"]
    assert runtime("bare").argv(command, Start()) == command


def test_bare_variables_go_before_it_and_reach_it() -> None:
    argv = runtime("bare").argv(
        ["printenv", "IOBENCH_X"],
        Start(mounts=(Mount(Path("/a"), "/b"),), env={"IOBENCH_X": "a b=c"}),
    )
    assert argv == ["env", "IOBENCH_X=a b=c", "printenv", "IOBENCH_X"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "a b=c\n"


def test_bare_has_no_image() -> None:
    assert runtime("bare").identify("anything") == {}


# -- available: a reason with its remedy -----------------------------------------------------


@pytest.mark.parametrize("name", ["docker", "podman", "apptainer", "charliecloud"])
def test_a_missing_program_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch)
    assert "no program" in runtime(name).available()
    assert "install" in runtime(name).available()


def test_a_stopped_daemon_is_told_from_a_closed_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "docker"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    for complaint, told in (
        ("Cannot connect to the Docker daemon at unix:///x", "start it"),
        ("permission denied while trying to connect", "join the group docker"),
    ):
        fake.write_text(f"#!/bin/sh\necho '{complaint}' >&2\nexit 1\n")
        fake.chmod(0o755)
        assert told in runtime("docker").available()
    monkeypatch.setenv("DOCKER_HOST", "ssh://elsewhere")
    assert "another machine's daemon" in runtime("docker").available()


@pytest.mark.parametrize("name", ["podman", "apptainer", "charliecloud"])
def test_no_user_namespaces_is_the_reason(
    name: str, user: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("podman", "apptainer", "ch-run"):
        (tmp_path / program).write_text("#!/bin/sh\necho 1.0\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(probes, "user_namespaces", lambda: "switched off: switch them on")
    assert runtime(name).available() == "switched off: switch them on"


def test_what_a_program_says_is_told_without_its_colours() -> None:
    said = probes.ask(["sh", "-c", r"printf '\033[31mFATAL:\033[0m no' >&2; exit 3"])
    assert said == (3, "FATAL: no")
