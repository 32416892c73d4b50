"""Code that others may have written is not run: plug-ins, programs that a spec names, a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from iobench.advise import software
from iobench.core import registry, trusted
from iobench.core.cases import Trial
from iobench.core.errors import SpecError
from iobench.core.inside import PLUGINS_INSIDE
from iobench.core.members import Installed
from iobench.core.records import VALID
from iobench.images import prefix
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load
from tests.build.datasets import indexed
from tests.capabilities import need

SPOILED = "import pathlib; pathlib.Path({!r}).touch()\n"
NOBODY = 65534


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of plug-ins; the one in it leaves a mark when it is run."""
    folder = tmp_path / "plugins"
    for axis in ("loaders", "trainers"):
        (folder / axis / "__pycache__").mkdir(parents=True)
    (folder / "loaders/evil.py").write_text(SPOILED.format(str(tmp_path / "ran")))
    monkeypatch.setenv("IOBENCH_PLUGINS", str(folder))
    return folder


CHANGES: Dict[str, Callable[[Path], Any]] = {
    "everybody writes the folder": lambda f: f.chmod(0o777),
    "everybody writes a sticky folder": lambda f: f.chmod(0o1777),
    "everybody writes an axis": lambda f: (f / "trainers").chmod(0o757),
    "everybody writes a file": lambda f: (f / "loaders/evil.py").chmod(0o646),
    "everybody writes byte code": lambda f: (f / "loaders/__pycache__").chmod(0o777),
    "another's folder": lambda f: os.chown(f, NOBODY, 0),
    "another's axis": lambda f: os.chown(f / "loaders", NOBODY, 0),
    "another's file": lambda f: os.chown(f / "loaders/evil.py", NOBODY, 0),
    "a link to another's file": lambda f: (f / "trainers/it.py").symlink_to(others(f)),
}


def others(folder: Path) -> Path:
    path = folder.parent / "others.py"
    path.write_text("")
    os.chown(path, NOBODY, 0)
    return path


@pytest.mark.parametrize("change", CHANGES)
def test_plug_ins_that_others_may_have_written_do_not_run(change: str, plugins: Path) -> None:
    if "other" in change:
        need("root")
    CHANGES[change](plugins)
    for call in (lambda: registry.names("loaders"), lambda: registry.load("loaders", "evil")):
        with pytest.raises(SpecError, match=r"IOBENCH_PLUGINS=.*chmod -R o-w") as found:
            call()
        assert "\n" not in str(found.value)
    assert not (plugins.parent / "ran").exists()


def test_plug_ins_of_ones_own_run(plugins: Path) -> None:
    (plugins / "trainers/gone.py").symlink_to("nowhere")
    plugins.chmod(0o775)  # a group is who the user says that it is
    with pytest.raises(Exception, match="BACKEND"):
        registry.load("loaders", "evil")
    assert (plugins.parent / "ran").exists()


def test_in_a_container_the_driver_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "check_tree", lambda *_: pytest.fail("looked again"))
    registry._check_plugins.cache_clear()
    registry._check_plugins(PLUGINS_INSIDE)


def program(folder: Path, mode: int = 0o755) -> str:
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\ntouch {folder}/ran\necho mpirun '(Open MPI)' 4\n")
    path.chmod(mode)
    return str(path)


PROGRAMS: Dict[str, Callable[[Path], str]] = {
    "not there": lambda f: str(f / "nothing"),
    "a folder": lambda f: str(f),
    "not executable": lambda f: program(f, 0o644),
    "everybody writes it": lambda f: program(f, 0o777),
    "relative": lambda f: os.path.relpath(program(f)),
    "upwards": lambda f: f"{f}/../{f.name}/{Path(program(f)).name}",
    "an option": lambda f: "--help",
    "a line end": lambda f: "mpirun\nx",
    "a variable": lambda f: "$HOME/mpirun",
    "a home": lambda f: "~/mpirun",
}
KEYS = {
    "launcher_options.program": {"launcher": "mpirun", "launcher_options": "program"},
    "runtime_options.oci_runtime": {"runtime": "podman", "runtime_options": "oci_runtime"},
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_spec_names_no_program_of_anybody(kind: str, key: str, tmp_path: Path) -> None:
    named = PROGRAMS[kind](tmp_path)
    keys = {k: {v: named} if k.endswith("_options") else v for k, v in KEYS[key].items()}
    case = {"pipeline": "null:null", "trainer": "null", **keys}
    with pytest.raises(SpecError, match=r"program|control characters|whole path") as found:
        load.parse({"name": "t", "case": case})
    assert "\n" not in str(found.value)
    assert not (tmp_path / "ran").exists()


def test_a_program_of_ones_own_may_be_named(tmp_path: Path) -> None:
    trusted.check_program(program(tmp_path), "program")
    trusted.check_program("mpirun", "program")


def test_a_folder_that_one_works_in_brings_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody unpacks what a stranger sent, and runs the spec in it."""
    names = ("numpy", "json", "iobench", "socket", "sitecustomize", "ctypes", "pip", "tempfile")
    here = tmp_path / "sent"
    here.mkdir()
    for name in names:
        (here / f"{name}.py").write_text(SPOILED.format(str(tmp_path / f"ran-{name}")))
    monkeypatch.chdir(here)
    data = indexed(tmp_path / "data", 64, size=10)
    case = load.expand(load.parse({"name": "t", "case": {"pipeline": "null:null"}}))[0]
    record = run_trial(Trial("t", case, "load", "-"), data, 1, TrialSettings(limit_s=60.0))
    assert record.status == VALID, record.reasons
    assert software._asked("torch", Installed(sys.executable)) is not None  # as `doctor` does
    assert prefix.wanted("caffe")
    assert [p.name for p in tmp_path.glob("ran-*")] == []
