"""Trees of pictures as users have them, and what is done with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import numpy as np

from iobench.core import registry
from iobench.core.cases import Dataset
from iobench.data import convert
from tests.capabilities import need


def picture(seed: int, *, side: int = 64) -> bytes:
    """Return a JPEG file of noise."""
    import simplejpeg

    image = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    data: bytes = simplejpeg.encode_jpeg(image, quality=80)
    return data


def state(root: Path) -> Dict[str, Any]:
    """Everything of a tree that writing to it would change."""
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_mode)
        for path in [root, *root.rglob("*")]
    }


def converted(dataset: Dataset, name: str, content: str) -> Path:
    for module in registry.load("formats", name).requires:
        need({"h5py": "hdf5"}.get(module, module))
    return convert.convert(dataset, name, content=content)
