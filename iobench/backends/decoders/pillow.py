"""Pillow, as torchvision's ImageFolder decodes: open, convert to RGB."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from iobench.core.members import DecoderBackend


def decode(data: Any) -> np.ndarray:
    """Return the pixels of a bytes-like JPEG.  Raises ValueError where Pillow finds none."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return np.array(image.convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from None


BACKEND = DecoderBackend(
    lambda: decode,
    "Pillow, as torchvision's ImageFolder decodes: open, convert to RGB",
    requires=("PIL",),
    libraries={"PIL": "pillow"},
)
