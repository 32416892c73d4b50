"""Images of the user's own: what a spec may name, how a worker is put in, what is left out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.core import registry
from iobench.core.cases import Case, Dataset
from iobench.core.errors import ImageError, SpecError
from iobench.core.inside import OWN_PATH
from iobench.core.protocols import ImageUse
from iobench.images import docker_engine, own
from iobench.plan.resolve import fit
from iobench.plan.rules import check
from iobench.run import availability, command, own_images
from iobench.spec import load
from iobench.spec.load import expand

CONTAINERS = ["docker", "podman", "apptainer", "charliecloud", "unpacked"]


def document(image: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "own",
        "case": {"image": image},
        "matrix": {"pipeline": ["lmdb", "dali"], "runtime": ["bare", *CONTAINERS]},
        "ladder": {"only": {"runtime": ["bare"]}},
        "contrasts": [{"over": "runtime", "base": "bare", "caches": ["warm"]}],
        **more,
    }


def folder_with(path: Path, script: str) -> Path:
    """Make a folder whose python3, behind an absolute link as packages make them, is a script."""
    python = path / "usr/lib/real"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    (path / "usr/bin").mkdir()
    (path / "usr/bin/python3").symlink_to("/usr/lib/real")
    return path


def python_folder(path: Path) -> Path:
    return folder_with(path, f'exec {sys.executable} "$@"')


@pytest.mark.parametrize(
    ("image", "forms"),
    [
        ("docker://site/torch:1", ["docker", "podman", "sif", "", ""]),
        ("docker-daemon:torch:1", ["docker", "", "sif", "", ""]),
        ("docker-archive:/x/torch.tar", ["", "", "sif", "", ""]),
        ("/x/torch.sif", ["", "", "sif", "", ""]),
        ("./torch", ["", "", "rootfs", "rootfs", "rootfs"]),
    ],
)
def test_each_runtime_takes_the_forms_that_it_can(image: str, forms: list[str]) -> None:
    for runtime, form in zip(CONTAINERS, forms, strict=True):
        found = registry.form_of(Case(runtime=runtime, image=image))
        if form:
            assert found == form
            own.takes(image, found)
        else:
            with pytest.raises(ImageError, match=r"cannot run .* it takes"):
                own.takes(image, found)


def test_its_stack_is_that_of_its_members_on_bare_metal_too() -> None:
    spec = load.parse(document("/x/torch.sif"))
    assert {registry.stack_of(case) for case in expand(spec)} == {"torch"}
    check(spec)
    assert availability.image_names(spec) == []
    trained = Case(trainer="caffe", loader="native", format="lmdb", image="/x/caffe.sif")
    assert registry.stack_of(trained) == "caffe"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"image": "mine"},
            "'mine' is unknown; allowed: caffe, torch, or one of your own",
        ),
        ({"placement": "tmpfs", "image": "./x", "runtime": "docker"}, ""),
        (
            {"placement": "image", "image": "./x", "runtime": "docker"},
            "'image' does not change an image of your own .* allowed: bind, staged, tmpfs",
        ),
        (
            {"launcher": "mpirun", "image": "./x", "runtime": "docker"},
            "starts inside the container, and image './x' has none",
        ),
    ],
)
def test_a_case_says_what_is_possible(change: dict[str, Any], message: str) -> None:
    if not message:
        load.parse({"name": "x", "case": change})
        return
    with pytest.raises(SpecError, match=message):
        load.parse({"name": "x", "case": change})


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.sif").mkdir()
    (tmp_path / "b.img").touch()
    for image, message in [
        (tmp_path / "none.sif", "no such file or folder, nor is it one of docker://"),
        (tmp_path / "a.sif", "a SIF file ends in .sif"),
        (tmp_path / "b.img", "write docker-archive:FILE"),
        ("docker-archive:/none.tar", "no such file"),
    ]:
        with pytest.raises(ImageError, match=message):
            own.check(str(image))
    own.check("docker://site/torch")


def test_an_engine_pulls_what_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(docker_engine, "image_id", lambda name: "sha256:12" if asked else "")
    monkeypatch.setattr(docker_engine, "pull", lambda name: asked.append(name) or "")
    use = own.use("docker://site:5000/torch", "docker", Path("images"), print)
    assert (use, asked) == (("sha256:12", "12"), ["site:5000/torch:latest"])
    monkeypatch.setattr(docker_engine, "image_id", lambda name: "")
    monkeypatch.setattr(docker_engine, "pull", lambda name: "no route")
    with pytest.raises(ImageError, match=r"does not have the image a:1 .*\(no route\): pull"):
        own.use("docker://a:1", "docker", Path("images"), print)
    with pytest.raises(ImageError, match="is never pulled"):
        own.use("docker-daemon:a:1", "docker", Path("images"), print)


def test_a_worker_is_put_into_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "unavailable", lambda axis, name: "")
    root = python_folder(tmp_path / "root")
    images = {str(root): ImageUse(str(root), "", {f: str(root) for f in ("docker", "rootfs")})}
    data = Dataset(str(tmp_path), "", 0, 0, 0, 0, "", "")

    def argv(runtime: str) -> list[str]:
        case = Case(runtime=runtime, image=str(root))
        return list(command.start(case, data, tmp_path, images, name="n").argv)

    images["docker://a"] = ImageUse("docker://a", "", {"docker": "0123"})
    docker = command.start(
        Case(runtime="docker", image="docker://a"), data, tmp_path, images, name="n"
    ).argv
    assert docker[docker.index("0123") + 1 :][:2] == ["/bin/sh", "-c"]
    assert list(docker[-3:]) == ["-m", "iobench.worker", "/iobench/work/invitation.json"]
    assert not [word for word in docker if word.startswith(("--env=PATH=", "--env=PYTHONPATH="))]
    assert f"PATH={OWN_PATH}" in argv("charliecloud")
    unpacked = argv("unpacked")
    assert f"{root}/usr/lib/real" in unpacked
    assert f"PYTHONPATH={tmp_path}/code" in unpacked
    with pytest.raises(ImageError, match="no python3 in /opt/conda/bin"):
        own.python_in(str(tmp_path / "root/usr/lib"))


def test_one_look_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(runtime="unpacked", image=str(python_folder(tmp_path / "root")))
    found = own_images.look(case, ["numpy", "no_such_library"], tmp_path, print)
    assert list(found) == ["no_such_library"]
    use = command.images_for([case], tmp_path)[case.image]
    assert use.digest == use.digests["rootfs"] != ""
    facts = command.record_of(case, {case.image: use})
    assert (facts["image"], facts["digest"], facts["form"]) == (case.image, use.digest, "rootfs")
    monkeypatch.setattr(own_images, "_LOOK", own_images._LOOK.replace("< (3, 9)", "< (99, 0)"))
    with pytest.raises(ImageError, match=r"its python3 is 3.* needs 3.9 or newer"):
        own_images.look(case, ["numpy"], tmp_path, print)


def test_the_modules_are_those_of_the_members() -> None:
    case = Case(loader="torch", format="lmdb", trainer="torch")
    wanted = own_images.modules_of(case, digest=True)
    assert set(wanted) == {"numpy", "lmdb", "torch", "simplejpeg", "cv2", "blake3"}
    assert "blake3" not in own_images.modules_of(case, digest=False)


@pytest.fixture
def lacks_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(case: Case, modules: Any, folder: Path, say: Any) -> dict[str, str]:
        return {"nvidia.dali": "No module named 'nvidia'"}

    monkeypatch.setattr(own_images, "look", look)


def test_only_the_cases_that_cannot_run_are_left_out(tmp_path: Path, lacks_dali: None) -> None:
    missing = {"charliecloud": "no program ch-run"}
    spec = load.parse(document(str(tmp_path)))
    left, notes = own_images.fitted(spec, missing, tmp_path, print)
    left, more = fit(left, missing)
    assert {(c.pipeline, c.runtime) for c in expand(left)} == {
        ("torch:lmdb", "bare"), ("dali:jpeg", "bare"), ("torch:lmdb", "apptainer"),
        ("torch:lmdb", "unpacked"),
    }  # fmt: skip
    assert f"torch:lmdb, dali:jpeg: left out: runtime docker: cannot run {tmp_path}" in notes[0]
    assert "lacks nvidia-dali-cuda120 (No module named 'nvidia'): add them to the image" in notes[2]
    assert f"the user's own image {tmp_path} runs in apptainer, unpacked: its software" in notes[-1]
    assert more == ["runtime charliecloud is left out: no program ch-run"]
    check(left)


def test_what_a_spec_names_alone_must_run(tmp_path: Path, lacks_dali: None) -> None:
    extra = {"pipeline": "dali", "runtime": "apptainer", "batch": 2}
    for found, message in [
        (document(str(tmp_path), cases=[extra]), "^case dali:jpeg .*lacks nvidia-dali"),
        (
            {"name": "x", "case": {"image": str(tmp_path), "runtime": "podman"}},
            "nothing can run in",
        ),
    ]:
        with pytest.raises(ImageError, match=message):
            own_images.fitted(load.parse(found), {}, tmp_path, print)
    spec = load.parse(document("docker://a:1", matrix={"runtime": ["bare", "podman"]}))
    with pytest.raises(ImageError, match=r"nothing can run .*: runtime podman: it is not here"):
        own_images.fitted(spec, {"podman": "it is not here"}, tmp_path, print)


def test_a_spec_excludes_cases_of_its_matrix() -> None:
    unwanted = {"pipeline": ["dali"], "runtime": CONTAINERS}
    spec = load.parse(document("torch", exclude=[unwanted]))
    assert [c.runtime for c in expand(spec) if c.loader == "dali"] == ["bare"]
    assert len(expand(spec)) == 7
    check(spec)
    for wrong, message in [
        ({"runtimes": ["bare"]}, r"exclude\[0\]: unknown key 'runtimes'"),
        ({"runtime": ["bare", *CONTAINERS]}, "exclude: it leaves no case"),
    ]:
        with pytest.raises(SpecError, match=message):
            load.parse(document("torch", exclude=[wrong]))


def test_the_command_line_puts_an_image_into_a_spec() -> None:
    text, where = load.read("bench-io")
    spec = load.parse_text(text, where, image="/x/my.sif")
    assert {case.image for case in expand(spec)} == {"/x/my.sif"}
    check(spec)
