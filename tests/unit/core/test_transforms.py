"""Decode and the named transforms."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from iobench.core import transforms
from iobench.core.errors import DatasetError, SpecError
from tests.build import photos


def made(name: str, pixels: np.ndarray, *parts: int) -> np.ndarray:
    chosen = transforms.transform(name)
    row = np.full(chosen.shape, np.nan, np.float32)
    chosen.apply(pixels, transforms.SampleRandom(*parts or (0,)), row)
    return row


def test_splitmix_matches_the_published_sequence() -> None:
    # SplitMix64 seeded with 1234567 (the reference sequence of its authors' C code)
    state, out = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        out.append(transforms.mix64(state))
    assert out == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_draws_are_even_and_depend_on_every_part() -> None:
    draws = np.array([transforms.SampleRandom(1, 0, i).unit() for i in range(4000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.histogram(draws, bins=10, range=(0, 1))[0]
    assert abs(counts - 400).max() < 100
    first = transforms.SampleRandom(1, 2, 3).unit()
    others = [
        transforms.SampleRandom(*p).unit() for p in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (3, 2, 1))
    ]
    assert first not in others
    assert {transforms.SampleRandom(5).below(3) for _ in range(1)} <= {0, 1, 2}
    random = transforms.SampleRandom(5)
    assert {random.below(3) for _ in range(100)} == {0, 1, 2}


def test_decode_equals_two_other_libraries_bit_by_bit() -> None:
    import cv2
    from PIL import Image

    for seed, size in enumerate([(240, 300), (333, 251), (37, 53)]):
        data = photos.jpeg(seed, *size)
        ours = transforms.decode(data)
        assert ours.shape == (*size, 3)
        assert ours.dtype == np.uint8
        other = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
        assert np.array_equal(ours, other)
        assert np.array_equal(ours, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_decode_takes_any_buffer_and_passes_pixels_through() -> None:
    data = photos.jpeg(1, 64, 48)
    expected = transforms.decode(data)
    for buffer in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert np.array_equal(transforms.decode(buffer), expected)
    assert transforms.decode(expected) is expected


def test_decode_of_a_grey_jpeg_gives_three_channels() -> None:
    import simplejpeg

    grey = simplejpeg.encode_jpeg(photos.picture(1, 40, 50)[:, :, :1].copy(), colorspace="GRAY")
    assert transforms.decode(grey).shape == (40, 50, 3)


@pytest.mark.parametrize("data", [b"", b"no jpeg at all", photos.jpeg(1, 40, 40)[:20]])
def test_decode_names_what_is_no_jpeg(data: bytes) -> None:
    with pytest.raises(DatasetError, match="no readable JPEG"):
        transforms.decode(data)


def test_decode_delay_sleeps_first(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(transforms, "delay", slept.append)
    data = photos.jpeg(1, 32, 32)
    transforms.decode(data)
    assert slept == []
    transforms.decode(data, delay_s=0.25)
    transforms.decode(transforms.decode(data), delay_s=0.5)
    assert slept == [0.25, 0.5]


def test_random_resized_crop_follows_its_distribution() -> None:
    height, width = 375, 500
    boxes = [
        transforms.random_resized_crop((height, width), transforms.SampleRandom(i))
        for i in range(3000)
    ]
    areas = np.array([h * w / (height * width) for _, _, h, w in boxes])
    ratios = np.array([w / h for _, _, h, w in boxes])
    assert all(0 <= top <= height - h and 0 <= left <= width - w for top, left, h, w in boxes)
    assert areas.min() > 0.078
    assert areas.max() <= 1
    # rejection sampling, done another way: large boxes of an unlike ratio do not fit
    random = np.random.default_rng(1)
    area = random.uniform(0.08, 1, 100_000) * height * width
    ratio = np.exp(random.uniform(math.log(3 / 4), math.log(4 / 3), 100_000))
    fits = (np.sqrt(area * ratio) <= width) & (np.sqrt(area / ratio) <= height)
    expected = (area[fits] / (height * width)).mean()
    assert abs(areas.mean() - expected) < 0.015
    assert ratios.min() > 0.74
    assert ratios.max() < 1.35
    assert abs(np.log(ratios).mean() - np.log(ratio[fits]).mean()) < 0.015
    assert {t == 0 for t, *_ in boxes} == {True, False}


def test_random_resized_crop_falls_back_to_the_centre() -> None:
    top, left, h, w = transforms.random_resized_crop((10, 1000), transforms.SampleRandom(1))
    assert (h, w) == (10, 13)
    assert (top, left) == (0, 493)
    assert transforms.random_resized_crop((1, 1), transforms.SampleRandom(1)) == (0, 0, 1, 1)


def test_crop224_is_a_window_of_the_image_less_the_mean() -> None:
    image = photos.picture(3, 230, 240)
    windows = []
    for part in range(12):
        row = made("crop224", image, part) + np.array(transforms.IMAGENET_MEAN)[:, None, None]
        back = np.rint(row).astype(np.uint8).transpose(1, 2, 0)
        hits = [
            (top, left, flip)
            for top in range(7)
            for left in range(17)
            for flip in (1, -1)
            if np.array_equal(back, image[top : top + 224, left : left + 224][:, ::flip])
        ]
        assert len(hits) == 1
        windows += hits
    assert len(set(windows)) > 6
    assert {flip for _, _, flip in windows} == {1, -1}


def test_rrc224_is_resized_flipped_and_normalised() -> None:
    import cv2

    image = photos.picture(4, 300, 260)
    for sample in range(6):
        random = transforms.SampleRandom(0, 0, sample)
        top, left, h, w = transforms.random_resized_crop((300, 260), random)
        expected = cv2.resize(image[top : top + h, left : left + w], (224, 224))
        if random.unit() < 0.5:
            expected = expected[:, ::-1]
        expected = (expected - np.array(transforms.IMAGENET_MEAN)) / np.array(
            transforms.IMAGENET_STD
        )
        row = made("rrc224", image, 0, 0, sample)
        np.testing.assert_allclose(row, expected.transpose(2, 0, 1), rtol=1e-5, atol=1e-5)


def test_transforms_repeat_and_vary() -> None:
    image = photos.picture(5, 260, 300)
    for name in transforms.TRANSFORMS:
        once = made(name, image, 1, 2, 3)
        assert not np.isnan(once).any()
        assert np.array_equal(once, made(name, image, 1, 2, 3))
        assert not np.array_equal(once, made(name, image, 1, 3, 3))


def test_cifar32_pads_by_four() -> None:
    image = np.full((32, 32, 3), 255, np.uint8)
    black = ((0 - np.array(transforms.CIFAR_MEAN)) / np.array(transforms.CIFAR_STD)).astype(
        np.float32
    )
    rims = set()
    for part in range(80):
        row = made("cifar32", image, part)
        dark = np.isclose(row, black[:, None, None]).all(axis=0)
        rims.add((int(dark.all(axis=1).sum()), int(dark.all(axis=0).sum())))
    assert max(rows for rows, _ in rims) == 4
    assert max(columns for _, columns in rims) == 4
    assert (0, 0) in rims or len(rims) > 10


def test_small_images_are_refused_with_the_remedy_or_enlarged() -> None:
    small = photos.picture(1, 32, 32)
    with pytest.raises(DatasetError, match="32x32 is too small to crop 224x224: use a transform"):
        made("crop224", small)
    with pytest.raises(DatasetError, match="300x223 is too small"):
        made("crop224", photos.picture(1, 223, 300))
    assert made("rrc224", small).shape == (3, 224, 224)
    with pytest.raises(DatasetError, match="too small to crop 32x32"):
        made("cifar32", photos.picture(1, 20, 32))


def test_unknown_transform_lists_the_known_ones() -> None:
    with pytest.raises(
        SpecError, match="unknown transform 'crop'; there are: cifar32, crop224, rrc"
    ):
        transforms.transform("crop")


def test_pixel_differences() -> None:
    a = np.array([[0, 10], [20, 30]], np.uint8)
    b = np.array([[0, 13], [20, 29]], np.uint8)
    assert transforms.pixel_differences(a, b) == {"max": 3.0, "mean": 1.0, "differing": 0.5}
    assert transforms.pixel_differences(b, a)["max"] == 3.0
    with pytest.raises(ValueError, match="shapes differ"):
        transforms.pixel_differences(a, a[:1])


def test_ratio_limits_are_exact() -> None:
    assert pytest.approx(1 / transforms.RATIO[0]) == transforms.RATIO[1]
    assert math.isclose(transforms.AREA[0], 0.08)
