"""What is read of a JPEG file without decoding it, and the one change that a copy gets."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import odd_files, odd_streams
from iobench.core import transforms
from iobench.data import jpeg_header
from iobench.data.defects import MOST_PIXELS, defect

PLAIN = odd_files.jpeg(odd_files.picture())
TAGS = {odd.key: odd.data for odd in odd_files.oriented(PLAIN)}


def values(data: bytes) -> list[int]:
    return [tag.value for tag in jpeg_header.orientations(data)]


def test_every_orientation_is_read() -> None:
    assert [values(TAGS[f"exif-{n}"]) for n in range(1, 9)] == [[n] for n in range(1, 9)]
    for key in ("exif-motorola-6", "exif-after-xmp-6", "exif-long-6", "exif-endless"):
        assert values(TAGS[key]) == [6], key
    assert values(TAGS["exif-twice-6-3"]) == [6, 3]
    for key in ("exif-empty", "exif-noise", "exif-no-order"):
        assert values(TAGS[key]) == [], key
    assert values(PLAIN) == []


@pytest.mark.parametrize("key", TAGS)
def test_upright_changes_the_tag_alone(key: str) -> None:
    data = TAGS[key]
    made = jpeg_header.upright(data)
    assert len(made) == len(data)
    assert set(values(made)) <= {1}
    assert sum(a != b for a, b in zip(data, made)) <= 2
    assert np.array_equal(transforms.decode(made), transforms.decode(PLAIN))
    assert jpeg_header.upright(made) == made


def test_pillow_reads_what_was_written() -> None:
    """The corpus' tags are real: another library finds them."""
    import io

    from PIL import Image

    for n in range(1, 9):
        assert Image.open(io.BytesIO(TAGS[f"exif-{n}"])).getexif()[0x0112] == n


def test_the_frame_is_read() -> None:
    assert jpeg_header.frame(PLAIN) == (0xC0, 8, 224, 224, 3)
    progressive = odd_files.jpeg(odd_files.picture(40, 50), progressive=True)
    assert jpeg_header.frame(progressive) == (0xC2, 8, 40, 50, 3)
    assert jpeg_header.frame(odd_streams.TWELVE_BITS) == (0xC1, 12, 24, 32, 3)
    assert jpeg_header.frame(odd_streams.LOSSLESS) == (0xC3, 16, 24, 32, 3)
    assert jpeg_header.frame(odd_streams.ARITHMETIC) == (0xC9, 8, 24, 32, 3)
    assert jpeg_header.frame(b"\xff\xd8") is None
    assert jpeg_header.frame(PLAIN[:30]) is None


def test_no_bytes_make_it_fail() -> None:
    random = np.random.default_rng(4)
    head = bytearray(TAGS["exif-motorola-6"][:400])
    for _ in range(3000):
        changed = bytearray(head)
        for at in random.integers(0, len(head), 4):
            changed[at] = random.integers(0, 256)
        cut = bytes(changed[: random.integers(2, len(changed))])
        jpeg_header.frame(cut)
        assert len(jpeg_header.upright(cut)) == len(cut)


def test_a_picture_of_any_size_is_not_decoded() -> None:
    """64 Kpixels a side would take 12 GiB of memory, whatever the file holds."""
    huge = odd_files.resized(PLAIN, height=65500, width=65500)
    assert MOST_PIXELS < 65500 * 65500
    assert defect(huge) == ("size", "65500x65500")
