"""A disk of a test's own: ext4 in a file, on a loop device that reads it with direct I/O."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterator

from iobench.core.cases import Dataset
from iobench.data import make


@contextlib.contextmanager
def disk(image: Path, point: Path, nbytes: int) -> Iterator[str]:
    """Mount a new disk at ``point``; yield its loop device.  ``image`` (sparse) is left to you."""
    with image.open("wb") as file:
        os.truncate(file.fileno(), nbytes)
    run("mkfs.ext4", "-q", str(image))
    with contextlib.ExitStack() as undo:
        loop = run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
        undo.callback(run, "losetup", "--detach", loop)
        point.mkdir(exist_ok=True)
        run("mount", loop, str(point))
        undo.callback(unmount, point)
        yield loop


def unmount(point: Path) -> None:
    """Unmount; wait for the last files of processes that have ended, which may still be open."""
    for _ in range(100):
        done = subprocess.run(["umount", point], capture_output=True, text=True, check=False)
        if "busy" not in done.stderr:
            break
        time.sleep(0.1)
    assert done.returncode == 0, done.stderr


def run(*argv: str) -> str:
    """Run a command of the system's and return its output."""
    assert shutil.which(argv[0]), f"no program {argv[0]}"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def dataset_on_disk(below: Path, samples: int, nbytes: int) -> Iterator[Dataset]:
    """Yield a dataset on a disk of its own, in a temporary folder ``below``."""
    with tempfile.TemporaryDirectory(dir=below) as name:
        folder = Path(name)
        with disk(folder / "image", folder / "point", nbytes):
            yield make.make("imagenet-like", folder / "point" / "set", samples=samples, seed=1)
