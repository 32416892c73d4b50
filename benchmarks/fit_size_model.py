"""Measures the tables of ``iobench/sizemodel.py``; run it when the pixels or the encoder change.

Prints them. The tables are means over seeds, windows and resolutions; the activity is a fit.
"""

from __future__ import annotations

import statistics

import numpy as np

from iobench import pixels, recipes, sizemodel

SEEDS = (101, 102)


def size(image: pixels.Planes, quality: int) -> int:
    import simplejpeg

    return len(simplejpeg.encode_jpeg_yuv_planes(*image, quality=quality))


def images(recipe: recipes.Recipe, shapes: list[tuple[int, int]], count: int):
    side, shifts = pixels.bank_shape(recipe)
    buffer = np.empty(recipe.max_side**2 * 3, np.uint8)
    for seed in SEEDS:
        bank = pixels.bank(recipe, seed)
        for i in range(count):
            shape = shapes[i % len(shapes)]
            where = pixels.placement(i, seed, side, shifts, *shape)
            yield pixels.compose(bank, where, pixels.pattern(seed, i, recipe), shape, buffer)


def main() -> None:
    photo, tiny = recipes.load("imagenet-like"), recipes.load("cifar-like")
    rows: list[list[float]] = [[] for _ in range(101)]
    for image in images(photo, [(375, 500), (300, 400), (480, 640)], 6):
        for quality in range(sizemodel.MIN_QUALITY, 101):
            body = size(image, quality) - sizemodel.HEADER_BYTES
            rows[quality].append(body * 100_000 / image.luma.size)
    table = [round(statistics.mean(row)) for row in rows[sizemodel.MIN_QUALITY :]]
    spread = max(statistics.stdev(r) / statistics.mean(r) for r in rows[sizemodel.MIN_QUALITY :])
    print(f"BYTES_PER_100K_PIXELS = {table}\n# largest relative sd: {spread:.2%}")
    bodies: list[list[int]] = [[] for _ in sizemodel.CONTRASTS]
    for image in images(tiny, [(32, 32)], 100):
        for row, contrast in zip(bodies, sizemodel.CONTRASTS, strict=True):
            adjusted = pixels.with_contrast(image, contrast)
            row.append(size(adjusted, 100) - sizemodel.HEADER_BYTES)
    table = [round(statistics.mean(row) * 100_000 / 1024) for row in bodies]
    print(f"BYTES_PER_100K_PIXELS_AT_CONTRAST = {table}")
    known, measured = [], []
    for image in images(tiny, [(32, 32)], 300):
        known.append([*sizemodel.log_steps(image), 1.0])
        measured.append((size(image, 100) - sizemodel.HEADER_BYTES) / 1024)
    fit, *_ = np.linalg.lstsq(np.array(known), np.array(measured))
    spread = np.std(np.array(known) @ fit - measured) / np.mean(measured)
    print(f"ACTIVITY_WEIGHTS, ACTIVITY_CONSTANT = {fit.round(4).tolist()}  # sd {spread:.2%}")


if __name__ == "__main__":
    main()
