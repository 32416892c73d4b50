"""libjpeg-turbo inside the wheel; releases the GIL.  The usual decoder, and that of conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from iobench.core.members import DecoderBackend


def decode(data: Any) -> np.ndarray:
    """Return the pixels of a bytes-like JPEG."""
    import simplejpeg

    pixels: np.ndarray = simplejpeg.decode_jpeg(data, colorspace="RGB")
    return pixels


BACKEND = DecoderBackend(
    lambda: decode,
    "simplejpeg: libjpeg-turbo inside its wheel, releases the GIL",
    requires=("simplejpeg",),
)
