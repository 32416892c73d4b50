"""Which interpreter and environment a case gets, on bare metal and in an image."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.advise import machine
from iobench.backends.stacks import _prefix, caffe
from iobench.cli import listing
from iobench.core import registry
from iobench.core.cases import Case, Trial
from iobench.core.errors import BackendUnavailable, ImageError, SpecError
from iobench.core.protocols import ImageUse
from iobench.core.records import VALID
from iobench.data import make
from iobench.images import catalogue
from iobench.run import availability, command
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load

PLUGIN = """
from iobench.core.members import {kind}Backend
class It:
    feeds_itself, device, queue_batches = False, "cpu", 0
def make(*args, **_):
    return It()
BACKEND = {kind}Backend(make=make, summary="s", stack="caffe")
"""


@pytest.fixture
def prefix(tmp_path) -> Path:
    """A folder that looks like what `make caffe` leaves."""
    root = tmp_path / "a prefix"
    (root / "share").mkdir(parents=True)
    (root / _prefix.RECORD).write_text(json.dumps({"caffe": "1.0"}))
    return root


@pytest.fixture
def plugins(tmp_path, monkeypatch) -> Path:
    """One loader and one trainer that are at home in the stack caffe."""
    for axis in registry.AXES:
        (tmp_path / "plugins" / axis).mkdir(parents=True)
    for axis, kind in (("loaders", "Loader"), ("trainers", "Trainer")):
        file = tmp_path / "plugins" / axis / f"our_{kind.lower()}.py"
        file.write_text(PLUGIN.format(kind=kind))
    monkeypatch.setenv("IOBENCH_PLUGINS", str(tmp_path / "plugins"))
    yield tmp_path
    for axis, kind in (("loaders", "loader"), ("trainers", "trainer")):
        sys.modules.pop(f"iobench.backends.{axis}.our_{kind}", None)


def case_of(**keys) -> Case:
    return load.expand(load.parse({"name": "t", "case": keys}))[0]


def test_the_drivers_own_python_needs_nothing() -> None:
    stack = registry.load("stacks", "torch").on_host({"CAFFE_ROOT": "/nowhere"})
    assert (stack.python, stack.env, stack.prefix) == (sys.executable, {}, "")


def test_a_case_runs_where_its_trainer_is_at_home_else_its_loader(plugins) -> None:
    assert case_of(pipeline="null:null", trainer="null").image == "torch"
    assert case_of(pipeline="null:null", trainer="our_trainer").image == "caffe"
    assert case_of(pipeline="our_loader:jpeg", trainer="null").image == "caffe"
    assert case_of(pipeline="null:null", trainer="null", image="caffe").image == "caffe"


def test_a_trainer_is_not_run_in_another_image(plugins) -> None:
    with pytest.raises(SpecError, match=r"our_trainer' runs in image 'caffe', not in 'torch'"):
        case_of(pipeline="null:null", trainer="our_trainer", image="torch")


def test_labels_do_not_repeat_what_the_trainer_says(plugins) -> None:
    made = load.parse({"name": "t", "case": {"pipeline": "null:null"},
                       "matrix": {"trainer": ["null", "our_trainer"]}})  # fmt: skip
    labels = [case.label for case in load.expand(made)]
    assert labels == ["null:null trainer=null", "null:null trainer=our_trainer"]


def test_a_prefix_of_ours(prefix) -> None:
    stack = caffe.on_host({"CAFFE_ROOT": str(prefix), "PATH": "/usr/bin:/bin"})
    assert stack.python == f"{prefix}/bin/python3"
    assert stack.env["PATH"] == f"{prefix}/bin:/usr/bin:/bin"
    assert stack.env["OPAL_PREFIX"] == str(prefix)
    assert stack.env["GLOG_minloglevel"] == "2"  # fatal lines are level 3
    assert not stack.own
    assert _prefix.record(stack.prefix) == {"caffe": "1.0"}


def test_not_installed_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(caffe.tools, "FOLDER", tmp_path)
    monkeypatch.setattr(caffe, "PREFIX_INSIDE", str(tmp_path / "opt"))
    monkeypatch.delenv("CAFFE_ROOT", raising=False)
    reason = registry.unavailable("stacks", "caffe")
    assert "`make caffe`" in reason
    assert "CAFFE_ROOT" in reason
    (tmp_path / "caffe/share").mkdir(parents=True)  # half-made: its record comes last
    assert registry.unavailable("stacks", "caffe") == reason
    (tmp_path / "caffe" / _prefix.RECORD).write_text("{}")
    assert registry.unavailable("stacks", "caffe") == ""
    monkeypatch.setenv("CAFFE_ROOT", str(tmp_path / "nowhere"))
    assert "not a folder" in registry.unavailable("stacks", "caffe")


def test_a_users_own_build(tmp_path) -> None:
    root = tmp_path / "intel-caffe"
    with pytest.raises(BackendUnavailable, match="not a folder"):
        caffe.on_host({"CAFFE_ROOT": str(root)})
    (root / "build/lib").mkdir(parents=True)
    with pytest.raises(BackendUnavailable, match="neither the Python package"):
        caffe.on_host({"CAFFE_ROOT": str(root)})
    (root / "python/caffe").mkdir(parents=True)
    (root / "build/tools").mkdir()
    (root / "build/tools/caffe").touch()
    variables = {
        "CAFFE_ROOT": str(root),
        "CAFFE_PYTHON": sys.executable,
        "LD_LIBRARY_PATH": "/opt/mkl",
        "PYTHONPATH": "/site/python",
        "PATH": "/usr/bin",
    }
    stack = caffe.on_host(variables)
    assert stack.python == sys.executable
    assert stack.own
    assert stack.python_path == (f"{root}/python", "/site/python")
    assert stack.env["LD_LIBRARY_PATH"] == f"{root}/build/lib:/opt/mkl"
    assert stack.env["PATH"] == f"{root}/build/tools:/usr/bin"
    assert "OPAL_PREFIX" not in stack.env  # its MPI is the site's
    with pytest.raises(BackendUnavailable, match=r"set CAFFE_PYTHON"):
        caffe.on_host({**variables, "CAFFE_PYTHON": "/nowhere/python"})


def started(tmp_path, smoke, runtime: str, images=()):
    case = Case(format="null", loader="null", trainer="null", runtime=runtime, image="caffe")
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return command.start(case, smoke, work, dict(images), name="n")


@pytest.fixture
def smoke(tmp_path):

    return make.make("smoke", tmp_path / "data", samples=4)


def test_a_bare_worker_is_started_from_the_prefix(prefix, smoke, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CAFFE_ROOT", str(prefix))
    begun = started(tmp_path, smoke, "bare")
    assert begun.argv[0] == "env"
    assert f"{prefix}/bin/python3" in begun.argv
    assert begun.variables["PYTHONPATH"] == str(tmp_path / "work/code")
    assert os.listdir(tmp_path / "work/code") == ["iobench"]
    assert begun.variables["OPAL_PREFIX"] == str(prefix)


def test_an_unpacked_worker_takes_everything_from_the_image(smoke, tmp_path) -> None:
    images = {"caffe": ImageUse("caffe", "sha256:1", {"rootfs": "/images/caffe"})}
    begun = started(tmp_path, smoke, "unpacked", images)
    assert "/images/caffe/opt/iobench/bin/python3" in begun.argv
    assert begun.variables["OPAL_PREFIX"] == "/images/caffe/opt/iobench"
    assert begun.variables["PATH"].startswith("/images/caffe/opt/iobench/bin:")


def test_a_member_of_another_stack_is_not_asked_of_this_python(
    plugins, prefix, monkeypatch
) -> None:
    monkeypatch.setenv("CAFFE_ROOT", str(prefix.parent / "nowhere"))
    assert "unavailable here: CAFFE_ROOT" in listing.members("trainers")["our_trainer"]
    monkeypatch.setenv("CAFFE_ROOT", str(prefix))
    assert listing.members("trainers")["our_trainer"] == "s"
    assert "unavailable" not in listing.tables()["pipelines"]["our_loader:jpeg"]


def test_a_suite_that_needs_a_missing_stack_is_refused_with_the_remedy(
    plugins, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(caffe.tools, "FOLDER", tmp_path / "nothing")
    monkeypatch.setattr(caffe, "PREFIX_INSIDE", str(tmp_path / "nothing"))
    monkeypatch.delenv("CAFFE_ROOT", raising=False)
    wanted = load.parse({"name": "t", "case": {"pipeline": "null:null", "trainer": "our_trainer"}})
    assert availability.host_stacks(wanted) == ["caffe"]
    with pytest.raises(BackendUnavailable, match="`make caffe`"):
        availability.missing_runtimes(wanted, tmp_path, print)
    plain = load.parse({"name": "t", "case": {"pipeline": "null:null", "trainer": "null"}})
    assert availability.host_stacks(plain) == []
    assert availability.missing_runtimes(plain, tmp_path, print) == {}


# -- a stack of one's own: one file -------------------------------------------------------------

OURS = '''
"""A framework in a virtual environment of its own."""
import os
from pathlib import Path
from iobench.core.errors import BackendUnavailable
from iobench.core.members import Installed, Stack

def on_host(variables):
    folder = variables.get("OUR_VENV", "")
    if not Path(folder, "bin/python").exists():
        raise BackendUnavailable("no OUR_VENV: `python3 -m venv DIR`, then set OUR_VENV=DIR")
    return Installed(f"{folder}/bin/python", {"OMP_OURS": "1"})

BACKEND = Stack("ours", on_host, {"numpy": "numpy"}, remedy="look at OUR_VENV", serves=True)
'''
TRAINER = """
import os, sys
from iobench.core.members import TrainerBackend
class Trainer:
    feeds_itself, device = False, "cpu"
    def __init__(self, *, batch):
        pass
    def step(self, batch):
        pass
    def sync(self):
        pass
    def describe(self):
        return {"python": sys.prefix, "threads": os.environ.get("OMP_OURS", "")}
    def close(self):
        pass
BACKEND = TrainerBackend(make=Trainer, summary="s", stack="ours", libraries={"json": "pip"})
"""
LOADER = """
import os, sys
import numpy as np
from iobench.core.cases import Batch
from iobench.core.members import LoaderBackend
class Loader:
    queue_batches = 0
    def __init__(self, request):
        self.request = request
        with open(os.path.join(os.environ["OUR_VENV"], "served"), "w") as file:
            file.write(f"{sys.prefix} {os.environ.get('OMP_OURS')}")
    def batches(self):
        r = self.request
        for i in range(len(r.ids) // r.batch):
            ids = r.ids[i * r.batch : (i + 1) * r.batch]
            data = np.zeros((r.batch, 3, 224, 224), np.float32)
            yield Batch(data, r.labels[ids], ids, int(r.sizes[ids].sum()))
    def close(self):
        pass
BACKEND = LoaderBackend(make=Loader, summary="s", stack="ours")
"""


@pytest.fixture
def ours(tmp_path, monkeypatch) -> Path:
    """A stack, a trainer and a loader of it: a file each."""
    folder = tmp_path / "plugins"
    for axis, text in (("stacks", OURS), ("trainers", TRAINER), ("loaders", LOADER)):
        (folder / axis).mkdir(parents=True)
        (folder / axis / ("ours.py" if axis == "stacks" else "our_own.py")).write_text(text)
    monkeypatch.setenv("IOBENCH_PLUGINS", str(folder))
    yield tmp_path
    for name in ("stacks.ours", "trainers.our_own", "loaders.our_own"):
        sys.modules.pop(f"iobench.backends.{name}", None)


def our_case(**keys) -> Case:
    return case_of(pipeline="null:null", trainer="our_own", batch=4, **keys)


def test_a_stack_of_ones_own_is_one_file(ours) -> None:
    assert our_case().image == "ours"
    assert "unavailable here: no OUR_VENV" in listing.members("stacks")["ours"]
    assert "unavailable here: no OUR_VENV" in listing.members("trainers")["our_own"]
    wanted = load.parse({"name": "t", "case": {"pipeline": "null:null", "trainer": "our_own"}})
    with pytest.raises(BackendUnavailable, match=r"python3 -m venv DIR"):
        availability.missing_runtimes(wanted, ours, print)
    (check,) = [c for c in machine.examine(ours) if c.name == "stack ours"]
    assert not check.ok
    assert "set OUR_VENV=DIR" in check.remedy


def test_a_stack_without_an_image_says_so(ours) -> None:
    with pytest.raises(SpecError, match=r"'docker' runs images, and the stack 'ours' names none"):
        our_case(runtime="docker")
    with pytest.raises(ImageError, match=r"stack 'ours' has no image to build.*runtime bare"):
        catalogue.find("ours", ours)
    with pytest.raises(ImageError, match=r"no image is called 'our'; there are: caffe, torch"):
        catalogue.find("our", ours)


@pytest.fixture
def venv(ours, monkeypatch) -> Path:
    """A Python of its own, with NumPy by a link."""
    import numpy

    folder = ours / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in Path(numpy.__file__).parents[1].glob("numpy*"):
        (site / path.name).symlink_to(path)
    monkeypatch.setenv("OUR_VENV", str(folder))
    return folder


def test_its_trainer_runs_in_its_own_python(venv, smoke) -> None:
    case = dataclasses.replace(our_case(), location=smoke.root)
    record = run_trial(Trial("t", case, "train", "-"), smoke, 1, TrialSettings(limit_s=60))
    assert (record.status, record.reasons) == (VALID, ())
    (rank,) = record.ranks
    assert rank.notes["trainer"]["python"] == str(venv)
    assert rank.notes["trainer"]["threads"] == "1"
    assert rank.fingerprint["libraries"]["numpy"]
    (check,) = [c for c in machine.examine(venv) if c.name == "stack ours"]
    assert check.ok
    assert "numpy" in check.detail
    assert str(venv) in check.detail


def test_its_loader_serves_a_case_of_another_stack(venv, smoke) -> None:
    case = case_of(pipeline="our_own:null", trainer="null", batch=4, image="torch")
    case = dataclasses.replace(case, location=smoke.root)
    record = run_trial(Trial("t", case, "load", "-"), smoke, 1, TrialSettings(limit_s=60))
    assert (record.status, record.reasons) == (VALID, ())
    (rank,) = record.ranks
    assert rank.fingerprint["loader"]["libraries"].keys() == {"numpy"}
    assert "OMP_OURS" not in rank.fingerprint["environment"]
    assert (venv / "served").read_text() == f"{venv} 1"
