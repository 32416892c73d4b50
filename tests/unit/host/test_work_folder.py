"""Work folders on nodes of their own: removed at the end, and what a killed agent left of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from iobench.host import work_folder


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_removed_at_the_end(tmp: Path) -> None:
    folder = tmp / "iobench-work-n1-x"
    with work_folder.made(folder, {"invitation.json": "{}"}, {"code/iobench": "/x"}):
        assert (folder / "invitation.json").read_text() == "{}"
        assert (folder / "code/iobench").is_symlink()
        work_folder.sweep()
        assert folder.exists(), "somebody holds it"
    assert not folder.exists()


def test_what_a_killed_agent_left_is_removed_and_nothing_else(tmp: Path) -> None:
    left, drivers, others = (tmp / f"iobench-work-{name}" for name in ("left", "driver", "other"))
    for folder in (left, drivers, others):
        folder.mkdir()
    (left / work_folder._mark()).touch()
    (left / "0.npz").touch()
    (others / ".agent-another-node").touch()
    work_folder.sweep()
    assert {path.name for path in tmp.iterdir()} == {drivers.name, others.name}


def test_a_folder_that_is_there_is_the_drivers(tmp: Path) -> None:
    folder = tmp / "iobench-work-n1-x"
    folder.mkdir(mode=0o700)
    with work_folder.made(folder, {"invitation.json": "{}"}, {}):
        work_folder.sweep()
    assert [path.name for path in folder.iterdir()] == ["invitation.json"]
