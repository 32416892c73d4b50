"""Locked pages stay when they are evicted, for root and within a limit; holders end with their
driver."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List

import pytest

from iobench.host import page_cache, page_lock
from tests.capabilities import need

FILE_BYTES = 100_000
#: Python itself and a copy of the module: another user may see neither this tree nor its .venv.
PYTHON = os.path.realpath(sys.executable)
LOCK = """
import sys, time
from pathlib import Path
from page_lock import lock
with lock([Path(sys.argv[1])]) as reason:
    print(reason or "locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def files(tmp_path: Path) -> List[Path]:
    """Three files and an empty one, on the disk."""
    made = [tmp_path / f"é {i}\n" for i in range(4)]
    for path in made[1:]:
        path.write_bytes(os.urandom(FILE_BYTES))
    made[0].touch()
    page_cache.evict(made)
    if page_cache.residency(made).fraction != 0.0:
        pytest.skip(f"{tmp_path} is on a filesystem without eviction: choose another --basetemp")
    return made


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A folder that holds the module alone."""
    shutil.copy(page_lock.__file__, tmp_path)
    return tmp_path


@pytest.mark.parametrize("most", [None, 1, 3])
def test_locked_pages_stay(files: List[Path], most: int) -> None:
    need("root")
    with page_lock.lock(files, most=most) as reason:
        assert reason == ""
        assert page_cache.residency(files).fraction == 1.0  # locking reads what is missing
        page_cache.evict(files)
        assert page_cache.residency(files).fraction == 1.0
    page_cache.evict(files)
    assert page_cache.residency(files).fraction == 0.0


def test_what_is_resident_is_locked_and_nothing_is_read(files: List[Path]) -> None:
    need("root")
    page = os.sysconf("SC_PAGE_SIZE")
    wanted = 4 + -(-FILE_BYTES // page)
    for _ in range(5):  # kernels that reclaim idle pages may take some
        with files[1].open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for number in (0, 1, 5, FILE_BYTES // page):  # the last page is not whole
                os.pread(file.fileno(), 1, number * page)
        page_cache.warm(files[2:3])
        if page_cache.residency(files).resident == wanted:
            break
    assert page_cache.residency(files).resident == wanted
    with page_lock.lock(files, resident=True) as reason:
        assert reason == ""
        page_cache.evict(files)
        assert page_cache.residency(files).resident == wanted
        assert page_cache.residency(files[2:3]).fraction == 1.0
    page_cache.evict(files)
    assert page_cache.residency(files).fraction == 0.0


def test_no_file_is_locked_at_once() -> None:
    with page_lock.lock([]) as reason:
        assert reason == ""


def test_a_missing_file_is_a_reason_and_nothing_stays_locked(files: List[Path]) -> None:
    need("root")
    with page_lock.lock([*files, files[0].with_name("gone")], most=1) as reason:
        assert reason.startswith("No such file or directory for ")
        page_cache.evict(files)
        assert page_cache.residency(files).fraction == 0.0


@pytest.mark.parametrize(
    ("limit", "answer"), [(1 << 20, "locked"), (64 << 10, r", limit 64 KiB \(ulimit -l\)")]
)
def test_a_user_may_lock_up_to_the_limit(
    files: List[Path], module: Path, limit: int, answer: str
) -> None:
    need("root")
    files[1].chmod(0o644)
    for folder in files[1].parents:
        if folder.stat().st_mode & 0o5 != 0o5:
            folder.chmod(folder.stat().st_mode | 0o055)

    def become() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    done = subprocess.run(
        [PYTHON, "-c", LOCK, str(files[1])],
        cwd=module,
        preexec_fn=become,
        input="",
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(answer, done.stdout), done.stdout


def test_nothing_stays_locked_when_the_driver_is_killed(files: List[Path], module: Path) -> None:
    need("root")
    with subprocess.Popen(
        [PYTHON, "-c", LOCK, str(files[1])],
        cwd=module,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "locked\n"
        driver.send_signal(signal.SIGKILL)
    end = time.monotonic() + 10
    while page_cache.residency(files).fraction != 0.0:
        assert time.monotonic() < end, "the pages are still locked"
        time.sleep(0.05)
        page_cache.evict(files)
