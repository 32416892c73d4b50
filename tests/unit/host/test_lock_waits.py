"""Who waits for a lock, and for which: by real processes that do."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest

from iobench.host import lock_waits

#: A process that starts another, in which a thread, not the first, takes a lock.
SCRIPT = """
import fcntl, subprocess, sys, threading
take, path, *inner = sys.argv[1:]
if inner:
    subprocess.run([sys.executable, "-c", inner[0], take, path])
else:
    file = open(path, "r+")
    threading.Thread(target=getattr(fcntl, take), args=(file, fcntl.LOCK_EX)).start()
    print("begun", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def taking(take: str, path: Path) -> Iterator[int]:
    words = [sys.executable, "-c", SCRIPT, take, str(path), SCRIPT]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


@pytest.mark.parametrize("take", ["lockf", "flock"])
def test_a_lock_that_another_process_holds_is_named(tmp_path: Path, take: str) -> None:
    path = tmp_path / "a lock"
    path.touch()
    with taking(take, path) as holds:
        assert lock_waits.waited_for(holds) == {}
        with taking(take, path) as waits:
            end = time.monotonic() + 30
            while not (found := lock_waits.waited_for(waits)) and time.monotonic() < end:
                time.sleep(0.05)
            assert found == {str(path): 1}
            subprocess.run(["pkill", "-KILL", "-P", str(holds)], check=True)
