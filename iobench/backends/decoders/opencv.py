"""OpenCV's imdecode, without turning pictures by their EXIF orientation; releases the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from iobench.core.members import DecoderBackend


def decode(data: Any) -> np.ndarray:
    """Return the pixels of a bytes-like JPEG.  Raises ValueError where OpenCV finds none."""
    import cv2

    straight = getattr(cv2, "IMREAD_COLOR_RGB", None)  # OpenCV 4.11 and newer
    how = cv2.IMREAD_COLOR if straight is None else straight
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), how | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:  # no bytes at all
        raise ValueError(str(error)) from None
    if pixels is None:
        raise ValueError("OpenCV cannot decode it")
    found: np.ndarray = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if straight is None else pixels
    return found


BACKEND = DecoderBackend(
    lambda: decode,
    "OpenCV's imdecode: libjpeg-turbo inside its wheel, releases the GIL",
    requires=("cv2",),
)
