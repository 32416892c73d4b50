"""Training on 1 to 4 ranks against the model of a step, and against the simulation of ranks.

Compute is emulated, since several real ranks would share this machine's cores; the exchange of
gradients is real.  memory: the closed form, fitted to loading, to computing on one rank and to the
exchange on the most ranks, predicts training.  shared mount: all ranks read from one mount that is
throttled below the page cache, and the simulation predicts training cold from the CPU seconds of
loading warm, the stated bandwidth and the stated step.  Target of both: a mean absolute error of at
most 10 %.
"""

from __future__ import annotations

import argparse
import sys
from statistics import fmean
from typing import Any

from benchmarks.suites import arguments, dataset, finish, run
from benchmarks.throttle import throttled
from iobench.equations.ranks_simulated import SimulatedJob, ends_s
from iobench.equations.ssgd import StepParts
from iobench.run.trial import TrialSettings

TARGET = 0.10
BPS, STEP_S, BATCH, SAMPLES = 8_000_000, 0.1, 8, 384
#: Bytes that a throttled group gets at once before its limit holds, in seconds of the limit.
SLICE_S = 0.1


def document(name: str, ranks: int, caches: list[str], args: Any, **case: Any) -> dict[str, Any]:
    return {
        "name": name,
        "budget": "60m",
        "limit_s": 300,
        "compute_s": 3,
        "case": {
            "trainer": "emulated", "launcher": "mpirun", "workers": 1, "prefetch": 2, **case,
        },
        "matrix": {"world_size": list(range(1, ranks + 1))},
        "ladder": {
            "stages": ["load", "compute", "train"], "caches": caches, "repeats": args.repeats,
            "digest": False, "probe": False,
        },
    }  # fmt: skip


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Return predicted and measured training from memory, with an exchange of 16 MB."""
    found = dataset(args.data, "cifar-like", 4096, ["lmdb"])
    options = {"step_s": 0.08, "exchange_bytes": 16_000_000, "buckets": 4}
    asked = document(
        "scale-memory", args.ranks, ["warm"], args, pipeline="torch:lmdb", transform="cifar32",
        batch=16, trainer_options=options,
    )  # fmt: skip
    analysis, _ = run(asked, found)
    (study,) = (s for s in analysis["studies"] if s["kind"] == "weak")
    (model,) = study["models"]
    rows = [
        (p["ranks"], p["samples_per_s"], p["measured"])
        for p in model["predictions"]
        if p["measured"]
    ]
    return judged("memory: the closed form", rows)


def shared_mount(args: argparse.Namespace) -> dict[str, Any]:
    """Return simulated and measured training from one throttled mount."""
    with throttled(1 << 29) as mount:
        found = dataset(mount.path, "imagenet-like", SAMPLES, [])
        mount.limit(BPS)
        asked = document(
            "scale-mount", args.ranks, ["cold", "warm"], args, pipeline="torch:jpeg",
            transform="crop224", batch=BATCH, trainer_options={"step_s": STEP_S},
        )  # fmt: skip
        settings = TrialSettings(limit_s=300, compute_s=3, enter=mount.enter([]))
        analysis, _ = run(asked, found, settings=settings)
    rows = []
    for case in analysis["pipelines"]:
        ranks = case["world_size"]
        sample_s = case["stages"]["train"]["cold"]["seconds_per_sample"]["value"]
        prepare_s = BATCH * case["seen"]["load_cpu_s"]  # neighbours do not lengthen CPU seconds
        steps = SAMPLES // (BATCH * ranks)
        job = SimulatedJob(
            ranks, workers=1, prefetch=2, prepare_s=prepare_s, step=StepParts(0.0, STEP_S, ()),
            read_bytes=BATCH * found.bytes / SAMPLES, bytes_per_s=BPS,
        )  # fmt: skip
        whole_s = ends_s(job, steps)[-1] - SLICE_S
        rows.append((ranks, BATCH * ranks * steps / whole_s, 1 / sample_s))
    return judged("shared mount: the simulation", rows)


def judged(name: str, rows: list[tuple[int, float, float]]) -> dict[str, Any]:
    """Print predicted and measured samples/s; return them with the mean absolute error."""
    error = fmean(abs(predicted / measured - 1) for _, predicted, measured in rows)
    print(f"\n{name}: mean absolute error {error:.1%}, at most {TARGET:.0%}")
    for ranks, predicted, measured in rows:
        words = f"{predicted:8.1f} samples/s predicted, {measured:8.1f} measured"
        print(f"  {ranks} ranks: {words}, {predicted / measured - 1:+.1%}")
    return {"name": name, "rows": rows, "error": error, "passed": error <= TARGET}


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", default="", choices=["", "memory", "mount"])
    args = parser.parse_args()
    studies = {"memory": memory, "mount": shared_mount}
    found = [study(args) for name, study in studies.items() if args.only in ("", name)]
    return finish(args, found, all(each["passed"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
