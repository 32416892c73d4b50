"""System calls of a loop: what a trace says, what a real one finds, and why there may be none."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

from iobench.analysis import syscalls
from iobench.analysis.evidence import evidence
from iobench.analysis.suite import analyse
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import EXPLORATORY, VALID, Record
from iobench.data import convert, make
from iobench.host import strace
from iobench.report import contrast_words
from iobench.run import next_trials
from iobench.run.trial import TrialSettings, run_trial
from tests.build import pairs as fixture
from tests.capabilities import need

BARE, DOCKER = fixture.cases("bare", "docker")
TRACE = """\
100 openat(AT_FDCWD, "/usr/lib/python3/torch.py", O_RDONLY) = 3
100 access("/iobench/calls-begin", F_OK) = -1 ENOENT (No such file or directory)
100 openat(AT_FDCWD, "/d/jpeg/1.jpg", O_RDONLY|O_CLOEXEC) = 3
100 read(3,  <unfinished ...>
101 openat(AT_FDCWD, "/d/jpeg/2.jpg", O_RDONLY) = -1 ENOENT (No such file or directory)
100 <... read resumed>""..., 4096) = 4096
--- SIGCHLD {si_signo=SIGCHLD} ---
101 fadvise64(3, 0, 0, POSIX_FADV_RANDOM) = 0
101 +++ exited with 0 +++
100 access("/iobench/calls-end", F_OK <unfinished ...>
100 <... access resumed>) = -1 ENOENT (No such file or directory)
100 munmap(0x7f3f6dd77000, 208896) = 0
"""


def test_only_calls_that_begin_between_the_markers_count() -> None:
    assert strace.counts(TRACE.splitlines()) == {"openat": 2, "read": 1, "fadvise64": 1}


@pytest.mark.parametrize("marker", ["calls-begin", "calls-end"])
def test_a_trace_without_a_whole_loop_has_no_counts(marker: str) -> None:
    assert strace.counts(line for line in TRACE.splitlines() if marker not in line) == {}


def test_ranks_count_from_the_first_begin_to_the_last_end() -> None:
    other = TRACE.replace("100 ", "200 ").replace("101 ", "201 ").splitlines()
    mine = TRACE.splitlines()
    both = mine[:2] + other[:4] + mine[2:] + other[4:]
    assert strace.counts(both)["openat"] == 2 + 2 + 1, "the one before its own begin included"


# -- for real --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = make.make("imagenet-like", tmp_path_factory.mktemp("set") / "d", samples=64, seed=1)
    convert.convert(made, "lmdb")
    return made


def traced(data: Dataset, loader: str, form: str, **fields: Any) -> Record:
    case = Case(
        loader=loader, format=form, location=data.root, **{"batch": 16, "workers": 2, **fields}
    )
    return run_trial(Trial("t", case, "calls", "-"), data, 1, TrialSettings())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "form", "least", "most"),
    [("torch", "jpeg", 1.0, 1.4), ("torch", "lmdb", 0.0, 0.4), ("dali", "jpeg", 1.0, 2.0)],
)
def test_a_pipeline_opens_as_many_files_as_its_format_needs(
    data: Dataset, loader: str, form: str, least: float, most: float
) -> None:
    need("strace")
    need(loader)
    record = traced(data, loader, form)
    assert (record.status, record.reasons) == (VALID, ())
    found = syscalls.per_sample(record)
    assert record.notes["calls"]["samples"] == 64
    assert least <= found.get("open", 0.0) <= most, found


@pytest.mark.slow
def test_samples_are_bounded_and_in_whole_batches(data: Dataset) -> None:
    need("strace")
    record = traced(data, "torch", "jpeg", batch=24, workers=0)
    assert record.notes["calls"]["samples"] == 48
    opened = 48 * syscalls.per_sample(record)["open"]
    assert 48 <= opened <= 48 + 16, "what libraries look for in their first batch apart"


@pytest.mark.slow
def test_without_strace_the_trial_ends_and_says_so(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda n, **k: None if n == "strace" else which(n, **k))
    record = traced(data, "torch", "jpeg")
    assert record.status == EXPLORATORY
    assert record.reasons == (
        "no calls are counted: no program strace: install it (Debian: strace)",
    )


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.slow
def test_a_process_that_may_not_be_traced_has_a_reason_and_goes_on(
    sleeper: int, tmp_path: Path
) -> None:
    """A process has one tracer: the second is refused as a stranger would be."""
    need("strace")
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    argv = ["strace", "-o", str(first / "trace"), "-p", str(sleeper)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as tracer:
        assert tracer.stderr is not None
        assert b"attached" in tracer.stderr.readline()
        with strace.trace([sleeper], second) as found:
            assert "may not trace the worker" in found.reason
            assert "Operation not permitted" in found.reason
        assert found.counts == {}
        tracer.terminate()


@pytest.mark.slow
def test_a_tracer_is_gone_when_the_body_fails(sleeper: int, tmp_path: Path) -> None:
    need("strace")
    status = Path(f"/proc/{sleeper}/status")

    def fails() -> None:
        with strace.trace([sleeper], tmp_path) as found:
            assert found.reason == ""
            assert "TracerPid:\t0" not in status.read_text()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    time.sleep(0.05)
    assert "TracerPid:\t0" in status.read_text()


def test_a_process_that_is_not_seen_has_a_reason(tmp_path: Path) -> None:
    with strace.trace(strace.processes("iobench-nobody", [1]), tmp_path) as found:
        assert found.reason == "the worker's process cannot be seen from here"


# -- what a contrast says of them ------------------------------------------------------------


def entry(arm: dict[str, int], base: dict[str, int], *, load: float = 1.2, reason: str = "") -> Any:
    """Return a contrast whose arms made these calls in ten samples."""
    contrast = fixture.contrast(DOCKER, BARE)
    plan = fixture.plan([BARE, DOCKER], [contrast])
    traced = next_trials.calls_due(evidence(plan, []), [contrast])
    traced = [
        Trial(f"calls{i}", t.case, t.stage, t.cache) for i, t in enumerate(traced)
    ]  # numbered, as a plan does
    plan = type(plan)(**{**vars(plan), "trials": (*plan.trials, *traced)})
    records = []
    for trial in plan.trials:
        mine = trial.case.label == DOCKER.label
        record = fixture.record(trial, 1e-3 * (load if mine else 1.0) * (1 + 1e-4 * trial.block))
        if trial.stage == "calls":
            note = {"samples": 10, "counts": arm if mine else base, "reason": reason}
            record = type(record)(**{**vars(record), "notes": {"calls": note}})
        records.append(record)
    assert next_trials.calls_due(evidence(plan, records), [contrast]) == []
    return analyse(plan, records).contrasts[0]


def test_calls_that_differ_are_named_the_largest_first() -> None:
    found = entry(
        {"openat": 10, "pread64": 10, "read": 10, "statx": 90, "futex": 500, "mmap": 100},
        {"open": 10, "read": 40, "fstat": 10, "futex": 10, "mmap": 101, "close": 9},
    )
    assert found.outcome.verdict == "SLOWER"
    assert found.calls.arm["read"] == 2.0
    assert found.calls.base["open"] == 1.0
    assert found.calls.differing == ["stat", "read", "close"]
    said = contrast_words.calls(found)
    assert said == (
        "calls a sample: open() 1.0 against 1.0, read() 2.0 against 4.0, stat() 9.0 against 1.0, "
        "close() 0.0 against 0.9"
    )
    assert said in contrast_words.sentence(found)


def test_the_same_calls_differ_in_nothing() -> None:
    assert entry({"openat": 10}, {"open": 10}).calls.differing == []


def test_a_reason_stands_in_place_of_counts() -> None:
    found = entry({}, {}, reason="no program strace")
    assert found.calls.arm == {}
    assert contrast_words.calls(found) == "calls n/a: no program strace"


def test_no_difference_is_told_no_calls() -> None:
    found = entry({"openat": 10}, {"openat": 90}, load=1.0)
    assert found.outcome.verdict == "EQUIVALENT"
    assert (found.calls, contrast_words.calls(found)) == (None, "")
