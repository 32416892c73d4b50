"""Samples of any size whose bytes nobody decodes: a small picture, then random bytes.

Every format stores them as it stores JPEGs, and a decoder reads the picture and stops there.
"""

from __future__ import annotations

import functools

import numpy as np

from iobench.core.transforms import mix

#: Pixels of the picture's sides.
SIDE = 64
#: A record is at least so long: the picture, and what tells two records apart.
LEAST_BYTES = 4096


@functools.cache
def picture() -> bytes:
    """Return the JPEG that every record begins with."""
    import simplejpeg

    steps = np.arange(SIDE, dtype=np.uint8) * (256 // SIDE)
    pixels = np.empty((SIDE, SIDE, 3), np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[..., 2] = steps, steps[:, None], 128
    return bytes(simplejpeg.encode_jpeg(pixels, quality=50))


def record(seed: int, index: int, size: int) -> bytes:
    """Return record ``index`` of ``size`` bytes; no two are alike, and none compresses."""
    start = picture()
    rest = np.random.Generator(np.random.PCG64(mix(seed, 53, index))).bytes(size - len(start))
    return start + rest
