"""One arm's mount 5 % slower: is it called SLOWER, and does the attribution say ``read``?

A loop device throttled below the page cache, hence quiet; the arm runs in a second control group
with 5 % less bandwidth.  Cold ``read`` of one pipeline, looks at 10, 20 and 30 pairs.  Wanted:
SLOWER in at least 9 of 10 real comparisons, each attributed to read, and in at least 95 % of those
simulated at the recorded noise.  The same slowdown behind an emulated step that hides it, in cold
``train``, must not be called SLOWER.  Needs root.

Every comparison is a suite of its own under --results; the same command goes on with what is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import simulate, throttle
from benchmarks.suites import arguments, dataset, finish, run
from iobench.core.cases import Dataset
from iobench.core.clock import clock
from iobench.equations.stats import hodges_lehmann
from iobench.host.page_cache import evict
from iobench.run.trial import TrialSettings

COMPARISONS, NEEDED, POWER, SLOWER_BY = 10, 9, 0.95, 0.05
SAMPLES, BATCH = 160, 16
#: The kernel's throttle lets requests go once in 0.1 s, and 0.1 s worth of bytes at the start: the
#: 17.7 MB take 2.0 s at this rate and 2.1 s at 5 % less.  (At rates where the two are no whole
#: numbers of slices, 5 % of bandwidth are another share of the time: 7 % of 1.4 s.)
READ_BPS = 8_400_000
#: Reading a batch takes 0.20 s, 0.21 s in the slowed arm: both are hidden.
STEP_S = 0.3
_READ = "import sys\nfor name in sys.argv[1:]:\n    open(name, 'rb').read()"
SLOWED = """from iobench.core.members import RuntimeBackend
from iobench.backends.runtimes.bare import Bare


class Slowed(Bare):
    def argv(self, command, start):
        return [*{prefix!r}, *super().argv(command, start)]


BACKEND = RuntimeBackend(Slowed, "bare metal on a slower mount")
"""


def document(seed: int, train: bool) -> dict[str, Any]:
    """Return the spec of one comparison: cold read, and the masked one beside it."""
    common = {"over": "runtime", "base": "bare", "caches": ["cold"], "looks": list(simulate.LOOKS)}
    masked = [{**common, "stage": "train", "primary": False, "probes": 0}]
    return {
        "name": "power",
        "seed": seed,
        "budget": "2h",
        "case": {
            "trainer": "emulated", "trainer_options": {"step_s": STEP_S}, "batch": BATCH,
            "workers": 2, "pipeline": "jpeg",
        },
        "matrix": {"runtime": ["bare", "slowed"]},
        "ladder": {  # the least that a suite has: one run
            "stages": ["read"], "caches": ["cold"], "repeats": 1, "probe": False, "digest": False,
            "only": {"runtime": ["bare"]},
        },
        "contrasts": [{**common, "stage": "read", "margin": simulate.MARGIN}] + masked * train,
    }  # fmt: skip


@contextlib.contextmanager
def two_speeds(
    folder: Path, plugins: Path
) -> Iterator[tuple[throttle.ThrottledMount, throttle.ThrottledMount, TrialSettings]]:
    """Yield a throttled mount as two groups see it; runtime ``slowed`` joins the slower one."""
    with throttle.throttled(2 * SAMPLES * 200_000 + (64 << 20), folder=folder) as mount:
        group = mount.group.with_name(f"{mount.group.name}-slowed")
        group.mkdir()
        slowed = dataclasses.replace(mount, group=group)
        try:
            mount.limit(READ_BPS)
            slowed.limit(round(READ_BPS / (1 + SLOWER_BY)))
            (plugins / "runtimes").mkdir(parents=True, exist_ok=True)
            text = SLOWED.format(prefix=[*slowed.prefix])
            (plugins / "runtimes" / "slowed.py").write_text(text)
            os.environ["IOBENCH_PLUGINS"] = str(plugins.resolve())
            yield mount, slowed, TrialSettings(enter=mount.prefix)
        finally:
            throttle._leave(group)


def plain(found: Dataset, prefixes: Sequence[Sequence[str]], repeats: int = 5) -> float:
    """Return how much longer two plain readers, half the files each, take in the second group."""
    files = sorted(Path(found.root, "jpeg").rglob("*.jpg"))
    took: list[list[float]] = [[] for _ in prefixes]
    for _ in range(repeats):
        for times, prefix in zip(took, prefixes, strict=True):
            evict(files)
            start = clock()
            readers = [
                subprocess.Popen([*prefix, sys.executable, "-I", "-S", "-c", _READ, *half])
                for half in ([str(f) for f in files[k::2]] for k in range(2))
            ]
            if any(reader.wait() for reader in readers):
                raise OSError(f"a plain reader failed on {found.root}")
            times.append(clock() - start)
    usual, slow = (statistics.median(times) for times in took)
    print(f"two plain readers: {usual:.3f} s and {slow:.3f} s, {slow / usual:.3f}", flush=True)
    return slow / usual


def real(args: Any) -> tuple[list[dict[str, Any]], list[np.ndarray], float]:
    """Run, or go on with, the real comparisons; return a row and the log ratios of each.

    Last comes the true ratio of the two speeds, by plain readers.
    """
    rows, recorded, truth = [], [], math.nan
    args.data.mkdir(parents=True, exist_ok=True)
    with two_speeds(args.data, args.results / "plugins") as (mount, slowed, settings):
        for number in range(1, args.comparisons + 1):
            found = dataset(mount.path, "imagenet-like", SAMPLES, [])
            if math.isnan(truth):
                truth = plain(found, [mount.prefix, slowed.prefix])
            folder = args.results / f"{number:02d}"
            wanted = document(number, train=number <= args.masked)
            analysis, _ = run(wanted, found, results=folder, settings=settings, quiet=True)
            for entry in analysis["contrasts"]:
                logs = np.log(entry["ratios"])
                sd = statistics.stdev(logs) if len(logs) > 1 else math.nan
                named = entry["attribution"] or {"stage": "", "reason": ""}
                rows.append(
                    {k: entry[k] for k in ("stage", "verdict", "ratio", "pairs", "simultaneous")}
                    | {"sd": sd, "attributed": named["stage"], "reason": named["reason"],
                       "confounders": entry["confounders"]["differences"]}
                )  # fmt: skip
                if entry["stage"] == "read" and len(logs):
                    recorded.append(logs - hodges_lehmann(list(logs)).value)
                print(
                    f"{number:3} {entry['stage']:5} {entry['ratio'] or math.nan:.3f}  "
                    f"{entry['pairs']:2} pairs  paired sd {sd:6.2%}  {entry['verdict']} "
                    f"{entry['note']} {named['stage']} {named['reason']}",
                    flush=True,
                )
    return rows, recorded, truth


def simulated(recorded: list[np.ndarray], draws: int, seed: int) -> dict[str, Any]:
    """Return the verdicts on a 5 % effect under the recorded noise of the pairs."""
    rng = np.random.default_rng(seed)

    def draw() -> np.ndarray:
        logs = simulate.stretches(recorded, simulate.LOOKS[-1], simulate.STRETCH, rng)
        return logs + math.log1p(SLOWER_BY)

    return simulate.verdicts(draw, draws)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results/power"), help="kept; resumed")
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--masked", type=int, default=COMPARISONS, help="how many also train")
    parser.add_argument("--draws", type=int, default=2000, help="simulated comparisons")
    args = parser.parse_args()
    if os.geteuid():
        print("needs root: loop device, mount, control groups", file=sys.stderr)
        return 2
    rows, recorded, truth = real(args)
    read = [r for r in rows if r["stage"] == "read"]
    masked = [r for r in rows if r["stage"] == "train"]
    slower = [r for r in read if r["verdict"] == "SLOWER"]
    named = [r for r in slower if r["attributed"] == "read"]
    wrong = [r for r in masked if r["verdict"] == "SLOWER"]
    needed = math.ceil(NEEDED * args.comparisons / COMPARISONS)
    found = simulated(recorded, args.draws, seed=1)
    power = found["verdicts"].get("SLOWER", 0.0)
    print(
        f"real: SLOWER in {len(slower)} of {len(read)} (at least {needed}), attributed to read in "
        f"{len(named)}; masked in train: SLOWER in {len(wrong)} of {len(masked)} (none)"
    )
    print(
        f"simulated power at the recorded noise {power:.1%} (at least {POWER:.0%}), "
        f"{found['mean_pairs']:.0f} pairs on average"
    )
    passed = len(slower) >= needed and len(named) == len(slower) and not wrong and power >= POWER
    return finish(args, {"comparisons": rows, "truth": truth, "simulated": found}, passed)


if __name__ == "__main__":
    raise SystemExit(main())
