"""JPEG decode and the named transforms: what happens to a sample between its bytes and a batch.

A case names its decoder (``backends/decoders``); all else here decodes by the usual one, which
``benchmarks/decoders.py`` chose.  All sizes are (height, width); pixels are RGB, uint8.

Randomness is a function of (seed, epoch, sample id) alone, so the number of workers, the order and
the batch never change a sample's pixels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.clock import delay
from iobench.core.errors import DatasetError, SpecError
from iobench.core.protocols import Decode

#: ImageNet's and CIFAR's usual channel means and deviations, RGB, on 0..255.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
CIFAR_MEAN = (125.307, 122.961, 113.8575)
CIFAR_STD = (51.5865, 50.847, 51.255)
ONES = (1.0, 1.0, 1.0)
#: Random resized crop: the share of the area, the aspect ratio, and how many tries it gets.
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
TRIES = 10

Box = Tuple[int, int, int, int]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LEAST_AREA, _AREAS = AREA[0], AREA[1] - AREA[0]
_LEAST_LOG, _LOGS = math.log(RATIO[0]), math.log(RATIO[1]) - math.log(RATIO[0])


def mix64(z: Any) -> Any:
    """Return SplitMix64's finaliser of ``z`` (Steele, Lea, Flood 2014).

    ``z``: an int of 64 bits, or a uint64 array (then an array of the same shape is returned).
    """
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def mix(*words: int) -> int:
    """Return 64 bits mixed from integers: equal words give equal bits on any machine."""
    state = 0
    for word in words:
        state = mix64((state + _GOLDEN + word) & _MASK)
    return state


@functools.lru_cache(maxsize=64)
def _mixed(*words: int) -> int:
    return mix(*words)


class SampleRandom:
    """SplitMix64 seeded by whole numbers, usually (seed, epoch, sample id).

    A NumPy generator costs over 10 us to make; this one costs about 0.7 us and 0.3 us a draw.
    """

    __slots__ = ("_state",)

    def __init__(self, *parts: int) -> None:
        *same, last = parts  # the same for every sample of an epoch
        self._state: int = mix64((_mixed(*same) + _GOLDEN + last) & _MASK)

    def unit(self) -> float:
        """Return a float in [0, 1)."""
        self._state = z = (self._state + _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK  # mix64, whose call costs as much again
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """Return a whole number in 0 .. n-1."""
        return int(self.unit() * n)


def decode(data: Any, *, by: Optional[Decode] = None, delay_s: float = 0.0) -> np.ndarray:
    """Return the pixels of one sample: (height, width, 3) uint8 RGB, C order.

    ``data`` is a bytes-like JPEG; an array (raw content) is passed through.  ``by``: the decoder,
    the usual one where None.  ``delay_s`` sleeps first: a known truth, to test the instrument.
    Raises DatasetError when it is no JPEG.
    """
    if delay_s:
        delay(delay_s)
    if isinstance(data, np.ndarray) and data.ndim == 3:
        return data
    try:
        pixels: np.ndarray = (by or registry.decoder(Case.decoder))(data)
    except ValueError as error:
        raise DatasetError(f"no readable JPEG ({error})") from error
    return pixels


def random_resized_crop(size: Tuple[int, int], random: SampleRandom) -> Box:
    """Return (top, left, height, width) of a random crop of an image of ``size``.

    An area of 8-100 % and an aspect ratio of 3/4-4/3, log-uniform; after ten tries that do not
    fit, the largest central crop within the ratio (Szegedy et al. 2015, as usually trained).
    """
    height, width = size
    area = float(height * width)
    unit = random.unit
    for _ in range(TRIES):
        target = area * (_LEAST_AREA + _AREAS * unit())
        ratio = math.exp(_LEAST_LOG + _LOGS * unit())
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.below(height - h + 1), random.below(width - w + 1), h, w
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return ``pixels`` resized bilinearly, without smoothing, by OpenCV on one thread."""
    import cv2

    resized: np.ndarray = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    return resized


@dataclasses.dataclass(frozen=True)
class Transform:
    """A named transform: ``apply(pixels, random, row)`` fills ``row``, float32 of ``shape``."""

    name: str
    summary: str
    shape: Tuple[int, int, int]
    mean: Tuple[float, float, float]
    std: Tuple[float, float, float]
    cut: Callable[[np.ndarray, SampleRandom], np.ndarray]
    least: int  # pixels of an image's shorter side
    tables: Tuple[np.ndarray, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = np.arange(256, dtype=np.float64)
        tables = tuple(((values - m) / s).astype(np.float32) for m, s in zip(self.mean, self.std))
        object.__setattr__(self, "tables", tables)

    def apply(self, pixels: np.ndarray, random: SampleRandom, row: np.ndarray) -> None:
        """Crop, flip and normalise (h, w, 3) uint8 into ``row``: C order, float32, ``shape``.

        Raises DatasetError when the image is too small.
        """
        import cv2

        piece = self.cut(pixels, random)
        if random.unit() < 0.5:
            piece = cv2.flip(piece, 1)
        for plane, table, out in zip(cv2.split(piece), self.tables, row):
            cv2.LUT(plane, table, dst=out)


def _rrc224(pixels: np.ndarray, random: SampleRandom) -> np.ndarray:
    top, left, h, w = random_resized_crop((pixels.shape[0], pixels.shape[1]), random)
    return resize(pixels[top : top + h, left : left + w], 224, 224)


def _cifar32(pixels: np.ndarray, random: SampleRandom) -> np.ndarray:
    import cv2

    return _random_crop(cv2.copyMakeBorder(pixels, 4, 4, 4, 4, cv2.BORDER_CONSTANT), random, 32)


def _random_crop(pixels: np.ndarray, random: SampleRandom, side: int = 224) -> np.ndarray:
    height, width = pixels.shape[:2]
    if height < side or width < side:
        raise DatasetError(
            f"image of {width}x{height} is too small to crop {side}x{side}: "
            "use a transform that resizes (rrc224), or a dataset of larger images"
        )
    top, left = random.below(height - side + 1), random.below(width - side + 1)
    return pixels[top : top + side, left : left + side]


#: Every named transform.
TRANSFORMS: Dict[str, Transform] = {
    t.name: t
    for t in (
        Transform(
            "rrc224",
            "random resized crop to 224x224 (area 8-100 %, ratio 3/4-4/3), flip, normalise",
            (3, 224, 224),
            IMAGENET_MEAN,
            IMAGENET_STD,
            _rrc224,
            1,
        ),
        Transform(
            "crop224",
            "random 224x224 crop without resizing, flip, mean subtraction: what Caffe can do too",
            (3, 224, 224),
            IMAGENET_MEAN,
            ONES,
            _random_crop,
            224,
        ),
        Transform(
            "cifar32",
            "random 32x32 crop of the image padded by 4, flip, normalise: for small images",
            (3, 32, 32),
            CIFAR_MEAN,
            CIFAR_STD,
            _cifar32,
            24,
        ),
    )
}


def transform(name: str) -> Transform:
    """Return the transform of that name; raises SpecError with the valid names."""
    if name not in TRANSFORMS:
        known = ", ".join(sorted(TRANSFORMS))
        raise SpecError(f"unknown transform {name!r}; there are: {known}")
    return TRANSFORMS[name]


def batch_bytes(name: str, samples: int) -> int:
    """Return the bytes of a batch of ``samples`` float32 samples after the named transform."""
    return samples * math.prod(transform(name).shape) * 4


def single_thread() -> None:
    """Keep OpenCV on the calling thread: parallelism belongs to the loader's workers."""
    import cv2

    cv2.setNumThreads(1)


def pixel_differences(a: np.ndarray, b: np.ndarray) -> Dict[str, float]:
    """Return how far two images (or batches) of one shape are apart, in grey levels.

    Keys: ``max`` and ``mean`` absolute difference, ``differing`` (share of values that differ).
    """
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: {a.shape} and {b.shape}")
    gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return {
        "max": float(gap.max()),
        "mean": float(gap.mean()),
        "differing": float(np.count_nonzero(gap) / gap.size),
    }
