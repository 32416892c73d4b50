"""A fixed count of extra iterations a sample, in the reader or in the decoder; what they cost.

``plug_in`` makes a format whose reader and decoder do so many as the environment says, 0 unless it
says so, and a runtime for each that says it.  ``calibrate`` finds the count by which a loop outside
iobench, uninterrupted, takes so much longer.
"""

from __future__ import annotations

import inspect
import math
import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import process_time, thread_time
from typing import Any, NamedTuple

from benchmarks import handwritten
from iobench.core.cases import Dataset
from iobench.core.clock import clock
from iobench.core.dataset import load_index
from iobench.equations import stats

FORMAT = "counted"
STAGES = ("read", "decode")
#: Of an outside loop: seconds, samples a batch, batches that are discarded first.
SECONDS, BATCH, DISCARDED, STEPS = 20.0, 16, 4, 600
WITHIN, ROUNDS = 0.002, 15
_FORMAT = '''"""JPEG files; reading and decoding take a fixed count of extra iterations."""

import os

from iobench.backends.formats.jpeg import JpegFormat, JpegReader
from iobench.core import transforms
from iobench.core.members import FormatBackend

READ, DECODE = (int(os.environ.get("IOBENCH_EXTRA_" + n, "0")) for n in ("READ", "DECODE"))


{spin}

class Reader(JpegReader):
    def read(self, index):
        spin(READ)
        return super().read(index)


class Format(JpegFormat):
    def open(self, dataset, root):
        return Reader(dataset, root)


def _slower(decode):
    def decoded(data, **how):
        spin(DECODE)
        return decode(data, **how)

    return decoded


if DECODE:
    transforms.decode = _slower(transforms.decode)
BACKEND = FormatBackend(Format, "JPEG files, with extra work")
'''
_RUNTIME = """from iobench.backends.runtimes.bare import Bare
from iobench.core.members import RuntimeBackend


class Slowed(Bare):
    def argv(self, command, start):
        return ["env", "IOBENCH_EXTRA_{name}={count}", *super().argv(command, start)]


BACKEND = RuntimeBackend(Slowed, "bare metal, more work to {stage}")
"""


class Calibrated(NamedTuple):
    """The extra iterations a sample, and how much longer the outside loop takes."""

    iterations: int
    ratio: float
    low: float
    high: float


def spin(count: int) -> int:
    """Do the extra work of one sample: so many iterations."""
    x = 1
    for _ in range(count):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    return x


def plug_in(folder: Path, count: int) -> None:
    """Put the format and the runtimes ``slow_read``, ``slow_decode`` where iobench finds them."""
    for axis in ("formats", "runtimes"):
        (folder / axis).mkdir(parents=True, exist_ok=True)
    (folder / "formats" / f"{FORMAT}.py").write_text(_FORMAT.format(spin=inspect.getsource(spin)))
    for stage in STAGES:
        text = _RUNTIME.format(name=stage.upper(), stage=stage, count=count)
        (folder / "runtimes" / f"slow_{stage}.py").write_text(text)
    os.environ["IOBENCH_PLUGINS"] = str(folder.resolve())


class Slowed:
    """A source of the hand-written loop that does ``count`` iterations before it reads."""

    def __init__(self, source: Any) -> None:
        self._source, self.count = source, 0

    def open(self) -> None:
        self._source.open()

    def read(self, index: int) -> Any:
        spin(self.count)
        return self._source.read(index)


def outside(root: str, files: list[str], count: int, seed: int) -> list[tuple[float, float]]:
    """Make batches as the hand-written loop does; return (seconds with, without) of each.

    Both are of the same samples and the same crops, in a drawn order.  CPU seconds: what else runs
    on the machine does not count.
    """
    import torch

    torch.set_num_threads(1)
    index = [(name.removesuffix(".jpg"), 0) for name in files]
    batches = handwritten.Batches({"format": "jpeg", "root": root}, index, len(index))
    source = Slowed(batches.sources[0])
    batches.sources = [source]
    draw, found = random.Random(seed), []
    end = clock() + SECONDS
    while clock() < end:
        ids, crops = draw.sample(range(len(index)), BATCH), draw.random()
        took = {}
        for source.count in draw.sample([0, count], 2):
            random.seed(crops)
            begun = process_time()
            batches.__getitems__(ids)
            took[source.count] = process_time() - begun
        found.append((took[count], took[0]))
    return found[DISCARDED:]


class Metered:
    """The hand-written batches, each with the CPU seconds of its making and of its process."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitems__(self, ids: list[int]) -> tuple[int, float, float, Any]:
        begun = thread_time()
        batch = self._batches.__getitems__(ids)
        return os.getpid(), thread_time() - begun, process_time(), batch


def made(root: str, files: list[str], workers: int, seed: int) -> float:
    """Return which share of the CPU seconds of a hand-written loop makes its batches.

    The rest hands them over, in the workers and in the process that waits for them.  Where the
    cores are what the loop waits for, that is their share of its time, too.
    """
    import torch

    torch.set_num_threads(1)
    index = [(name.removesuffix(".jpg"), 0) for name in files]
    task = {"format": "jpeg", "root": root, "workers": workers, "prefetch": 2}
    draw = random.Random(seed)
    order = [draw.sample(range(len(index)), BATCH) for _ in range(STEPS)]
    batches = Metered(handwritten.Batches(task, index, len(index)))
    forked = {"multiprocessing_context": "fork"}  # in a spawned process too
    loop = handwritten.through_workers(task, batches, batch_sampler=order, **forked)
    seen: dict[int, list[tuple[float, float]]] = {}
    begun = process_time()
    for pid, making_s, process_s, _ in loop:
        seen.setdefault(pid, []).append((making_s, process_s))
    waiting_s = process_time() - begun
    between = [(series[0][1], series[1:]) for series in seen.values()]  # of the first, imports
    making_s = sum(making for _, series in between for making, _ in series)
    working_s = sum(series[-1][1] - first for first, series in between)
    share = sum(len(series) for _, series in between) / STEPS
    return making_s / (working_s + share * waiting_s)


def calibrate(found: Dataset, effect: float, workers: int = 2) -> Calibrated:
    """Return a count by which a hand-written loop takes 1 + ``effect``, within 0.002.

    Making batches is timed by as many processes at once as it has workers, with the extra work and
    without; the rest of the loop is the same.  A count is measured until its 95 % interval does not
    hold the effect, or is 0.002 to either side.
    """
    root, files = found.jpeg_root, [str(name) for name in load_index(found).files]
    count, pairs = 1000, []
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as apart:  # its processes may have children
        share = apart.submit(made, root, files, workers, 1).result()
    print(f"making batches is {share:.1%} of the CPU seconds of an outside loop", flush=True)
    with spawned.Pool(workers) as pool:
        for turn in range(ROUNDS):
            tasks = [(root, files, count, workers * turn + k) for k in range(workers)]
            pairs += [pair for one in pool.starmap(outside, tasks) for pair in one]
            ratio = stats.paired_ratio(*zip(*pairs, strict=True))
            whole = (1 + share * (r - 1) for r in (ratio.value, ratio.low, ratio.high))
            now = Calibrated(count, *whole)
            print(
                f"{count} iterations a sample: an outside loop takes {now.ratio:.4f} "
                f"({now.low:.4f} to {now.high:.4f})",
                flush=True,
            )
            narrow = (now.high - now.low) / 2 <= WITHIN
            if narrow and abs(now.ratio - 1 - effect) <= WITHIN:
                return now
            if narrow or not now.low <= 1 + effect <= now.high:
                count, pairs = next_count(count, now.ratio, effect), []
    raise SystemExit(f"no count gives {1 + effect:g} within {WITHIN}: is the machine busy?")


def next_count(count: int, ratio: float, effect: float) -> int:
    """Return the count that would give ``effect`` where ``count`` gave ``ratio``."""
    return max(1, math.floor(count * effect / max(ratio - 1, 1e-3) + 0.5))
