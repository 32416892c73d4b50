"""Quality, resolution and contrast of a synthetic sample, predicted from the size wanted.

The pixels of :mod:`iobench.data.pixels` are statistically alike everywhere, so the encoded size is
``HEADER_BYTES + bytes per pixel x pixels`` within 1 % (``benchmarks/fit_size_model.py`` measures
the tables with the pinned encoder).  Quality moves the size in steps of 2 to 20 %; the resolution,
free to a pixel, takes up the rest.  Where the resolution is fixed the contrast does.
"""

from __future__ import annotations

import bisect
import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from iobench.core.transforms import mix
from iobench.data.pixels import Planes
from iobench.data.recipes import Recipe

#: What the encoder writes around the entropy-coded data (three components, standard tables).
HEADER_BYTES = 623
#: A comment marker pads a file by at most this share; the prediction aims half of it low.
MAX_PADDING = 0.03
AIM = 1 - MAX_PADDING / 2
MIN_QUALITY = 20

# fmt: off
#: Qualities 20..100, 4:2:0.
BYTES_PER_100K_PIXELS = (
    7328, 7647, 7914, 8200, 8478, 8732, 9004, 9263, 9543, 9755, 9982, 10236, 10482, 10750, 10931,
    11214, 11463, 11601, 11879, 12066, 12179, 12510, 12648, 12815, 13112, 13269, 13519, 13655,
    13833, 14131, 14208, 14298, 14613, 14822, 15004, 15206, 15443, 15717, 16009, 16188, 16429,
    16764, 16999, 17373, 17627, 18019, 18364, 18734, 19204, 19600, 20150, 20674, 21083, 21715,
    22518, 22876, 23687, 24618, 25552, 26281, 27341, 28545, 29659, 31070, 32372, 33677, 35437,
    36928, 39068, 40816, 43495, 45638, 48096, 51733, 56136, 61239, 67421, 75365, 85251, 102175,
    114214,
)
#: 32x32 pixels of roughness 200 at quality 100, 4:4:4, at these contrasts (256: unchanged).
CONTRASTS = tuple(range(64, 513, 32))
BYTES_PER_100K_PIXELS_AT_CONTRAST = (
    131947, 154874, 172016, 188562, 201811, 213655, 222509, 233695, 242387, 250246, 257038, 263707,
    269528, 274897, 279424,
)
# fmt: on
#: Bytes that one pixel of a particular 32x32 image adds at contrast 256: the weights of log2 of the
#: mean absolute step between neighbours in luma, blue and red chroma, and a constant. (One bit more
#: of step is one bit more in each coefficient.)
ACTIVITY_WEIGHTS = (0.2397, 0.0854, 0.0817)
ACTIVITY_CONSTANT = 0.3805

#: Photos are wider than high, most often by 4:3.
_ASPECTS = ((4, 3), (4, 3), (4, 3), (4, 3), (4, 3), (3, 2), (3, 2), (3, 4))
#: Larger files have more pixels: pixels grow with this power of the file size.
_PIXELS_EXPONENT = 0.6


class Encoding(NamedTuple):
    """How to make a file of the size wanted."""

    height: int
    width: int
    quality: int


def encoding_for(recipe: Recipe, target_bytes: int, seed: int, index: int) -> Encoding:
    """Return resolution and quality of sample ``index`` for a file of ``target_bytes``."""
    if recipe.fixed:
        return Encoding(recipe.height, recipe.width, 100)
    body = target_bytes * AIM - HEADER_BYTES
    wanted = recipe.width * recipe.height * (target_bytes / recipe.mean_bytes) ** _PIXELS_EXPONENT
    chance = mix(seed, 31, index)
    wanted *= (80 + (chance >> 32) % 34) / 100  # 0.80 .. 1.13
    smallest, largest = recipe.min_side**2 * 1.03, recipe.max_side**2 * 0.75
    pixels = min(max(wanted, smallest), largest)
    # the rate nearest to the one that this resolution needs; the resolution then follows the rate
    needed = body * 100_000 / pixels
    at = bisect.bisect(BYTES_PER_100K_PIXELS, needed)
    near = range(max(at - 2, 0), min(at + 2, len(BYTES_PER_100K_PIXELS)))
    areas = [(body * 100_000 / BYTES_PER_100K_PIXELS[i], i + MIN_QUALITY) for i in near]
    fitting = [area for area in areas if smallest <= area[0] <= largest]
    # no resolution of the recipe reaches the size: the limit that is nearest to it
    pixels, quality = min(fitting or areas, key=lambda area: abs(area[0] - pixels))
    pixels = min(max(pixels, smallest), largest)
    across, down = _ASPECTS[(chance & 0xFFFFFFFF) % len(_ASPECTS)]
    limit = (recipe.min_side, min(recipe.max_side, int(pixels) // recipe.min_side))
    width = min(max(math.isqrt(int(pixels) * across // down), limit[0]), limit[1])
    height = min(max(round(pixels / width), recipe.min_side), recipe.max_side)
    return Encoding(height, width, quality)


def contrast_for(image: Planes, target_bytes: int) -> int:
    """Return the contrast at which a fixed-resolution image becomes ``target_bytes``.

    The table says what contrast does to the size, the image's own activity where it starts from.
    """
    pixels = image.luma.size
    table = BYTES_PER_100K_PIXELS_AT_CONTRAST
    rate = (target_bytes * (1 - MAX_PADDING / 3) - HEADER_BYTES) * 100_000 / pixels
    weighted = (w * step for w, step in zip(ACTIVITY_WEIGHTS, log_steps(image), strict=True))
    rate -= (sum(weighted) + ACTIVITY_CONSTANT) * 100_000 - table[CONTRASTS.index(256)]
    return round(float(np.interp(rate, table, CONTRASTS)))


def log_steps(image: Planes) -> list[float]:
    """Return log2 of each plane's mean absolute step between neighbours."""
    steps = []
    for plane in image:
        wide = plane.astype(np.int32)
        total = sum(int(np.abs(np.diff(wide, axis=axis)).sum()) for axis in (0, 1))
        steps.append(math.log2(max(total, 1) / wide.size))
    return steps


class SizeDistribution:
    """A recipe's target: a truncated log-normal whose *truncated* mean is ``mean_bytes``."""

    def __init__(self, recipe: Recipe) -> None:
        self._sigma = math.sqrt(math.log1p((recipe.sd_bytes / recipe.mean_bytes) ** 2))
        self._low, self._high = math.log(recipe.min_bytes), math.log(recipe.max_bytes)
        below, above = self._low, self._high
        for _ in range(60):  # the truncated mean grows with mu
            self._mu = (below + above) / 2
            if self._mean() < recipe.mean_bytes:
                below = self._mu
            else:
                above = self._mu

    def _mass(self, shift: float) -> tuple[float, float]:
        """Return the normal's mass below the limits and between them, mu moved by ``shift``."""
        normal = NormalDist(self._mu + shift, self._sigma)
        low = normal.cdf(self._low)
        return low, normal.cdf(self._high) - low

    def _mean(self) -> float:
        whole = math.exp(self._mu + self._sigma**2 / 2)
        return whole * self._mass(self._sigma**2)[1] / self._mass(0.0)[1]

    def quantile(self, probability: float) -> float:
        """Return the size in bytes that a share ``probability`` (0..1) of the files is below."""
        low, between = self._mass(0.0)
        normal = NormalDist(self._mu, self._sigma)
        return math.exp(normal.inv_cdf(low + probability * between))

    def cdf(self, size: float) -> float:
        """Return the share of files that are at most ``size`` bytes long."""
        if size <= 0:
            return 0.0
        low, between = self._mass(0.0)
        share = NormalDist(self._mu, self._sigma).cdf(math.log(size)) - low
        return min(max(share / between, 0.0), 1.0)


def target_sizes(recipe: Recipe, samples: int, seed: int) -> list[int]:
    """Return the size wanted of every sample: the mid-quantiles, dealt out by the seed.

    Stratified, so that the mean and the shape are right at any number of samples.  A size is
    rounded to a byte: a library whose ``log`` differs in the last place changes none in practice.
    """
    target = SizeDistribution(recipe)
    sizes = [round(target.quantile((i + 0.5) / samples)) for i in range(samples)]
    raw = np.random.PCG64(mix(seed, 41)).random_raw(samples)
    return [sizes[i] for i in np.argsort(raw, kind="stable")]


def pad(data: bytes, target: int) -> bytes:
    """Return the JPEG with comment markers (ITU T.81, B.2.4.5) up to ``target`` bytes.

    At most ``MAX_PADDING`` of it; after the JFIF header, which must be the first marker.
    """
    room = min(target - len(data), int(len(data) * MAX_PADDING))
    at = 4 + int.from_bytes(data[4:6], "big")
    comments = []
    while room >= 4:
        length = min(room - 2, 65535)
        comments.append(b"\xff\xfe" + length.to_bytes(2, "big") + b" " * (length - 2))
        room -= length + 2
    return b"".join([data[:at], *comments, memoryview(data)[at:]]) if comments else data
