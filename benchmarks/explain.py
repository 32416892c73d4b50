"""Does `iobench explain` name the cause?  Causes and strengths drawn at run time, and healthy runs.

Each run plants one cause in a small suite by what the product itself offers (a sleep in every
decode, settings of the case, a limit of its control group) or below it (a throttled mount, a few
huge pictures), and asks which cause is ranked first.  Kinds and strengths of ``--causes`` are
drawn; ``--healthy`` runs have none, and their kinds are drawn too.  The seed is printed and
written.  Target: 14 of 15 named, none in 5 healthy ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.suites import arguments, dataset, finish, run
from benchmarks.throttle import throttled
from iobench.advise.explain import advise
from iobench.advise.findings import NOTHING
from iobench.analysis.suite import analyse
from iobench.core.cases import Dataset
from iobench.data import adopt
from iobench.run import store
from iobench.run.trial import TrialSettings

#: What every run has, unless its cause says otherwise: fed easily, on two cores.
CASE: dict[str, Any] = {
    "trainer": "emulated", "batch": 8, "workers": 2, "samples": 192,
    "transform": "rrc224",
}  # fmt: skip
STAGES = ["read", "decode", "load", "compute", "train"]
#: Seconds a step of eight samples that two workers of this machine feed with room to spare.
EASY_S = 0.08
FAST, SIDE = 2, 5000


@dataclasses.dataclass(frozen=True)
class Planted:
    """One thing done to a healthy run on purpose; ``names``: the causes that are right.

    ``step_s`` 0: so short that loading, measured first, takes ``strength`` times as long.
    """

    kind: str
    names: tuple[str, ...]
    strength: float
    case: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step_s: float = EASY_S
    delay_s: float = 0.0
    read_bps: int = 0
    read_iops: int = 0
    huge: int = 0  # one picture in so many is huge
    forms: Sequence[str] = ("jpeg",)


def _delay(rng: random.Random) -> Planted:
    """Every decode sleeps: too few workers for what a sample costs."""
    strength, workers = rng.uniform(2, 5), rng.choice([1, 2])
    step_s = EASY_S
    delay = strength * workers * step_s / CASE["batch"]
    return Planted("delay", ("workers",), strength, {"workers": workers}, step_s, delay_s=delay)


def _alone(rng: random.Random) -> Planted:
    """Nobody prepares while a step runs."""
    strength = rng.uniform(1.4, 1.9)
    step_s, batch = rng.uniform(0.04, 0.08), CASE["batch"]
    delay = (strength - 1) * step_s / batch
    return Planted("no overlap", ("no overlap",), strength, {"workers": 0}, step_s, delay_s=delay)


def _slow_storage(rng: random.Random) -> Planted:
    """A mount of fewer bytes/s than the steps need; pictures are of about 20 kB."""
    strength = rng.uniform(2, 5)
    needed = 20_000 * CASE["batch"] / EASY_S
    return Planted("slow storage", ("storage",), strength, read_bps=int(needed / strength))


def _many_files(rng: random.Random) -> Planted:
    """A mount of few requests a second under one small file a sample."""
    strength = rng.uniform(2, 5)
    iops = int(CASE["batch"] / EASY_S / strength * 1.3)
    names = ("files", "storage")
    return Planted("many files", names, strength, read_iops=max(iops, 20))


def _few_cores(rng: random.Random) -> Planted:
    """A control group with less CPU time than decoding takes; loops of many of its periods."""
    case = {"cpus": 1.0, "workers": 3, "batch": 32, "samples": 2048}
    return Planted("few cores", ("cores",), rng.uniform(2, 4), case, step_s=0.0)


def _slow_sample(rng: random.Random) -> Planted:
    """A few pictures take as long as a hundred others: batches behind theirs wait."""
    every = rng.choice([48, 64])
    return Planted(
        "slow sample", ("slow sample",), 100 / every, {"prefetch": 1}, step_s=0.03, huge=every
    )


KINDS: tuple[Callable[[random.Random], Planted], ...] = (
    _delay, _alone, _slow_storage, _few_cores, _slow_sample, _many_files,
)  # fmt: skip


def _well(rng: random.Random) -> Planted:
    """Nothing is planted."""
    return Planted("healthy", (), 0.0, {"workers": 2}, rng.uniform(EASY_S, 2 * EASY_S))


def _well_packed(rng: random.Random) -> Planted:
    """Pictures in an LMDB, batches of another size."""
    batch = rng.choice([4, 16])
    step_s = EASY_S * batch / CASE["batch"]
    return Planted("healthy, lmdb", (), 0.0, {"batch": batch}, step_s, forms=("lmdb",))


def _well_alone(rng: random.Random) -> Planted:
    """One worker, and steps that it feeds alone."""
    return Planted("healthy, one worker", (), 0.0, {"workers": 1}, rng.uniform(2, 3) * EASY_S)


def _well_slept(rng: random.Random) -> Planted:
    """Slow decoding, and as many workers as it takes."""
    step_s = rng.uniform(1, 2) * EASY_S
    delay_s = rng.uniform(1.0, 1.5) * step_s / CASE["batch"]
    return Planted("healthy, slow decoding", (), 0.0, {"workers": 4}, step_s, delay_s=delay_s)


def _well_mounted(rng: random.Random) -> Planted:
    """A mount of so many times the bytes/s that the steps need."""
    step_s, times = 2 * EASY_S, rng.uniform(5, 8)
    read_bps = int(times * 20_000 * CASE["batch"] / step_s)
    return Planted("healthy, mount", (), 0.0, {"workers": 4}, step_s, read_bps=read_bps)


def _well_queued(rng: random.Random) -> Planted:
    """A huge picture now and then, and a queue that hides it."""
    case = {"workers": 2, "prefetch": 6}
    return Planted("healthy, huge pictures", (), 0.0, case, 2 * EASY_S, huge=rng.choice([64, 96]))


HEALTHY: tuple[Callable[[random.Random], Planted], ...] = (
    _well, _well_packed, _well_alone, _well_slept, _well_mounted, _well_queued,
)  # fmt: skip


def drawn(seed: int, causes: int, healthies: int) -> list[Planted]:
    """Return so many runs with a cause and so many without, of drawn kinds, shuffled."""
    rng = random.Random(seed)
    runs = [rng.choice(KINDS)(rng) for _ in range(causes)]
    runs += [make(rng) for make in _different(rng, healthies)]
    rng.shuffle(runs)
    return runs


def _different(
    rng: random.Random, count: int
) -> list[Callable[[random.Random], Planted]]:  # fmt: skip
    """Return so many kinds of healthy run, none of them again before all were drawn."""
    found: list[Callable[[random.Random], Planted]] = []
    while len(found) < count:
        found += rng.sample(HEALTHY, min(len(HEALTHY), count - len(found)))
    return found


def document(planted: Planted, repeats: int, stages: Sequence[str] = STAGES) -> dict[str, Any]:
    """Return the spec of a run."""
    if planted.read_iops or planted.read_bps:
        stages = [*stages, "ceiling"]
    return {
        "name": "explain",
        "budget": "20m",
        "compute_s": 0.5,
        "limit_s": 120,
        "case": {**CASE, "trainer_options": {"step_s": planted.step_s}, **planted.case},
        "matrix": {"pipeline": [f"torch:{form}" for form in planted.forms]},
        "ladder": {"stages": stages, "repeats": repeats, "digest": False},
    }


@contextlib.contextmanager
def scene(planted: Planted, data: Path) -> Iterator[tuple[Dataset, TrialSettings]]:
    """Yield the data and the settings of a run."""
    settings = TrialSettings(compute_s=0.5, decode_delay_s=planted.delay_s)
    samples = {**CASE, **planted.case}["samples"]
    if planted.huge:
        with tempfile.TemporaryDirectory(prefix="iobench-explain-") as folder:
            yield _with_huge(Path(folder), data, samples, planted.huge), settings
    elif planted.read_bps or planted.read_iops:
        with throttled(1 << 28) as mount:
            found = dataset(mount.path, "smoke", samples, _made(planted))
            mount.limit(planted.read_bps or None, planted.read_iops or None)
            yield found, dataclasses.replace(settings, enter=mount.enter([]))
    else:
        yield dataset(data, "smoke", samples, _made(planted)), settings


def _made(planted: Planted) -> list[str]:
    return [form for form in planted.forms if form != "jpeg"]


def _with_huge(folder: Path, data: Path, samples: int, every: int) -> Dataset:
    """Return a tree of the smoke set's pictures in which one of ``every`` is huge, adopted."""
    import numpy as np
    import simplejpeg

    small = dataset(data, "smoke", samples, [])
    tree = folder / "tree"
    shutil.copytree(Path(small.jpeg_root or Path(small.root) / "jpeg"), tree)
    grain = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    picture = simplejpeg.encode_jpeg(grain, quality=60)
    for path in sorted(tree.rglob("*.jpg"))[every // 2 :: every]:
        path.write_bytes(picture)
    return adopt.adopt(tree, folder / "adopted", max_samples=10**6, max_bytes=10**12, seed=1)


def study(planted: Planted, args: Any) -> dict[str, Any]:
    """Measure one run; return what was planted and what explain ranks."""
    with (
        tempfile.TemporaryDirectory(prefix="iobench-explain-") as results,
        scene(planted, args.data) as (found, settings),
    ):
        if not planted.step_s:
            planted = _calibrated(planted, found, settings, args.repeats)
        run(document(planted, args.repeats), found, results=Path(results), settings=settings,
            quiet=True)  # fmt: skip
        kept = store.find(Path(results))
        causes = [f for f in advise(analyse(kept.plan(), kept.records())) if f.cause != NOTHING]
    first = causes[0].cause if causes else "none"
    right = first in planted.names if planted.names else not causes
    gain = causes[0].gain.value if causes and causes[0].gain else None
    print(
        f"{planted.kind:22} strength {planted.strength:4.1f}: {'RIGHT' if right else 'WRONG'} "
        f"{first}{f', gain {gain:.2f} x' if gain else ''}; "
        f"then {', '.join(f.cause for f in causes[1:4]) or 'none'}",
        flush=True,
    )
    return {"kind": planted.kind, "strength": planted.strength, "right": right, "first": first,
            "gain": gain, "causes": [f.text for f in causes]}  # fmt: skip


def _calibrated(planted: Planted, found: Dataset, settings: TrialSettings, repeats: int) -> Planted:
    """Return it with steps that take as much less than loading as is planted."""
    with tempfile.TemporaryDirectory(prefix="iobench-explain-") as results:
        spec = document(dataclasses.replace(planted, step_s=EASY_S), repeats, ["load"])
        seen, _ = run(spec, found, results=Path(results), settings=settings, quiet=True)
    rate = seen["pipelines"][0]["stages"]["load"]["warm"]["samples_per_s"]["value"]
    return dataclasses.replace(planted, step_s=planted.case["batch"] / rate / planted.strength)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--causes", type=int, default=15)
    parser.add_argument("--healthy", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn anew")
    parser.add_argument("--only", default="", help="kinds that contain this")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    runs = [r for r in drawn(seed, args.causes, args.healthy) if args.only in r.kind]
    rows = [study(planted, args) for planted in runs]
    sick = [row["right"] for row, planted in zip(rows, runs, strict=True) if planted.names]
    well = [row["right"] for row, planted in zip(rows, runs, strict=True) if not planted.names]
    print(
        f"{sum(sick)} of {len(sick)} causes named first, {sum(well)} of {len(well)} healthy clear"
    )
    passed = len(sick) - sum(sick) <= len(sick) // 15 and all(well)
    return finish(args, {"seed": seed, "runs": rows}, passed)


if __name__ == "__main__":
    sys.exit(main())
