"""The two roofs of Williams' roofline: the FLOP/s of a matrix product, the bytes/s of a triad.

Both are the best of repeats: a roof is what the machine can give, and what disturbs it only lowers
a repeat.  Bytes are counted as STREAM does (McCalpin): two arrays read, one written.
"""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np

from iobench.core.cases import Scalar
from iobench.core.clock import clock

#: Repeats take so many seconds a roof; a product that takes less than LEAST_S is made larger.
SECONDS, LEAST_S = 1.0, 0.02
#: Rows of the first matrices, and of the largest.
FIRST_ROWS, MOST_ROWS = 1024, 16384
#: An array of the triad is so many times as large as the last-level cache (STREAM's rule is four),
#: within these bounds.
TIMES_CACHE, LEAST_BYTES, MOST_BYTES = 4, 256 << 20, 1 << 30
#: Values of a block that stays in a core's own cache between the two parts of NumPy's triad.
BLOCK = 1 << 16
VALUE = 4  # bytes of a float32

#: Does one product of matrices of so many rows, or one triad of so many values; prepared first.
Prepare = Callable[[int], Callable[[], None]]


def measure(product: Prepare, triad: Prepare, by: str, cache_bytes: int) -> Mapping[str, Scalar]:
    """Return both roofs of the library ``by``, and how large was what they were measured on."""
    rows, seconds = FIRST_ROWS, 0.0
    while True:
        seconds = _best(product(rows))
        if seconds >= LEAST_S or rows >= MOST_ROWS:
            break
        rows *= 2
    values = min(max(TIMES_CACHE * cache_bytes, LEAST_BYTES), MOST_BYTES) // VALUE
    swept = 3 * VALUE * values
    return {
        "peak_flops": 2.0 * rows**3 / seconds,
        "memory_bytes_per_s": swept / _best(triad(values)),
        "rows": rows,
        "triad_bytes": swept,
        "cache_bytes": cache_bytes,
        "by": by,
    }


def _best(run: Callable[[], None]) -> float:
    """Return the seconds of the fastest repeat; the first one warms up and does not count."""
    run()
    begun, best = clock(), float("inf")
    while True:
        before = clock()
        run()
        now = clock()
        best = min(best, now - before)
        if now - begun > SECONDS:
            return best


def of_torch(torch: Any, device: str) -> Mapping[str, Scalar]:
    """Return the roofs by torch, with the threads that it has.

    On a GPU the product is in TF32 where torch's convolutions are, as they are by default.
    """
    tf32 = device == "cuda" and torch.backends.cudnn.allow_tf32
    before = torch.get_float32_matmul_precision()

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def product(rows: int) -> Callable[[], None]:
        a, b = torch.rand(rows, rows, device=device), torch.rand(rows, rows, device=device)
        out = torch.empty_like(a)

        def run() -> None:
            torch.mm(a, b, out=out)
            wait()

        return run

    def triad(values: int) -> Callable[[], None]:
        a, b, c = (torch.ones(values, device=device) for _ in range(3))

        def run() -> None:
            torch.add(b, c, alpha=3.0, out=a)
            wait()

        return run

    cache = last_level_cache() if device == "cpu" else 64 << 20
    torch.set_float32_matmul_precision("high" if tf32 else before)
    try:
        return measure(product, triad, f"torch {torch.__version__}{', TF32' * tf32}", cache)
    finally:
        torch.set_float32_matmul_precision(before)


def of_numpy(threads: int) -> Mapping[str, Scalar]:
    """Return the roofs by NumPy: the product by its BLAS, the triad by so many threads."""

    def product(rows: int) -> Callable[[], None]:
        a, b = (np.random.default_rng(i).random((rows, rows), np.float32) for i in (1, 2))
        out = np.empty_like(a)

        def run() -> None:
            np.matmul(a, b, out=out)

        return run

    def triad(values: int) -> Callable[[], None]:
        a, b, c = (np.ones(values, np.float32) for _ in range(3))
        parts = [part for part in np.array_split(np.arange(0, values, BLOCK), threads) if len(part)]
        pool = concurrent.futures.ThreadPoolExecutor(threads)

        def sweep(starts: Any) -> None:
            for start in starts.tolist():
                block = slice(start, start + BLOCK)
                np.multiply(c[block], np.float32(3), out=a[block])
                np.add(a[block], b[block], out=a[block])

        def run() -> None:
            list(pool.map(sweep, parts))

        return run

    return measure(product, triad, f"numpy {np.__version__}", last_level_cache())


def last_level_cache() -> int:
    """Return the bytes of this core's largest cache; 0 where the kernel does not show it."""
    found: List[int] = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
        if unit and text[:-1].isdigit():
            found.append(int(text[:-1]) * unit)
    return max(found, default=0)


def layers_flop(layers: List[Tuple[int, int, bool]]) -> int:
    """Return the FLOP of a forward and a backward pass over layers that multiply.

    Each layer: (values of its weights, places where they are applied, whether a gradient of its
    input is needed).  A product and its sum are two; the backward pass costs one forward pass for
    the weights' gradient, and one for the input's.
    """
    return sum(2 * weights * places * (2 + needed) for weights, places, needed in layers)


def noted(flop: int, samples: int, threads: int, roofs: Mapping[str, Scalar]) -> Dict[str, Scalar]:
    """Return what a trainer's ``flop`` gives: FLOP of one step, its samples, the roofs beside."""
    return {"flop_per_step": flop, "step_samples": samples, "threads": threads, **roofs}
