"""Preflight: what will go wrong in a container, provoked for real where this machine can."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest

from iobench.advise import case_checks, io_faults
from iobench.advise.case_checks import findings, look, no_turns
from iobench.advise.case_facts import Facts, Seen
from iobench.core.cases import Case, Dataset
from iobench.core.errors import BackendUnavailable
from iobench.host import engines, limits, probes
from iobench.plan.resolve import Here, resolve
from iobench.spec import load
from tests.capabilities import need

DATA = Dataset("/d", "n", 4, 4 << 20, 1, 1, "x", "y", jpeg_root="/d/jpeg")
CASE = Case(runtime="docker", workers=2, prefetch=2, batch=64)
WELL = Facts(uid=1000, shm_bytes=8 << 30, data_bytes=4 << 20)


def names(case: Case, facts: Facts) -> List[str]:
    found = findings(case, DATA, facts)
    assert all(f.reason and f.remedy for f in found)
    return [f.name for f in found]


@pytest.mark.parametrize("runtime", ["bare", "docker", "podman", "apptainer", "charliecloud"])
def test_a_healthy_machine_has_no_finding(runtime: str) -> None:
    assert names(dataclasses.replace(CASE, runtime=runtime), WELL) == []


def test_queues_of_arms_that_take_turns_must_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps 2 x 2 + 1 batches of 64 x 3 x 224 x 224 floats: 184 MiB."""
    document = {
        "name": "turns",
        "case": {"trainer": "null", "batch": 64, "workers": 2, "prefetch": 2},
        "matrix": {"pipeline": ["jpeg"], "order": ["shuffled", "stored"]},
        "contrasts": [{"over": "order", "base": "shuffled", "caches": ["warm"], "pairs": 6}],
    }

    def reason(shm_mib: int, **changes: object) -> str:
        monkeypatch.setattr(probes, "shared_memory", lambda: (1 << 40, shm_mib << 20))
        wanted = load.parse({**document, **changes})
        return no_turns(resolve(wanted, Here(DATA), 60.0, "now"))

    assert reason(368) == ""
    assert "/dev/shm has 367 MiB free, and the queues of 2 arms need 368 MiB" in reason(367)
    apart = {**document["contrasts"][0], "slice_s": 0}
    assert reason(367, contrasts=[apart]) == "", "these run one after the other"
    processes = 2 * 3 * case_checks.PROCESS_BYTES  # of each arm one, and its two workers
    whole = 368 * 2**20 + DATA.bytes + processes
    monkeypatch.setattr(case_checks, "effective_memory_bytes", lambda: whole)
    assert reason(368) == ""
    monkeypatch.setattr(case_checks, "effective_memory_bytes", lambda: whole - 2**20)
    assert "processes of 2 arms and the data need" in reason(368)
    document["matrix"] = {"pipeline": ["jpeg", "lmdb"]}
    forms = [{"over": "pipeline", "base": "jpeg", "caches": ["warm"], "pairs": 6}]
    monkeypatch.setattr(case_checks, "effective_memory_bytes", lambda: whole + DATA.bytes - 2**20)
    assert "the data need" in reason(368, contrasts=forms), "each arm's form is in memory"
    monkeypatch.setattr(case_checks, "effective_memory_bytes", lambda: whole + DATA.bytes)
    assert reason(368, contrasts=forms) == ""


def seen(**fields: object) -> Seen:
    whole = Seen("/d/a", "/d/a", 1000, 1000, 0o600, False)
    return whole._replace(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runtime", "changes", "name"),
    [
        ("docker", {"shm_bytes": 64 << 20}, "/dev/shm"),
        ("docker", {"files": [seen(target="/elsewhere/a")]}, "hidden data"),
        ("docker", {"files": [seen(uid=7)]}, "unreadable data"),
        ("docker", {"fstype": "nfs4", "reachable": False}, "root squash"),
        ("docker", {"selinux": True}, "SELinux"),
        ("podman", {"uid": 0, "capabilities": 0}, "capability"),
        ("apptainer", {"user_namespaces": "they are off: switch them on"}, "user namespaces"),
        ("charliecloud", {"uid": 0, "user_namespaces": "off: on"}, "user namespaces"),
        ("apptainer", {"fuse": "/dev/fuse is closed: open it"}, "/dev/fuse"),
        ("podman", {"store": ("lustre", "/scratch/me/storage")}, "image store"),
        ("podman", {"store": ("tmpfs", "/dev/shm/me"), "memory_bytes": 1 << 30}, "image in memory"),
        ("charliecloud", {"image": ("tmpfs", "/dev/shm/torch")}, "image in memory"),
        ("unpacked", {"image": ("tmpfs", "/dev/shm/torch")}, "image in memory"),
        ("charliecloud", {"fstype": "lustre", "own_users": True}, "Lustre identity"),
        ("apptainer", {"fstype": "lustre", "own_users": True}, "Lustre identity"),
    ],
)
def test_each_fact_has_its_finding(runtime: str, changes: dict, name: str) -> None:
    case = dataclasses.replace(CASE, runtime=runtime)
    assert names(case, dataclasses.replace(WELL, **changes)) == [name]


def test_each_sentence_has_its_fact() -> None:
    def line(runtime: str, **changes: Any) -> str:
        case = dataclasses.replace(CASE, runtime=runtime)
        (found,) = findings(case, DATA, dataclasses.replace(WELL, **changes))
        return str(found)

    far = line("podman", store=("lustre", "/scratch/me/storage"))
    assert "in /scratch/me/storage, on lustre" in far
    memory = line("charliecloud", image=("tmpfs", "/dev/shm/torch"), memory_bytes=3 << 30)
    assert "in /dev/shm/torch, on tmpfs, where 3072 MiB are used" in memory
    lustre = {"fstype": "lustre", "own_users": True}
    assert "unless it is installed setuid" in line("apptainer", **lustre)
    assert "setuid" not in line("charliecloud", **lustre)


@pytest.mark.parametrize("fact", [{"own_users": True}, {"fstype": "lustre"}])
def test_a_namespace_and_lustre_are_a_fault_together_alone(fact: dict) -> None:
    assert names(CASE, dataclasses.replace(WELL, **fact)) == []


def test_a_store_on_a_local_disk_is_well() -> None:
    well = dataclasses.replace(WELL, store=("posix", "/var/lib/docker"), image=("posix", "/i"))
    assert names(CASE, well) == []


def test_udev_matters_to_who_could_read_by_gpudirect_storage_alone() -> None:
    training = dataclasses.replace(CASE, trainer="torch", trainer_options={"device": "cuda"})
    facts = dataclasses.replace(WELL, direct="nvidia-fs", udev=True)
    assert names(training, facts) == ["/run/udev"]
    assert names(CASE, facts) == [], "no GPU"
    assert names(training, dataclasses.replace(facts, direct="")) == [], "no GPUDirect Storage"
    assert names(training, dataclasses.replace(facts, udev=False)) == [], "the host has none"
    assert names(dataclasses.replace(training, runtime="bare"), facts) == []


def test_who_makes_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(runtime: str, uid: int) -> bool:
        return io_faults.own_users(dataclasses.replace(CASE, runtime=runtime), uid)

    assert own("charliecloud", 0)
    assert [own(r, uid) for r in ("podman", "apptainer") for uid in (0, 7)] == [False, True] * 2
    for maps in ("", "userns", "rootless"):
        monkeypatch.setattr(engines, "docker_maps", lambda maps=maps: maps)
        assert own("docker", 7) == (maps == "rootless")


def test_an_image_is_looked_for_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "caffe.sif").touch()

    def image(runtime: str, name: str) -> object:
        options = {"mode": "sif"} if name == "caffe" else {}
        case = dataclasses.replace(CASE, runtime=runtime, image=name, runtime_options=options)
        return io_faults.image_of(case, tmp_path)

    assert image("charliecloud", "torch") == tmp_path / "torch"
    assert image("apptainer", "caffe") == tmp_path / "caffe.sif"
    assert image("charliecloud", "absent") is None
    assert image("docker", "torch") is None


def test_a_memory_limit_below_the_data_is_one_for_every_runtime() -> None:
    for runtime in ("bare", "docker"):
        small = dataclasses.replace(CASE, runtime=runtime, memory_bytes=1 << 20)
        assert names(small, WELL) == ["memory limit"]
        enough = dataclasses.replace(small, memory_bytes=1 << 30)
        assert names(enough, WELL) == []


def test_options_answer_findings() -> None:
    told = dataclasses.replace(CASE, runtime_options={"label": "disable"})
    assert names(told, dataclasses.replace(WELL, selinux=True)) == []
    folder = dataclasses.replace(CASE, runtime="apptainer", runtime_options={"mode": "sandbox"})
    assert names(folder, dataclasses.replace(WELL, fuse="closed: open it")) == []


def test_modes_are_judged_as_the_kernel_does() -> None:
    group = dataclasses.replace(WELL, groups=(50,), files=[seen(uid=7, gid=50, mode=0o640)])
    assert names(CASE, group) == []
    owner = dataclasses.replace(WELL, files=[seen(mode=0o044)])  # the owner's class comes first
    assert names(CASE, owner) == ["unreadable data"]
    folder = dataclasses.replace(WELL, files=[seen(uid=7, mode=0o744, folder=True)])
    assert names(CASE, folder) == ["unreadable data"]


# -- looked at for real ----------------------------------------------------------------------


def tree(root: Path) -> Dataset:
    (root / "jpeg/c").mkdir(parents=True)
    (root / "jpeg/c/0.jpg").write_bytes(b"x" * 100)
    (root / "samples.tsv").write_text("c/0\t0\t100\tabc\n")
    return dataclasses.replace(
        DATA, root=str(root), jpeg_root=str(root / "jpeg"), samples=1, bytes=100
    )


def real(case: Case, dataset: Dataset) -> List[str]:
    return [f.name for f in findings(case, dataset, look(case, dataset))]


def test_a_real_tree_is_well_and_a_link_out_of_it_is_not(tmp_path: Path) -> None:
    dataset = tree(tmp_path / "d")
    case = dataclasses.replace(CASE, workers=0)
    assert real(case, dataset) == []
    image = tmp_path / "d/jpeg/c/0.jpg"
    image.rename(tmp_path / "away.jpg")
    image.symlink_to(tmp_path / "away.jpg")
    assert real(case, dataset) == ["hidden data"]


def test_shared_memory_of_64_mb_is_seen(tmp_path: Path) -> None:
    case = dataclasses.replace(CASE, runtime_options={"shm_mb": 64})
    assert real(case, tree(tmp_path / "d")) == ["/dev/shm"]


@pytest.mark.slow
def test_files_of_somebody_else_are_unreadable_without_capabilities(tmp_path: Path) -> None:
    need("root")
    dataset = tree(tmp_path / "d")
    image = tmp_path / "d/jpeg/c/0.jpg"
    os.chown(image, 12345, 12345)
    image.chmod(0o600)
    assert image.read_bytes()  # this root may
    assert "unreadable data" in real(dataclasses.replace(CASE, workers=0), dataset)


@pytest.mark.slow
def test_user_namespaces_switched_off_are_told_with_the_remedy() -> None:
    need("root")
    need("userns")
    # in a user namespace of its own, whose count is nobody else's
    code = (
        "from iobench.host import probes; probes.USERNS_MAX.write_text('0'); "
        "print(probes.user_namespaces())"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "user namespaces are switched off" in done.stdout
    assert "sysctl -w user.max_user_namespaces" in done.stdout


@pytest.mark.slow
def test_a_closed_fuse_is_told(tmp_path: Path) -> None:
    need("root")
    code = "import sys; from iobench.host import probes; print(probes.fuse())"
    script = (
        "mount -t tmpfs none /mnt && cp -a /dev/fuse /mnt/fuse && chmod 600 /mnt/fuse && "
        'mount --bind /mnt/fuse /dev/fuse && exec "$@"'
    )
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            "setpriv",
            "--reuid=nobody",
            "--clear-groups",
            "--regid=nogroup",
            "/usr/bin/python3",
            "-c",
            code,
        ],
        env={**os.environ, "PYTHONPATH": str(Path(load.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert "chmod 666 /dev/fuse" in done.stdout


@pytest.mark.parametrize("runtime", ["apptainer", "charliecloud", "docker", "podman"])
def test_a_path_that_a_runtime_cannot_say_is_told_before(runtime: str) -> None:
    case = dataclasses.replace(CASE, runtime=runtime)
    dataset = dataclasses.replace(DATA, root="/scratch/co:lon", jpeg_root="/scratch/co:lon/jpeg")
    found = [str(f) for f in findings(case, dataset, WELL) if f.name == "path"]
    assert bool(found) == (runtime in ("apptainer", "charliecloud"))
    assert all("/scratch/co:lon" in f and "move the data" in f for f in found)


# -- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"cpus": 1e6}, "this machine has"), ({"memory_bytes": 10 << 20}, "no worker starts")],
)
@pytest.mark.parametrize("runtime", ["bare", "docker", "apptainer"])
def test_limits_that_cannot_be_are_refused(
    changes: dict[str, Any], words: str, runtime: str
) -> None:
    with pytest.raises(BackendUnavailable, match=words):
        limits.check([dataclasses.replace(CASE, runtime=runtime, **changes)])


def test_limits_that_nothing_can_enforce_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(probes, "CGROUPS", Path("/absent"))
    case = dataclasses.replace(CASE, runtime="podman", memory_bytes=1 << 30)
    with pytest.raises(BackendUnavailable, match="podman without root ignores limits"):
        limits.check([case])
    limits.check([dataclasses.replace(case, memory_bytes=0)])
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BackendUnavailable, match="may make no control group"):
        limits.check([dataclasses.replace(case, runtime="apptainer")])


@pytest.mark.parametrize("words", [{"cpus": 1.5, "memory": "4G"}])
def test_a_spec_says_them(words: dict) -> None:
    parsed = load.parse({"name": "x", "case": {"pipeline": "lmdb", **words}})
    (case,) = load.expand(parsed)
    assert (case.cpus, case.memory_bytes) == (1.5, 4 << 30)


def version_2(
    monkeypatch: pytest.MonkeyPatch, top: Path, path: str, /, **enabled: tuple[str, str]
) -> None:
    """Show groups of version 2: the controllers of each, and those that its children have."""
    top.joinpath(path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name, (has, gives) in enabled.items():
        folder = top if name == "top" else top / name
        (folder / "cgroup.controllers").write_text(has)
        (folder / "cgroup.subtree_control").write_text(gives)
    monkeypatch.setattr(limits.cgroups, "membership", lambda name: None if name else (top, path))


def test_version_2_groups_are_made_beneath_the_nearest_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ("cpu memory", "cpu memory")
    version_2(monkeypatch, tmp_path, "/job/step", top=("cpu memory io", "cpu memory"), job=both)
    assert limits._parent(["memory"]) == tmp_path / "job"
    assert limits._parent(["hugetlb"]) is None


def test_version_2_has_one_group_for_both_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where systemd gives a user's children memory alone, cpu and memory are together above."""
    given, memory = ("cpu memory pids", "cpu memory pids"), ("cpu memory pids", "memory pids")
    version_2(monkeypatch, tmp_path, "/user/session", top=given, user=memory)
    # the files that the kernel makes in a group of version 2
    make, remove = Path.mkdir, []

    def mkdir(folder: Path) -> None:
        make(folder)
        for file in ("cpu.max", "memory.max", "memory.swap.max", "cgroup.procs"):
            (folder / file).write_text("")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(limits, "_remove", remove.append)
    with limits.group(1.5, 1 << 30, "trial") as made:
        assert [w for w in made if w.endswith("cgroup.procs")] == [
            str(tmp_path / "trial/cgroup.procs")
        ]
        assert (tmp_path / "trial/cpu.max").read_text() == "150000 100000"
        assert (tmp_path / "trial/memory.max").read_text() == str(1 << 30)
    assert remove == [tmp_path / "trial"]
    with limits.group(0, 1 << 30, "other") as made:
        assert str(tmp_path / "user/other/cgroup.procs") in made


def test_a_group_that_the_kernel_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_2(monkeypatch, tmp_path, "/", top=("cpu memory", ""))

    def busy(parent: Path, controllers: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(limits, "_enable", busy)
    refused = pytest.raises(BackendUnavailable, match=r"busy\): leave the limit out")
    with refused as raised, limits.group(1.0, 0, "trial"):
        pass
    assert "\n" not in str(raised.value)
    # a container's top with processes in it is known before anything runs
    (tmp_path / "cgroup.type").write_text("domain\n")
    (tmp_path / "cgroup.procs").write_text("1\n")
    with pytest.raises(BackendUnavailable, match="processes are in the control group"):
        limits.check([dataclasses.replace(CASE, runtime="apptainer", cpus=1.0)])
