"""Which files of this host a case's processes start from."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable, ImageError
from iobench.core.members import Installed
from iobench.core.protocols import ImageUse
from iobench.images import docker_engine, forms
from iobench.run.environment import software


def test_a_bare_environment_is_its_prefix_and_what_python_imports_from() -> None:
    found = software(Case(), {})
    import numpy

    assert found.root == Path(sys.prefix)
    assert Path(numpy.__file__) in found.files
    assert all(path.is_file() and not path.is_symlink() for path in found.files)
    assert len(set(found.files)) == len(found.files)
    assert not any(path.is_relative_to("/usr/bin") for path in found.files), "the whole system"


def test_a_stack_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.so").write_bytes(b"0" * 10)
    (tmp_path / "lib/b.so").symlink_to("a.so")
    there = Installed(sys.executable, prefix=str(tmp_path), python_path=(str(tmp_path / "lib"),))
    monkeypatch.setattr(registry, "installed", lambda stack: there)
    found = software(Case(), {})
    assert found.root == tmp_path
    assert tmp_path / "lib/a.so" in found.files
    assert tmp_path / "lib/b.so" not in found.files, "a link has no pages of its own"


def test_an_interpreter_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "installed", lambda stack: Installed("/bin/false"))
    with pytest.raises(BackendUnavailable, match="/bin/false does not start"):
        software(Case(), {})


@pytest.mark.parametrize(
    ("runtime", "options", "form"),
    [("apptainer", {"mode": "sif"}, "sif"), ("apptainer", {"mode": "sandbox"}, "rootfs"),
     ("unpacked", {}, "rootfs")],
)  # fmt: skip
def test_an_image_that_is_a_file_or_a_folder(
    tmp_path: Path, runtime: str, options: Mapping[str, str], form: str
) -> None:
    folder = tmp_path / "root"
    (folder / "usr").mkdir(parents=True)
    (folder / "usr/python").write_bytes(b"1")
    (tmp_path / "image.sif").write_bytes(b"22")
    source = {"sif": tmp_path / "image.sif", "rootfs": folder}[form]
    images = {"torch": ImageUse("torch", "d", {form: str(source)})}
    found = software(Case(runtime=runtime, runtime_options=options), images)
    assert found.root == source
    assert found.files == [source if form == "sif" else folder / "usr/python"]


def test_layers_in_an_engines_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [tmp_path / name for name in ("top", "a", "b")]
    for layer in layers:
        layer.mkdir()
    where = {"UpperDir": str(layers[0]), "LowerDir": f"{layers[1]}:{layers[2]}", "WorkDir": "/w"}
    monkeypatch.setattr(docker_engine, "stored", lambda tag: where)
    assert forms.paths("t:1", "docker") == layers
    layers[1].rmdir()
    with pytest.raises(ImageError, match=r"docker keeps t:1 in .*/a, which is no folder"):
        forms.paths("t:1", "docker")
    monkeypatch.setattr(docker_engine, "stored", lambda tag: {})
    with pytest.raises(ImageError, match="does not say where"):
        forms.paths("t:1", "docker")


def test_an_image_that_was_not_given() -> None:
    with pytest.raises(ImageError, match="make images"):
        software(dataclasses.replace(Case(), runtime="unpacked"), {})
