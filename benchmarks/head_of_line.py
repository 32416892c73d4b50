"""Does head-of-line blocking cost what arithmetic says, and does in_order = false give it back?

Every fiftieth sample (2 %) takes 20 times as long: a decoder waits so long at larger files, or
(``--photos``, on a quiet machine) they are photos with so many more pixels.  Two workers, one batch
ahead each, and a step that a single worker keeps up with: a slow batch then costs what its time
exceeds the steps that the queue hides.  Arithmetic takes the times of single samples from the
serial probe.  Arms: in order, and ``in_order = false``.  Wanted: the loss measured (the difference
of the arms) and the loss that iobench reports of the first arm alone within 10 % of arithmetic, and
the gain of the second within 10 % of the prediction.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import suites
from iobench.analysis.ranks import probed
from iobench.core import registry, transforms
from iobench.core.cases import Dataset
from iobench.core.clock import clock
from iobench.data import adopt, make

EVERY, SLOW, BATCH, WORKERS, AHEAD = 50, 20.0, 5, 2, 2
#: A step, as a multiple of a batch of photos without a slow one.
STEP = 1.15
WITHIN = 0.10
#: Pixels of a plain photo, and of one that is decoded in no time beside a wait.
SIZE, SMALL = (500, 375), (160, 120)
#: Seconds that the decoder waits at a plain sample.
WAIT_S = 0.006
DECODER = """
import time
from iobench.core import registry
from iobench.core.members import DecoderBackend

plain = registry.load("decoders", "simplejpeg").make()


def decode(data):
    time.sleep({wait} * ({slow} if len(data) > {limit} else 1))
    return plain(data)


BACKEND = DecoderBackend(lambda: decode, "waits at larger files")
"""


def tree(root: Path, samples: int, size: tuple[int, int], slow: float) -> Dataset:
    """Adopt a tree of photos, every fiftieth of which has so many times the pixels."""
    import cv2
    import simplejpeg

    base = make.make("imagenet-like", root / "base", samples=EVERY, seed=1)
    pictures = [
        cv2.resize(transforms.decode(file.read_bytes()), size)
        for file in sorted(Path(base.jpeg_root).rglob("*.jpg"))
    ]
    folder = root / "tree" / "photos"
    folder.mkdir(parents=True)
    for i in range(samples):
        picture = pictures[i % EVERY].copy()
        picture[:4, :4] = i // EVERY % 251  # no two are equal
        factor = slow**0.5 if is_slow(i) else 1.0
        sides = [round(side * factor) for side in size]
        data = simplejpeg.encode_jpeg(cv2.resize(picture, sides), quality=90)
        (folder / f"{i:06d}.jpg").write_bytes(data)
    return adopt.adopt(folder.parent, root / "adopted", max_samples=samples, max_bytes=1 << 40,
                       seed=1)  # fmt: skip


def is_slow(sample: int) -> bool:
    return sample % EVERY == EVERY // 2


def sample_s(found: Dataset, decoder: str) -> float:
    """Return the seconds that decoding and transforming a plain sample takes undisturbed."""
    import numpy as np

    chosen, by = transforms.transform("rrc224"), registry.decoder(decoder)
    row = np.empty(chosen.shape, np.float32)
    times = []
    for sample, file in enumerate(sorted(Path(found.jpeg_root).rglob("*.jpg"))[: EVERY // 2]):
        start = clock()
        pixels = transforms.decode(file.read_bytes(), by=by)
        chosen.apply(pixels, transforms.SampleRandom(1, 0, sample), row)
        times.append(clock() - start)
    return min(times)


def spec(step_s: float, decoder: str, repeats: int) -> dict[str, Any]:
    return {
        "name": "head-of-line",
        "budget": "1h",
        "case": {
            "trainer": "emulated", "trainer_options": {"step_s": step_s}, "order": "stored",
            "batch": BATCH, "workers": WORKERS, "prefetch": AHEAD // WORKERS, "decoder": decoder,
        },
        "matrix": {"pipeline": ["torch:jpeg"], "loader_options": [{}, {"in_order": False}]},
        "ladder": {"stages": ["train"], "caches": ["warm"], "repeats": repeats},
    }  # fmt: skip


def arithmetic(records: list[Any]) -> float:
    """Return the seconds a sample that slow batches cost, of the serial probe's times.

    A slow batch is asked for when the batch ``AHEAD`` before it is taken: so many steps hide it.  A
    step lasts from one batch that was there when it was asked for to the next.
    """
    steps = [r.ranks[0].steps for r in records if r.trial.stage == "train"]
    step_s = median(
        after - ready
        for s in steps
        for ready, after, made in zip(s.ready_s, s.ready_s[1:], s.made_s[1:], strict=False)
        if made < ready
    )
    probes = [probed(r) for r in records if r.trial.stage == "probe"]
    whole = [list(map(sum, zip(*parts.values(), strict=True))) for parts in probes]
    slow = median(s for times in whole for i, s in enumerate(times) if is_slow(i))
    plain = median(s for times in whole for i, s in enumerate(times) if not is_slow(i))
    print(f"a sample {1e3 * plain:.2f} ms, a slow one {1e3 * slow:.2f} ms ({slow / plain:.1f} x), "
          f"a step {1e3 * step_s:.1f} ms")  # fmt: skip
    return max(0.0, (BATCH - 1) * plain + slow - AHEAD * step_s) / EVERY


def seconds(records: list[Any], *, in_order: bool) -> float:
    """Return the median seconds a sample of an arm's loops, from their beginning to their end."""
    found = [
        r.ranks[0].steps.done_s[-1] / sum(r.ranks[0].steps.samples)
        for r in records
        if r.trial.stage == "train"
        and r.trial.case.loader_options.get("in_order", True) is in_order
    ]
    return median(found)


def main() -> int:
    parser = suites.arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--photos", action="store_true", help="photos with so many more pixels")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="iobench-head-of-line-", dir=args.data) as name:
        folder = Path(name)
        size, factor = (SIZE, SLOW) if args.photos else (SMALL, 4.0)
        found = tree(folder, args.samples, size, factor)
        files = sorted(Path(found.jpeg_root).rglob("*.jpg"))
        plain = max(file.stat().st_size for i, file in enumerate(files) if not is_slow(i))
        decoder = "simplejpeg" if args.photos else "waits"
        if not args.photos:
            plugin = folder / "plugins/decoders/waits.py"
            plugin.parent.mkdir(parents=True)
            plugin.write_text(DECODER.format(wait=WAIT_S, slow=SLOW, limit=plain))
            os.environ["IOBENCH_PLUGINS"] = str(folder / "plugins")
        step_s = STEP * BATCH * sample_s(found, decoder)
        analysis, records = suites.run(
            spec(step_s, decoder, args.repeats), found, results=folder / "results"
        )
        # their columns go with the folder
        wanted = arithmetic(records)
        times = seconds(records, in_order=True), seconds(records, in_order=False)
    ordered = next(p for p in analysis["pipelines"] if p["head_of_line"]["warm"]["loss_s"])
    reported = ordered["head_of_line"]["warm"]
    rows = {
        "loss of the arms, us a sample": (1e6 * (times[0] - times[1]), 1e6 * wanted),
        "loss reported, us a sample": (1e6 * reported["loss_s"]["value"], 1e6 * wanted),
        "gain of in_order = false": (times[0] / times[1], reported["gain"]["value"]),
    }
    for name, (value, expected) in rows.items():
        print(f"{name}: {value:.3f}, expected {expected:.3f}: {value / expected - 1:+.1%}")
    errors = [abs(value / expected - 1) for value, expected in rows.values()]
    return suites.finish(args, rows, max(errors) <= WITHIN)


if __name__ == "__main__":
    sys.exit(main())
