"""Data put somewhere before the trials: made, timed, used, removed; nothing half-made is left."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from iobench.backends.placements import _content, _engines, _squash
from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Placement, Plan, Trial
from iobench.core.channel import Prepared
from iobench.core.errors import CacheStateError, DatasetError, SpecError
from iobench.core.protocols import ImageUse, Start
from iobench.core.records import CacheProof, IoCounters, RankResult, Startup, Steps
from iobench.data import adopt, make
from iobench.data.convert import convert, verify
from iobench.host import files as host_files
from iobench.host import locks
from iobench.plan import contrasts, rules
from iobench.plan import ladder as planning
from iobench.run import cache_proof, cache_state, placed_folders, placing
from iobench.run import command as starting
from iobench.run.cache_state import judge
from iobench.spec import load, schema
from iobench.worker import cache as inside
from tests.capabilities import need


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    made = make.make("smoke", tmp_path_factory.mktemp("set") / "a", samples=16)
    convert(made, "lmdb")
    return made


def plan_of(dataset, *kinds_and_formats, runtime="bare") -> Plan:
    cases = tuple(
        Case(label=f"{kind} {form}", placement=kind, format=form, location=dataset.root,
             runtime=runtime)
        for kind, form in kinds_and_formats
    )  # fmt: skip
    trials = tuple(
        Trial(id=str(i), case=c, stage="load", cache="warm") for i, c in enumerate(cases)
    )
    return Plan("t", "now", 1, 60.0, dataset, cases, trials)


def both(dataset, kind: str) -> Plan:
    return plan_of(dataset, ("bind", "jpeg"), (kind, "jpeg"), (kind, "lmdb"))


def placed(plan: Plan, stage_to="", say=print) -> Plan:
    return placing.placed(plan, str(stage_to), {}, say)


def present(plan: Plan, say=print):
    return placing.present(plan, {}, say)


def test_nothing_but_the_placement_is_touched(tmp_path) -> None:
    root, file = tmp_path / "root", tmp_path / "file"
    tmp_path.chmod(0o750)
    file.write_text("kept")
    file.chmod(0o440)
    with placed_folders.held(root, "test"):
        (root / "closed/deep").mkdir(parents=True)
        os.link(file, root / "closed/deep/file")
        (root / "closed/out").symlink_to(tmp_path)
        (root / "closed/deep").chmod(0)
        (root / "closed").chmod(0o500)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]
    assert tmp_path.stat().st_mode & 0o777 == 0o750
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("kept", 0o440)


def held_by_others(root: str) -> str:
    """Return what another process is told that wants to write there."""
    code = "import sys; from pathlib import Path; from iobench.host import files; "
    code += "files.hold(Path(sys.argv[1])).__enter__()"
    words = [sys.executable, "-c", code, root]
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("kind", ["tmpfs", "staged"])
def test_a_copy_holds_the_very_samples_and_goes_away(small, tmp_path, kind) -> None:
    plan = placed(both(small, kind), tmp_path / "disk")
    planned = plan.placements[0]
    assert [c.location for c in plan.cases] == [small.root, *(p.root for p in plan.placements)]
    assert [t.case for t in plan.trials] == list(plan.cases)
    assert not Path(planned.root).exists()
    with present(plan) as made:
        copy, other = made.placements
        assert (copy.kind, copy.root) == (kind, planned.root)
        assert copy.seconds > 0
        assert copy.bytes == small.bytes
        assert copy.filesystem
        there = placing.dataset_of(small, copy)
        assert {row.form: row.ok for row in verify(there)} == {"jpeg": True}
        assert "is held by" in held_by_others(copy.root)
        assert placing.by_location(made)[made.cases[1].location] is copy
        assert placing.by_location(made)[made.cases[2].location] is other
    assert not Path(copy.root).exists()
    with present(made) as resumed:
        assert datasets.locate(Path(copy.root)).digest == small.digest
        assert resumed.placements[0].seconds == copy.seconds  # of the first time
    assert not Path(copy.root).exists()
    assert datasets.locate(Path(small.root)) == small


def test_each_form_has_its_own_copy_and_is_what_it_took(small, tmp_path) -> None:
    """What staging costs a pipeline holds no other pipeline's form."""
    kinds = [("staged", "lmdb"), ("staged", "jpeg"), ("staged", "lmdb")]
    alone = plan_of(small, kinds[0])
    with present(placed(plan_of(small, *kinds), tmp_path / "disk")) as plan:
        lmdb, jpeg = plan.placements
        assert [c.location for c in plan.cases] == [lmdb.root, jpeg.root, lmdb.root]
        for place, form in ((lmdb, "lmdb"), (jpeg, "jpeg")):
            assert sorted(p.name for p in Path(place.root).iterdir()) == sorted(
                [locks.NAME, "dataset.json", form, "samples.tsv"]
            )
        assert lmdb.bytes == _content.of(small, alone.cases).nbytes


def test_of_a_tree_that_is_read_in_place_only_the_samples_are_copied(small, tmp_path) -> None:
    theirs = tmp_path / "theirs"
    shutil.copytree(small.jpeg_root, theirs / "a")
    (theirs / "b").symlink_to(theirs / "a")
    (theirs / "notes.txt").write_text("x" * 100_000)
    found = adopt.adopt(
        theirs, tmp_path / "out", max_samples=4, max_bytes=1 << 30, seed=1, in_place=True
    )
    files = datasets.load_index(found).files
    with present(placed(plan_of(found, ("staged", "jpeg")), tmp_path / "disk")) as plan:
        (copy,) = plan.placements
        root = Path(copy.root, "jpeg")
        assert sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()) == sorted(
            files
        )
        assert copy.bytes == sum((theirs / name).stat().st_size for name in files)
        assert [row.ok for row in verify(placing.dataset_of(found, copy))] == [True]
    os.rename(theirs / files[0], theirs / "gone")
    with pytest.raises(DatasetError, match="were changed since the dataset was made"):
        _content.of(found, plan_of(found, ("staged", "jpeg")).cases)


def test_a_tar_has_every_folder_once_and_before_what_is_in_it(small, tmp_path) -> None:
    data = _content.of(small, both(small, "image").cases)
    data.send(["sh", "-c", f"cat > {tmp_path}/x.tar"], 5, 6, "placement image")
    with tarfile.open(tmp_path / "x.tar") as tar:
        members = tar.getmembers()
    names = [m.name for m in members]
    assert len(set(names)) == len(names)
    assert names[:2] == ["iobench/data", "iobench/data/samples.tsv"]
    assert {f"iobench/data/{name}" for name in data.names} < set(names)
    for i, name in enumerate(names[1:], 1):
        assert name.rpartition("/")[0] in names[:i]
    assert {(m.uid, m.gid) for m in members} == {(5, 6)}
    assert {m.mode for m in members if m.isdir()} == {0o755}


def test_staging_on_the_same_mount_is_said(small, tmp_path) -> None:
    said: list = []
    placed(both(small, "staged"), tmp_path / "disk", said.append)
    assert any("same mount" in line for line in said)


def test_nobody_said_where(small) -> None:
    with pytest.raises(DatasetError, match="stage_to"):
        placed(both(small, "staged"))


def test_what_does_not_fit_leaves_nothing(small, tmp_path, monkeypatch) -> None:
    def full(folder, size, files, what):
        raise DatasetError(f"{what}: no room")

    monkeypatch.setattr(host_files, "check_space", full)
    plan = placed(both(small, "staged"), tmp_path / "disk")
    with pytest.raises(DatasetError, match="no room"), present(plan):
        pass
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_failure_while_it_is_made_leaves_nothing(small, tmp_path, monkeypatch) -> None:
    def broken(folder):
        raise OSError("the disk went away")

    monkeypatch.setattr(host_files, "settle", broken)
    plan = placed(both(small, "staged"), tmp_path / "disk")
    with pytest.raises(OSError, match="went away"), present(plan):
        pass
    assert list((tmp_path / "disk").iterdir()) == []


def test_more_than_half_of_the_memory_is_refused(small, monkeypatch) -> None:
    monkeypatch.setattr("iobench.host.agent.Agent.memory_bytes", lambda self: 1000)
    with pytest.raises(DatasetError, match="memory"), present(placed(both(small, "tmpfs"))):
        pass


def test_copies_in_memory_are_counted_together(small, monkeypatch) -> None:
    plan = placed(both(small, "tmpfs"))
    room = sum(_content.of(small, [case]).nbytes for case in plan.cases[1:])
    monkeypatch.setattr("iobench.host.agent.Agent.memory_bytes", lambda self: 2 * room - 2)
    with pytest.raises(DatasetError, match="over half"), present(plan):
        pass
    monkeypatch.setattr("iobench.host.agent.Agent.memory_bytes", lambda self: 2 * room + 2)
    with present(plan):
        pass


def test_a_plan_without_placements_stays_as_it_is(small) -> None:
    plan = plan_of(small, ("bind", "jpeg"))
    assert placed(plan) is plan


KILLED = """
import os, signal, sys
from pathlib import Path
from iobench.run import placed_folders
with placed_folders.held(Path(sys.argv[1]), "test") as root:
    (root / "half").write_text("made")
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_suite_left_is_removed_and_what_runs_is_not(tmp_path) -> None:
    dead, alive = (tmp_path / f"{placed_folders.PREFIX}{name}" for name in ("dead", "alive"))
    # of another node that shares the folder: its lock is not seen here
    (tmp_path / f"{placed_folders.prefix('another')}0123-4567").mkdir()
    kept = f"{placed_folders.prefix(socket.gethostname() + '-2')}0123-4567"
    (tmp_path / kept).mkdir()
    command = [sys.executable, "-c", KILLED]
    assert subprocess.run([*command, str(dead), "die"]).returncode == -signal.SIGKILL
    assert (dead / "half").exists()
    with subprocess.Popen(
        [*command, str(alive), "live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout.readline() == b"held\n"
        said: list = []
        placed_folders.sweep([tmp_path, tmp_path / "nowhere"], said.append)
        assert {p.name for p in tmp_path.iterdir()} == {
            f"{placed_folders.prefix('another')}0123-4567", kept, alive.name,
        }  # fmt: skip
        assert len(said) == 1
        running.stdin.close()
    assert not alive.exists()


@pytest.mark.parametrize("host", ["node7", "Login-1.Site.org", "-a__b.", "", "knoten-ä"])
def test_a_placements_name_can_be_an_images(host) -> None:
    """As docker's reference grammar has it."""
    name = _engines.tag(f"{placed_folders.prefix(host)}01234567-89abcdef")
    word = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
    assert re.fullmatch(rf"localhost/{word}:latest", name)


def test_an_images_tree_is_linked_and_never_written(small, tmp_path) -> None:
    base = tmp_path / "base"
    (base / "opt").mkdir(parents=True)
    (base / "opt/python3").write_text("python")
    (base / "link").symlink_to("opt/python3")
    (base / "iobench/data").mkdir(parents=True)
    (base / "iobench/data").chmod(0o555)
    images = {"torch": ImageUse("torch", "sha256:1", {"rootfs": str(base)})}
    plan = plan_of(small, ("image", "lmdb"), runtime="charliecloud")
    plan = placing.placed(plan, "", images, print)
    with placing.present(plan, images, print) as made:
        (place,) = made.placements
        image = Path(place.image)
        assert image.is_dir()
        assert image != base
        assert (image / "opt/python3").stat().st_ino == (base / "opt/python3").stat().st_ino
        assert os.readlink(image / "link") == "opt/python3"
        assert Path(place.files) == image / "iobench/data"
        assert not place.inside
        assert sorted(p.name for p in Path(place.files).iterdir()) == ["lmdb", "samples.tsv"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base"]
    assert list((base / "iobench/data").iterdir()) == []
    assert (base / "opt/python3").read_text() == "python"


def test_a_filesystem_image_holds_the_samples_as_they_are(small, tmp_path) -> None:
    need("squashfs")
    data = _content.of(small, plan_of(small, ("image", "jpeg")).cases)
    place = Placement("image", str(tmp_path), form="sif")
    made = _squash.packed(place, data)
    assert made.inside
    assert Path(made.files).stat().st_size >= data.nbytes  # nothing is compressed once more
    subprocess.run(
        ["unsquashfs", "-quiet", "-no-progress", "-dest", str(tmp_path / "u"), made.files],
        check=True, capture_output=True,
    )  # fmt: skip
    top = tmp_path / "u/iobench/data"
    for name, path in zip(data.names, data.files, strict=True):
        inner = top / name
        assert inner.read_bytes() == path.read_bytes()
        assert inner.stat().st_uid == os.geteuid()  # else the kernel hides what is cached of it
    assert (top / "samples.tsv").exists()


def test_a_program_that_fails_says_why(small, tmp_path) -> None:
    data = _content.of(small, plan_of(small, ("image", "jpeg")).cases)
    with pytest.raises(DatasetError, match="no room left"):
        data.send(["sh", "-c", "echo no room left >&2; exit 3"], 0, 0, "placement image")
    with pytest.raises(DatasetError, match="no-such-program"):
        data.send(["no-such-program"], 0, 0, "placement image")


# -- specs -----------------------------------------------------------------------------------


def spec_of(runtimes, kinds, **case) -> schema.Spec:
    return load.parse(
        {
            "name": "t",
            "case": {"pipeline": "jpeg", "trainer": "null", "batch": 4, **case},
            "matrix": {"runtime": runtimes, "placement": kinds},
            "contrasts": [{"over": "placement", "base": "bind", "caches": ["cold", "warm"]}],
        }
    )


def test_what_is_in_memory_is_never_planned_cold(small) -> None:
    wanted = spec_of(["bare"], ["bind", "tmpfs"])
    cases = load.expand(wanted)
    trials = planning.ladder(wanted, cases)
    assert {t.cache for t in trials if t.case.placement == "tmpfs"} == {"warm", "-"}
    assert not [t for t in trials if t.case.placement == "tmpfs" and t.stage == "ceiling"]
    assert [c.cache for c in contrasts.contrasts(rules.rules(wanted, cases), {})] == ["warm"]


def test_memory_takes_no_other_arm_out_of_a_cold_contrast() -> None:
    wanted = spec_of(["docker"], ["bind", "tmpfs", "image"])
    cases = load.expand(wanted)
    by_label = {c.label: c.placement for c in cases}
    found = [
        (by_label[c.arm], c.cache) for c in contrasts.contrasts(rules.rules(wanted, cases), {})
    ]
    assert found == [("image", "cold"), ("tmpfs", "warm"), ("image", "warm")]


@pytest.mark.parametrize("runtime", registry.names("runtimes"))
@pytest.mark.parametrize("kind", ["image", "overlay"])
def test_a_spec_is_refused_where_a_runtime_cannot(runtime, kind) -> None:
    backend = registry.load("runtimes", runtime)
    possible = backend.isolated and (kind == "image" or not backend.no_overlay)
    assert possible == (kind == "image" and runtime not in ("bare", "unpacked")) or (
        kind == "overlay" and runtime == "apptainer"
    )
    if possible:
        cases = load.expand(spec_of([runtime], ["bind", kind]))
        assert "ceiling" in planning.rungs_missing(cases[1])
        return
    with pytest.raises(SpecError, match=f"placement '{kind}'.*{runtime}") as error:
        spec_of([runtime], ["bind", kind])
    assert "\n" not in str(error.value)


def test_a_contrast_over_placement_is_found_where_locations_differ() -> None:
    wanted = spec_of(["docker", "apptainer"], ["bind", "image"])
    cases = [dataclasses.replace(c, location=c.label) for c in load.expand(wanted)]
    found = contrasts.contrasts(rules.rules(wanted, cases), {})
    by_label = {c.label: c for c in cases}
    pairs = [(by_label[c.arm], by_label[c.base], c.cache) for c in found]
    assert [(a.runtime, a.placement, b.runtime, b.placement, cache) for a, b, cache in pairs] == [
        (runtime, "image", runtime, "bind", cache)
        for runtime in ("docker", "apptainer")
        for cache in ("cold", "warm")
    ]


# -- how a worker is started and what is proven ----------------------------------------------


def place_of(kind: str, **fields) -> Placement:
    return Placement(kind, "/placed", files="/placed/data.sqfs", inside=True, mount=kind,
                     filesystem="squashfs", **fields)  # fmt: skip


def test_a_container_is_shown_where_the_data_are(small, tmp_path) -> None:
    def data_mounts(place):
        return [
            (str(m.host), m.inside, m.kind)
            for m in starting.mounts(small, tmp_path, place)
            if m.inside in ("/", "/iobench/data")
        ]

    assert data_mounts(None) == [(small.root, "/iobench/data", "bind")]
    assert data_mounts(place_of("image")) == [("/placed/data.sqfs", "/iobench/data", "image")]
    assert data_mounts(place_of("overlay")) == [("/placed/data.sqfs", "/", "overlay")]
    assert data_mounts(place_of("image", image="localhost/data")) == []


def test_apptainer_mounts_filesystem_images(small, tmp_path) -> None:
    def words(kind):
        start = Start(image="x.sif", mounts=starting.mounts(small, tmp_path, place_of(kind)))
        return registry.load("runtimes", "apptainer").make().argv(["true"], start)

    bound = "/placed/data.sqfs:/iobench/data:ro,image-src=/iobench/data"
    assert words("image")[words("image").index(bound) - 1] == "--bind"
    laid = words("overlay")
    assert laid[laid.index("/placed/data.sqfs:ro") - 1] == "--overlay"


def rank(fstype: str, after: float | None, read_bytes: int) -> RankResult:
    return RankResult(
        0, 1, "h", 1, Steps((), (), (), (), ()), Startup(),
        IoCounters(read_bytes=read_bytes), bytes_needed=1000,
        fingerprint={"mount": {"fstype": fstype}}, notes={inside.AFTER: {"fraction": after}},
    )  # fmt: skip


def verdict(cache, host, found, fstype, after, read_bytes, **fields) -> tuple:
    proof = cache_proof.before(cache, host, [Prepared("here", found, "mincore")])
    place = dataclasses.replace(place_of("image"), **fields)
    proof = cache_proof.after(proof, [rank(fstype, after, read_bytes)], place)
    status, reasons = judge(cache, "load", proof)
    return status, " ".join(reasons)


COLD = CacheProof("data-cold", "cachestat", 0.0)


def test_cold_inside_needs_both_the_file_and_its_inner_pages_out() -> None:
    assert verdict("cold", COLD, 0.0, "squashfs", 1.0, 1000) == ("VALID", "")
    cached = dataclasses.replace(COLD, resident_before=0.4)
    assert verdict("cold", cached, 0.0, "squashfs", 1.0, 1000)[0] == "INVALID"
    assert verdict("cold", COLD, 0.4, "squashfs", 1.0, 1000)[0] == "INVALID"
    assert verdict("cold", COLD, 0.0, "squashfs", 1.0, 10)[0] == "INVALID"
    status, why = verdict("cold", COLD, None, "squashfs", 1.0, 1000)
    assert (status, "could not be proven" in why) == ("EXPLORATORY", True)


def test_warm_inside_is_what_the_container_has_in_memory() -> None:
    assert verdict("warm", CacheProof(), 1.0, "squashfs", 1.0, 0) == ("VALID", "")
    assert verdict("warm", CacheProof(), 0.5, "squashfs", 1.0, 0)[0] == "INVALID"
    assert verdict("warm", CacheProof(), 1.0, "squashfs", 0.5, 0)[0] == "INVALID"


@pytest.mark.parametrize(
    ("fstype", "fields"),
    [
        ("fuse.squashfuse_ll", {"filesystem": "squashfs"}),
        ("overlay", {"filesystem": "squashfuse"}),
        ("overlay", {"filesystem": "overlay2"}),
    ],
)
def test_bytes_that_another_process_reads_are_never_hoped_for(fstype, fields) -> None:
    for cache, host, found in (("cold", COLD, 0.0), ("warm", CacheProof(), 1.0)):
        status, why = verdict(cache, host, found, fstype, 1.0, 1000, **fields)
        assert (status, "nothing here counts" in why) == ("EXPLORATORY", True)


def test_a_fraction_cannot_be_set_inside() -> None:
    cache_state.check("cold", place_of("image"))
    with pytest.raises(CacheStateError, match="fraction"):
        cache_state.check("0.35", place_of("image"))


def test_a_copy_is_closed_to_other_users(tmp_path: Path) -> None:
    """The data may be, where they lie; memory and scratch are open to all."""
    before = os.umask(0)
    try:
        with placed_folders.held(tmp_path / "deep/copy", "a copy") as root:
            assert root.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
