"""Measures the tables of ``iobench/data/size_model.py``: run it when pixels or encoder change.

Prints them. The tables are means over seeds, windows and resolutions; the activity is a fit.
"""

from __future__ import annotations

import statistics

import numpy as np

from iobench.data import pixels, recipes, size_model

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
        for quality in range(size_model.MIN_QUALITY, 101):
            body = size(image, quality) - size_model.HEADER_BYTES
            rows[quality].append(body * 100_000 / image.luma.size)
    table = [round(statistics.mean(row)) for row in rows[size_model.MIN_QUALITY :]]
    spread = max(statistics.stdev(r) / statistics.mean(r) for r in rows[size_model.MIN_QUALITY :])
    print(f"BYTES_PER_100K_PIXELS = {table}\n# largest relative sd: {spread:.2%}")
    bodies: list[list[int]] = [[] for _ in size_model.CONTRASTS]
    for image in images(tiny, [(32, 32)], 100):
        for row, contrast in zip(bodies, size_model.CONTRASTS, strict=True):
            adjusted = pixels.with_contrast(image, contrast)
            row.append(size(adjusted, 100) - size_model.HEADER_BYTES)
    table = [round(statistics.mean(row) * 100_000 / 1024) for row in bodies]
    print(f"BYTES_PER_100K_PIXELS_AT_CONTRAST = {table}")
    known, measured = [], []
    for image in images(tiny, [(32, 32)], 300):
        known.append([*size_model.log_steps(image), 1.0])
        measured.append((size(image, 100) - size_model.HEADER_BYTES) / 1024)
    fit, *_ = np.linalg.lstsq(np.array(known), np.array(measured))
    spread = np.std(np.array(known) @ fit - measured) / np.mean(measured)
    print(f"ACTIVITY_WEIGHTS, ACTIVITY_CONSTANT = {fit.round(4).tolist()}  # sd {spread:.2%}")


if __name__ == "__main__":
    main()
