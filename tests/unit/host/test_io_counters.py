"""Counters against bytes really read: by read(), by mmap, by children that have been reaped."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Iterator

import pytest

from iobench.core.records import IoCounters
from iobench.host import io_counters, page_cache

NBYTES = 8 << 20


@pytest.fixture
def cold_file() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(dir=Path(__file__).parent) as file:
        file.write(os.urandom(NBYTES))
        file.flush()
        page_cache.evict([Path(file.name)])
        yield Path(file.name)


def counted(action: Callable[[], object]) -> IoCounters:
    before = io_counters.snapshot()
    action()
    return io_counters.difference(before, io_counters.snapshot())


def by_read(path: Path) -> None:
    path.read_bytes()


def by_mmap(path: Path) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert sum(view[i] for i in range(0, NBYTES, 4096)) >= 0


def by_fork(path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        by_mmap(path)
        os._exit(0)
    os.waitpid(pid, 0)


def by_exec(path: Path) -> None:
    """A grandchild: counted once its parent, then ours, has been reaped."""
    inner = f"open({str(path)!r}, 'rb').read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    subprocess.run([sys.executable, "-c", outer], check=True)


@pytest.mark.parametrize("how", [by_read, by_mmap, by_fork, by_exec])
def test_cold_bytes_are_counted_and_warm_ones_are_not(
    cold_file: Path, how: Callable[[Path], None]
) -> None:
    cold = counted(lambda: how(cold_file))
    # a page of a program that the kernel took back meanwhile is read again
    warm = min((counted(lambda: how(cold_file)) for _ in range(4)), key=lambda c: c.read_bytes)
    assert NBYTES <= cold.read_bytes < 1.5 * NBYTES
    assert warm.read_bytes < 0.01 * NBYTES


@pytest.mark.parametrize(("how", "seen"), [(by_read, True), (by_exec, True), (by_mmap, False)])
def test_rchar_counts_read_calls_but_not_maps(
    cold_file: Path, how: Callable[[Path], None], seen: bool
) -> None:
    io = counted(lambda: how(cold_file))
    assert (io.rchar >= NBYTES) is seen


CHILD = """
import sys, time
def use(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    open(sys.argv[1], 'rb').read()
use(0.5)
print("up", flush=True)
sys.stdin.readline()
use(0.1)
"""


def test_what_a_child_used_before_is_not_counted(cold_file: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(cold_file)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        before, blind = io_counters.snapshot([child.pid]), io_counters.snapshot()
        assert child.stdin is not None
        child.stdin.write(b"go\n")
    after = io_counters.snapshot()
    io, whole = io_counters.difference(before, after), io_counters.difference(blind, after)
    assert NBYTES <= io.rchar < 1.5 * NBYTES
    assert whole.rchar >= 2 * NBYTES
    assert io.read_bytes < 0.1 * NBYTES <= whole.read_bytes
    assert 0.05 <= io.cpu_user_s + io.cpu_sys_s < 0.4 < whole.cpu_user_s + whole.cpu_sys_s


def test_a_child_that_has_ended_is_not_asked() -> None:
    assert io_counters.snapshot([2**22 + 1]).rchar <= io_counters.snapshot().rchar


def test_cpu_seconds_of_children_and_of_the_machine() -> None:
    burn = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.3: pass"
    io = counted(lambda: subprocess.run([sys.executable, "-c", burn], check=True))
    own = io.cpu_user_s + io.cpu_sys_s
    assert own >= 0.29
    assert io.machine_busy_s >= 0.2  # ticks of 10 ms
    assert io.wall_s > 0
    assert io.foreign_cpu_s <= io.machine_busy_s


def test_foreign_cpu_is_what_others_used() -> None:
    io = IoCounters(machine_busy_s=3.0, cpu_user_s=1.0, cpu_sys_s=0.5)
    assert io.foreign_cpu_s == 1.5
    assert IoCounters(cpu_user_s=1.0).foreign_cpu_s == 0.0


def test_major_faults_are_counted(cold_file: Path) -> None:
    def touch() -> None:
        with cold_file.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            view.madvise(mmap.MADV_RANDOM)
            assert sum(view[i << 12] for i in range(200)) >= 0

    assert counted(touch).major_faults >= 200


def test_difference_is_field_by_field() -> None:
    a = IoCounters(1, 2, 3, 4.0, 5.0, 6.0, 7.0, 8.0)
    b = IoCounters(11, 22, 33, 44.0, 55.0, 66.0, 77.0, 88.0)
    assert io_counters.difference(a, b) == IoCounters(10, 20, 30, 40.0, 50.0, 60.0, 70.0, 80.0)
