"""What every decoder promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from benchmarks import odd_files, pixels
from iobench.core import registry, transforms
from iobench.core.errors import DatasetError
from iobench.core.members import DecoderBackend
from tests.build import photos
from tests.capabilities import need_modules

every_decoder = pytest.mark.parametrize("name", registry.names("decoders"))
#: Pillow's, of broken EXIF.
pytestmark = pytest.mark.filterwarnings("ignore:.*EXIF", "ignore:Image appears to be")


def decoder(name: str) -> Any:
    need_modules(registry.load("decoders", name).requires)
    return registry.decoder(name)


def used() -> list[odd_files.Odd]:
    """The odd files that adoption keeps, but for the large one."""
    pixels_, plain = odd_files.picture(), odd_files.jpeg(odd_files.picture())
    found = [odd_files.Odd("plain", plain), *odd_files.oriented(plain)]
    found += odd_files.coded(pixels_, plain)
    return [*found, *odd_files.narrow()]


@every_decoder
def test_it_is_a_decoder_backend(name: str) -> None:
    backend = registry.load("decoders", name)
    assert isinstance(backend, DecoderBackend)
    assert backend.summary
    assert backend.requires


@pytest.mark.slow
@every_decoder
def test_it_gives_the_usual_pixels_of_every_odd_file(name: str) -> None:
    decode, far = decoder(name), {}
    for odd in used():
        found, expected = decode(odd.data), transforms.decode(odd.data)
        assert found.dtype == np.uint8
        assert found.flags.c_contiguous
        assert found.shape == expected.shape, odd.key
        gap = transforms.pixel_differences(found, expected)["max"]
        if gap > pixels.TOLERANCE:
            far[odd.key] = gap
    assert far == {}


@every_decoder
def test_it_takes_what_readers_give(name: str) -> None:
    decode, data = decoder(name), photos.jpeg(1, 60, 80)
    expected = decode(data)
    assert expected.shape == (60, 80, 3)
    for buffer in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert np.array_equal(decode(buffer), expected)


@every_decoder
@pytest.mark.parametrize("data", [b"", b"no jpeg", odd_files.jpeg(odd_files.picture())[:100]])
def test_what_is_no_jpeg_is_named(name: str, data: bytes) -> None:
    decode = decoder(name)
    with pytest.raises(ValueError, match=r"\w"):
        decode(data)
    with pytest.raises(DatasetError, match="no readable JPEG"):
        transforms.decode(data, by=decode)


@every_decoder
def test_it_crosses_to_other_processes_and_serves_every_thread(name: str) -> None:
    decode = pickle.loads(pickle.dumps(decoder(name)))
    files = [photos.jpeg(seed, 60, 80) for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(decode, files))
    assert all(np.array_equal(a, decode(data)) for a, data in zip(found, files, strict=True))
