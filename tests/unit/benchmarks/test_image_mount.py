"""The mount of an image file: runtimes with it and without, and when it counts as a cause."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Dict, Tuple

import pytest

from benchmarks import image_mount
from iobench.core import registry
from iobench.core.protocols import Start
from iobench.equations.stats import Interval
from iobench.spec import load
from tests.capabilities import need

HEADER = b"\0" * 2 * image_mount.ALIGNED


@pytest.fixture(autouse=True)
def no_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOBENCH_PLUGINS", "")


def span(low: float, high: float) -> Dict[str, Interval]:
    return {"after": Interval((low + high) / 2, low, high, 0.95, 12, "t")}


def test_the_mount_is_made_anew_for_a_run_and_seen_by_it_alone(tmp_path: Path) -> None:
    for name in ("root", "loop", "squashfs"):
        need(name)
    image, folder = tmp_path / "it's.sif", tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("of the image file")
    made = tmp_path / "made.squashfs"
    subprocess.run(["mksquashfs", folder, made], check=True, capture_output=True)
    image.write_bytes(HEADER + made.read_bytes())
    (folder / "file").write_text("of the folder")
    image_mount.plug_in(tmp_path / "plugins", image)
    runtime = registry.load("runtimes", "fresh").make()
    argv = runtime.argv(["cat", f"{folder}/file"], Start(image=str(folder)))
    other = ["losetup", "--find", "--show", "--read-only", image]  # as Apptainer's own mount
    held = subprocess.run(other, capture_output=True, text=True, check=True).stdout.strip()
    try:
        for _ in range(2):
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            assert done.stdout == "of the image file"
    finally:
        subprocess.run(["losetup", "--detach", held], check=True)
    assert (folder / "file").read_text() == "of the folder"
    assert str(folder) not in Path("/proc/mounts").read_text()
    loops = Path("/sys/class/block").glob("loop*/loop/backing_file")
    assert not [path for path in loops if path.read_text().startswith(str(image))]


def test_apptainer_on_the_folder_mounts_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.sif").write_bytes(HEADER + image_mount.SQUASHFS)
    image_mount.plug_in(tmp_path, tmp_path / "a.sif")
    assert registry.load("runtimes", "folder").make().form() == "rootfs"


def test_an_image_file_without_a_squashfs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sif").write_bytes(b"x" + image_mount.SQUASHFS)
    with pytest.raises(ValueError, match="no squashfs"):
        image_mount.plug_in(tmp_path, tmp_path / "a.sif")


@pytest.mark.parametrize("turns", [False, True])
def test_its_specs_are_valid(tmp_path: Path, turns: bool) -> None:
    (tmp_path / "a.sif").write_bytes(HEADER + image_mount.SQUASHFS)
    image_mount.plug_in(tmp_path, tmp_path / "a.sif")
    cases = load.expand(load.parse(image_mount.document("jpeg", turns, 12, 3)))
    named = {name for pair in image_mount.COMPARED for name in pair}
    assert {case.runtime for case in cases} == named


@pytest.mark.parametrize(
    ("added", "removed", "expected"),
    [
        ((0.9, 0.95), (1.02, 1.1), True),
        ((0.9, 1.01), (1.02, 1.1), False),
        ((0.9, 0.95), (0.99, 1.1), False),
    ],
)
def test_a_cause_is_added_and_taken_away(
    added: Tuple[float, float], removed: Tuple[float, float], expected: bool
) -> None:
    rows = {
        image_mount.name_of(image_mount.ADDED): span(*added),
        image_mount.name_of(image_mount.REMOVED): span(*removed),
    }
    assert image_mount.cause(rows) is expected
    assert not image_mount.cause({})
