"""Batches from a loader of another Python: what crosses, what it costs, and how it ends."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set

import numpy as np
import psutil
import pytest

from iobench.analysis.case_results import HandoverResult
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import BackendUnavailable, DatasetError, SpecError, TrialFailed
from iobench.core.protocols import LoadRequest, StoredSample
from iobench.core.records import VALID
from iobench.data import convert, make
from iobench.host import io_counters
from iobench.report import words
from iobench.run.trial_settings import TrialSettings
from iobench.run.worker_process import worker_of
from iobench.spec import load
from iobench.worker import remote_loader, remote_loader_server
from tests.build import photos
from tests.build import report as fixture
from tests.build.attempts import attempted
from tests.build.photos import Stored
from tests.build.rows import rows
from tests.capabilities import need

ROOT = Path(__file__).parents[3]
SAMPLES, BATCH = 18, 4
#: A loader that the standard library and NumPy are enough for.
APART = Case(loader="threads", format="tar", loader_options={"apart": True})


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return in_shards(tmp_path_factory.mktemp("shards"), photos.samples(SAMPLES))


def in_shards(folder: Path, samples: List[StoredSample]) -> Stored:
    return photos.stored(folder, samples, registry.load("formats", "tar").make(), "tar")


def request(stored: Stored, **changes: Any) -> LoadRequest:
    format_ = registry.load("formats", "tar").make()
    return photos.request_of(*stored, format_, batch=BATCH, **changes)


@pytest.fixture
def far(stored: Stored) -> Iterator[Callable[..., Any]]:
    """Open loaders on the far side; all of it is gone afterwards."""
    made = []
    pids: Set[int] = set()

    def open_(case: Case = APART, python: str = sys.executable, **changes: Any) -> Any:
        made.append(remote_loader.RemoteLoader(python, case))
        pids.update(p.pid for p in children())
        return made[-1].open(changes.pop("request", None) or request(stored, **changes))

    yield open_
    for each in made:
        each.end()
        each.end()
    assert not children()
    assert not shared_memory(pids)


def shared_memory(pids: Iterable[int]) -> List[str]:
    """Return what is in /dev/shm by the name of one of these processes, as torch names it."""
    ours = {str(pid) for pid in pids}
    return [name for name in os.listdir("/dev/shm") if ours & set(re.findall(r"\d+", name))]


def test_its_shared_memory_has_no_name(far: Any, stored: Stored) -> None:
    far()
    # other tests of this process may have left a helper of multiprocessing's
    (process,) = [
        c
        for c in psutil.Process().children()
        if "iobench.worker.remote_loader_server" in c.cmdline()
    ]
    mapped: set[str] = set()
    deadline = time.monotonic() + 30.0  # it may still be at its imports
    while not mapped and time.monotonic() < deadline:
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        mapped = {line.split(maxsplit=5)[5] for line in maps if "/dev/shm" in line}
        time.sleep(0.01)
    assert mapped
    assert all(path.endswith(" (deleted)") for path in mapped)


def children() -> List[psutil.Process]:
    """Return what is below this process, less the helper that multiprocessing keeps for good."""
    found = [c for c in psutil.Process().children(recursive=True) if c.status() != "zombie"]
    return [c for c in found if not any("resource_tracker" in word for word in c.cmdline())]


def direct(stored: Stored, loader: str = "threads", **changes: Any) -> List[Any]:
    made = registry.load("loaders", loader).make(request(stored, **changes))
    return taken(made)


def taken(loader: Any) -> List[Any]:
    batches = [
        b if b.data is None else b._replace(data=np.asarray(b.data).copy())
        for b in loader.batches()
    ]
    loader.close()
    loader.close()
    return batches


def same(ours: List[Any], theirs: List[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        np.array_equal(a.ids, b.ids)
        and np.array_equal(a.labels, b.labels)
        and a.nbytes == b.nbytes
        and a.digests == b.digests
        and (a.data is None) == (b.data is None)
        and (a.data is None or np.array_equal(a.data, b.data))
        for a, b in zip(ours, theirs)
    )


# -- what crosses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": "read", "digest": True, "order": "shuffled"},
        {"stage": "decode"},
        {"stage": "load", "order": "window:6", "seed": 3, "epoch": 1},
        {"stage": "load", "transform": "crop224", "workers": 0},
        {"stage": "load", "transform": "cifar32", "rank": 1, "world_size": 2},
        {"stage": "load", "limit": BATCH},
    ],
)
def test_the_batches_are_those_of_the_loader_itself(
    stored: Stored, far: Callable[..., Any], changes: Dict[str, Any]
) -> None:
    assert same(taken(far(**changes)), direct(stored, **changes))


def test_torch_s_batches_come_too(stored: Stored, far: Callable[..., Any]) -> None:
    need("torch")
    case = Case(loader="torch", format="tar", loader_options={"start_method": "fork"})
    loader = far(case, order="shuffled", workers=2, prefetch=3)
    assert loader.queue_batches == 2 * 3 + 1
    batches = list(loader.batches())
    loader.close()
    assert same(batches, direct(stored, "torch", order="shuffled")), "not copied, so all stay"
    assert len({b.data.ctypes.data for b in batches}) == len(batches)
    with open("/proc/self/maps") as maps:
        assert sum("/torch_" in line for line in maps) == len(batches)


def test_torch_s_batches_without_workers_are_copied(stored: Stored, far: Any) -> None:
    need("torch")
    loader = far(Case(loader="torch", format="tar"), workers=0)
    assert loader.queue_batches == 1
    assert same(taken(loader), direct(stored, "torch"))


def test_a_batch_stays_until_the_next_is_asked_for(stored: Stored, far: Any) -> None:
    loader = far(prefetch=1)
    expected = direct(stored)
    kept = []
    for batch, wanted in zip(loader.batches(), expected):
        time.sleep(0.05)  # the far side has filled the other slot, and waits
        assert np.array_equal(batch.data, wanted.data)
        kept.append(batch)
    assert len({b.data.ctypes.data for b in kept}) == remote_loader_server.SLOTS
    assert [b.ids.tolist() for b in kept] == [b.ids.tolist() for b in expected]
    last = kept[-1].data.copy()
    loader.close()
    assert np.array_equal(kept[-1].data, last), "its memory outlives the far side"


def test_what_the_hand_over_took_is_noted(far: Any) -> None:
    loader = far()
    taken(loader)
    found = loader.notes()["handover_s"]
    assert found["batches"] == SAMPLES // BATCH
    assert 0 < found["copy_median"] <= found["median"]
    assert found["wake_median"] >= 0


def test_the_far_side_tells_its_software(far: Any, stored: Stored) -> None:
    made = remote_loader.RemoteLoader(sys.executable, APART)
    taken(made.open(request(stored)))
    facts = made.facts
    assert set(facts) == {"python", "libraries", "mapped", "sources", "threads"}
    assert facts["libraries"]["numpy"] == np.__version__
    made.end()


def test_its_reads_are_counted_and_its_start_is_not(stored: Stored, far: Any) -> None:
    """An interpreter and NumPy are some megabytes; the samples here are a few hundred KB."""
    loader = far(stage="read")
    before = io_counters.snapshot()
    batches = taken(loader)
    io = loader.added_to(io_counters.difference(before, io_counters.snapshot()))
    needed = sum(b.nbytes for b in batches)
    assert needed <= io.rchar < needed + 500_000
    assert io.cpu_user_s >= 0


def test_torch_s_workers_are_counted_with_it(stored: Stored, far: Any) -> None:
    need("torch")
    options = {"start_method": "spawn"}  # what they read before they are up is not counted
    case = Case(loader="torch", format="tar", loader_options=options)
    loader = far(case, stage="read", workers=2)
    before = io_counters.snapshot()
    batches = taken(loader)
    io = loader.added_to(io_counters.difference(before, io_counters.snapshot()))
    needed = sum(b.nbytes for b in batches)
    assert needed <= io.rchar < needed + 1_000_000


def test_left_early_and_never_started(far: Any) -> None:
    loader = far(workers=1)
    next(loader.batches())
    loader.close()
    loader.close()
    far(workers=1).close()
    far(workers=1)  # not even closed: the bridge's own close is enough


# -- what goes wrong -------------------------------------------------------------------------


@pytest.mark.parametrize("loader", ["threads", "torch"])
def test_a_corrupt_sample_is_named(tmp_path: Path, far: Any, loader: str) -> None:
    if loader == "torch":
        need("torch")
    bad = in_shards(tmp_path, photos.spoilt(photos.samples(SAMPLES), 9, b"no jpeg at all"))
    case = Case(loader=loader, format="tar")
    made = far(case, request=request(bad, workers=2))
    seen: List[List[int]] = []
    with pytest.raises(DatasetError, match=r"^sample 9 of .*/tar: no readable JPEG") as raised:
        seen.extend(batch.ids.tolist() for batch in made.batches())
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "\n" not in str(raised.value)
    made.close()


def test_an_option_that_is_not_possible_keeps_its_error(far: Any) -> None:
    need("torch")
    case = Case(loader="torch", format="tar", loader_options={"start_method": "thread"})
    with pytest.raises(SpecError, match="allowed: fork, spawn"):
        far(case)


PLUGIN = """
from iobench.core.members import LoaderBackend

class It:
    queue_batches = 0
    def __init__(self, request):
        {body}
    def batches(self):
        return iter(())
    def close(self):
        pass

BACKEND = LoaderBackend(It, "for a test", requires={requires!r})
"""


def plugin(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, requires: Any = ()) -> Case:
    for axis in registry.AXES:
        (folder / axis).mkdir()
    (folder / "loaders/odd.py").write_text(PLUGIN.format(body=body, requires=requires))
    monkeypatch.setenv("IOBENCH_PLUGINS", str(folder))
    return Case(loader="odd", format="tar")


def test_a_library_that_is_not_there_is_told(
    tmp_path: Path, far: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = plugin(tmp_path, monkeypatch, "pass", ("no_such_library",))
    with pytest.raises(BackendUnavailable, match=r"'odd' cannot run here: needs no_such_library"):
        far(case)


def test_an_error_of_another_kind_is_one_line_with_its_name(
    tmp_path: Path, far: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = plugin(tmp_path, monkeypatch, 'raise RuntimeError("two\\nlines")')
    with pytest.raises(TrialFailed, match=r"^the odd loader failed: RuntimeError: two lines$"):
        far(case)


def test_an_exit_without_a_word_is_told(
    tmp_path: Path, far: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = plugin(tmp_path, monkeypatch, "__import__('os')._exit(3)")
    with pytest.raises(TrialFailed, match="ended with status 3"):
        far(case)


@pytest.mark.parametrize("loader", ["threads", "torch"])
def test_a_far_side_that_is_killed_is_told_and_leaves_no_worker(far: Any, loader: str) -> None:
    """DataLoader workers inherit its end of the socket: nothing closes when it dies."""
    if loader == "torch":
        need("torch")
    made = far(Case(loader=loader, format="tar"), workers=2, prefetch=1)
    batches = made.batches()
    next(batches)
    # other tests of this process may have left a helper of multiprocessing's
    (process,) = [
        c
        for c in psutil.Process().children()
        if "iobench.worker.remote_loader_server" in c.cmdline()
    ]
    workers = process.children()
    assert len(workers) == (2 if loader == "torch" else 0)
    process.send_signal(signal.SIGKILL)
    with pytest.raises(TrialFailed, match=r"killed by SIGKILL \(out of memory\?\)"):
        list(batches)
    made.close()
    _until(lambda: all(map(_gone, workers)))


def test_too_little_shared_memory_is_told_before_anything_is_made(
    far: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remote_loader.os, "posix_fallocate", full)
    with pytest.raises(BackendUnavailable, match=r"/dev/shm has no room for \d+ MiB.*--shm-size"):
        far()


def test_no_shared_memory_at_all(far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_loader.probes, "SHARED_MEMORY", "/nowhere")
    with pytest.raises(BackendUnavailable, match="/nowhere: No such file"):
        far()


def test_a_python_that_is_not_there(far: Any) -> None:
    with pytest.raises(BackendUnavailable, match="cannot start /nowhere/python: No such file"):
        far(python="/nowhere/python")


# -- who needs it ----------------------------------------------------------------------------


def test_a_loader_at_home_needs_no_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(remote_loader.PYTHON, raising=False)
    assert remote_loader.python_of(Case(loader="torch", image="torch")) == ""
    assert remote_loader.python_of(Case(loader="threads", image="caffe")) == ""
    assert remote_loader.python_of(dataclasses.replace(APART, image="caffe")) == sys.executable
    with pytest.raises(BackendUnavailable, match=r"'torch' needs the Python of stack 'torch'"):
        remote_loader.python_of(Case(loader="torch", image="caffe"))
    monkeypatch.setenv(remote_loader.PYTHON, "/venv/bin/python")
    assert remote_loader.python_of(Case(loader="torch", image="caffe")) == "/venv/bin/python"


def test_the_far_side_gets_the_environment_from_before_the_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/caffe/lib")
    monkeypatch.setenv("PYTHONHOME", "/caffe")
    monkeypatch.setenv("PYTHONPATH", "/caffe/python")
    before = {"LD_LIBRARY_PATH": "/site/lib", "PYTHONHOME": None, "PYTHONPATH": "/mine"}
    monkeypatch.setenv(remote_loader.RESTORE, json.dumps(before))
    found = remote_loader._environment("/another/python")
    assert found["LD_LIBRARY_PATH"] == "/site/lib"
    assert "PYTHONHOME" not in found
    assert found["PYTHONPATH"] == f"{ROOT}:/mine"
    own = remote_loader._environment(sys.executable)
    assert own["PYTHONPATH"] == f"{ROOT}:/caffe/python"


DOCUMENT = {
    "name": "t",
    "case": {"trainer": "null", "image": "caffe", "batch": 4},
    "matrix": {"pipeline": ["torch:lmdb", "threads:lmdb"], "runtime": ["bare", "docker"]},
}


def test_what_a_container_cannot_have_is_left_out_and_said() -> None:
    parsed = load.parse(DOCUMENT)
    made = [(c.pipeline, c.runtime) for c in load.expand(parsed)]
    assert made == [
        ("torch:lmdb", "bare"), ("threads:lmdb", "bare"), ("threads:lmdb", "docker"),
    ]  # fmt: skip
    (line,) = load.left_out(parsed)
    assert line.startswith("torch:lmdb with runtime docker: left out: loader 'torch' needs")
    assert re.search(r"use loader .*dali.*threads", line)
    assert "runtime bare" in line


def test_a_case_that_asks_for_it_alone_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"'torch' needs the Python of stack 'torch', which image"):
        load.parse({**DOCUMENT, "matrix": {"pipeline": ["torch:lmdb"], "runtime": ["docker"]}})
    extra = {"pipeline": "torch:lmdb", "runtime": "docker"}
    with pytest.raises(SpecError, match=r"cases\[0\]: loader 'torch' needs"):
        load.parse({**DOCUMENT, "cases": [extra]})


def test_a_group_without_its_base_is_not_compared() -> None:
    from iobench.plan import contrasts, rules

    contrast = {"over": "pipeline", "base": "torch:lmdb", "pairs": 6}
    parsed = load.parse({**DOCUMENT, "contrasts": [contrast]})
    cases = load.expand(parsed)
    found = contrasts.contrasts(rules.rules(parsed, cases), {})
    runtimes = {c.label: c.runtime for c in cases}
    assert found
    assert {runtimes[c.arm] for c in found} == {"bare"}
    wrong = load.parse({**DOCUMENT, "contrasts": [{**contrast, "base": "torch:jpeg"}]})
    with pytest.raises(SpecError, match="base 'torch:jpeg' is no case"):
        contrasts.contrasts(rules.rules(wrong, load.expand(wrong)), {})


# -- the report ------------------------------------------------------------------------------


def test_the_report_prints_what_it_cost() -> None:
    found = HandoverResult(batches=80, median=0.00631, mean=0.007, copy=0.00625, wake=0.00006)
    said = words.handover(fixture.case_result(handover_s=found))
    assert said == "6.31 ms a batch to bring it from another process (copy 6.25, wake-up 0.060)"
    assert words.handover(fixture.case_result()) == ""


def test_records_are_read_for_it() -> None:
    from iobench.analysis.suite import analyse

    plan, records = fixture.suite()
    noted = {"batches": 4, "median": 2e-3, "mean": 3e-3, "copy_median": 1e-3, "wake_median": 1e-4}
    changed = [
        dataclasses.replace(
            record,
            ranks=tuple(
                dataclasses.replace(rank, notes={**rank.notes, "handover_s": noted})
                for rank in record.ranks
            ),
        )
        for record in records
    ]
    found = analyse(plan, changed).pipelines[0].handover_s
    assert (found.median, found.mean, found.copy) == (2e-3, 3e-3, 1e-3)
    assert analyse(plan, records).pipelines[0].handover_s is None


# -- the two Pythons -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = make.make("smoke", tmp_path_factory.mktemp("set") / "d", samples=64, seed=1)
    convert.convert(made, "lmdb")
    return made


def caffe_case(found: Dataset, **changes: Any) -> Case:
    case = Case(
        format="lmdb", loader="torch", trainer="null", image="caffe", location=found.root,
        batch=8, workers=2, seed=1,
    )  # fmt: skip
    return dataclasses.replace(case, **changes)


@pytest.mark.system
@pytest.mark.parametrize(
    ("stage", "cache"),
    rows(
        [("read", "cold"), ("train", "warm"), ("digest", "-")],
        [("load", "warm"), ("load", "cold"), ("compute", "-"), ("probe", "warm"), ("calls", "-"),
         ("decode", "warm")],
    ),
)  # fmt: skip
def test_torch_under_caffe_s_python(smoke: Dataset, stage: str, cache: str) -> None:
    """The same trial with the worker in each Python: same samples, same order, same bytes."""
    for name in ("caffe", "torch"):
        need(name)
    if stage == "calls":
        need("strace")
    found = {}
    for image in ("caffe", "torch"):
        trial = Trial("t", caffe_case(smoke, image=image), stage, cache)
        record = attempted(trial, smoke, TrialSettings(compute_s=0.5))
        assert (record.status, record.reasons) == (VALID, ()), image
        found[image] = record
    ours, theirs = (found[image].ranks[0] for image in ("caffe", "torch"))
    assert ours.order_digest == theirs.order_digest
    assert ours.samples_digest == theirs.samples_digest
    assert ours.fingerprint["python"].startswith("3.")
    assert ours.fingerprint["python"] != theirs.fingerprint["python"]
    if stage in ("read", "load", "train"):
        assert ours.notes["queue_batches"] == theirs.notes["queue_batches"] + 1
        assert ours.notes["handover_s"]["batches"] == 8
        assert ours.fingerprint["loader"]["python"] == theirs.fingerprint["python"]
        assert "handover_s" not in theirs.notes
    if cache == "cold":
        assert found["caffe"].cache.bytes_storage >= found["caffe"].cache.bytes_needed


@pytest.mark.system
@pytest.mark.parametrize("released", [False, True])
def test_a_killed_worker_leaves_nothing(smoke: Dataset, tmp_path: Path, released: bool) -> None:
    for name in ("caffe", "torch"):
        need(name)
    trial = Trial("t", caffe_case(smoke), "train", "warm")
    settings = TrialSettings(decode_delay_s=1.0)  # long enough to be caught in the middle
    with worker_of(trial, smoke, tmp_path, settings, None) as worker:
        worker.wait_ready()
        expected = 1
        if released:
            worker.release()
            expected = 3  # the far side and its two workers
        process = psutil.Process(worker.process.pid)
        _until(lambda: len(process.children(recursive=True)) >= expected)
        others = process.children(recursive=True)
        process.kill()
        with pytest.raises(TrialFailed, match="killed by SIGKILL"):
            worker.results()
        _until(lambda: all(map(_gone, others)))
        assert not shared_memory([worker.process.pid, *(p.pid for p in others)])


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _until(done: Callable[[], Any], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
