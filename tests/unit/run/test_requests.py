"""The points that files can serve, and what fio reads for them."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

from iobench.core.cases import Extent
from iobench.core.errors import TrialFailed
from iobench.host import page_cache
from iobench.run import ceiling, requests
from tests.capabilities import need

KIB, MIB = 1024, 1024 * 1024


@pytest.fixture
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name:
        yield Path(name)


def sized(*sizes: int) -> List[Tuple[Path, int]]:
    return [(Path(f"/f{i}"), n) for i, n in enumerate(sizes)]


def test_one_large_file_serves_every_size() -> None:
    points = requests.grid(sized(1 << 30))
    assert {size for size, _ in points} == set(requests.SIZES)
    assert [d for s, d in points if s == 4 * KIB] == [1, 4, 16]
    assert [d for s, d in points if s == 64 * KIB] == [1, 16]
    assert [d for s, d in points if s == 4 * MIB] == [1, 4, 16]


def test_small_files_serve_sizes_that_hold_half_of_their_bytes() -> None:
    points = requests.grid(sized(*[100 * KIB] * 64))
    assert {size for size, _ in points} == {4 * KIB, 16 * KIB, 64 * KIB}
    assert requests.grid(sized(*[4095] * 64)) == []
    assert requests.grid([]) == []


def test_few_requests_are_not_shared_out_among_many_readers() -> None:
    assert requests.grid(sized(8 * KIB)) == [(4 * KIB, 1)]


def test_requests_are_aligned_and_none_is_asked_twice() -> None:
    files = sized(100 * KIB, 70 * KIB)
    plan = requests.plan(files, 16 * KIB, 4, random.Random(1))
    asked = [extent for reader in plan.readers for extent in reader]
    assert len(plan.readers) == 4
    assert len(set(asked)) == len(asked) == 6 + 4
    assert {e.length for e in asked} == {16 * KIB}
    assert all(e.offset % (16 * KIB) == 0 for e in asked)


def test_the_largest_files_are_chosen_once_each(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MOST_FILES", 2)
    extents = []
    for name, n in (("a", 10), ("b", 30), ("c", 20)):
        (disk / name).write_bytes(bytes(n))
        extents.append([Extent(str(disk / name), 0, 5), Extent(str(disk / name), 5, 5)])
    assert requests.chosen(extents) == [(disk / "b", 30), (disk / "c", 20)]


def test_every_point_reads_from_cold(disk: Path) -> None:
    need("fio")
    path = disk / "data"
    path.write_bytes(os.urandom(MIB))
    page_cache.warm([path])
    done = requests.run([(path, MIB)], ceiling.Fio(disk / "work"), seed=1)
    assert done.invalid == ""
    assert [(p["size"], p["depth"]) for p in done.points] == requests.grid([(path, MIB)])
    assert sum(p["size"] * p["requests"] for p in done.points) == done.io_bytes
    assert done.storage_bytes >= done.io_bytes
    assert all(p["seconds"] > 0 for p in done.points)


def test_files_without_a_whole_request_are_refused(disk: Path) -> None:
    with pytest.raises(TrialFailed, match="no file of the samples has 4096 bytes"):
        requests.run(sized(100), ceiling.Fio(disk), seed=1)
