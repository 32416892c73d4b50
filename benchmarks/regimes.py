"""Three regimes, named rightly: fetch-bound, prep-bound and compute-bound, beside arithmetic.

fetch-bound: a mount throttled below the page cache.  prep-bound: an emulated h100 on this machine's
cores.  compute-bound: a real ResNet-18 on them.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.known_truths import SLICE_S
from benchmarks.suites import arguments, dataset, finish, run
from benchmarks.throttle import throttled
from iobench.run.trial import TrialSettings

#: Below what two cores can decode, so storage binds: 20 MB/s is about 180 samples/s of 110 KB.
THROTTLE_BPS = 20_000_000
CASE: dict[str, Any] = {"transform": "rrc224", "workers": 2}
STAGES = ["read", "decode", "load", "compute", "train"]


def document(name: str, case: dict[str, Any], repeats: int) -> dict[str, Any]:
    return {
        "name": name,
        "budget": "30m",
        "limit_s": 300,
        "case": {**CASE, **case},
        "matrix": {"pipeline": ["jpeg"]},
        "ladder": {"stages": STAGES, "repeats": repeats, "digest": False},
    }


def show(name: str, expected: str, analysis: dict[str, Any], arithmetic: str) -> dict[str, Any]:
    entry = analysis["pipelines"][0]
    found = entry["limits"]
    state = "cold" if expected == "fetch-bound" else "warm"
    right = found[state]["regime"] == expected
    print(f"\n{name}: {'RIGHT' if right else 'WRONG'}")
    for key, value in found.items():
        print(f"  {key}: binding limit {value}")
    for key in ("fetch_stall_s", "prep_stall_s", "au"):
        print(f"  {key}: {entry[key]}")
    print(f"  arithmetic: {arithmetic}", flush=True)
    return {"regime": name, "right": right, "entry": entry, "arithmetic": arithmetic}


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    figures = []

    case: dict[str, Any] = {
        "trainer": "emulated", "trainer_options": {"accelerator": "v100"}, "batch": 16,
    }  # fmt: skip
    with throttled(1 << 30) as mount:
        found = dataset(mount.path, "imagenet-like", 320, [])
        mount.limit(THROTTLE_BPS)
        analysis, _ = run(
            document("fetch-bound", case, args.repeats), found,
            settings=TrialSettings(limit_s=300, compute_s=2, enter=mount.enter([])),
        )  # fmt: skip
    stall = (found.bytes / THROTTLE_BPS - SLICE_S) / found.samples - 0.195 / 64
    figures.append(
        show(
            "fetch-bound (20 MB/s mount, v100)", "fetch-bound", analysis,
            f"fetch stall = ({found.bytes} B / 20 MB/s - 0.1 s slice) / {found.samples} "
            f"- 0.195 s / 64 = {stall:.5f} s a sample, prep stall 0",
        )
    )  # fmt: skip

    found = dataset(args.data, "imagenet-like", 1280, [])
    case = {"trainer": "emulated", "trainer_options": {"accelerator": "h100"}, "batch": 64}
    analysis, _ = run(document("prep-bound", case, args.repeats), found)
    load = analysis["pipelines"][0]["stages"]["load"]["warm"]["seconds_per_sample"]["value"]
    figures.append(
        show(
            "prep-bound (h100)", "prep-bound", analysis,
            f"prep stall = 1/P - 1/G = {load:.5f} - {0.224 / 400:.5f} = {load - 0.224 / 400:.5f} "
            "s a sample",
        )
    )  # fmt: skip

    case = {"trainer": "torch", "trainer_options": {"net": "resnet18"}, "batch": 16, "samples": 192}
    analysis, _ = run(document("compute-bound", case, args.repeats), found)
    figures.append(
        show(
            "compute-bound (real ResNet-18)", "compute-bound", analysis, "no wait; contention only"
        )
    )
    return finish(args, figures, all(f["right"] for f in figures))


if __name__ == "__main__":
    sys.exit(main())
