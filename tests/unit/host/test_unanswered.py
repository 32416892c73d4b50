"""Who waits in the kernel: seen in any thread of any process that the watched one started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, List

import pytest

from iobench.host import mounts, unanswered

#: A thread, not the first, of a process of a process opens a FIFO that nobody else opens.
SCRIPT = """
import subprocess, sys, threading
if sys.argv[2:]:
    subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]])
else:
    threading.Thread(target=open, args=(sys.argv[1],)).start()
    threading.Event().wait()
"""


def wait_for(seen: Callable[[], bool]) -> bool:
    for _ in range(200):
        if seen():
            return True
        time.sleep(0.05)
    return False


def test_a_thread_of_a_process_of_a_process_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "mountinfo"  # without those of other tests, which are told not to answer
    kept = (n for n in mounts.MOUNTINFO.read_text().splitlines(True) if " - fuse" not in n)
    own.write_text("".join(kept))
    monkeypatch.setattr(mounts, "MOUNTINFO", own)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    watched = subprocess.Popen([sys.executable, "-c", SCRIPT, fifo, SCRIPT], process_group=0)
    said: List[str] = []
    watch = unanswered.Unanswered(watched.pid, said.append)

    def held() -> bool:
        tasks = [Path(task) for task, _ in unanswered._waiting(watched.pid)]
        processes = [int(task.parents[1].name) for task in tasks]
        return any(p not in (watched.pid, int(t.name)) for p, t in zip(processes, tasks))

    try:
        assert wait_for(held)
        assert wait_for(lambda: not watch.look() and bool(watch._asked))  # and they answer
    finally:
        os.killpg(watched.pid, 9)
        watched.wait()
        ended = wait_for(lambda: not (watch.look() or watch._asked))
        watch.close()
    assert ended
    assert not said
