"""Images of the user's own in real runtimes: a SIF, a folder, what an engine has."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from iobench.backends.runtimes import apptainer
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import ImageError
from iobench.core.inside import MOUNT_POINTS, PREFIX_INSIDE
from iobench.core.protocols import Start
from iobench.core.records import VALID, Record
from iobench.images import catalogue, own
from iobench.run import command, own_images
from iobench.run.trial import TrialSettings, run_trial
from tests.build import containers
from tests.capabilities import image_folder, need

pytestmark = pytest.mark.system

#: What the user's folder has: neither torch nor DALI, and its Python where conda puts it.
PACKAGES = ("lmdb", "numpy", "cv2", "opencv_python_headless", "simplejpeg", "blake3")
PREFIX = "opt/conda"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return containers.small_dataset(tmp_path_factory.mktemp("set") / "data", samples=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user unpacks an image: no mount points, nothing at the stacks' prefix."""
    containers.images_of(Case(runtime="unpacked"))
    built = catalogue.find("torch", image_folder()).rootfs
    prefix = built / PREFIX_INSIDE.lstrip("/")
    root = tmp_path_factory.mktemp("own") / "root"

    def left_out(where: str, names: list[str]) -> list[str]:
        if where == str(built):
            return [name for name in names if name in ("iobench", "opt")]
        return [n for n in names if where.endswith("-packages") and not n.startswith(PACKAGES)]

    for source, target in ((built, root), (prefix, root / PREFIX)):
        shutil.copytree(source, target, symlinks=True, ignore=left_out, copy_function=_linked)
    return root


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another filesystem
        shutil.copy2(source, target, follow_symlinks=False)


def case_of(data: Dataset, runtime: str, image: Any) -> Case:
    return Case(
        label=runtime, loader="threads", format="lmdb", runtime=runtime, image=str(image), batch=4,
        workers=1, prefetch=1, location=data.root,
    )  # fmt: skip


def digested(data: Dataset, case: Case, images: Path) -> Record:
    need(case.runtime)
    used = command.images_for([case], images)
    trial = Trial(id="t", case=case, stage="digest", cache="-")
    return run_trial(trial, data, 1, TrialSettings(images=used))


@pytest.fixture(scope="module")
def on_bare_metal(data: Dataset, folder: Path) -> Record:
    return digested(data, case_of(data, "bare", folder), folder)


def checked(data: Dataset, case: Case, images: Path, bare: Record) -> Record:
    assert own_images.look(case, own_images.modules_of(case, digest=True), images, print) == {}
    found = digested(data, case, images)
    assert [(r.status, r.reasons) for r in (bare, found)] == [(VALID, ())] * 2
    assert found.ranks[0].samples_digest == bare.ranks[0].samples_digest != ""
    assert found.runtime["image"] == case.image
    assert found.runtime["digest"]
    return found


@pytest.mark.parametrize("runtime", ["apptainer", "charliecloud", "unpacked"])
def test_a_folder(
    runtime: str, data: Dataset, folder: Path, tmp_path: Path, on_bare_metal: Record
) -> None:
    need(runtime)
    case = case_of(data, runtime, folder)
    before = set(os.listdir(folder))
    if runtime == "charliecloud":
        with pytest.raises(ImageError, match=f"mkdir -p {folder}/iobench/data"):
            own_images.look(case, ["numpy"], tmp_path, print)
        assert set(os.listdir(folder)) == before, "it is shown read-only"
        for place in MOUNT_POINTS:
            Path(str(folder) + place).mkdir(parents=True)
    try:
        record = checked(data, case, tmp_path, on_bare_metal)
        versions = record.ranks[0].fingerprint["libraries"]
        assert "lmdb" in versions
        assert "torch" not in versions
        wanted = dataclasses.replace(case, loader="dali", format="jpeg", trainer="torch")
        modules = own_images.modules_of(wanted, digest=False)
        missing = own_images.look(wanted, modules, tmp_path, print)
        assert set(missing) == {"nvidia.dali", "torch"}
    finally:
        shutil.rmtree(folder / "iobench", ignore_errors=True)


def test_a_folder_has_programs_find_the_driver_of_a_gpu(folder: Path) -> None:
    need("apptainer")
    runtime = registry.load("runtimes", "apptainer").make(mode="sandbox")
    asked = runtime.argv(["/bin/sh", "-c", "echo $LD_LIBRARY_PATH"], Start(str(folder), gpus=True))
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert apptainer.DRIVER in done.stdout.strip().split(":")


def test_a_sif(data: Dataset, tmp_path: Path, on_bare_metal: Record) -> None:
    need("apptainer")
    containers.images_of(Case(runtime="apptainer", runtime_options={"mode": "sif"}))
    sif = tmp_path / "my.sif"
    sif.symlink_to(catalogue.find("torch", image_folder()).sif.resolve())
    case = case_of(data, "apptainer", sif)
    record = checked(data, case, tmp_path, on_bare_metal)
    assert record.runtime["form"] == "sif"
    assert str(record.runtime["digest"]).startswith("sha256:")
    assert "torch" in record.ranks[0].fingerprint["libraries"]


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_what_an_engine_has(
    runtime: str, data: Dataset, tmp_path: Path, on_bare_metal: Record,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    need(runtime)
    if runtime == "docker":
        request.getfixturevalue("daemon")
    built = containers.images_of(Case(runtime=runtime))["torch"]
    case = case_of(data, runtime, f"docker://{built.forms[runtime]}")
    assert checked(data, case, tmp_path, on_bare_metal).runtime["digest"] == built.digest
    nowhere = case_of(data, runtime, "docker://localhost:1/none:1")
    with pytest.raises(ImageError, match="does not have the image localhost:1/none:1 and cannot"):
        own_images.look(nowhere, ["numpy"], tmp_path, print)


def test_a_reference_that_apptainer_cannot_pull_leaves_nothing(tmp_path: Path) -> None:
    need("apptainer")
    with pytest.raises(ImageError, match="making a SIF of docker://localhost:1/none:1 failed"):
        own.use("docker://localhost:1/none:1", "sif", tmp_path, print)
    assert not any((tmp_path / own.FOLDER).iterdir())
