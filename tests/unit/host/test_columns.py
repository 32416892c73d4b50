"""Columns of a rank's result: in a file of its own, read when they are looked at."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from iobench.core.cases import to_json
from iobench.core.errors import ResultsError
from iobench.core.records import RankResult, Steps
from iobench.host import columns

STEPS = Steps([0.0, 1.0], [0.5, 1.5], [1.0, 2.0], [4, 4], [40, 41], 1)


def rank(**changes: object) -> RankResult:
    probe = {"read_s": [0.1, 0.2], "decode_s": []}
    times = {"id": [3, 4], "read_s": [0.1, 0.2]}
    return RankResult(3, 4, "n1", 7, STEPS, probe=probe, sample_times=times)


def stored(folder: Path) -> RankResult:
    found = rank()
    counts = columns.write(folder, found)
    return columns.joined(columns.bare(found), counts, folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = stored(tmp_path)
    assert found == rank()
    assert columns.loaded(found) == rank()
    steps = found.steps
    assert (len(steps.done_s), steps.done_s[-1], steps.done_s[1:]) == (2, 2.0, [2.0])
    assert not steps.peers_s
    assert np.asarray(steps.bytes).dtype == np.int64
    assert isinstance(steps.bytes[0], int)
    assert [*steps.request_s] == [0.0, 1.0]
    assert columns.are_in(tmp_path, found)
    assert not columns.are_in(tmp_path, rank())


def test_a_result_without_them_holds_no_number_of_a_step() -> None:
    text = json.dumps(to_json(columns.bare(rank())))
    assert json.loads(text)["steps"] == {
        **{name: [] for name in columns._STEPS},
        "warmup": 1,
    }


def test_a_rank_without_columns_leaves_no_file(tmp_path: Path) -> None:
    failed = RankResult(0, 1, "n1", 7, error="E: x")
    assert columns.write(tmp_path, failed) == {}
    assert columns.joined(failed, {}, tmp_path) == failed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "gone", "changed", "other"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "suite/runs/0001-x.1"
    folder.mkdir(parents=True)
    found = stored(folder)
    path = columns.file_of(folder, 3)
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-200])
    elif damage == "gone":
        path.unlink()
    elif damage == "changed":
        at = content.index(np.float64(2.0).tobytes())
        path.write_bytes(content[:at] + b"\x01" + content[at + 1 :])
    else:
        np.savez(path, **{"steps.done_s": np.zeros(3)})
    with pytest.raises(ResultsError, match=r"3\.npz.*0001-x\.1\.json away.*--resume"):
        list(found.steps.done_s)


def test_only_what_was_written_is_moved(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", tmp_path / "runs/0001-x.1"
    work.mkdir()
    kept.parent.mkdir()
    counts = columns.write(work, rank())
    columns.move(str(work), str(kept), [3])
    assert not list(work.iterdir())
    assert columns.joined(columns.bare(rank()), counts, kept) == rank()
    with pytest.raises(FileNotFoundError):
        columns.move(str(work), str(kept), [0])
