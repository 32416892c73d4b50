"""The driver's own Python on the host; PyTorch, DALI and the formats' libraries in the image."""

from __future__ import annotations

import sys
from typing import Mapping

from iobench.backends.stacks._libraries import DECODING
from iobench.core.members import ImageRecipe, Installed, Stack


def on_host(variables: Mapping[str, str]) -> Installed:
    """Return the driver's own Python; what it lacks is missing for the members that need it."""
    return Installed(sys.executable)


BACKEND = Stack(
    summary="PyTorch, DALI, LMDB, HDF5: the driver's own Python",
    on_host=on_host,
    libraries={"numpy": "numpy", "torch": "torch", **DECODING},
    remedy="run `make setup`, or install it into this Python",
    serves=True,
    image=ImageRecipe(
        description="What iobench's workers run in: PyTorch, DALI, LMDB, HDF5",
        python="3.11",
        suite="bookworm",
        first="python",
        wheels=(  # pip installs them there
            "-c", "constraints.txt", "-r", "worker.txt", "-r", "torch.txt", "-r", "dali.txt", "pip",
        ),
        files=(
            "worker.txt", "torch.txt", "dali.txt", "constraints.txt", "debian-bookworm.txt",
            "image-debian.sh", "image-python.sh", "image-packages.sh",
        ),
        store_bytes=7e9,
        archive_bytes=2.6e9,
        wheels_bytes=3e9,
    ),
)  # fmt: skip
