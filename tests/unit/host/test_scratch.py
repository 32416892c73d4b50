"""What a killed driver leaves is removed by the next one; what somebody holds is not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from iobench.host import scratch

KILLED = """
import os, signal
from iobench.host import scratch
with scratch.folder() as work:
    (work / "file").touch()
    print(work, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_at_its_end(place: Path) -> None:
    with scratch.folder() as work:
        (work / "inner").mkdir()
        assert list(place.iterdir()) == [work]
    assert not list(place.iterdir())


def test_what_a_killed_driver_left_is_removed_and_what_is_held_stays(place: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    left = Path(killed.stdout.strip())
    assert (left / "file").exists()
    others = [
        place / f"{scratch._PREFIX}mine",
        place / "another",
        place / "iobench-work-elsewhere-x",
    ]
    for other in others:
        other.mkdir()
    with scratch.folder() as held:
        scratch.sweep()
        assert set(place.iterdir()) == {held, *others}, "without a lock nobody knows whose it is"


def test_a_folder_that_went_away_is_no_error(place: Path) -> None:
    with scratch.folder() as work:
        work.rename(place / "moved")
