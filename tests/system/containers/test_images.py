"""The real images: built once a session, and the same files in every form.

IOBENCH_TEST_IMAGES names a folder whose images are used, and built there when they are not current.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

import iobench.images.archive as archive
import iobench.images.build as build
import iobench.images.docker_engine as docker_engine
import iobench.images.forms as forms
import iobench.images.prefix as prefix
import iobench.images.tree as tree
import iobench.images.verify as verification
from iobench.backends.stacks import _prefix
from iobench.backends.stacks import caffe as caffe_stack
from iobench.core import registry
from iobench.core.inside import PREFIX_INSIDE
from iobench.host import tools
from iobench.images import docker_daemon
from iobench.images.model import Image
from tests.capabilities import need

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[3]
LABEL = "org.opencontainers.image."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("docker")
    named = os.environ.get("IOBENCH_TEST_IMAGES")
    return Path(named) if named else tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[None]:
    with docker_daemon.docker(print, folder):
        yield


@pytest.fixture(scope="module")
def torch_image(folder: Path, daemon: None) -> Image:
    image = build.build("torch", folder, print)
    forms.make_form(image, "rootfs", print)
    forms.make_form(image, "docker", print)
    return image


@pytest.fixture(scope="module")
def caffe_image(folder: Path, daemon: None) -> Image:
    image = build.build("caffe", folder, print)
    forms.make_form(image, "rootfs", print)
    forms.make_form(image, "docker", print)
    return image


def labels(image: Image) -> Dict[str, str]:
    import docker

    client = docker.from_env()
    try:
        found: Dict[str, str] = client.images.get(image.tag).labels
        return found
    finally:
        client.close()


def test_labels_say_what_the_image_is(torch_image: Image) -> None:
    found = labels(torch_image)
    assert found[LABEL + "title"] == "iobench torch"
    assert found[LABEL + "version"] == torch_image.version
    assert found[LABEL + "revision"] == torch_image.revision
    assert found[LABEL + "base.name"] == torch_image.base
    assert found["iobench.recipe"] == torch_image.recipe
    assert found["iobench.pins"] == torch_image.pins
    assert docker_engine.image_id(torch_image.tag) == torch_image.digest


def test_a_second_build_does_nothing(torch_image: Image) -> None:
    said: List[str] = []
    assert build.build("torch", Path(torch_image.folder), said.append) == torch_image
    assert said == [f"image torch is up to date: {torch_image.digest}"]


def test_the_image_holds_no_wheels_no_compiler_and_no_root(torch_image: Image) -> None:
    root = torch_image.rootfs
    names = {path.name for path in (root / "usr/bin").iterdir()}
    assert not names & {"gcc", "cc", "g++", "patchelf", "pip"}
    assert not list(root.rglob("*.whl"))
    out = verification.inside("docker", torch_image.tag, ["id", "-u"])
    assert out.strip().isdigit()
    config = json.loads((root.parent / "torch.json").read_text())
    assert config["digest"] == torch_image.digest


def test_its_python_takes_nothing_from_the_host(torch_image: Image) -> None:
    code = "import torch, cv2, ssl; print(open('/proc/self/maps').read())"
    python = torch_image.rootfs / torch_image.python.lstrip("/")
    done = subprocess.run(
        [str(python), "-c", code], env={}, cwd="/", capture_output=True, text=True, check=True
    )
    outside = {
        Path(line.split()[-1]).name.split(".so")[0]
        for line in done.stdout.splitlines()
        if ".so" in line and str(torch_image.rootfs.resolve()) not in line
    }
    glibc = {
        "libc",
        "libm",
        "libdl",
        "libpthread",
        "librt",
        "libutil",
        "libresolv",
        "ld-linux-x86-64",
    }
    assert outside <= glibc


def verified(image: Image) -> List[verification.Proof]:
    """Compare every form with the archive, import its libraries; return what is wrong."""
    wanted = ["rootfs", "docker"]
    if tools.apptainer():
        forms.make_form(image, "sif", print)
        wanted.append("sif")
    findings = verification.verify(image, wanted, print)
    for form in wanted:
        assert {f.what for f in findings if f.form == form} == {"digest", "self-check", "tree"}
        check = next(f for f in findings if (f.form, f.what) == (form, "self-check"))
        libraries = registry.load("stacks", image.name).libraries
        assert all(module in check.detail for module in libraries)
    return [f for f in findings if not f.ok]


@pytest.mark.breadth  # the test below reads Caffe's image as a whole
def test_every_form_holds_the_same_files_and_its_libraries_import(torch_image: Image) -> None:
    assert verified(torch_image) == []


def test_a_changed_file_is_named_and_no_other(caffe_image: Image) -> None:
    planted = caffe_image.rootfs / "usr/planted"
    planted.write_text("x")
    try:
        (wrong,) = verified(caffe_image)
    finally:
        planted.unlink()
    assert (wrong.form, wrong.what) == ("rootfs", "tree")
    assert wrong.detail.startswith("1 differ from archive: usr/planted: only in the second")


def test_a_sif_has_the_environment_and_the_command_of_its_archive(torch_image: Image) -> None:
    need("apptainer")
    program = tools.apptainer() or ""
    config = archive.contents(torch_image.archive).config["config"]
    words = ["--containall", "--cleanenv", forms.make_form(torch_image, "sif", print)]
    env = {**os.environ, **tools.apptainer_env()}

    def output(*command: str) -> str:
        argv = [program, "-q", *command]
        return subprocess.run(argv, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout

    inside = output("exec", *words, "env").splitlines()
    assert set(config["Env"]) <= set(inside)
    assert "torch" in output("run", *words)
    assert output("run", *words, "echo", "a  b") == "a  b\n"


def test_caffe_starts_in_docker_and_apptainer(caffe_image: Image) -> None:
    for form in ["docker", *(["sif"] if tools.apptainer() else [])]:
        source = forms.make_form(caffe_image, form, print)
        out = verification.inside(form, source, ["caffe", "--version"])
        assert "caffe version 1.0.0" in out
        code = "import caffe, sys; assert sys.version_info[:2] == (3, 9); print(caffe.__version__)"
        assert verification.inside(form, source, ["python3", "-c", code]).strip() == "1.0.0"


def test_the_caffe_image_and_the_host_have_the_same_files(caffe_image: Image) -> None:
    need("caffe")
    stack = registry.installed("caffe")
    inside = f"{caffe_image.rootfs}{PREFIX_INSIDE}"
    here, there = _prefix.record(stack.prefix), _prefix.record(inside)
    if stack.own or here["recipe"] != prefix.wanted("caffe"):
        pytest.skip(f"{stack.prefix} is not what `make caffe` makes now")
    assert here == there
    assert tree.differences(tree.listing(stack.prefix), tree.listing(inside)) == []


def test_two_ranks_of_caffe_talk_in_a_container(caffe_image: Image) -> None:
    code = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1) * 10 + 1)"
    words = ["--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated", "-np", "2"]
    words += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"]
    argv = ["mpirun", *words, "python3", "-c", code]
    env = {**caffe_stack.environment(PREFIX_INSIDE), "TMPDIR": "/tmp"}
    env["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    for form in ["docker", *(["sif"] if tools.apptainer() else [])]:
        source = forms.make_form(caffe_image, form, print)
        assert verification.inside(form, source, argv, env=env).split() == ["21", "21"]


def test_a_killed_build_leaves_nothing_whole_and_no_daemon(tmp_path: Path) -> None:
    need("root")
    if os.environ.get("DOCKER_HOST"):
        env = {k: v for k, v in os.environ.items() if k != "DOCKER_HOST"}
    else:
        env = dict(os.environ)
    argv = [sys.executable, "-m", "iobench.cli.main", "image", "build", "torch", "--images"]
    with subprocess.Popen(
        [*argv, str(tmp_path)], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if "bootstrapping" in line or "wheels" in line or "Step" in line:
                break
        process.send_signal(signal.SIGTERM)
        said += process.stderr.read()
    assert process.returncode == 130, said
    assert not (tmp_path / "torch.json").exists()
    assert not [path for path in tmp_path.rglob("*.partial") if path.exists()]
    pidfile = tmp_path / docker_daemon.STORE / "dockerd.pid"
    deadline = time.monotonic() + 10
    while pidfile.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not pidfile.exists()
