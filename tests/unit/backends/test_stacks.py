"""Which interpreter and environment a case gets, on bare metal and in an image."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from iobench import catalogue, reachable, registry, spec, stacks, starting
from iobench.errors import BackendUnavailable, SpecError
from iobench.model import Case
from iobench.starting import ImageUse

PLUGIN = """
from iobench.protocols import {kind}Backend
class It:
    feeds_itself, device, queue_batches = False, "cpu", 0
def make(*args, **_):
    return It()
BACKEND = {kind}Backend(make=make, summary="s", image="caffe")
"""


@pytest.fixture
def prefix(tmp_path) -> Path:
    """A folder that looks like what `make caffe` leaves."""
    root = tmp_path / "a prefix"
    (root / "share").mkdir(parents=True)
    (root / stacks.RECORD).write_text(json.dumps({"caffe": "1.0"}))
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
        sys.modules.pop(f"iobench.{axis}.our_{kind}", None)


def case_of(**keys) -> Case:
    return spec.expand(spec.parse({"name": "t", "case": keys}))[0]


def test_the_drivers_own_python_needs_nothing() -> None:
    stack = stacks.on_host("torch", {"CAFFE_ROOT": "/nowhere"})
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
    made = spec.parse({"name": "t", "case": {"pipeline": "null:null"},
                       "matrix": {"trainer": ["null", "our_trainer"]}})  # fmt: skip
    labels = [case.label for case in spec.expand(made)]
    assert labels == ["null:null trainer=null", "null:null trainer=our_trainer"]


def test_a_prefix_of_ours(prefix) -> None:
    stack = stacks.on_host("caffe", {"CAFFE_ROOT": str(prefix), "PATH": "/usr/bin:/bin"})
    assert stack.python == f"{prefix}/bin/python3"
    assert stack.env["PATH"] == f"{prefix}/bin:/usr/bin:/bin"
    assert stack.env["OPAL_PREFIX"] == str(prefix)
    assert stack.env["GLOG_minloglevel"] == "2"  # fatal lines are level 3
    assert not stack.own
    assert stacks.record(stack.prefix) == {"caffe": "1.0"}


def test_not_installed_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stacks.tools, "FOLDER", tmp_path)
    monkeypatch.setattr(stacks, "PREFIX_INSIDE", str(tmp_path / "opt"))
    reason = stacks.missing("caffe", {})
    assert "`make caffe`" in reason
    assert "CAFFE_ROOT" in reason
    (tmp_path / "caffe/share").mkdir(parents=True)  # half-made: its record comes last
    assert stacks.missing("caffe", {}) == reason
    (tmp_path / "caffe" / stacks.RECORD).write_text("{}")
    assert stacks.missing("caffe", {}) == ""
    assert "no folder" in stacks.missing("caffe", {"CAFFE_ROOT": str(tmp_path / "nowhere")})


def test_a_users_own_build(tmp_path) -> None:
    root = tmp_path / "intel-caffe"
    with pytest.raises(BackendUnavailable, match="no folder"):
        stacks.on_host("caffe", {"CAFFE_ROOT": str(root)})
    (root / "build/lib").mkdir(parents=True)
    with pytest.raises(BackendUnavailable, match="neither the Python package"):
        stacks.on_host("caffe", {"CAFFE_ROOT": str(root)})
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
    stack = stacks.on_host("caffe", variables)
    assert stack.python == sys.executable
    assert stack.own
    assert stack.python_path == (f"{root}/python", "/site/python")
    assert stack.env["LD_LIBRARY_PATH"] == f"{root}/build/lib:/opt/mkl"
    assert stack.env["PATH"] == f"{root}/build/tools:/usr/bin"
    assert "OPAL_PREFIX" not in stack.env  # its MPI is the site's
    with pytest.raises(BackendUnavailable, match=r"set CAFFE_PYTHON"):
        stacks.on_host("caffe", {**variables, "CAFFE_PYTHON": "/nowhere/python"})


def started(tmp_path, smoke, runtime: str, images=()):
    case = Case(format="null", loader="null", trainer="null", runtime=runtime, image="caffe")
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return starting.start(case, smoke, work, dict(images), name="n")


@pytest.fixture
def smoke(tmp_path):
    from iobench import dataset

    return dataset.make("smoke", tmp_path / "data", samples=4)


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
    assert "unavailable here: CAFFE_ROOT" in catalogue.members("trainers")["our_trainer"]
    monkeypatch.setenv("CAFFE_ROOT", str(prefix))
    assert catalogue.members("trainers")["our_trainer"] == "s"
    assert "unavailable" not in catalogue.tables()["pipelines"]["our_loader:jpeg"]


def test_a_suite_that_needs_a_missing_stack_is_refused_with_the_remedy(
    plugins, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(stacks.tools, "FOLDER", tmp_path / "nothing")
    monkeypatch.setattr(stacks, "PREFIX_INSIDE", str(tmp_path / "nothing"))
    monkeypatch.delenv("CAFFE_ROOT", raising=False)
    wanted = spec.parse({"name": "t", "case": {"pipeline": "null:null", "trainer": "our_trainer"}})
    assert reachable.host_stacks(wanted) == ["caffe"]
    with pytest.raises(BackendUnavailable, match="`make caffe`"):
        reachable.without_missing(wanted, tmp_path, print)
    plain = spec.parse({"name": "t", "case": {"pipeline": "null:null", "trainer": "null"}})
    assert reachable.host_stacks(plain) == []
    assert reachable.without_missing(plain, tmp_path, print)[0] == plain
