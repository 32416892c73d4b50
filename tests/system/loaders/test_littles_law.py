"""A mount on which each read takes long: it shows the files, and threads hide what it costs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks import littles_law
from benchmarks.delayed_mount import delayed
from iobench.core.errors import BackendUnavailable
from tests.capabilities import need

pytestmark = pytest.mark.system


def test_the_mount_shows_the_files_and_waits_at_each_read(tmp_path: Path) -> None:
    need("mfusepy")
    stored, mount = tmp_path / "stored", tmp_path / "mount"
    (stored / "a").mkdir(parents=True)
    mount.mkdir()
    data = os.urandom(20_000)
    (stored / "a" / "file").write_bytes(data)
    with delayed(stored, mount, 0.1):
        assert os.listdir(mount) == ["a"]
        start = littles_law.clock()
        assert (mount / "a" / "file").read_bytes() == data
        assert littles_law.clock() - start >= 0.1
        assert (mount / "a" / "file").stat().st_mtime == (stored / "a" / "file").stat().st_mtime
        with pytest.raises(FileNotFoundError):
            (mount / "none").stat()
        with pytest.raises(OSError, match="Read-only"):
            (mount / "new").write_bytes(b"")
    assert not os.path.ismount(mount)


def test_a_mount_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    need("mfusepy")
    with (
        pytest.raises(BackendUnavailable, match="no FUSE mount at"),
        delayed(tmp_path, tmp_path / "none", 0.0),
    ):
        pass


def test_one_trial_has_no_limits() -> None:
    """Others may have been INVALID."""
    assert littles_law.limits({"value": 9.0, "low": None, "high": None}) == "no limits"
    assert littles_law.limits({"value": 9.0, "low": 8.1, "high": None}) == "8 or more"
    assert littles_law.limits({"value": 9.0, "low": 8.1, "high": 10.2}) == "8 to 10"


@pytest.mark.breadth
@pytest.mark.timeout(300)
def test_what_is_predicted_is_written_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an idle machine shows is left to ``make bench-littles-law``: here, that threads help."""
    need("mfusepy")
    need("torch")
    monkeypatch.setattr(littles_law, "ARMS", ((1, 1), (1, 4)))
    written = tmp_path / "predictions.json"
    words = ["--samples", "64", "--repeats", "2", "--delay-ms", "20", "--data", str(tmp_path)]
    words += ["--predictions", str(written), "--json", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", ["littles_law", *words])
    littles_law.main()
    foretold = json.loads(written.read_text())
    assert foretold["latency_s"] >= 0.02
    rows = json.loads((tmp_path / "found.json").read_text())
    assert [row["predicted"] for row in rows] == list(foretold["samples_per_s"].values())
    assert rows[1]["measured"]["value"] > 1.5 * rows[0]["measured"]["value"]
    assert rows[0]["measured"]["value"] < 1 / 0.02
