"""The distance of a window to a picture: that of its nearest place, found by few looks."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import pixel_rows

SIDE = 224


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)


def by_hand(window: np.ndarray, image: np.ndarray) -> float:
    gaps = [
        np.abs(image[top : top + SIDE, left : left + SIDE] - window[:, ::flip]).max()
        for flip in (1, -1)
        for top in range(image.shape[0] - SIDE + 1)
        for left in range(image.shape[1] - SIDE + 1)
    ]
    return float(min(gaps))


@pytest.mark.parametrize("flip", [1, -1])
@pytest.mark.parametrize("spare", [3, 40])
def test_a_window_is_found_wherever_it_is(spare: int, flip: int) -> None:
    image = picture(SIDE + spare, SIDE + spare)
    window = image[2 : 2 + SIDE, 1 : 1 + SIDE, :][:, ::flip].astype(np.float32)
    assert pixel_rows.from_windows(window, image) == 0.0
    window[100, 100, 1] += 1.5
    assert pixel_rows.from_windows(window, image) == 1.5


def test_of_few_windows_the_nearest_counts() -> None:
    image = picture(SIDE + 1, SIDE + 2)
    window = picture(SIDE + 9, SIDE + 9)[9:, 9:].astype(np.float32)
    assert pixel_rows.from_windows(window, image) == by_hand(window, image)


@pytest.mark.parametrize("spare", [3, 40])
def test_what_is_not_a_number_is_no_window(spare: int) -> None:
    image = picture(SIDE + spare, SIDE + spare)
    window = image[:SIDE, :SIDE].astype(np.float32)
    window[100, 100] = np.nan
    assert pixel_rows.from_windows(window, image) == float("inf")
