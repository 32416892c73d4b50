"""Which library should decode JPEGs? simplejpeg, OpenCV and Pillow on the same files, warm.

Each decodes every file to (height, width, 3) uint8 RGB on one thread; rounds are interleaved, the
figure is each library's median round.  The pixels must be equal bit by bit.
"""

from __future__ import annotations

import io
import sys
import threading
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks import suites
from iobench.core import clock
from iobench.core import dataset as datasets

Decode = Callable[[bytes], np.ndarray]


def decoders() -> dict[str, Decode]:
    import cv2
    import simplejpeg
    from PIL import Image

    cv2.setNumThreads(1)

    def by_simplejpeg(data: bytes) -> np.ndarray:
        return simplejpeg.decode_jpeg(data, colorspace="RGB")

    def by_opencv(data: bytes) -> np.ndarray:
        how = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION  # else it turns photos by EXIF
        return cv2.imdecode(np.frombuffer(data, np.uint8), how)

    def by_pillow(data: bytes) -> np.ndarray:
        with warnings.catch_warnings():  # it warns of broken EXIF, which says nothing of pixels
            warnings.simplefilter("ignore")
            return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    return {"simplejpeg": by_simplejpeg, "opencv": by_opencv, "pillow": by_pillow}


def seconds(decode: Decode, files: list[bytes], threads: int = 1) -> float:
    """Return the seconds for all files, shared by ``threads`` threads."""

    def work(share: list[bytes]) -> None:
        for data in share:
            decode(data)

    workers = [threading.Thread(target=work, args=(files[i::threads],)) for i in range(threads)]
    start = clock.clock()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return clock.clock() - start


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="imagenet-like")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    found = suites.dataset(args.data, args.recipe, args.samples, [])
    root = datasets.form_root(found, "jpeg")
    files = [(root / name).read_bytes() for name in datasets.load_index(found).files]
    table = decoders()
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(args.rounds):
        for threads in (1, 2):
            for name, decode in table.items():
                times.setdefault((name, threads), []).append(seconds(decode, files, threads))
    reference = [table["simplejpeg"](data) for data in files]
    rows: list[dict[str, Any]] = []
    print("library     samples/s  with 2 threads  max difference")
    for name, decode in table.items():
        worst = max(
            int(np.abs(decode(data).astype(int) - pixels).max())
            for data, pixels in zip(files, reference, strict=True)
        )
        rates = [len(files) / median(times[name, threads]) for threads in (1, 2)]
        row = {"library": name, "samples_per_s": rates[0], "threads_2": rates[1]}
        rows.append({**row, "max_difference": worst})
        print(f"{name:10s}  {rates[0]:9.0f}  {rates[1]:14.0f}  {worst:14d}")
    return suites.finish(args, rows, all(row["max_difference"] == 0 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
