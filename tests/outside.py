"""What lies on the machine outside the clone: listed before the tests, and again at their end.

    python -m tests.outside         print the list
    python -m tests.outside FILE    say what is not in that list; status 1 where anything is not

Mounts, loop devices, network namespaces, control groups of trials, containers, engines' images,
processes that carry the variable ``MARK``, and what is named ``iobench*`` where temporary files
are.  Packages are installed, and say so, before the first list; what killed drivers left, the next
suite removes, and here the second list.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fault_invariants import Around
from iobench.host import scratch, work_folder
from tests.build.containers import marked

#: tests/run.sh sets it for all that it starts.
MARK = "IOBENCH_TEST_RUN"
#: A machine's first ``ip netns add`` makes this folder a mount, and nothing of ``ip`` undoes it.
NETWORKS = "/run/netns"
#: What ends by itself gets this time, seconds.
GRACE_S = 20.0


def now() -> set[str]:
    """Return what there is, a line each."""
    names = set(Around.now(private=False, containers=True).names)
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached meanwhile
            names.add(f"loop device {file.parts[3]} of {file.read_text().strip()}")
    names |= {f"network namespace {p}" for p in Path(NETWORKS).glob("*")}
    folders = {tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/run"}
    names |= {f"{p}" for folder in folders for p in Path(folder).glob("iobench*")}
    names |= {*_images(), *_processes()}
    return {name.replace("\n", " ") for name in names}


def _images() -> Iterator[str]:
    for program in filter(shutil.which, ("podman", "docker")):
        words = [program, "images", "--format", "{{.ID}} {{.Repository}}:{{.Tag}}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        yield from (f"image of {program} {line}" for line in done.stdout.splitlines())


def _processes() -> Iterator[str]:
    for pid, words in marked(f"{MARK}={os.environ.get(MARK)}").items():
        yield f"process {pid} {' '.join(words)[:150]}"


def left(before: set[str]) -> list[str]:
    """Return what has come since and stays."""
    end = time.monotonic() + GRACE_S
    while (new := now() - before) and time.monotonic() < end:
        time.sleep(0.5)
    return sorted(new)


def main(argv: list[str]) -> int:
    if not argv:
        sys.stdout.write("".join(f"{name}\n" for name in sorted(now())))
        return 0
    before = set(Path(argv[0]).read_text().splitlines())
    scratch.sweep()
    work_folder.sweep()
    if f"mount {NETWORKS}" not in before:  # busy, and named below, while a network is left in it
        subprocess.run(["umount", NETWORKS], capture_output=True, check=False)
    found = left(before)
    for name in found:
        sys.stderr.write(f"iobench: the tests left: {name}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
