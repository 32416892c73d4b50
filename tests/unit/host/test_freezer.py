"""Processes that take turns: stopped ones do nothing, and none stays stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest

from iobench.core.clock import clock
from iobench.core.errors import CannotStop
from iobench.host import freezer
from tests.capabilities import need

#: Two threads and a child, all of which count.
BUSY = """
import os, threading
if os.fork(): threading.Thread(target=lambda: sum(0 for _ in iter(int, 1)), daemon=True).start()
os.write(1, b"up\\n")
while True: pass
"""
#: Two threads work, many sleep.
MANY = """
import threading, time
for _ in range(39): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
threading.Thread(target=lambda: sum(0 for _ in iter(int, 1)), daemon=True).start()
print("up", flush=True)
while True: pass
"""
#: As another user, where one is given: whoever that is may not read this .venv.
DRIVER = """
import os, sys
from iobench.host import freezer
if len(sys.argv) > 2:
    sys.executable = os.path.realpath(sys.executable)
    os.setuid(int(sys.argv[2]))
with freezer.freezer() as held:
    found = freezer.family([int(sys.argv[1])])
    held.watch(found)
    held.stop(found)
    print("stopped", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def started(code: str, processes: int) -> Iterator[int]:
    """Run a program until each of its processes has said that it is up; end it afterwards."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(processes)] == [b"up\n"] * processes
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def busy() -> Iterator[int]:
    with started(BUSY, 2) as pid:
        yield pid


def ticks(processes: List[int]) -> int:
    """Return the CPU time of the processes, in ticks."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in processes]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats)


def until(what: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.02)
    return what()


def states(processes: List[int]) -> set[str]:
    paths = [p for pid in processes for p in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {path.read_text().rpartition(")")[2].split()[0] for path in paths}


def test_each_thread_is_sent_the_signal(busy: int) -> None:
    with freezer.freezer() as held:
        held.watch([busy])
        held.stop([busy])
        masks = [
            re.search(r"^SigPnd:\s*(\w+)", path.read_text(), re.M)
            for path in Path(f"/proc/{busy}/task").glob("*/status")
        ]
        sent = [mask for mask in masks if mask and int(mask[1], 16) >> (signal.SIGSTOP - 1) & 1]
        assert len(sent) >= len(masks) - 1 >= 1  # one of them has taken it
        for _ in range(100):  # what is left of it stops nothing later
            held.go([busy])
            assert until(lambda: "T" not in states([busy]))
            held.stop([busy])
            assert states([busy]) == {"T"}
        held.go([busy])


def test_the_clock_stops_before_threads_that_sleep_are_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: List[int] = []
    counts: Dict[float, int] = {}
    send = freezer._stop_thread

    def stop_thread(pid: int, thread: int) -> None:
        told.append(thread)
        send(pid, thread)

    def counting_clock() -> float:
        now = clock()
        counts[now] = len(told)
        return now

    monkeypatch.setattr(freezer, "_stop_thread", stop_thread)
    monkeypatch.setattr(freezer, "clock", counting_clock)
    with started(MANY, 1) as pid, freezer.freezer() as held:
        held.watch([pid])
        sent, _ = held.stop([pid])
        assert counts[sent] == 40, "none is known to work: all are signalled, the main one first"
        held.go([pid])
        spent = ticks([pid])
        assert until(lambda: ticks([pid]) > spent + 50)
        held.stop([pid])
        held.go([pid])
        told.clear()
        sent, _ = held.stop([pid])
        assert counts[sent] == 1
        assert told[0] != pid
        assert len(set(told)) == 41


def test_a_process_that_has_just_ended_is_passed_over(busy: int) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with freezer.freezer() as held:
        held.watch([ended.pid, busy])
        held.stop([ended.pid, busy])
        assert states([busy]) == {"T"}
        held.go([ended.pid, busy])


def test_stopped_processes_do_nothing_and_go_on(busy: int) -> None:
    found = freezer.family([busy])
    assert found[0] == busy
    assert len(found) == 2
    with freezer.freezer() as held:
        held.watch(found)
        for _ in range(3):
            sent, seen = held.stop(found)
            assert sent <= seen
            assert states(found) == {"T"}
            before = ticks(found)
            time.sleep(0.1)
            assert ticks(found) == before
            begun, last = held.go(found)
            assert begun <= last
            assert until(lambda: ticks(found) > before)  # noqa: B023
        held.stop(found)
    assert until(lambda: "T" not in states(found)), "what the body left stopped goes on"


def test_one_that_has_ended_counts_as_stopped(busy: int) -> None:
    found = freezer.family([busy])
    with freezer.freezer() as held:
        held.watch(found)
        os.kill(found[1], signal.SIGKILL)
        held.stop(found)
        held.go(found)


def test_nothing_stays_stopped_when_the_driver_is_killed(busy: int) -> None:
    found = freezer.family([busy])
    argv = [sys.executable, "-c", DRIVER, str(busy)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"stopped\n"
        assert states(found) == {"T"}
        driver.kill()
    assert until(lambda: "T" not in states(found))


def test_another_users_process_is_refused_before_anything_is_stopped(busy: int) -> None:
    need("root")
    argv = [sys.executable, "-c", DRIVER, str(busy), "65534"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert CannotStop.__name__ in done.stderr
    assert "which another user owns" in done.stderr
    assert "T" not in states([busy])
