"""Photo-like pixels by integer arithmetic alone, so that a seed gives the same ones on any CPU.

A *bank* of textures with a natural-image spectrum is made once; a sample is the sum of two
windows of the bank and of its class's pattern.  Two samples never sum the same two textures at
the same relative offset (:func:`placement` is injective), so no two share a block.  The spectrum
is octaves of noise of equal variance: power falls as 1/f^2, amplitude as 1/f, as in photos
(Field, J. Opt. Soc. Am. A 4, 1987).  Nothing here is floating point.

Pixels are planes of luma and chroma as a JPEG holds them, so the encoder converts nothing.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iobench.core.errors import DatasetError
from iobench.core.transforms import mix
from iobench.data.recipes import Recipe

Plane = npt.NDArray[np.uint8]
Field = npt.NDArray[np.signedinteger[Any]]

#: Textures on either side of the sum.
TEXTURES = 4
#: Samples in a row that are summed from the same two textures.
RUN = 64
#: Levels of one texture (0..LEVELS) and of a class pattern; two textures and a pattern fit 8 bits.
LEVELS, PATTERN_LEVELS = 103, 48
#: Chroma is grey at 128; textures and pattern are centred here so that their sum is.
CHROMA_CENTRE = 128 - LEVELS // 2 * 2 - PATTERN_LEVELS // 2


def noise_bytes(seed: int, count: int) -> Plane:
    """Return ``count`` random bytes; PCG64's raw stream is the part that NumPy guarantees."""
    raw = np.random.PCG64(seed).random_raw(count // 8 + 1)
    return np.asarray(raw, dtype="<u8").view(np.uint8)[:count]


def _doubled(field: Field) -> Field:
    """Return the periodic field at twice the resolution, bilinear with weights 1/4 and 3/4."""
    for axis in (0, 1):
        shape = list(field.shape)
        shape[axis] *= 2
        out = np.empty(shape, field.dtype)
        even, odd = (out[0::2], out[1::2]) if axis == 0 else (out[:, 0::2], out[:, 1::2])
        np.multiply(field, 3, out=even)
        np.copyto(odd, even)
        even += np.roll(field, 1, axis)
        odd += np.roll(field, -1, axis)
        field = out
    field += 8
    field >>= 4
    return field


def _octaves(seed: int, side: int, amplitudes: list[int]) -> Field:
    """Return a (side, side) field: noise of each amplitude (coarse to fine), an octave apart."""
    field = np.zeros((side >> (len(amplitudes) - 1),) * 2, np.int32)
    for level, amplitude in enumerate(amplitudes):
        if level:
            field = _doubled(field)
        noise = noise_bytes(mix(seed, level), field.size).astype(np.int32).reshape(field.shape)
        field += (noise - 128) * amplitude >> 7
    return field


class Planes(NamedTuple):
    """An image or a texture: luma (h, w), chroma (h, w) or (ceil(h/2), ceil(w/2)), all uint8."""

    luma: Plane
    blue: Plane
    red: Plane


def texture(seed: int, side: int, recipe: Recipe) -> Planes:
    """Return planes with levels 0..LEVELS; ``side`` (of the luma, in pixels) divides by 256."""
    luma = _octaves(mix(seed, 1), side, [300] * 8 + [3 * recipe.roughness])
    amplitudes = [100] * 7 + [recipe.roughness // 2]
    chroma = [_octaves(mix(seed, number), side // 2, amplitudes) for number in (2, 3)]
    planes = [luma, *(map(_doubled, chroma) if recipe.chroma_step == 1 else chroma)]
    levels = ((field + 8 >> 4) + LEVELS // 2 for field in planes)
    return Planes(*(np.clip(field, 0, LEVELS).astype(np.uint8) for field in levels))


class Bank(NamedTuple):
    """Textures of a recipe and a seed: ``TEXTURES`` for either side of the sum."""

    left: list[Planes]
    right: list[Planes]
    shifts: int  # relative offsets run 0..shifts-1 in both directions


def bank_shape(recipe: Recipe) -> tuple[int, int]:
    """Return (side of a texture in pixels, relative offsets a direction)."""
    need = recipe.max_side + min(384, max(128, recipe.max_side)) + 2
    side = -(-need // 256) * 256
    return side, side - recipe.max_side - 2  # 2: an odd window's chroma ends a pixel later


def bank(recipe: Recipe, seed: int) -> Bank:
    """Return the textures from which every sample of the dataset is summed."""
    side, shifts = bank_shape(recipe)
    made = [texture(mix(seed, 7, i), side, recipe) for i in range(2 * TEXTURES)]
    # one array: NumPy asks for huge pages when it is large, and a window touches many pages
    whole = np.concatenate([plane.ravel() for planes in made for plane in planes])
    parts = iter(np.split(whole, np.cumsum([p.size for planes in made for p in planes])[:-1]))
    made = [Planes(*(next(parts).reshape(p.shape) for p in planes)) for planes in made]
    return Bank(made[:TEXTURES], made[TEXTURES:], shifts)


class Windows(NamedTuple):
    """Where a sample's two windows start: (texture, y, x) on either side."""

    left: tuple[int, int, int]
    right: tuple[int, int, int]


def capacity(shifts: int) -> int:
    """Return how many samples can be told apart: pairs of textures times relative offsets."""
    return TEXTURES * TEXTURES * (shifts * shifts // RUN * RUN)


def placement(index: int, seed: int, side: int, shifts: int, height: int, width: int) -> Windows:
    """Return the windows of sample ``index``: (pair of textures, relative offset) is injective.

    ``RUN`` samples in a row take the same pair; the pairs take turns.  A pair's n-th sample has
    relative offset ``n * stride`` modulo their count; where in the textures the windows lie is
    free.  Raises DatasetError when there are more samples than combinations.
    """
    count = capacity(shifts)
    if index >= count:
        raise DatasetError(
            f"a dataset of this recipe holds at most {count} samples without repeated content: "
            f"ask for fewer"
        )
    run, place = divmod(index, RUN)
    turn, pair = divmod(run, TEXTURES * TEXTURES)
    offsets = shifts * shifts
    number = (turn * RUN + place) * _stride(offsets) % offsets
    dy, dx = divmod(number, shifts)
    left, right = divmod(pair, TEXTURES)
    free = mix(seed, 12, index)
    y = (free >> 32) % (side - height - dy - 1)
    x = (free & 0xFFFFFFFF) % (side - width - dx - 1)
    return Windows((left, y + dy, x + dx), (right, y, x))


@functools.cache
def _stride(count: int) -> int:
    """Return an odd stride near count / golden ratio that is coprime to ``count``."""
    stride = count * 618 // 1000 | 1
    while math.gcd(stride, count) != 1:
        stride += 2
    return stride


def pattern(seed: int, label: int, recipe: Recipe) -> Planes:
    """Return the planes of a class, max_side wide and one period high: a coarse pattern (a periodic
    grid of 8 x 8 colours, bilinear between them) and a mean colour, which survives crops and flips.
    """
    doublings = max(1, (min(recipe.width, recipe.height) // 8).bit_length() - 1)
    noise = noise_bytes(mix(seed, 21, label), 3 * 65).astype(np.int32)
    means, grids = (noise[:3] * PATTERN_LEVELS) >> 9, noise[3:].reshape(3, 8, 8)
    planes = []
    for number, (mean, grid) in enumerate(zip(means, grids, strict=True)):
        step = recipe.chroma_step if number else 1
        side = -(-recipe.max_side // step)
        levels = _between(grid, 1 << (doublings - (step - 1)))
        levels *= PATTERN_LEVELS
        levels >>= 9
        levels += np.uint16(mean + (CHROMA_CENTRE if number else 0))
        repeats = -(-side // levels.shape[1])
        planes.append(np.tile(levels.astype(np.uint8), repeats)[:, :side])
    return Planes(*planes)


def _between(grid: Field, steps: int) -> npt.NDArray[np.uint16]:
    """Return the periodic grid of bytes with ``steps`` (a power of 2) pixels a cell, bilinear."""
    ramp = np.arange(steps)
    down = grid[:, None, :] * (steps - ramp)[:, None]
    down += np.roll(grid, -1, 0)[:, None, :] * ramp[:, None]
    rows = (down.reshape(-1, grid.shape[1]) * 256 // steps**2).astype(np.uint16)
    out = rows[:, :, None] * (steps - ramp).astype(np.uint16)  # at most 255 * 256: fits 16 bits
    out += np.roll(rows, -1, 1)[:, :, None] * ramp.astype(np.uint16)
    out >>= 8
    return out.reshape(len(rows), -1)


def compose(
    source: Bank, where: Windows, classes: Planes, shape: tuple[int, int], buffer: Plane
) -> Planes:
    """Return the planes of a sample of ``shape`` (h, w), in ``buffer`` (1-D, large enough)."""
    (left, top_l, first_l), (right, top_r, first_r) = where
    planes = []
    start = 0
    for one, two, own in zip(source.left[left], source.right[right], classes, strict=True):
        step = source.left[left].luma.shape[0] // one.shape[0]
        height, width = -(-shape[0] // step), -(-shape[1] // step)
        out = buffer[start : start + height * width].reshape(height, width)
        start += height * width
        y, x = top_l // step, first_l // step
        v, u = top_r // step, first_r // step
        np.add(one[y : y + height, x : x + width], two[v : v + height, u : u + width], out=out)
        for top in range(0, height, len(own)):
            out[top : top + len(own)] += own[: height - top, :width]
        planes.append(out)
    return Planes(*planes)


def with_contrast(image: Planes, contrast: int) -> Planes:
    """Return the image with every plane's distance from 128 scaled by ``contrast`` / 256."""
    wide = (((plane.astype(np.int32) - 128) * contrast >> 8) + 128 for plane in image)
    return Planes(*(np.clip(plane, 0, 255).astype(np.uint8) for plane in wide))
