"""The shortest side of a dataset's images, from their headers."""

from __future__ import annotations

from pathlib import Path

from iobench.core import dataset as datasets
from iobench.core.cases import Dataset

#: Bytes in which most JPEG files have their size.
HEAD = 1 << 16


def shortest(dataset: Dataset) -> tuple[int, str]:
    """Return the shortest side of all images in pixels, and the file that has it.

    Files whose header cannot be decoded are left to the loaders: (0, "") when there are no others.
    """
    found = (0, "")
    for name in datasets.load_index(dataset).files:
        side = _side(Path(dataset.jpeg_root, name))
        if side and (side < found[0] or not found[0]):
            found = side, name
    return found


def _side(path: Path) -> int:
    import simplejpeg

    for size in (HEAD, -1):
        try:
            with path.open("rb") as file:
                height, width, *_ = simplejpeg.decode_jpeg_header(file.read(size))
        except (OSError, ValueError):
            continue
        return int(min(height, width))
    return 0
