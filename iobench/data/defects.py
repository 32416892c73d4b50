"""Which files every loader reads as the same picture, and why the others are left out.

All decoders share 8-bit baseline and progressive JPEG, grey or in three colours; the rest is left
to each: docs/files.md has the table, ``benchmarks/pixels.py`` measures it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from iobench.core import transforms
from iobench.core.errors import DatasetError
from iobench.data.jpeg_header import frame

SOI = b"\xff\xd8"
#: Baseline, extended sequential and progressive, all with Huffman coding.
CODINGS = (0xC0, 0xC1, 0xC2)
#: Pillow, and with it torchvision, refuses pictures of more pixels.
MOST_PIXELS = 178_956_970
#: A file that is longer is no picture; it is not read into memory.
MOST_BYTES = 1 << 30
#: What a file begins with -> what it is.
MAGIC = {
    b"\x89PNG": "a PNG file", b"GIF8": "a GIF file", b"BM": "a BMP file", b"II*\0": "a TIFF file",
    b"MM\0*": "a TIFF file", b"RIFF": "a RIFF file, such as WebP", b"\0\0\0": "HEIF or AVIF",
    b"\xff\x0a": "a JPEG XL file", b"%PDF": "a PDF file", b"<": "markup",
}  # fmt: skip


class Defect(NamedTuple):
    """Why a file is left out: a key of :data:`accounting.LEFT_OUT`, and details."""

    kind: str
    detail: str = ""


def read(path: Path) -> bytes:
    """Return a file's bytes; the first 16 of one that does not begin as a JPEG.

    Raises OSError, and DatasetError for a file of more than ``MOST_BYTES``.
    """
    with open(path, "rb") as file:
        head = file.read(16)
        if head[:2] != SOI:
            return head
        rest = file.read(MOST_BYTES)
        if len(rest) == MOST_BYTES:
            raise DatasetError(f"longer than {MOST_BYTES >> 20} MiB")
        return head + rest


def defect(data: bytes) -> Defect | None:
    """Return why the bytes are no picture for every loader, None when they are one.

    The header is judged first, so that nothing is decoded that would take the memory of a picture
    of any size; then the whole picture is decoded.
    """
    if data[:2] != SOI:
        return Defect("other", _what(data)) if data else Defect("empty")
    head = frame(data)
    if head is None:
        return Defect("header", "no frame before the first scan")
    if head.marker not in CODINGS:
        return Defect("coding", f"frame {head.marker:02x}")
    if head.precision != 8:
        return Defect("depth", f"{head.precision} bits")
    if head.components == 4:
        return Defect("cmyk")
    if head.components not in (1, 3):
        return Defect("channels", f"{head.components} components")
    if not head.height or not head.width:
        return Defect("header", f"{head.width}x{head.height} pixels")
    if head.height * head.width > MOST_PIXELS:
        return Defect("size", f"{head.width}x{head.height}")
    try:
        transforms.decode(data)
    except DatasetError as error:
        return Defect("cut", str(error))
    return None


def _what(data: bytes) -> str:
    known = [name for magic, name in MAGIC.items() if data.startswith(magic)]
    return known[0] if known else f"begins with {data[:4].hex()}"
