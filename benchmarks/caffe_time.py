"""Do the caffe trainer's forward and backward agree with Caffe's own program `caffe time`?

The same net, batch, threads and input: the constant that a DummyData layer gives (of real pixels
the forward pass of a net with LRN takes about 5 % longer: powers of other numbers).  Arm: a compute
trial, the process that every suite runs; the means of its phases.  Base: `caffe time -model`, its
"Average Forward pass" and "Average Backward pass", over as many iterations.  Ten pairs, interleaved
ABBA, a fresh process each.  Target: the 90 % interval of each ratio inside 0.95..1.05.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import suites
from iobench.backends.caffe import layers, nets
from iobench.backends.caffe.prototxt import render
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import VALID
from iobench.equations import stats
from iobench.run.trial import TrialSettings, run_trial

MARGIN = 0.05
PHASES = ("forward", "backward")
_AVERAGE = re.compile(r"Average (Forward|Backward) pass: ([0-9.e+-]+) ms")


def by_iobench(net: str, found: Dataset, args: Any) -> tuple[dict[str, float], int]:
    """Return each phase's mean seconds of a compute trial, and its steps."""
    case = Case(
        label="caffe-time",
        format="null",
        loader="native",
        trainer="caffe",
        image="caffe",
        order="stored",
        transform="crop224",
        batch=args.batch,
        workers=1,
        trainer_options={"net": net, "threads": args.threads},
    )
    settings = TrialSettings(limit_s=600.0, compute_s=args.seconds)
    record = run_trial(Trial("caffe-time", case, "compute", "-"), found, 1, settings)
    if record.status != VALID:
        raise SystemExit(f"{net}: {record.reasons}")
    facts = record.ranks[0].notes["trainer"]
    return {p: float(facts[f"{p}_mean_s"]) for p in PHASES}, len(record.ranks[0].steps.done_s)


def by_caffe(net: str, steps: int, folder: Path, args: Any) -> dict[str, float]:
    """Return what `caffe time` says of the same net, in seconds."""
    model = folder / f"{net}.prototxt"
    described, _ = nets.describe(net, layers.dummy(args.batch, nets.net(net).shape))
    model.write_text(render(described))
    stack = registry.installed("caffe")
    quiet = {"GLOG_minloglevel": "0", "OPENBLAS_NUM_THREADS": str(args.threads)}
    env = {**os.environ, **stack.env, **quiet}
    done = subprocess.run(
        ["caffe", "time", f"-model={model}", f"-iterations={max(steps - 1, 1)}"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {name.lower(): float(ms) / 1e3 for name, ms in _AVERAGE.findall(done.stderr)}
    if set(found) != set(PHASES):
        raise SystemExit(f"caffe time failed: {done.stderr[-500:]}")
    return found


def study(net: str, found: Dataset, folder: Path, args: Any) -> list[dict[str, Any]]:
    """Return one row a phase: the ratio, its interval, and whether it is inside the margin."""
    pairs = []
    _, steps = by_iobench(net, found, args)
    for pair in range(args.pairs):
        seconds: dict[str, dict[str, float]] = {}
        for side in ("iobench", "caffe") if pair % 4 in (0, 3) else ("caffe", "iobench"):
            if side == "iobench":
                seconds[side], _ = by_iobench(net, found, args)
            else:
                seconds[side] = by_caffe(net, steps, folder, args)
        pairs.append(seconds)
        words = ", ".join(
            f"{p} {1e3 * seconds['iobench'][p]:.2f} / {1e3 * seconds['caffe'][p]:.2f} ms"
            for p in PHASES
        )
        print(f"  {net} {pair + 1}/{args.pairs}: {words}", file=sys.stderr, flush=True)
    return [judge(net, phase, pairs) for phase in PHASES]


def judge(net: str, phase: str, pairs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    arm, base = ([pair[side][phase] for pair in pairs] for side in ("iobench", "caffe"))
    found = stats.verdict(arm, base, margin=MARGIN)
    low, high = found.interval90.low, found.interval90.high
    return {
        "net": net,
        "phase": phase,
        "pairs": len(pairs),
        "ratio": found.ratio,
        "low90": low,
        "high90": high,
        "inside": low >= 1 - MARGIN and high <= 1 + MARGIN,
        "iobench_s": arm,
        "caffe_time_s": base,
    }


def main() -> int:
    parser = suites.arguments(__doc__ or "")
    parser.add_argument("--nets", nargs="+", default=["caffenet", "resnet18"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each compute trial")
    args = parser.parse_args()
    found = suites.dataset(args.data, "smoke", 64, [])
    rows = []
    with tempfile.TemporaryDirectory(prefix="iobench-caffe-time-") as folder:
        for net in args.nets:
            rows += study(net, found, Path(folder), args)
    print("net         phase     ratio   90 % interval     inside 0.95..1.05")
    for row in rows:
        print(
            f"{row['net']:10s}  {row['phase']:8s}  {row['ratio']:.4f}  "
            f"{row['low90']:.4f}..{row['high90']:.4f}  {'yes' if row['inside'] else 'NO':>17s}"
        )
    return suites.finish(args, rows, all(row["inside"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
