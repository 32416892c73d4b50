"""Two nodes on one dataset of a distributed filesystem: clients and host names of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator, Tuple

import pytest

from iobench.host import locks
from tests.build.gluster import gluster
from tests.capabilities import need

pytestmark = pytest.mark.slow
IOBENCH = [sys.executable, "-m", "iobench.cli"]
#: Another host's name: locks say who holds them by it.
OTHER = ["unshare", "--uts", "sh", "-c", 'hostname node2 && exec "$@"', "sh"]
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Tuple[Path, Path]]:
    """Return where this node and the other see the volume."""
    need("gluster")
    with gluster() as volume, volume.second_client() as other:
        yield volume.mount, other


def make(folder: Path, samples: int) -> list[str]:
    return [*IOBENCH, "data", "make", "smoke", str(folder), "--samples", str(samples)]


@contextlib.contextmanager
def on_node2(folder: Path, samples: int) -> Iterator[subprocess.Popen[bytes]]:
    """Begin to make a dataset on the other node; it holds the folder from here on."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*OTHER, *make(folder, samples)], **quiet) as process:
        try:
            end = time.monotonic() + PATIENCE_S
            while not (folder / locks.NAME).is_file() or locks.named(folder) is None:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


def here(folder: Path, samples: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(make(folder, samples), capture_output=True, text=True, check=False)


def test_one_node_makes_a_dataset_and_the_other_is_told_which(nodes: Tuple[Path, Path]) -> None:
    mount, second = nodes
    with on_node2(second / "data", 1500) as other:
        done = here(mount / "data", 1500)
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.splitlines()
        found = re.search(r"on host node2, pid (\d+), since", line)
        assert found, line
        assert str(second).encode() in Path(f"/proc/{found[1]}/cmdline").read_bytes()
        assert other.wait(PATIENCE_S) == 0
    assert json.loads((mount / "data/dataset.json").read_text())["samples"] == 1500
    done = here(mount / "data", 1500)
    assert done.returncode == 0, done.stderr


def test_a_killed_node_holds_nothing(nodes: Tuple[Path, Path]) -> None:
    mount, second = nodes
    with on_node2(second / "killed", 600) as other:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        done = here(mount / "killed", 600)
    assert done.returncode == 0, done.stderr
    assert json.loads((mount / "killed/dataset.json").read_text())["samples"] == 600
