"""Images without building one: archives, whiteouts, records, recipes, what goes wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest

import iobench.images.archive as archive
import iobench.images.base as base
import iobench.images.build as build
import iobench.images.catalogue as catalogue
import iobench.images.disk as disk
import iobench.images.docker_engine as docker_engine
import iobench.images.forms as forms
import iobench.images.recipe as recipe
import iobench.images.sif as sif
import iobench.images.tree as tree
import iobench.images.verify as verification
from iobench.core.errors import ImageError
from iobench.host import engines
from iobench.images import docker_daemon
from iobench.images.model import Image, recipe_of
from tests.build.users import as_nobody
from tests.capabilities import need

Entry = Tuple[str, str, str]  # (path, kind, content or target)


def layer(entries: List[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, value in entries:
            item = tarfile.TarInfo(name)
            item.mode = 0o755 if kind == "dir" else 0o4755
            item.type = {
                "dir": tarfile.DIRTYPE,
                "file": tarfile.REGTYPE,
                "link": tarfile.SYMTYPE,
                "hard": tarfile.LNKTYPE,
                "device": tarfile.CHRTYPE,
            }[kind]
            data = value.encode() if kind == "file" else b""
            item.size = len(data)
            item.linkname = value if kind in ("link", "hard") else ""
            tar.addfile(item, io.BytesIO(data))
    return buffer.getvalue()


def write_archive(path: Path, layers: List[List[Entry]], architecture: str = "amd64") -> str:
    """Write an archive as `docker save` does; return its digest."""
    raw = [layer(entries) for entries in layers]
    diffs = ["sha256:" + hashlib.sha256(data).hexdigest() for data in raw]
    facts = {"architecture": architecture, "os": "linux", "config": {"Cmd": ["/hello"]}}
    rootfs = {"type": "layers", "diff_ids": diffs}
    config = json.dumps({**facts, "rootfs": rootfs}).encode()
    digest = hashlib.sha256(config).hexdigest()
    names = [f"{number}/layer.tar" for number in range(len(raw))]
    whole = {"Config": "config.json", "Layers": names, "RepoTags": [f"iobench-torch:{digest[:12]}"]}
    manifest = json.dumps([whole]).encode()
    members = dict(zip(names, raw))
    members.update({"config.json": config, "manifest.json": manifest})
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            item = tarfile.TarInfo(name)
            item.size = len(data)
            tar.addfile(item, io.BytesIO(data))
    return f"sha256:{digest}"


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """A whole, current image with one file in it."""
    path = tmp_path / "torch.tar"
    digest = write_archive(path, [[("hello", "file", "world")]], recipe.architecture())
    made = Image(
        name="torch",
        digest=digest,
        recipe=recipe.digest("torch"),
        version="0",
        revision="abc",
        architecture=recipe.architecture(),
        python="/opt/iobench/bin/python3",
        base="none",
        created="2026-01-01T00:00:00+00:00",
        pins="exact",
        bytes=path.stat().st_size,
        folder=str(tmp_path),
    )
    catalogue.write(made)
    return made


def unpacked(tmp_path: Path, *layers: List[Entry]) -> Dict[str, str]:
    write_archive(tmp_path / "a.tar", list(layers))
    archive.unpack(tmp_path / "a.tar", tmp_path / "root")
    return tree.listing(str(tmp_path / "root"))


# -- layers ----------------------------------------------------------------------------------


def test_a_whiteout_removes_a_file_a_folder_and_a_link(tmp_path: Path) -> None:
    low: List[Entry] = [("a/b/c", "file", "1"), ("a/d", "file", "2"), ("a/e", "link", "/etc")]
    high: List[Entry] = [("a/.wh.b", "file", ""), ("a/.wh.e", "file", "")]
    assert set(unpacked(tmp_path, low, high)) == {"a/d"}


def test_an_opaque_folder_keeps_only_what_its_own_layer_brings(tmp_path: Path) -> None:
    low: List[Entry] = [("a/old", "file", "1"), ("a/deep/old", "file", "1")]
    high: List[Entry] = [
        ("a/new", "file", "2"),
        ("a/.wh..wh..opq", "file", ""),
        ("a/newer", "file", "3"),
    ]
    assert set(unpacked(tmp_path, low, high)) == {"a/new", "a/newer"}


def test_later_layers_replace_files_links_and_folders(tmp_path: Path) -> None:
    low: List[Entry] = [("a", "file", "1"), ("b/c", "file", "1"), ("d", "link", "a")]
    high: List[Entry] = [("a/x", "file", "2"), ("b", "link", "a"), ("d", "file", "2")]
    found = unpacked(tmp_path, low, high)
    assert set(found) == {"a/x", "b", "d"}
    assert found["b"] == "-> a"
    assert (tmp_path / "root/d").read_text() == "2"


def test_hard_links_share_a_file_and_devices_and_setuid_are_left_out(tmp_path: Path) -> None:
    unpacked(tmp_path, [("a", "file", "1"), ("b", "hard", "a"), ("null", "device", "")])
    root = tmp_path / "root"
    assert (root / "a").stat().st_ino == (root / "b").stat().st_ino
    assert not (root / "null").exists()
    assert (root / "a").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("target", ["/", "../../..", "/../.."])
def test_no_layer_writes_outside_its_root(tmp_path: Path, target: str) -> None:
    entries: List[Entry] = [("out", "link", target), ("out/escaped", "file", "x")]
    entries += [("../up", "file", "x")]
    unpacked(tmp_path, entries)
    assert (tmp_path / "root/escaped").read_text() == "x"
    assert (tmp_path / "root/up").read_text() == "x"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "root"]


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="circle"):
        unpacked(tmp_path, [("a", "link", "b"), ("b", "link", "a"), ("a/x", "file", "1")])


def test_a_changed_layer_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_archive(path, [[("hello", "file", "world")]])
    path.write_bytes(path.read_bytes().replace(b"world", b"wurld"))
    with pytest.raises(ImageError, match="damaged"):
        archive.unpack(path, tmp_path / "root")
    with pytest.raises(ImageError, match="damaged"):
        archive.check(path)


def test_no_form_is_made_of_a_damaged_archive_and_verify_says_so(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sif, "build", lambda image, tree, out: out.write_text("x"))
    assert forms.make_form(image, "sif")
    image.sif.unlink()
    image.archive.write_bytes(image.archive.read_bytes().replace(b"world", b"wurld"))
    with pytest.raises(ImageError, match="damaged"):
        forms.make_form(image, "sif")
    assert not image.sif.exists()
    wrong = verification.verify(image, ["sif"])[-1]
    assert not wrong.ok
    assert "damaged" in wrong.detail


@pytest.mark.parametrize("keep", [0, 600, 5000])
def test_a_cut_archive_is_no_image(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.tar"
    write_archive(path, [[("hello", "file", "world")]])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ImageError, match="whole image archive"):
        archive.contents(path)


# -- trees -----------------------------------------------------------------------------------


def test_every_differing_path_is_listed(tmp_path: Path) -> None:
    for side, text in (("one", "1"), ("two", "2")):
        (tmp_path / side / "etc").mkdir(parents=True)
        (tmp_path / side / "etc/hosts").write_text(text)  # the runtime's, not the image's
        (tmp_path / side / "changed").write_text(text)
        (tmp_path / side / "same").write_text("x")
        (tmp_path / side / f"only-{side}").symlink_to("x")
        (tmp_path / side / "link").symlink_to(text)
    one, two = tree.listing(str(tmp_path / "one")), tree.listing(str(tmp_path / "two"))
    assert tree.differences(one, two) == [
        "changed: differs",
        "link: differs",
        "only-one: only in the first",
        "only-two: only in the second",
    ]
    assert tree.digest(one) != tree.digest(two)
    (tmp_path / "one/same").chmod(0o4711)
    assert tree.listing(str(tmp_path / "one")) == one


def test_what_cannot_be_read_is_named_and_is_no_difference() -> None:
    one = {"a": "1", "b": tree.UNREADABLE, "c/": tree.UNREADABLE}
    two = {"a": "1", "b": "2", "c/d": "3"}
    assert tree.differences(one, two) == []
    assert tree.unread(one, two) == ["b", "c/"]


# -- records ---------------------------------------------------------------------------------


def test_a_whole_image_is_found(image: Image, tmp_path: Path) -> None:
    assert catalogue.find("torch", tmp_path) == image
    assert image.tag == f"iobench-torch:{image.digest[7:19]}"


def stale(image: Image, **changes: str) -> None:
    catalogue.write(dataclasses.replace(image, **changes))


def test_another_recipe_is_stale_and_says_how_to_mend_it(image: Image, tmp_path: Path) -> None:
    stale(image, recipe="0123")
    with pytest.raises(ImageError, match=r"stale.*recipe 0123.*iobench image build torch"):
        catalogue.find("torch", tmp_path)


def test_another_architecture_is_refused(image: Image, tmp_path: Path) -> None:
    stale(image, architecture="riscv64")
    with pytest.raises(ImageError, match=r"is for riscv64 and this machine is"):
        catalogue.find("torch", tmp_path)


def test_a_half_built_image_never_looks_whole(image: Image, tmp_path: Path) -> None:
    (tmp_path / "torch.json").unlink()
    with pytest.raises(ImageError, match="half-built"):
        catalogue.find("torch", tmp_path)
    image.archive.unlink()
    with pytest.raises(ImageError, match="not built"):
        catalogue.find("torch", tmp_path)


def test_a_cut_or_missing_archive_is_refused(image: Image, tmp_path: Path) -> None:
    os.truncate(image.archive, 100)
    with pytest.raises(ImageError, match="has 100 bytes and was recorded with"):
        catalogue.find("torch", tmp_path)
    image.archive.unlink()
    with pytest.raises(ImageError, match="is gone"):
        catalogue.find("torch", tmp_path)


def test_a_damaged_record_is_refused(image: Image, tmp_path: Path) -> None:
    record = tmp_path / "torch.json"
    facts = json.loads(record.read_text())
    for change in ({"digest": 5}, {"bytes": "x"}, {"name": "caffe"}, {"name": "../x"}):
        record.write_text(json.dumps({**facts, **change}))
        with pytest.raises(ImageError, match=r"damaged.*remove it"):
            catalogue.find("torch", tmp_path)
    record.write_text(json.dumps({**facts, "forms": [1], "stamps": "x"}))
    assert catalogue.made(image) == catalogue.made(image, "stamps") == {}
    for text in ("{", "{}", "[]", ""):
        record.write_text(text)
        with pytest.raises(ImageError, match="damaged"):
            catalogue.find("torch", tmp_path)


def test_unknown_names_and_forms_are_refused(image: Image, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="there are: caffe, torch"):
        catalogue.find("tensor", tmp_path)
    with pytest.raises(ImageError, match="there are: caffe, torch"):
        build.build("tensor", tmp_path)
    with pytest.raises(ImageError, match="there are: docker"):
        forms.in_form(image, "zip")


def test_rootfs_is_made_once_and_remade_for_another_image(image: Image, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"not made yet.*--form rootfs"):
        forms.in_form(image, "rootfs")
    where = forms.make_form(image, "rootfs")
    assert Path(where, "hello").read_text() == "world"
    said: List[str] = []
    forms.make_form(image, "rootfs", said.append)
    assert "there already" in said[0]
    digest = write_archive(image.archive, [[("hello", "file", "mundo")]], image.architecture)
    other = dataclasses.replace(image, digest=digest)
    catalogue.write(other, catalogue.made(image))
    with pytest.raises(ImageError, match="made from another image"):
        forms.in_form(other, "rootfs")
    assert Path(forms.make_form(other, "rootfs"), "hello").read_text() == "mundo"


@pytest.mark.parametrize("how", ["edited", "purged", "added"])
def test_a_form_that_was_touched_is_not_run_and_is_made_anew(image: Image, how: str) -> None:
    hello = Path(forms.make_form(image, "rootfs"), "hello")
    (hello.parent / "__pycache__").mkdir()
    (hello.parent / "__pycache__/x.pyc").write_text("an interpreter's")
    assert forms.in_form(image, "rootfs")
    if how == "purged":
        hello.unlink()
    else:
        (hello if how == "edited" else hello.with_name("new")).write_text("wurld")
    with pytest.raises(ImageError, match="changed since it was made"):
        forms.in_form(image, "rootfs")
    forms.make_form(image, "rootfs")
    assert [p.name for p in hello.parent.iterdir()] == ["hello"]
    assert hello.read_text() == "world"


def test_another_user_runs_a_shared_form_and_is_refused_to_make_one(image: Image) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name in ("torch.tar", "torch.json"):
            shutil.copy(Path(image.folder, name), folder)
        shared = dataclasses.replace(image, folder=folder)
        with as_nobody(), pytest.raises(ImageError, match=r"this user may not write.*--images"):
            forms.make_form(shared, "rootfs")
        closed = Path(forms.make_form(shared, "rootfs"), "root")
        closed.mkdir(mode=0o700)
        (closed / ".profile").write_text("root's")
        with as_nobody():
            assert forms.make_form(shared, "rootfs") == str(closed.parent)


def test_verify_names_what_changed_in_the_only_form(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        verification, "_self_check", lambda *_: verification.Proof("rootfs", "self-check", True, "")
    )
    hello = Path(forms.make_form(image, "rootfs"), "hello")
    assert all(f.ok for f in verification.verify(image, ["rootfs"]))
    hello.write_text("wurld")
    (wrong,) = [f for f in verification.verify(image, ["rootfs"]) if not f.ok]
    assert (wrong.form, wrong.what) == ("rootfs", "tree")
    assert "hello: differs" in wrong.detail
    assert not list(Path(image.folder).glob(".verify*"))


def test_an_interrupted_form_is_cleaned_up(image: Image, tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if "layer 1" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        forms.make_form(image, "rootfs", interrupt)
    assert not image.rootfs.exists()
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def test_a_removed_image_is_gone_in_every_form(image: Image, tmp_path: Path) -> None:
    forms.make_form(image, "rootfs")
    went = {Path(path).name for path in forms.remove("torch", tmp_path)}
    assert went == {"torch.json", "torch.tar", "torch"}
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert forms.remove("torch", tmp_path) == []
    assert forms.remove("torch", tmp_path / "typo") == []
    assert not (tmp_path / "typo").exists()


def test_a_build_takes_what_it_replaces_from_the_stores(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, gone = [image], []
    monkeypatch.setattr(build, "_build", lambda *_: made[-1])
    monkeypatch.setattr(build, "_engine", lambda *_: contextlib.nullcontext(docker_engine))
    monkeypatch.setattr(forms, "forget", gone.append)
    assert build.build("torch", tmp_path) == image  # current: nothing is built
    assert build.build("torch", tmp_path, force=True) == image  # the very same again
    assert gone == []
    made.append(dataclasses.replace(image, digest=f"sha256:{'1' * 64}"))
    assert build.build("torch", tmp_path, force=True) == made[-1]
    assert gone == [image]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["docker", "podman"])
def test_the_stores_forget_a_removed_image_unless_it_is_in_use(
    image: Image, form: str, tmp_path: Path
) -> None:
    need(form)
    engine = forms.ENGINES[form]
    with docker_daemon.docker(print, tmp_path) if form == "docker" else contextlib.nullcontext():
        words = engines.podman() if form == "podman" else ["docker"]
        assert forms.make_form(image, form) == image.tag
        name = f"iobench-test-{os.getpid()}"
        subprocess.run([*words, "create", "--name", name, "--network=none", image.tag], check=True)
        try:
            forms.forget(image)
            assert engine.image_id(image.tag) == image.digest
        finally:
            subprocess.run([*words, "rm", "--force", name], check=True)
        forms.forget(image)
        assert engine.image_id(image.tag) == ""


# -- recipes ---------------------------------------------------------------------------------

DOCKERFILE = """ARG A=x
# a comment
FROM ${A} AS one
RUN one
FROM one AS two
RUN two
FROM ${A} AS three
COPY --from=two /x /x
FROM ${A} AS four
RUN four
"""


def test_only_the_stages_that_a_target_needs_are_kept() -> None:
    assert recipe.stages(DOCKERFILE, "four") == "ARG A=x\nFROM ${A} AS four\nRUN four"
    three = recipe.stages(DOCKERFILE, "three")
    assert [word for word in ("one", "two", "three", "four") if f"AS {word}" in three] == [
        "one",
        "two",
        "three",
    ]
    with pytest.raises(ImageError, match="no stage five; there are: one"):
        recipe.stages(DOCKERFILE, "five")


@pytest.mark.parametrize("name", ["torch", "caffe"])
def test_each_file_of_a_recipe_changes_its_digest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements").mkdir()
    for path in recipe.files(name):
        copy = tmp_path / path.relative_to(recipe.root())
        copy.write_bytes(path.read_bytes())
    before = recipe.digest(name)
    monkeypatch.setattr(recipe, "root", lambda: tmp_path)
    assert recipe.digest(name) == before
    seen = {before}
    for path in recipe.files(name):
        old = path.read_text()
        changed = old.replace(f"AS {name}\n", f"AS {name}\nRUN true\n") + "\n"
        path.write_text(changed)
        seen.add(recipe.digest(name))
        path.write_text(old)
    dockerfile = recipe.files(name)[0]
    dockerfile.write_text("# a comment changes nothing\n" + dockerfile.read_text())
    assert recipe.digest(name) == before
    assert len(seen) == len(recipe.files(name)) + 1


def test_the_dockerfile_needs_no_buildkit() -> None:
    text = (recipe.root() / "Dockerfile").read_text()
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not [word for word in ("--mount", "<<", "--link", "--chmod", "# syntax") if word in code]
    for name in ("base", "torch", "caffe"):
        assert "USER 1000:1000" in recipe.stages(text, name)


def test_the_definition_of_a_sif_runs_nothing() -> None:
    (path,) = (recipe.root() / "singularity").iterdir()
    text = path.read_text()
    assert text.startswith("Bootstrap: localimage\n")
    assert "iobench.digest {{ DIGEST }}" in text
    assert "%post" not in text


def test_a_sif_is_defined_with_what_the_archive_names() -> None:
    odd = 'it\'s $HOME "x"'
    settings = {
        "Env": ["A=/x:/y", f"ODD={odd}", "EMPTY="],
        "Cmd": ["sh", "-c", "echo a b"],
        "Labels": {"title": "iobench torch"},
    }
    labels, _, rest = sif._sections({"config": settings}).partition("%environment\n")
    assert labels == "    title iobench torch\n"
    environment, _, script = rest.partition("%runscript\n")
    text = f'{environment}printf "%s\\n" "$A" "$ODD" "$EMPTY"'
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["/x:/y", odd, ""]
    for words, said in (((), "a b\n"), (("echo", "c  d"), "c  d\n")):
        done = subprocess.run(
            ["sh", "-c", script, "sh", *words], capture_output=True, text=True, check=True
        )
        assert done.stdout == said


def test_a_sif_is_made_of_the_unpacked_image_where_there_is_one(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def build(image: Image, tree: Path, out: Path) -> None:
        seen.append(tree)
        out.write_text((tree / "hello").read_text())

    monkeypatch.setattr(sif, "build", build)
    assert Path(forms.make_form(image, "sif")).read_text() == "world"
    assert not seen[0].exists()
    image.sif.unlink()
    kept = forms.make_form(image, "rootfs")
    forms.make_form(image, "sif")
    assert str(seen[1].resolve()) == kept


@pytest.mark.parametrize("name", ["torch", "caffe"])
def test_debian_packages_are_locked_by_version(name: str) -> None:
    path = recipe.lock(recipe_of(name).suite)
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all(
        re.fullmatch(r"[a-z0-9.+-]+=[^ =]+( [0-9a-f]{64} debian\S+\.deb)?", s) for s in lines
    )
    names = [line.partition("=")[0] for line in lines]
    assert len(set(names)) == len(names)
    assert len(base.locked(recipe_of(name).suite)) == 64 or recipe.architecture() != "amd64"


def test_moved_pins_are_named() -> None:
    assert build._pins("exact\n", "exact") == "exact"
    assert build._pins("exact\n", "moved") == "moved: base"
    assert build._pins("moved\na=2 wanted 1\n", "exact") == "moved: a=2 wanted 1"


def test_without_a_registry_and_mmdebstrap_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="apt-get install mmdebstrap"):
        base.bootstrap(tmp_path, lambda line: None)


# -- what goes wrong -------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    need("root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True, timeout=30
    )
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=30)


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_and_says_so(small_disk: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ImageError, match=r"disk is full.*--images"),
        disk.partial(small_disk / "torch.tar") as path,
    ):
        path.write_bytes(b"x" * (2 << 20))
    assert list(small_disk.iterdir()) == []
    big: List[Entry] = [("big", "file", "x" * (2 << 20))]
    write_archive(tmp_path / "a.tar", [big])
    with (
        pytest.raises(ImageError, match="more than is free"),
        disk.partial(small_disk / "root") as root,
    ):
        archive.unpack(tmp_path / "a.tar", root)
    assert list(small_disk.iterdir()) == []


@pytest.mark.slow
def test_a_build_says_beforehand_how_much_space_it_needs(small_disk: Path) -> None:
    with pytest.raises(ImageError, match=r"needs about 2.6 GB in .* free"):
        disk.check_space(small_disk, 2.6e9, "the archive of image torch")


def test_a_write_that_fails_for_another_reason_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="odd"), disk.partial(tmp_path / "x"):
        raise OSError(errno.EIO, "odd")


def test_two_builds_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        disk.lock(tmp_path),
        pytest.raises(ImageError, match=r"are being built in .* pid"),
        disk.lock(tmp_path),
    ):
        pass


def test_two_do_not_make_one_form_at_once(image: Image, tmp_path: Path) -> None:
    with disk.lock(tmp_path), pytest.raises(ImageError, match=r"are being built in .* pid"):
        forms.make_form(image, "rootfs")
    assert forms.make_form(image, "rootfs")


def test_a_program_ends_with_the_iobench_that_started_it(tmp_path: Path) -> None:
    code = "from iobench.images import disk; disk.call(['sleep', '77.25'], 'waiting')"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (found := children.read_text().split()):
            time.sleep(0.05)
        while not Path(f"/proc/{found[0]}/cmdline").read_bytes().startswith(b"sleep"):
            time.sleep(0.05)
        process.kill()
    for _ in range(100):
        status = Path(f"/proc/{found[0]}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("sleep goes on without its parent")


def test_a_program_that_fails_is_quoted_and_one_that_is_missing_named() -> None:
    with pytest.raises(ImageError, match=r"trying failed \(sh\): first; second"):
        disk.call(["sh", "-c", "echo first >&2; echo second >&2; exit 3"], "trying")
    with pytest.raises(ImageError, match=r"no-such-program is not installed"):
        disk.call(["no-such-program"], "trying")


# -- the daemon ------------------------------------------------------------------------------


def test_a_named_daemon_that_is_stopped_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with (
        pytest.raises(ImageError, match=r"DOCKER_HOST=.*does not answer \(nobody listens"),
        docker_daemon.docker(lambda line: None, tmp_path),
    ):
        pass
    with pytest.raises(ImageError, match="no Docker daemon answers"):
        docker_engine.image_id("x")


def test_a_missing_docker_names_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(docker_daemon, "docker_answers", lambda: "no socket")
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(ImageError, match=r"no dockerd is installed.*docs/containers.md"),
        docker_daemon.docker(lambda line: None, tmp_path),
    ):
        pass
    (tmp_path / "dockerd").write_text("#!/bin/sh\n")
    (tmp_path / "dockerd").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.raises(ImageError, match=r"systemctl start docker.*group docker"),
        docker_daemon.docker(lambda line: None, tmp_path),
    ):
        pass


def test_a_daemon_that_cannot_start_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(docker_daemon, "docker_answers", lambda: "no socket")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    fake = tmp_path / "dockerd"
    fake.write_text("#!/bin/sh\necho it cannot be >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        pytest.raises(ImageError, match=r"dockerd did not start: it cannot be"),
        docker_daemon.docker(lambda line: None, tmp_path / "images"),
    ):
        pass
    assert "DOCKER_HOST" not in os.environ


def test_what_a_killed_iobenchs_daemon_left_is_removed(tmp_path: Path) -> None:
    left, other = (Path(tempfile.mkdtemp(prefix=f"{n}-", dir="/tmp"))
                   for n in ("iobench-docker", "precious"))  # fmt: skip
    for folder in (left, other):
        (tmp_path / "state").write_text(str(folder))
        docker_daemon._clear_left(tmp_path / "state")
    assert not left.exists()
    assert other.exists()
    other.rmdir()


def test_another_iobenchs_daemon_is_left_alone(tmp_path: Path) -> None:
    pidfile = tmp_path / "dockerd.pid"
    pidfile.write_text(str(os.getpid()))  # runs, and is no dockerd: a stale file
    docker_daemon._clear_stale(pidfile)
    assert not pidfile.exists()


def test_apptainer_has_the_name_that_spython_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only ``apptainer`` is on PATH, ``singularity`` is it for as long as it is needed."""
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho $0 $1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sif.tools, "FOLDER", tmp_path / "none")
    with sif._as_singularity() as named:
        found = shutil.which("singularity", path=named["PATH"])
        assert found
        assert Path(found).resolve() == program
    assert not Path(found).exists()
    (tmp_path / "singularity").symlink_to(program)
    with sif._as_singularity() as named:
        assert named == {}
