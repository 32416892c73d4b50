"""Archives that a stranger made to write, remove or change something outside the image."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any, Dict, List

import pytest

import iobench.images.archive as archive
from iobench.core.errors import ImageError
from tests.unit.images.test_catalogue import Entry, layer, write_archive


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of the user's with something in it; images are unpacked beside its files."""
    folder = tmp_path / "home"
    (folder / "images").mkdir(parents=True)
    (folder / "precious").write_text("1")
    folder.chmod(0o700)
    (folder / "images").chmod(0o700)
    return folder


def state(home: Path) -> Dict[str, Any]:
    """Return what of the user's an archive must leave alone."""
    return {
        str(p.relative_to(home)): (p.lstat().st_mode, p.lstat().st_nlink, p.read_bytes()[:9])
        for p in [home / "precious"]
    } | {"modes": [home.stat().st_mode, (home / "images").stat().st_mode], "names": sorted(
        p.name for p in home.iterdir())}  # fmt: skip


def attack(home: Path, *layers: List[Entry]) -> str:
    """Unpack the layers in the user's folder; return "" or the error, one line."""
    write_archive(home / "images/a.tar", list(layers))
    before = state(home)
    said = ""
    try:
        archive.unpack(home / "images/a.tar", home / "images/root")
    except ImageError as error:
        said = str(error)
    assert state(home) == before
    assert sorted(p.name for p in (home / "images").iterdir()) == ["a.tar", "root"]
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    "name",
    ["..", "../", "a/..", "a/../..", "./..", ".wh...", "a/.wh...", ".wh..", ".wh.", "x/../../.."],
)
@pytest.mark.parametrize("kind", ["file", "dir", "link"])
def test_no_member_is_the_folder_above(home: Path, name: str, kind: str) -> None:
    said = attack(home, [("a/kept", "file", "1")], [(name, kind, "x")])
    assert "a layer has a member" in said
    assert (home / "images/root/a/kept").read_text() == "1"


def test_a_folders_mode_is_not_given_to_what_a_link_leads_to(home: Path) -> None:
    low: List[Entry] = [("x", "dir", ""), ("y/z", "dir", "")]
    assert not attack(home, low, [("x", "link", str(home)), ("y", "link", str(home.parent))])
    os.makedirs(home.parent / "z", mode=0o700)
    assert not attack_again(home, low, [("y", "link", str(home.parent))])
    assert (home.parent / "z").stat().st_mode & 0o777 == 0o700


def attack_again(home: Path, *layers: List[Entry]) -> str:
    archive.discard(home / "images/root")
    return attack(home, *layers)


@pytest.mark.parametrize("target", ["{}", "../../precious", "link", "link/precious", "..", "a", ""])
def test_no_hard_link_is_to_a_file_outside(home: Path, target: str) -> None:
    entries: List[Entry] = [("link", "link", str(home)), ("a", "dir", "")]
    attack(home, [*entries, ("hard", "hard", target.format(home / "precious"))])
    assert (home / "precious").stat().st_nlink == 1


def test_nothing_is_written_through_a_hard_link_to_a_link(home: Path) -> None:
    entries: List[Entry] = [("l", "link", str(home / "precious")), ("h", "hard", "l")]
    attack(home, [*entries, ("h", "file", "evil"), ("l/x", "file", "evil")])


def compressed(path: Path, data: bytes) -> None:
    """Write an archive whose one layer is ``data``, compressed."""
    config = {"rootfs": {"type": "layers", "diff_ids": ["sha256:0"]}}
    members = {
        "l.tar": gzip.compress(data, 9),
        "c.json": json.dumps(config).encode(),
        "manifest.json": json.dumps([{"Config": "c.json", "Layers": ["l.tar"]}]).encode(),
    }
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            tar.addfile(item, io.BytesIO(content))


def test_a_bomb_is_refused_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed(tmp_path / "a.tar", layer([(f"f{i}", "file", "0" * 65536) for i in range(64)]))
    free = os.statvfs(tmp_path)
    small = os.statvfs_result((4096, 4096, 99, 99, 256, *free[5:]))  # 1 MiB free, of 4 MiB wanted
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    with pytest.raises(ImageError, match="unpacks to more than is free"):
        archive.unpack(tmp_path / "a.tar", tmp_path / "root")
    assert sum(p.stat().st_size for p in (tmp_path / "root").iterdir()) < 1 << 20


def test_a_bomb_of_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compressed(tmp_path / "a.tar", layer([(f"f{i}", "file", "") for i in range(300)]))
    free = list(os.statvfs(tmp_path))
    free[5:8] = [1000, 200, 200]  # inodes
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(free))
    with pytest.raises(ImageError, match="unpacks to more than is free"):
        archive.unpack(tmp_path / "a.tar", tmp_path / "root")
    assert len(list((tmp_path / "root").iterdir())) <= 200


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("manifest", "config"),
    [
        (b"1", b"{}"), (b"[1]", b"{}"), (b"{}", b"{}"), (b"[{}]", b"{}"), (DEEP, b"{}"),
        (b"\xff", b"{}"), (b'[{"Config": 1, "Layers": []}]', b"{}"),
        (b'[{"Config": "c", "Layers": 3}]', b"{}"),
        (b'[{"Config": "c", "Layers": [["c"]]}]', b"{}"),
        (b'[{"Config": "c", "Layers": []}]', DEEP), (b'[{"Config": "c", "Layers": []}]', b"[]"),
        (b'[{"Config": "c", "Layers": []}]', b'{"rootfs": {"diff_ids": 3}}'),
        (b'[{"Config": "c", "Layers": ["c"]}]', b'{"rootfs": {"diff_ids": []}}'),
        (b'[{"Config": "c", "Layers": ["c"]}]', b'{"rootfs": {"diff_ids": ["sha256:0"]}}'),
        (b" " * (archive._LONGEST + 1), b"{}"),
    ],
)  # fmt: skip
def test_documents_that_are_no_image_are_one_line(
    tmp_path: Path, manifest: bytes, config: bytes
) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (("manifest.json", manifest), ("c", config)):
            item = tarfile.TarInfo(name)
            item.size = len(data)
            tar.addfile(item, io.BytesIO(data))
    with pytest.raises(ImageError, match=r"not a whole image archive|holds 0 images"):
        archive.unpack(path, tmp_path / "root")


def test_a_layer_that_is_a_circle_of_links_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, target in (("manifest.json", "b"), ("b", "manifest.json")):
            item = tarfile.TarInfo(name)
            item.type, item.linkname = tarfile.SYMTYPE, target
            tar.addfile(item)
    with pytest.raises(ImageError, match="not a whole image archive"):
        archive.contents(path)
