"""One new file an axis, in a folder of one's own, used with nothing else edited."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator

import pytest

from iobench.cli import listing
from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.errors import SpecError
from iobench.core.jobs import JobRequest
from iobench.core.records import VALID
from iobench.data import index
from iobench.host import filesystems
from iobench.host.mounts import mount_of
from iobench.plan.resolve import Here, resolve
from iobench.report import publish
from iobench.run import jobs, nodes, placing, status, store, suite
from iobench.run.job_script import JobExtras
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load

#: What a user writes, one file an axis. Each leaves a trace that the test can find.
FILES: Dict[str, str] = {
    "stacks/hut.py": """
import sys
from iobench.core.members import Installed, Stack

BACKEND = Stack("a hut with a Python", lambda variables: Installed(sys.executable), {}, "look in")
""",
    "decoders/loupe.py": """
import numpy as np
from iobench.core.members import DecoderBackend

def decode(data):
    return np.full((2, 3, 3), len(data), np.uint8)

BACKEND = DecoderBackend(lambda: decode, "as many grey levels as bytes")
""",
    "formats/chalk.py": '''
from pathlib import Path
from iobench.core.cases import Extent
from iobench.core.members import FormatBackend

class Reader:
    """All samples are ten bytes, one after the other, in one file."""
    def __init__(self, path, samples):
        self._path, self._samples = path, samples
    def __len__(self):
        return self._samples
    def read(self, index):
        with open(self._path, "rb") as file:
            file.seek(10 * index)
            return file.read(10), index % 3
    def extents(self, index):
        return [Extent(str(self._path), 10 * index, 10)]
    def close(self):
        pass

class Chalk:
    def __init__(self, *, colour: str = "white"):
        self.colour = colour
    def write(self, samples, root):
        (root / "board").write_bytes(b"".join(bytes(s.data)[:10] for s in samples))
    def open(self, dataset, root):
        return Reader(root / "board", dataset.samples)
    def files(self, dataset, root):
        return [Path(root) / "board"]

BACKEND = FormatBackend(Chalk, "ten bytes a sample on a board")
''',
    "loaders/pigeon.py": """
import numpy as np
from iobench.core.cases import Batch
from iobench.core.members import LoaderBackend

class Pigeon:
    queue_batches = 0
    def __init__(self, request, *, feathers: int = 1):
        self._request = request
        self._reader = request.format.open(request.dataset, request.root)
    def batches(self):
        r = self._request
        for first in range(0, len(r.ids) // r.batch * r.batch, r.batch):
            ids = np.asarray(r.ids[first:first + r.batch])
            read = [self._reader.read(int(i)) for i in ids]
            labels = np.asarray([label for _, label in read])
            yield Batch(None, labels, ids, sum(len(data) for data, _ in read))
    def close(self):
        self._reader.close()

BACKEND = LoaderBackend(Pigeon, "carries samples by hand")
""",
    "trainers/abacus.py": """
import os
from iobench.core.members import TrainerBackend

class Abacus:
    feeds_itself = False
    device = "cpu"
    def __init__(self, *, batch, beads: int = 10):
        self._batch, self._beads, self._moved = batch, beads, 0
    def step(self, batch):
        self._moved += len(batch.ids)
    def sync(self):
        pass
    def describe(self):
        return {"beads": self._beads, "moved": self._moved,
                "seen": os.environ.get("IOBENCH_TEST_SHED", "")}
    def close(self):
        pass

BACKEND = TrainerBackend(Abacus, "counts samples on beads")
""",
    "runtimes/shed.py": """
from iobench.core.members import RuntimeBackend

class Shed:
    def available(self):
        return ""
    def form(self):
        return ""
    def argv(self, command, start):
        pairs = {**start.env, "IOBENCH_TEST_SHED": "in the shed"}
        return ["env", *(f"{k}={v}" for k, v in pairs.items()), *command]
    def identify(self, image):
        return {"planks": 12}
    def stop(self, name):
        pass

BACKEND = RuntimeBackend(Shed, "a shed behind the house")
""",
    "launchers/slingshot.py": """
from iobench.core.members import LauncherBackend
from iobench.core.protocols import Launcher

class Slingshot(Launcher):
    def available(self):
        return ""
    def argv(self, command, ranks):
        return ["nice", "-n", "0", *command]

BACKEND = LauncherBackend(Slingshot, "throws one rank far")
""",
    "placements/cellar.py": """
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from iobench.core.members import PlacementBackend

class Cellar:
    def shared_by(self, form, image):
        return "", ""
    def root(self, site, name):
        return str(Path(site.dataset.root).parent / "cellar" / name)
    def space(self, place):
        return Path(place.root).parent
    @contextmanager
    def put(self, place, data, image):
        data.copy_to(Path(place.root))
        yield replace(place, files=place.root)

BACKEND = PlacementBackend(Cellar, "a copy below ground")
""",
    "filesystems/drawer.py": """
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed

class Drawer:
    def __init__(self, *, mount):
        self._mount = mount
    def describe(self, path):
        m = self._mount
        return {"fstype": m.fstype, "mount_point": m.mount_point, "options": "", "device": "",
                "source": "", "handles": 2}
    def counters(self, path):
        return {"opened": 0}
    def crossed(self, io, moved):
        return Crossed(12345678, "the drawer's own tally")
    def cold(self):
        return ""

BACKEND = FilesystemBackend(Drawer, "a drawer", fstypes=frozenset({"@FSTYPE@"}))
""",
    "schedulers/errand.py": """
from iobench.core.jobs import RUNNING, JobState
from iobench.core.members import SchedulerBackend

class Errand:
    def available(self):
        return ""
    def directives(self, job):
        return [f"#ERRAND boys={job.nodes}"]
    def submission(self, script, element=0):
        return ["sh", "-c", 'test -x "$1" && echo errand 5', "sh", script]
    def number(self, output):
        return output.partition("errand ")[2]
    def state(self, job):
        return JobState(RUNNING, f"errand {job} is on its way")
    def hosts(self, env):
        return env.get("ERRAND_HOSTS", "").split()

BACKEND = SchedulerBackend(Errand, "sends a boy", number="ERRAND")
""",
    "stages/glance.py": """
import dataclasses
from iobench.core.stages import Stage
from iobench.worker.stages._loop import epoch

def glance(job):
    job.request = dataclasses.replace(job.request, ids=job.request.ids[: job.request.batch * 2])
    return epoch(job)

BACKEND = Stage(glance, "the first two batches", rung=25, asks="read", contrasted=True, rate=9e3)
""",
}


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "plugins"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("@FSTYPE@", mount_of(tmp_path).fstype))
    monkeypatch.setenv("IOBENCH_PLUGINS", str(folder))
    yield folder
    for axis in registry.AXES:  # what this process has learned of the folder
        package = registry._package(axis)
        package.__path__.remove(str(folder / axis))


def new_member(axis: str) -> str:
    (path,) = [Path(name) for name in FILES if name.startswith(axis + "/")]
    return path.stem


@pytest.mark.parametrize("axis", registry.AXES)
def test_the_new_file_is_listed_beside_the_others(axis: str, plugins: Path) -> None:
    table = listing.members(axis)
    assert new_member(axis) in table
    assert len(table) > 1
    assert table[new_member(axis)] == registry.load(axis, new_member(axis)).summary


@pytest.mark.parametrize("axis", registry.AXES)
def test_without_the_folder_it_is_unknown_and_the_others_are_named(axis: str) -> None:
    with pytest.raises(SpecError, match=f"unknown {axis[:-1]} '{new_member(axis)}'.* allowed: "):
        registry.load(axis, new_member(axis))


def test_a_spec_may_name_them_and_their_options_are_checked(plugins: Path) -> None:
    document = {
        "name": "new",
        "case": {
            "trainer": "abacus",
            "runtime": "shed",
            "launcher": "slingshot",
            "placement": "cellar",
        },
        "matrix": {"pipeline": ["pigeon:chalk"]},
    }
    (case,) = load.expand(load.parse(document))
    assert (case.format, case.loader, case.placement) == ("chalk", "pigeon", "cellar")
    document["case"] = {**document["case"], "trainer_options": {"baeds": 3}}
    with pytest.raises(SpecError, match=r"baeds.*beads"):
        load.expand(load.parse(document))


def test_one_trial_runs_through_all_of_them(plugins: Path, tmp_path: Path) -> None:
    dataset = tiny(tmp_path / "data")
    case = Case(
        label="new",
        format="chalk",
        loader="pigeon",
        trainer="abacus",
        runtime="shed",
        launcher="slingshot",
        image="hut",
        location=dataset.root,
        batch=4,
        workers=0,
        trainer_options={"beads": 7},
        placement="cellar",
    )
    plan = Plan("t", "now", 1, 60.0, dataset, (case,), (Trial("t", case, "train", "cold"),))
    plan = placing.placed(plan, "", {}, print)
    with placing.present(plan, {}, print) as plan:
        (place,), (trial,) = plan.placements, plan.trials
        assert Path(place.root).parent == tmp_path / "cellar"
        assert (Path(trial.case.location), place.bytes) == (Path(place.root), 320)
        settings = TrialSettings(limit_s=60, placements=placing.by_location(plan))
        record = run_trial(trial, dataset, 1, settings)
    assert list((tmp_path / "cellar").iterdir()) == []
    assert (record.status, record.reasons) == (VALID, ())
    (rank,) = record.ranks
    assert sum(rank.steps.samples) == 32
    assert sum(rank.steps.bytes) == 320
    trainer = rank.notes["trainer"]
    assert trainer["beads"] == 7
    assert trainer["moved"] == 32
    assert trainer["seen"] == "in the shed"
    assert record.mount["filesystem"] == "drawer"
    assert record.mount["handles"] == 2
    assert record.cache.counter == "the drawer's own tally"
    assert record.cache.bytes_storage == 12345678
    assert filesystems.filesystem_for(tmp_path)[0] == "drawer"


def test_a_suite_is_submitted_to_it(plugins: Path, tmp_path: Path) -> None:
    request = JobRequest("new", nodes=3, ranks=1, time_s=60)
    specs = [jobs.SpecText(name, f'name = "{name}"') for name in ("one", "two")]
    here = JobExtras(str(tmp_path))
    made = jobs.submit("errand", request, specs, tmp_path / "results", [], here)
    assert (tmp_path / "results/latest").resolve() == made[-1]
    for folder in made:  # it has no arrays: a job each
        assert "#ERRAND boys=3\n" in (folder / "job.sh").read_text()
        assert f"suite={folder}\n" in (folder / "job.sh").read_text()
        (state,) = status.together(folder)
        assert (state.state, state.next) == (
            "running",
            f"see {folder}/job.log; it makes data and plan",
        )
        assert state.job_state == ("running", "errand 5 is on its way")
    shown = status.together(tmp_path / "results")
    assert [found.folder for found in shown] == [str(folder) for folder in made]
    assert nodes.allocated(variables={"ERRAND_HOSTS": "a b"}) == ["a", "b"]


def test_a_stage_is_planned_run_and_reported(plugins: Path, tmp_path: Path) -> None:
    wanted = load.parse(
        {
            "name": "new",
            "case": {"trainer": "null", "batch": 4, "workers": 0},
            "matrix": {"pipeline": ["pigeon:chalk"], "prefetch": [1, 2]},
            "ladder": {
                "stages": ["read", "glance"],
                "caches": ["cold"],
                "repeats": 1,
                "digest": False,
            },
            "contrasts": [{"over": "prefetch", "stage": "glance", "caches": ["cold"], "pairs": 2}],
        }
    )
    results = store.create(tmp_path / "results", "new")
    results.save_plan(resolve(wanted, Here(tiny(tmp_path / "data")), 60.0, "now"))
    suite.Suite(results, TrialSettings(), lambda *_: None).run()
    records = [r for r in results.records() if r.trial.stage == "glance"]
    assert len(records) >= 2 + 2 * 2  # the ladder's, and two pairs; more where one was disturbed
    assert {(r.status, sum(r.ranks[0].steps.samples)) for r in records} == {(VALID, 8)}
    analysis = publish.document(publish.publish(results))
    assert list(analysis["pipelines"][0]["stages"])[1:3] == ["read", "glance"]
    assert analysis["pipelines"][0]["stages"]["glance"]["cold"]["samples_per_s"]["value"] > 0
    assert len(analysis["contrasts"]) == 1
    page = (results.folder / "report.html").read_text()
    assert "glance cold" in page
    assert ",glance," in (results.folder / "trials.csv").read_text()
    found = list(listing.tables()["stages"])[:7]
    assert found == ["metadata", "requests", "reread", "files", "ceiling", "read", "glance"]
    (plugins / "loaders/pigeon.py").unlink()  # as on another machine: the figures need no loader
    assert publish.document(publish.publish(results))["contrasts"] == analysis["contrasts"]
    assert ",glance," in (results.folder / "trials.csv").read_text()


def test_a_trial_of_a_stage_that_is_not_here_fails_with_the_stages_there_are(
    tmp_path: Path,
) -> None:
    trial = Trial("t", Case(location=str(tmp_path)), "glance", "cold")
    with pytest.raises(SpecError, match=r"unknown stage 'glance'.* allowed: alone, calls"):
        run_trial(trial, tiny(tmp_path), 1, TrialSettings(limit_s=60))


def tiny(root: Path) -> Dataset:
    """32 samples of ten bytes in the new format."""
    board = root / "chalk"
    board.mkdir(parents=True)
    contents = [bytes([i]) * 10 for i in range(32)]
    (board / "board").write_bytes(b"".join(contents))
    rows = [
        index.Row(f"n0/{i}", i % 3, 10, datasets.sample_digest(data), f"n0/{i}.jpg")
        for i, data in enumerate(contents)
    ]
    index.write_index(root, rows)
    return index.finish(
        Dataset(str(root), "tiny", 32, 320, 3, 1, "", "test", jpeg_root=str(root / "jpeg"))
    )
