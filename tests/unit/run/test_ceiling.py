"""fio replays what the plan says: bytes and order counted on real files."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest

from iobench.core import registry
from iobench.core.cases import Case, Extent, Trial
from iobench.core.errors import BackendUnavailable, TrialFailed
from iobench.core.records import VALID
from iobench.host import fio, page_cache
from iobench.host.agent import Agent, FioResult
from iobench.run import ceiling, prepare
from iobench.run.trial import TrialSettings, run_trial
from tests.build import containers, pages
from tests.capabilities import need


@pytest.fixture
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name:
        yield Path(name)


def tree(folder: Path, samples: int = 64) -> List[List[Extent]]:
    """One file a sample, in random order."""
    draw = random.Random(1)
    folder.mkdir(parents=True)
    made = []
    for number in range(samples):
        path = folder / f"{number}.jpg"
        path.write_bytes(os.urandom(draw.randint(5_000, 200_000)))
        made.append([Extent(str(path), 0, path.stat().st_size)])
    draw.shuffle(made)
    return made


def shard(folder: Path, samples: int = 64) -> List[List[Extent]]:
    """All samples in one file, none on a page's edge, in random order."""
    draw = random.Random(2)
    sizes = [draw.randint(5_000, 200_000) for _ in range(samples)]
    path = folder / "shard"
    path.write_bytes(os.urandom(sum(sizes)))
    made = [[Extent(str(path), sum(sizes[:i]), n)] for i, n in enumerate(sizes)]
    draw.shuffle(made)
    return made


def test_batches_go_round_the_readers() -> None:
    samples = [[Extent("f", i, 1)] for i in range(10)]
    plan = ceiling.plan(samples, jobs=2, batch=2)
    assert [[e.offset for e in reader] for reader in plan.readers] == [
        [0, 1, 4, 5, 8, 9],
        [2, 3, 6, 7],
    ]
    assert (plan.wanted_bytes, plan.samples) == (10, 10)


def test_no_workers_is_one_reader_and_repeats_count() -> None:
    samples = [[Extent("f", i, 7)] for i in range(5)]
    plan = ceiling.plan(samples, jobs=0, batch=2, repeat=3)
    assert len(plan.readers) == 1
    assert (plan.wanted_bytes, plan.samples) == (105, 15)


def test_bytes_that_samples_share_count_once() -> None:
    """Samples of a chunk read it whole; others overlap, and two files have equal places."""
    places = [("a", 0, 10), ("a", 0, 10), ("a", 5, 10), ("a", 20, 5), ("b", 0, 10), ("b", 2, 3)]
    plan = ceiling.plan([[Extent(*place)] for place in places], jobs=2, batch=1, repeat=2)
    assert (plan.wanted_bytes, plan.distinct_bytes) == (2 * 48, 15 + 5 + 10)


def test_chunks_that_samples_share_are_read_cold(disk: Path) -> None:
    """Every sample reads its chunk whole: all but the first time from memory."""
    for capability in ("fio", "hdf5", "torch"):
        need(capability)
    data = containers.small_dataset(disk, samples=32)
    options = {"chunk": 8}
    case = Case(
        format="hdf5", content="raw", loader="torch", trainer="null", location=data.root, batch=4,
        format_options=options, layout=registry.layout_of("hdf5", options),
    )  # fmt: skip
    prepare.forms([case], data, lambda *_: None)
    record = run_trial(Trial("1", case, "ceiling", "cold"), data, 1, TrialSettings(limit_s=120.0))
    assert (record.status, record.reasons) == (VALID, ())
    assert record.ceiling["io_bytes"] == 8 * record.ceiling["distinct_bytes"]
    assert record.cache.bytes_needed == record.ceiling["distinct_bytes"]
    assert "from memory: 88% of the bytes" in record.ceiling["note"]


def resident(samples: List[List[Extent]]) -> page_cache.Residency:
    return page_cache.extent_residency(e for sample in samples for e in sample)


def logged(work: Path, reader: int = 0) -> List[Tuple[str, str]]:
    lines = (work / f"reader{reader}.log").read_text().splitlines()[1:]
    return [(line.split()[1], line) for line in lines]


def test_cold_files_every_byte_once_in_order(disk: Path) -> None:
    need("fio")
    samples = tree(disk / "tree")
    files = [Path(e.path) for sample in samples for e in sample]

    def replay() -> ceiling.Ceiling:
        page_cache.evict(files)
        assert page_cache.residency(files).fraction == 0.0
        return ceiling.run(ceiling.plan(samples, jobs=2, batch=8), ceiling.Fio(disk / "work"))

    done, after = pages.read_whole(replay, lambda: page_cache.residency(files))
    assert not done.invalid
    assert done.io_bytes == done.wanted_bytes == sum(path.stat().st_size for path in files)
    assert done.storage_bytes >= done.io_bytes
    assert after.fraction == 1.0
    assert done.samples_per_s == pytest.approx(64 / done.runtime_s)
    assert done.bytes_per_s == pytest.approx(done.io_bytes / done.runtime_s)
    assert "short run" in done.note
    order = [line.split()[0] for word, line in logged(disk / "work") if word == "read"]
    assert order == [s[0].path for i, s in enumerate(samples) if i // 8 % 2 == 0]
    words = [word for word, _ in logged(disk / "work") if word != "add"]
    assert words == ["open", "read", "close"] * 32


def test_a_shard_stays_open_and_only_its_extents_are_read(disk: Path) -> None:
    need("fio")
    samples = shard(disk)
    half = samples[:32]
    path = Path(samples[0][0].path)

    def replay() -> ceiling.Ceiling:
        page_cache.evict([path])
        return ceiling.run(ceiling.plan(half, jobs=1, batch=8), ceiling.Fio(disk / "work"))

    done, wanted = pages.read_whole(replay, lambda: resident(half))
    assert not done.invalid
    assert done.io_bytes == sum(s[0].length for s in half)
    words = [word for word, _ in logged(disk / "work")]
    assert words == ["add", "open", *["read"] * 32, "close"]
    assert wanted.fraction == 1.0


def test_a_map_without_read_ahead_is_replayed_page_by_page(disk: Path) -> None:
    need("fio")
    samples = shard(disk)
    half = samples[:32]
    path = Path(samples[0][0].path)

    def replay() -> ceiling.Ceiling:
        page_cache.evict([path])
        return ceiling.run(
            ceiling.plan(half, jobs=1, batch=8),
            ceiling.Fio(disk / "work"),
            mapped=True,
            read_ahead=False,
        )

    done, wanted = pages.read_whole(replay, lambda: resident(half))
    assert not done.invalid
    assert done.io_bytes == sum(s[0].length for s in half)
    assert "a page" in done.note
    lengths = [int(line.split()[3]) for word, line in logged(disk / "work") if word == "read"]
    assert max(lengths) == 4096
    assert wanted.fraction == 1.0
    assert page_cache.residency([path]).resident <= wanted.resident  # nothing was read ahead


def test_a_warm_pattern_can_be_repeated(disk: Path) -> None:
    need("fio")
    samples = tree(disk / "tree", samples=8)
    with pages.warm([Path(s[0].path) for s in samples]):
        done = ceiling.run(
            ceiling.plan(samples, jobs=2, batch=2, repeat=50), ceiling.Fio(disk / "work")
        )
    assert not done.invalid
    assert done.samples == 400
    assert done.storage_bytes < 0.01 * done.io_bytes


def test_fio_gives_no_hint_that_the_reader_does_not(disk: Path) -> None:
    """strace: what fio really calls on a data file."""
    need("fio")
    need("strace")
    samples = tree(disk / "tree", samples=3)
    trace = disk / "trace"
    tracer = ("strace", "-f", "-y", "-e", "trace=openat,pread64,fadvise64,close")
    ceiling.run(
        ceiling.plan(samples, jobs=1, batch=1),
        ceiling.Fio(disk / "work", enter=(*tracer, "-o", str(trace))),
    )
    calls = [line for line in trace.read_text().splitlines() if ".jpg" in line]
    assert not [line for line in calls if "fadvise64" in line]
    reads = [line for line in calls if "pread64" in line]
    assert len(reads) == 3
    for sample, line in zip(samples, reads):
        assert Path(sample[0].path).name in line
        assert line.endswith(f"= {sample[0].length}")


@pytest.mark.parametrize(
    "name",
    ["a blank", "x" * 240, "comma,colon:percent%", "\u00e9" * 120, os.fsdecode(b"\xff")],
    ids=["blank", "long", "punctuation", "bytes", "no UTF-8"],
)
def test_awkward_paths_are_read(disk: Path, name: str) -> None:
    need("fio")
    samples = tree(disk / name, samples=4)
    done = ceiling.run(ceiling.plan(samples, jobs=2, batch=1), ceiling.Fio(disk / "work"))
    assert not done.invalid


def test_fewer_bytes_than_wanted_is_invalid(disk: Path) -> None:
    """The file is shorter than the plan believes."""
    need("fio")
    path = disk / "short"
    path.write_bytes(bytes(100_000))
    samples = [[Extent(str(path), 0, 50_000)], [Extent(str(path), 50_000, 60_000)]]
    try:
        done = ceiling.run(ceiling.plan(samples, jobs=1, batch=1), ceiling.Fio(disk / "work"))
    except TrialFailed:
        return
    assert "were wanted" in done.invalid


def test_a_missing_file_fails_and_is_not_made(disk: Path) -> None:
    need("fio")
    gone = disk / "gone"
    with pytest.raises(TrialFailed, match="fio"):
        ceiling.run(
            ceiling.plan([[Extent(str(gone), 0, 10)]], jobs=1, batch=1), ceiling.Fio(disk / "work")
        )
    assert not gone.exists()


def test_nothing_to_read_is_refused(disk: Path) -> None:
    with pytest.raises(TrialFailed, match="no bytes"):
        ceiling.run(ceiling.plan([[]], jobs=1, batch=1), ceiling.Fio(disk))


def test_a_time_limit_kills_fio_and_its_jobs(disk: Path) -> None:
    need("fio")
    options = {"ioengine": "null", "size": "1g", "rw": "read", "runtime": "60", "time_based": "1"}
    with pytest.raises(TrialFailed, match="longer than"):
        fio.run(disk, options, [{}], time_limit_s=0.5)
    for _ in range(100):  # a killed process is gone a moment later
        listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        if str(disk) not in listing.stdout:
            return
        time.sleep(0.05)
    pytest.fail(listing.stdout)


def fake_fio(folder: Path, text: str) -> None:
    program = folder / "fio"
    program.write_text(f"#!/bin/sh\necho '{text}'\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "word"),
    [(None, "no program fio"), ("fio-2.21", "needs 3.1"), ("tensorflow io", "not the fio")],
)
def test_no_old_and_foreign_fio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: object, word: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if says:
        fake_fio(tmp_path, str(says))
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(BackendUnavailable, match=word) as caught:
        fio.version()
    assert "apt-get install fio" in str(caught.value)


class Reading(Agent):
    """An agent whose fio needs a time of its own."""

    def __init__(self, runtime_s: float) -> None:
        self._runtime_s = runtime_s

    def fio(self, folder: Path, options: Any, jobs: Any, **_: Any) -> FioResult:  # type: ignore[override]
        logs = [Path(job["read_iolog"]).read_text() for job in jobs]
        sizes = [
            int(line.split()[3]) for log in logs for line in log.split("\n") if " read " in line
        ]
        per_s = sum(sizes) / self._runtime_s
        return FioResult(per_s, sum(sizes), self._runtime_s, len(sizes), 0, "fio-3.33", ("fio",))


def test_several_nodes_read_each_sample_once_in_the_slowest_ones_time(tmp_path: Path) -> None:
    samples = [[Extent("/f", 1000 * i, 1000)] for i in range(12)]
    plan = ceiling.plan(samples, jobs=4, batch=1)
    fios = [
        ceiling.Fio(tmp_path / n, agent=Reading(s), node=n) for n, s in (("a", 2.0), ("b", 3.0))
    ]
    done = ceiling.run(plan, *fios)
    assert (done.io_bytes, done.runtime_s, done.samples_per_s) == (12_000, 3.0, 4.0)
    assert [part["io_bytes"] for part in done.nodes] == [6000, 6000]
    assert (done.readers, done.invalid) == (4, "")
    assert "first node was done after 2.00 s, the last after 3.00 s" in done.note


def test_a_node_without_a_batch_is_an_error(tmp_path: Path) -> None:
    plan = ceiling.plan([[Extent("/f", 0, 10)]], jobs=4, batch=1)
    with pytest.raises(TrialFailed, match="among 2 nodes"):
        ceiling.run(plan, ceiling.Fio(tmp_path), ceiling.Fio(tmp_path))


def test_a_path_with_blanks_is_linked_anew_in_every_replay(tmp_path: Path) -> None:
    fio = ceiling.Fio(tmp_path / "work", agent=Reading(1.0))
    for path in ("/a b", "/c d"):
        plan = ceiling.plan([[Extent(path, 0, 10)]], jobs=1, batch=1)
        assert fio.replay(plan, read_ahead=True).io_bytes == 10
        assert os.readlink(tmp_path / "work/links/0") == path
