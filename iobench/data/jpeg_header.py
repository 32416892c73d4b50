"""What a JPEG file's segments say of it before any pixel is decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_SOI, _EOI, _SOS, _APP1 = 0xD8, 0xD9, 0xDA, 0xE1
#: Start-of-frame markers: C4, C8 and CC are tables and extensions, not frames.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
#: Markers without a length.
_BARE = frozenset({0x01, _SOI, *range(0xD0, 0xD8)})
_EXIF = b"Exif\0\0"
_ORIENTATION, _LONG = 0x0112, 4


class Frame(NamedTuple):
    """The frame header; ``marker``: 0xC0 baseline, 0xC1 extended, 0xC2 progressive ..."""

    marker: int
    precision: int  # bits a value
    height: int
    width: int
    components: int


class Orientation(NamedTuple):
    """An EXIF orientation tag: its value (1 is upright), where it lies, and its struct format."""

    value: int
    offset: int
    form: str


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, begin, end) of the body of each segment before the first scan."""
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return
        marker = data[at + 1]
        if marker == 0xFF or marker in _BARE:  # fill bytes, markers without a body
            at += 1 if marker == 0xFF else 2
            continue
        if marker in (_SOS, _EOI):
            return
        (length,) = struct.unpack_from(">H", data, at + 2)
        yield marker, at + 4, min(at + 2 + length, len(data))
        at += 2 + length


def frame(data: bytes) -> Frame | None:
    """Return the frame header; None where there is none before the first scan."""
    for marker, begin, end in segments(data):
        if marker in FRAMES and end - begin >= 6:
            return Frame(marker, *struct.unpack_from(">BHHB", data, begin))
    return None


def orientations(data: bytes) -> list[Orientation]:
    """Return every orientation tag of the first directory of every EXIF segment.

    Readers differ in which of several they follow, and in how much of a broken segment they read.
    """
    found = []
    for marker, begin, end in segments(data):
        if marker == _APP1 and data[begin : begin + len(_EXIF)] == _EXIF:
            found += list(_tags(data, begin + len(_EXIF), end))
    return found


def upright(data: bytes) -> bytes:
    """Return the file with every orientation tag set to 1: same length, same stored pixels."""
    turned = [tag for tag in orientations(data) if tag.value != 1]
    if not turned:
        return data
    changed = bytearray(data)
    for tag in turned:
        struct.pack_into(tag.form, changed, tag.offset, 1)
    return bytes(changed)


def _tags(data: bytes, begin: int, end: int) -> Iterator[Orientation]:
    order = {b"II": "<", b"MM": ">"}.get(data[begin : begin + 2])
    if order is None or begin + 8 > end:
        return
    (offset,) = struct.unpack_from(order + "I", data, begin + 4)
    if begin + offset + 2 > end:
        return
    (count,) = struct.unpack_from(order + "H", data, begin + offset)
    for at in range(begin + offset + 2, begin + offset + 2 + 12 * count, 12):
        if at + 12 > end:
            return
        tag, kind = struct.unpack_from(order + "HH", data, at)
        if tag == _ORIENTATION:
            form = order + ("I" if kind == _LONG else "H")
            yield Orientation(struct.unpack_from(form, data, at + 8)[0], at + 8, form)
