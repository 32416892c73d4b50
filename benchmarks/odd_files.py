"""A corpus of odd image files, made by code: what users' trees hold beside plain JPEG photos.

Pictures are ``SIDE`` x ``SIDE`` pixels, so that ``crop224`` has one window, unless their size is
what is odd about them.  Needs Pillow and simplejpeg.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import odd_streams

SIDE = 224
#: Height and width of the largest picture: a camera's 24 megapixels.
LARGE = (4000, 6000)
SOI, EOI = b"\xff\xd8", b"\xff\xd9"
#: Colour of the pictures too narrow to hold a crop: any resize of them has this colour too.
FLAT = (120, 60, 200)
SUBSAMPLINGS = ("444", "422", "420", "440", "411")
#: File names that a user's tree may have, as bytes (one lies in a folder of its own); those of
#: ``TWISTED`` break the lines of an index.
NAMES = (
    b"with space.jpg", b" leading.jpg", b"caf\xe9.jpg", "\u56fe\u7247.jpg".encode(), b"UPPER.JPG",
    b"no-suffix", b"-dash.jpg", b".dot.jpg", b"two.dots.jpg", b"quote'\".jpg", b"$(touch x).jpg",
    b"<b>&amp;.jpg", b"=1+1.jpg", b"%s.jpg", b"[/red].jpg", b"back\\slash.jpg", b"\x1b[31m.jpg",
    b"n" * 251 + b".jpg",
)  # fmt: skip
TWISTED = (b"new\nline.jpg", b"tab\there.jpg", b"return\r.jpg")


class Odd(NamedTuple):
    """One file.  ``twin``: the key of a file that must give the same pixels to the last bit.

    ``flat``: of the one colour ``FLAT``, and smaller than a crop.
    """

    key: str
    data: bytes
    twin: str = ""
    flat: bool = False


def picture(height: int = SIDE, width: int = SIDE, seed: int = 1) -> np.ndarray:
    """Return a colour picture that no turn and no mirror maps to itself, (h, w, 3) uint8."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    planes = [200 * y * y, 90 + 120 * x * x * y, 230 * x]
    smooth = np.stack(planes, axis=2) + random.normal(0, 8, (height, width, 3))
    return np.clip(smooth, 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, mode: str = "RGB", **options: Any) -> bytes:
    """Return a JPEG file of the pixels as Pillow writes it; ``options``: those of its ``save``."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", **{"quality": 90, **options})
    return buffer.getvalue()


def other(pixels: np.ndarray, kind: str) -> bytes:
    """Return the pixels as a file of another kind (Pillow's name of it)."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def segment(marker: int, body: bytes) -> bytes:
    """Return a JPEG marker segment."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def exif(orientation: int, *, order: str = "<", kind: int = 3, entries: int = 1) -> bytes:
    """Return an APP1 segment with an orientation tag.

    ``order``: ``<`` (Intel) or ``>``.  ``kind``: TIFF type, 3 is right.  ``entries``: stated count.
    """
    head = b"II*\0" if order == "<" else b"MM\0*"
    value = struct.pack(order + ("HH" if kind == 3 else "I"), *([orientation, 0][: 5 - kind]))
    tag = struct.pack(order + "HHI", 0x0112, kind, 1) + value
    ifd = struct.pack(order + "IH", 8, entries) + tag + struct.pack(order + "I", 0)
    return segment(0xE1, b"Exif\0\0" + head + ifd)


def marked(data: bytes, *segments: bytes) -> bytes:
    """Return the file with these segments right after its beginning."""
    return SOI + b"".join(segments) + data[2:]


def resized(data: bytes, *, height: int = SIDE, width: int = SIDE) -> bytes:
    """Return the file with another size in its frame header."""
    at = next(i for i in range(len(data)) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def swapped_profile() -> bytes:
    """Return an sRGB profile whose red and blue primaries are exchanged: who applies it is seen."""
    from PIL import ImageCms

    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    red, blue = profile.index(b"rXYZ", 128), profile.index(b"bXYZ", 128)
    places = slice(red + 4, red + 12), slice(blue + 4, blue + 12)  # offset and size in the table
    profile[places[0]], profile[places[1]] = profile[places[1]], profile[places[0]]
    return bytes(profile)


def oriented(plain: bytes) -> Iterator[Odd]:
    """Yield files with every orientation tag, well formed and broken; all are twins of plain."""
    for value in range(1, 9):
        yield Odd(f"exif-{value}", marked(plain, exif(value)), "plain")
    xmp = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>")
    broken = {
        "exif-motorola-6": exif(6, order=">"),
        "exif-after-xmp-6": xmp + exif(6),
        "exif-twice-6-3": exif(6) + exif(3),
        "exif-long-6": exif(6, kind=4),
        "exif-value-9": exif(9),
        "exif-endless": exif(6, entries=4000),
        "exif-empty": segment(0xE1, b"Exif\0\0"),
        "exif-noise": segment(0xE1, b"Exif\0\0" + b"\xff\x00II*\0\xff\xff\xff\xff" * 3),
        "exif-no-order": segment(0xE1, b"Exif\0\0XX*\0\x08\0\0\0\x01\0" + bytes(20)),
    }
    for key, body in broken.items():
        yield Odd(key, marked(plain, body), "plain")


def coded(pixels: np.ndarray, plain: bytes) -> Iterator[Odd]:
    """Yield files that differ in coding: subsampling, colour, progression, profile, container."""
    import simplejpeg

    for name in SUBSAMPLINGS:
        options = {"quality": 90, "colorsubsampling": name}
        yield Odd(f"sub-{name}", simplejpeg.encode_jpeg(pixels, **options))
        uneven = picture(SIDE + 5, SIDE + 3, seed=2)
        yield Odd(f"sub-{name}-uneven", simplejpeg.encode_jpeg(uneven, **options))
    grey = jpeg(pixels, "L")
    yield Odd("grey", grey)
    yield Odd("grey-exif-6", marked(grey, exif(6)), "grey")
    yield Odd("progressive", jpeg(pixels, progressive=True), "plain")
    yield Odd("restarts", jpeg(pixels, restart_marker_blocks=3), "plain")
    yield Odd("rgb", jpeg(pixels, keep_rgb=True))
    yield Odd("icc", jpeg(pixels, icc_profile=swapped_profile()), "plain")
    yield Odd("mpo", mpo(pixels), "plain")
    yield Odd("comment", marked(plain, segment(0xFE, b"\0" * 60_000)), "plain")
    yield Odd("trailer", plain + b"SEFT" + bytes(300), "plain")
    yield Odd("zeros-after", plain + bytes(300), "plain")


def mpo(pixels: np.ndarray) -> bytes:
    """Return two pictures in one file, as cameras with two lenses write them."""
    from PIL import Image

    first, second = Image.fromarray(pixels), Image.fromarray(255 - pixels)
    buffer = io.BytesIO()
    first.save(buffer, "MPO", quality=90, save_all=True, append_images=[second])
    return buffer.getvalue()


def narrow() -> Iterator[Odd]:
    """Yield pictures of one colour that are smaller than a crop."""
    for height, width in ((1, 1), (1, 300), (300, 1)):
        flat = np.full((height, width, 3), FLAT, np.uint8)
        yield Odd(f"flat-{width}x{height}", jpeg(flat, quality=100, subsampling=0), flat=True)


def refused(pixels: np.ndarray, plain: bytes) -> Iterator[Odd]:
    """Yield what not every decoder reads, and what is no JPEG: to be named, never to be met."""
    cmyk = jpeg(pixels, "CMYK")
    at = cmyk.index(b"\xff\xee")
    adobe = cmyk[at : at + 16]
    yield Odd("cmyk-adobe", cmyk)
    yield Odd("cmyk", cmyk.replace(adobe, b""))
    yield Odd("ycck", cmyk.replace(adobe, adobe[:-1] + b"\x02"))
    yield Odd("12-bit", odd_streams.TWELVE_BITS)
    yield Odd("16-bit-lossless", odd_streams.LOSSLESS)
    yield Odd("arithmetic", odd_streams.ARITHMETIC)
    yield Odd("no-height", resized(plain, height=0))
    yield Odd("huge", resized(plain, height=65500, width=65500))
    yield Odd("truncated", plain[: len(plain) // 2])
    yield Odd("truncated-and-closed", plain[: len(plain) // 2] + EOI)
    yield Odd("zeros-inside", plain[: len(plain) // 2] + bytes(len(plain) // 2) + EOI)
    yield Odd("no-end", plain[:-2])
    yield Odd("empty", b"")
    yield Odd("text", b"this is no picture\n")
    for kind in ("PNG", "GIF", "BMP", "TIFF", "WEBP"):
        yield Odd(f"{kind.lower()}-named-jpeg", other(pixels, kind))
    deep = (pixels[:, :, 0].astype(np.uint16) << 8) + 7
    yield Odd("png-16-bit", other(deep, "PNG"))


def corpus(large: tuple[int, int] = LARGE) -> list[Odd]:
    """Return every odd file, the plain one first; the largest has this height and width."""
    pixels = picture()
    plain = jpeg(pixels)
    found = [Odd("plain", plain), *oriented(plain), *coded(pixels, plain)]
    name = f"{math.prod(large) / 1e6:g}-megapixels"
    found += [*narrow(), Odd(name, jpeg(picture(*large, seed=3), quality=50))]
    return [*found, *refused(pixels, plain)]


def write(tree: Path, files: list[Odd]) -> dict[str, Odd]:
    """Write an ImageFolder tree of the files; return path below it -> file.

    Every name of ``NAMES`` and ``TWISTED`` is given to a copy of the first file.
    """
    placed = {f"odd/{odd.key}.JPEG": odd for odd in files}
    for name in (*NAMES, *TWISTED):
        plain = files[0]
        text = os.fsdecode(name)
        placed[f"names/{text}"] = plain._replace(key=f"name {name!r}", twin=plain.key)
    for path, odd in placed.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(odd.data)
    return placed


def write_flat(tree: Path, files: list[Odd]) -> None:
    """Write a tree of the pictures of one colour."""
    (tree / "flat").mkdir(parents=True)
    for odd in files:
        (tree / "flat" / f"{odd.key}.jpg").write_bytes(odd.data)
