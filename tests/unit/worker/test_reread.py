"""Working sets of growing size, read again: how they are cut, read and counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterator, List, Mapping

import pytest

from iobench.core.cases import Extent
from iobench.core.errors import TrialFailed
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.worker.stages import _crew, reread

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reread, "BLOCK", 4096)
    monkeypatch.setattr(reread, "LEAST", 64 << 10)


def files(folder: Path, *sizes: int) -> List[Path]:
    made = [folder / f"f{i}" for i in range(len(sizes))]
    for path, size in zip(made, sizes):
        path.write_bytes(os.urandom(size))
    return made


@pytest.mark.parametrize("sizes", [(MIB,), (5000,) * 210, (0, 700_000, 1, 348_575)])
def test_each_set_is_twice_as_large_as_the_one_before(tmp_path: Path, sizes: List[int]) -> None:
    found = files(tmp_path, *sizes)
    sets = reread.cut(found)
    nbytes = [sum(block.length for block in blocks) for blocks in sets]
    assert len(sets) == 4  # 15 x 64 KiB fit, 31 do not
    assert sum(nbytes) == sum(sizes)
    for smaller, larger in zip(nbytes, nbytes[1:]):
        assert larger == pytest.approx(2 * smaller, abs=3 * reread.BLOCK)
    every = [block for blocks in sets for block in blocks]
    filled = [str(path) for path in found if path.stat().st_size]
    assert list(dict.fromkeys(block.path for block in every)) == filled


def test_files_that_are_too_small_are_refused_with_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(
        TrialFailed, match=r"0\.4 MB: .* takes 0 MB at least, and twice the servers"
    ):
        reread.cut(files(tmp_path, 6 * (64 << 10)))


class Counted:
    """A mount of which a part of what is read is counted."""

    def __init__(self, share: float) -> None:
        self._share, self._reads = share, 0

    def counters(self, path: Path) -> Mapping[str, int]:
        self._reads += 1
        return {"passes": self._reads // 2}

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        assert moved == {"passes": 1}
        return Crossed(int(self._share * 5 * 4096), "the mount's")


@pytest.fixture
def crew() -> Iterator[_crew.Crew]:
    with _crew.Crew(reread.PROCESSES) as made:
        yield made


def blocks(path: Path) -> List[Extent]:
    return [Extent(str(path), at, 4096) for at in range(0, 5 * 4096, 4096)]


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return files(tmp_path, 5 * 4096)[0]


def sweep(crew: _crew.Crew, share: float, monkeypatch: pytest.MonkeyPatch) -> reread.Sweep:
    """Return a sweep on which eviction does not matter."""
    monkeypatch.setattr(reread, "_evict", lambda paths: None)
    filesystem: Any = Counted(share)
    return reread.Sweep(crew, filesystem)


def test_a_set_is_read_twice(crew: _crew.Crew, one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sweep(crew, 1.0, monkeypatch)
    found = made.again(blocks(one))
    assert (found["bytes"], made.nbytes) == (5 * 4096, 2 * 5 * 4096)
    assert min(found["first_s"], found["again_s"]) > 0


def test_what_the_clients_own_cache_served_is_never_called_the_servers(
    crew: _crew.Crew, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sweep(crew, 0.9, monkeypatch)
    with pytest.raises(TrialFailed, match=r"18432 of 20480 bytes .* a cache of this client"):
        made.once(blocks(one))


def test_a_file_that_became_shorter_or_is_gone_fails(
    crew: _crew.Crew, one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, wanted = sweep(crew, 1.0, monkeypatch), blocks(one)
    os.truncate(one, 4096)
    with pytest.raises(TrialFailed, match="4096 of 20480 bytes could be read"):
        made.once(wanted)
    one.unlink()
    with pytest.raises(TrialFailed, match=r"f0: No such file"):
        made.once(wanted)
