"""Which library should decode JPEGs? Every decoder that is installed, on the same files, warm.

Each decodes every file to (height, width, 3) uint8 RGB on one thread; rounds are interleaved, the
figure is each library's median round.  The pixels must be equal bit by bit.
"""

from __future__ import annotations

import sys
import threading
from statistics import median
from typing import Any

import numpy as np

from benchmarks import suites
from iobench.core import clock, registry, transforms
from iobench.core import dataset as datasets
from iobench.core.protocols import Decode


def decoders() -> dict[str, Decode]:
    """Return name -> function of every decoder that can run here."""
    transforms.single_thread()
    names = [n for n in registry.names("decoders") if not registry.unavailable("decoders", n)]
    return {name: registry.decoder(name) for name in names}


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
