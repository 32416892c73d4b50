"""Who waits in the kernel: seen in any thread of any process that the watched one started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, List

from iobench.host import unanswered

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


def test_a_thread_of_a_process_of_a_process_is_seen(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    watched = subprocess.Popen([sys.executable, "-c", SCRIPT, fifo, SCRIPT], process_group=0)
    said: List[str] = []
    watch = unanswered.Unanswered(watched.pid, said.append)
    try:
        assert wait_for(lambda: any(unanswered._waiting(watched.pid)))
        tasks = [task for task, _ in unanswered._waiting(watched.pid)]
        assert not any(task.startswith(f"/proc/{watched.pid}/") for task in tasks)
        assert all(Path(task).name != Path(task).parents[1].name for task in tasks)
        watch.look()
        watch.look()
        assert watch._asked  # the mounts were asked, and answer
        assert not watch.look()
    finally:
        watch.close()
        os.killpg(watched.pid, 9)
        watched.wait()
    assert not said
