"""The stages that ask a mount by files: what they measure, and what they leave behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

from iobench.core.errors import TrialFailed
from iobench.worker.stages import _crew, files, metadata


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "FILES", (200, 400))
    monkeypatch.setattr(metadata, "PROCESSES", (1, 2))
    monkeypatch.setattr(metadata, "LEAST_MORE", 20)
    monkeypatch.setattr(metadata, "POINT_S", 0.02)


def measured(folder: Path, *, dropping: bool = False) -> Dict[str, Any]:
    job = SimpleNamespace(task=SimpleNamespace(scratch=str(folder), allow_drop_caches=dropping))
    found: Dict[str, Any] = metadata._rates(job)[2]["notes"]["metadata"]  # type: ignore[arg-type]
    return found


def test_every_point_has_all_operations_and_nothing_is_left(tmp_path: Path) -> None:
    found = measured(tmp_path)
    points = [(p["files"], p["processes"], p["operation"]) for p in found["points"]]
    assert sorted(points) == sorted(
        (n, p, operation)
        for n in (200, 400)
        for p in (1, 2)
        for operation in ("create", "stat", "open", "unlink")
    )
    assert all(p["count"] > 0 and p["seconds"] > 0 for p in found["points"])
    assert (found["left_out"], found["dropped"]) == ("", False)
    assert not list(tmp_path.iterdir())


def test_names_that_are_dropped_are_asked_for_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: List[Any] = []
    monkeypatch.setattr(metadata.page_cache, "drop_caches", lambda **how: dropped.append(how))
    found = measured(tmp_path, dropping=True)
    looked_up = [p for p in found["points"] if p["operation"] in ("stat", "open")]
    assert found["dropped"]
    assert all(p["count"] <= metadata.DROPS * p["files"] for p in looked_up)
    assert len(looked_up) <= len(dropped) <= metadata.DROPS * len(looked_up)
    assert dropped[0] == {"allowed": True, "names": True}


def test_a_directory_that_takes_too_long_to_fill_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "FILES", (200, 10**9))
    monkeypatch.setattr(metadata, "SHARE", 1e9)
    found = measured(tmp_path)
    assert {p["files"] for p in found["points"]} == {200}
    assert "1,000,000,000 files a directory: filling takes over 30 s at" in found["left_out"]


def test_a_share_of_the_free_space_is_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "SHARE", 0.0)
    with pytest.raises(TrialFailed, match="no directory of files could be made: 100 files"):
        measured(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "could be made: 200 files"), (errno.EROFS, "Read-only")]
)
def test_a_mount_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    real, made = os.open, SimpleNamespace(count=0)

    def limited(name: str, flags: int, mode: int = 0o777) -> int:
        made.count += 1
        if made.count > 60:  # of the first hundred each of 2 processes makes 50
            raise OSError(number, os.strerror(number), name)
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", limited)
    with pytest.raises(TrialFailed, match=words):
        measured(tmp_path)


def test_what_one_process_raises_is_raised_and_all_end() -> None:
    with _crew.Crew(2) as crew:
        pids = crew.pids
        with pytest.raises(FileNotFoundError):
            crew.together(files.reads, [([],), (["/nowhere"],)])
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def unprepared(path: str) -> Any:
    """Open a file before all begin."""
    return open(path).close


def test_what_one_process_raises_before_all_begin_is_raised_too() -> None:
    with _crew.Crew(2) as crew:
        pids = crew.pids
        with pytest.raises(FileNotFoundError, match="/nowhere"):
            crew.together(unprepared, [(__file__,), ("/nowhere",)])
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_processes_act_at_the_same_time() -> None:
    with _crew.Crew(3) as crew:
        spells = crew.together(files.reads, [([],)] * 3)
    assert len(spells) == 3
    assert max(s.began for s in spells) < min(s.began for s in spells) + 0.5
    assert _crew.span_s(spells) >= 0


def test_whole_files_are_read_to_their_end(tmp_path: Path) -> None:
    sizes = [0, 5, (1 << 20) + 7]
    paths: List[str] = []
    for i, size in enumerate(sizes):
        paths.append(str(tmp_path / f"f{i}"))
        Path(paths[-1]).write_bytes(bytes(size))
    nbytes, open_s, read_s, close_s = files.reads(paths)()
    assert nbytes == sum(sizes)
    assert min(open_s, read_s, close_s) > 0
