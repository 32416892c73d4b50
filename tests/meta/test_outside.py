"""What a test would leave outside of the clone is named."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import outside
from tests.build.disks import disk
from tests.capabilities import need


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(outside.MARK, f"test-{os.getpid()}")
    monkeypatch.setattr(outside, "GRACE_S", 0.0)
    file = tmp_path / "listed"
    file.write_text("\n".join(outside.now()))
    return file


def left(listed: Path, words: str) -> list[str]:
    """Return what is left, of other tests beside this one nothing."""
    return [name for name in outside.left(set(listed.read_text().splitlines())) if words in name]


def test_a_file_and_a_process_are_named(listed: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="iobench-left-") as folder:
        words = [sys.executable, "-c", "input()", folder]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
            found = left(listed, folder)
            process.communicate(b"\n")
    assert len(found) == 2
    assert folder in found
    assert left(listed, folder) == []


def test_a_loop_device_and_a_mount_are_named(listed: Path, tmp_path: Path) -> None:
    need("loop")
    with disk(tmp_path / "image", tmp_path / "point", 8 << 20) as loop:
        found = left(listed, str(tmp_path))
    name = Path(loop).name
    assert found == [f"loop device {name} of {tmp_path}/image", f"mount {tmp_path}/point"]


def test_the_command_fails_for_what_is_left(
    listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outside, "now", lambda: {"mount /left"})
    assert outside.main([str(listed)]) == 1
    assert capsys.readouterr().err == "iobench: the tests left: mount /left\n"
    monkeypatch.setattr(outside, "now", set)
    assert outside.main([str(listed)]) == 0


def test_the_mount_that_the_first_network_made_goes(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("root")
    point = tmp_path / "networks"
    point.mkdir()
    monkeypatch.setattr(outside, "NETWORKS", str(point))
    subprocess.run(["mount", "--bind", point, point], check=True)
    assert f"mount {point}" in left(listed, str(point))
    monkeypatch.setattr(outside, "left", lambda before: [])
    assert outside.main([str(listed)]) == 0
    assert f"mount {point}" not in outside.now()
