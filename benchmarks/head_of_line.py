"""Does head-of-line blocking cost what arithmetic says, and does in_order = false give it back?

Every fiftieth photo has so many more pixels that it takes 20 times as long to decode (2 % of the
samples; real JPEG files).  Two workers, one batch ahead each, and a step that a single worker keeps
up with: a slow batch then costs what its time exceeds the steps that the queue hides.  Arithmetic
takes the times of single samples from the serial probe.  Arms: in order, and ``in_order = false``,
in turns.  Wanted: the loss measured (the difference of the arms) and the loss that iobench reports
of the first arm alone within 10 % of arithmetic, and the gain of the second as it was predicted.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import suites
from iobench.core import transforms
from iobench.core.cases import Dataset
from iobench.core.clock import clock
from iobench.data import adopt, make
from iobench.equations import stats

EVERY, SLOW, BATCH, WORKERS, AHEAD = 50, 20.0, 5, 2, 2
#: A step, as a multiple of a batch of photos without a slow one.
STEP = 1.25
WITHIN = 0.10
#: Pixels of a plain photo.
SIZE = 500, 375


def photos(root: Path, samples: int) -> Dataset:
    """Make a tree whose every fiftieth photo takes ``SLOW`` times as long to decode; adopt it."""
    import cv2
    import simplejpeg

    base = make.make("imagenet-like", root / "base", samples=EVERY, seed=1)
    pictures = [
        cv2.resize(transforms.decode(file.read_bytes()), SIZE)
        for file in sorted(Path(base.jpeg_root).rglob("*.jpg"))
    ]

    def photo(index: int, factor: float) -> bytes:
        """Return one with so many times the pixels; no two are equal."""
        picture = pictures[index % EVERY].copy()
        picture[:4, :4] = index % 251
        size = [round(side * factor**0.5) for side in SIZE]
        return bytes(simplejpeg.encode_jpeg(cv2.resize(picture, size), quality=90))

    factor = SLOW
    for _ in range(4):  # decoding is not quite proportional to the pixels
        factor *= SLOW / (decode_s(photo(0, factor)) / decode_s(photo(0, 1.0)))
    tree = root / "tree" / "photos"
    tree.mkdir(parents=True)
    for i in range(samples):
        slow = i % EVERY == EVERY // 2
        (tree / f"{i:06d}.jpg").write_bytes(photo(i, factor if slow else 1.0))
    return adopt.adopt(
        tree.parent, root / "adopted", max_samples=samples, max_bytes=1 << 40, seed=1
    )


def decode_s(data: bytes) -> float:
    """Return the median seconds of a decode and transform of one JPEG."""
    import numpy as np

    chosen = transforms.transform("rrc224")
    row = np.empty(chosen.shape, np.float32)
    times = []
    for sample in range(15):
        start = clock()
        chosen.apply(transforms.decode(data), transforms.SampleRandom(1, 0, sample), row)
        times.append(clock() - start)
    return median(times)


def spec(step_s: float, repeats: int) -> dict[str, Any]:
    case = {
        "trainer": "emulated", "trainer_options": {"step_s": step_s}, "order": "stored",
        "batch": BATCH, "workers": WORKERS, "prefetch": AHEAD // WORKERS,
    }  # fmt: skip
    return {
        "name": "head-of-line",
        "budget": "1h",
        "case": case,
        "matrix": {"pipeline": ["torch:jpeg"], "loader_options": [{}, {"in_order": False}]},
        "ladder": {"stages": ["train"], "caches": ["warm"], "repeats": repeats},
    }


def arithmetic(records: list[Any], step_s: float) -> float:
    """Return the seconds a sample that slow batches cost, of the serial probe's times."""
    probes = [r.ranks[0] for r in records if r.trial.stage == "probe"]
    whole = [list(map(sum, zip(*rank.probe.values(), strict=True))) for rank in probes]
    slow = [s for times in whole for i, s in enumerate(times) if i % EVERY == EVERY // 2]
    plain = median(s for times in whole for i, s in enumerate(times) if i % EVERY != EVERY // 2)
    print(f"a photo {1e3 * plain:.2f} ms, a slow one {1e3 * median(slow):.2f} ms "
          f"({median(slow) / plain:.1f} x), a step {1e3 * step_s:.1f} ms")  # fmt: skip
    return max(0.0, (BATCH - 1) * plain + median(slow) - AHEAD * step_s) / EVERY


def main() -> int:
    parser = suites.arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--samples", type=int, default=500)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="iobench-head-of-line-", dir=args.data) as folder:
        found = photos(Path(folder), args.samples)
        first = sorted((Path(folder) / "tree/photos").iterdir())[0].read_bytes()
        step_s = STEP * BATCH * decode_s(first)
        results = Path(folder, "results")
        analysis, records = suites.run(spec(step_s, args.repeats), found, results=results)
    ordered, free = analysis["pipelines"]
    wanted = arithmetic(records, step_s)
    times = [
        [1 / r["samples_per_s"]["value"]]
        for r in (case["stages"]["train"]["warm"] for case in (ordered, free))
    ]
    measured = fmean(times[0]) - fmean(times[1])
    reported, gain = (ordered["head_of_line"]["warm"].get(k) for k in ("loss_s", "gain"))
    if reported is None:
        raise SystemExit(ordered["head_of_line"]["warm"]["reason"])
    got = stats.unpaired_ratio(*times).value if len(times[0]) > 1 else times[0][0] / times[1][0]
    rows = {
        "loss of the arms, us a sample": (1e6 * measured, 1e6 * wanted),
        "loss reported, us a sample": (1e6 * reported["value"], 1e6 * wanted),
        "gain of in_order = false": (got, gain["value"]),
    }
    for name, (value, expected) in rows.items():
        print(f"{name}: {value:.3f}, expected {expected:.3f}: {value / expected - 1:+.1%}")
    errors = [abs(value / expected - 1) for value, expected in rows.values()]
    return suites.finish(args, rows, max(errors) <= WITHIN)


if __name__ == "__main__":
    sys.exit(main())
