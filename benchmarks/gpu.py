"""What a GPU changes: decoding on it, copying to it, training on it; bare and in containers.

Data are made, nothing is fetched, and it ends within a quarter of an hour.  A ResNet-50 trains on
the first GPU: batches of JPEG decoded by the host and pinned, not pinned, by one worker that cannot
keep up, by DALI on the host, by DALI on the GPU.  Each case runs load, h2d (the copy alone),
compute and train, warm.  Containers that run here and have torch's image (--images) or your own
(--image) run the first case too, and where there are two GPUs a rank on each, which exchange by
nccl.  What could not be tried is listed with the reason.  Checked: that each case ran, that its
steps were on the GPU, that it trains no faster than it computes, that a copy is within a step, and
that one worker holds the GPU up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.suites import arguments, dataset, finish, run
from iobench.core import registry
from iobench.core.errors import ImageError
from iobench.host import gpus, probes
from iobench.images import catalogue
from iobench.run import availability
from iobench.run.command import images_for
from iobench.run.trial import TrialSettings
from iobench.spec import load

SAMPLES, BATCH, REPEATS, COMPUTE_S = 5632, 32, 3, 4
CONTAINERS = ("apptainer", "docker", "podman")
RANKS, STARVED = "two ranks on two GPUs", "one worker"
#: What a step may take more than training's, and a copy more than a step: noise.
SLACK = 1.1
TRAINER = {"net": "resnet50", "device": "cuda", "channels_last": True}


def cases(containers: Mapping[str, Mapping[str, str]], count: int) -> list[dict[str, Any]]:
    """Return the cases: five ways to a batch on the GPU; the first of them in containers (the keys
    that each needs), and on two ranks where there are two GPUs.
    """
    pipelines: list[dict[str, Any]] = [
        {"name": "host pinned", "pipeline": "torch:jpeg"},
        {"name": "host not pinned", "pipeline": "torch:jpeg",
         "loader_options": {"pin_memory": False}},
        {"name": STARVED, "pipeline": "torch:jpeg", "workers": 1},
        {"name": "DALI on the host", "pipeline": "dali:jpeg"},
        {"name": "DALI on the GPU", "pipeline": "dali:jpeg", "loader_options": {"device": "mixed"}},
    ]  # fmt: skip
    inside = [
        {"name": f"host pinned {name}", "pipeline": "torch:jpeg", "runtime": name, **keys}
        for name, keys in containers.items()
    ]
    ranks = {"name": RANKS, "pipeline": "torch:jpeg", "launcher": "torchrun", "world_size": 2}
    return [*pipelines, *inside, *([ranks] if count > 1 else [])]


def document(wanted: list[dict[str, Any]], repeats: int = REPEATS) -> dict[str, Any]:
    """Return the spec."""
    return {
        "name": "gpu",
        "budget": "15m",
        "compute_s": COMPUTE_S,
        "case": {
            "trainer": "torch", "trainer_options": TRAINER, "batch": BATCH,
            "workers": min(8, len(os.sched_getaffinity(0))), "prefetch": 2,
        },
        "cases": wanted,
        "ladder": {
            "stages": ["load", "h2d", "compute", "train"], "caches": ["warm"], "repeats": repeats,
            "probe": False, "digest": False,
        },
    }  # fmt: skip


def usable(images: Path, own: str) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the containers that can run here with the keys of a case in each, and why the others
    cannot.  ``own``: an image in place of torch's.
    """
    why = {name: registry.unavailable("runtimes", name) for name in CONTAINERS}
    keys = {"image": own} if own else {}
    try:
        if not own:
            catalogue.find("torch", images)
    except ImageError as error:
        why = {name: reason or str(error) for name, reason in why.items()}
    return {n: keys for n, r in why.items() if not r}, {n: r for n, r in why.items() if r}


def possible(wanted: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the cases whose loader is here, and why the others cannot run."""
    why = {
        each["name"]: registry.unavailable("loaders", each["pipeline"].partition(":")[0])
        for each in wanted
    }
    left_out = {name: reason for name, reason in why.items() if reason}
    return [each for each in wanted if each["name"] not in left_out], left_out


def here() -> dict[str, Any]:
    """Return what torch says of the GPUs of this machine; raises SystemExit where it uses none."""
    import torch

    if not torch.cuda.is_available():
        reason = gpus.absent() or (
            f"torch {torch.__version__} cannot use the GPU of this machine: set TORCH_INDEX to a "
            "CUDA build and run `make setup` (docs/spec.md, A GPU)"
        )
        print(f"nothing was tried: {reason}", file=sys.stderr)
        raise SystemExit(1)
    driver = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory,
        "driver": probes.ask(driver)[1],
    }


def row_of(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a case's rates in samples/s, its copy, and what is wrong with them."""
    rates = {}
    for stage, cache in (("load", "warm"), ("compute", "-"), ("train", "warm")):
        found = entry["stages"][stage].get(cache) or {}
        rates[stage] = (found.get("samples_per_s") or {}).get("value")
    au = (entry["au"].get("warm") or {}).get("value")
    if au and rates["train"]:  # what computes alike is run once, and entered with one case
        rates["compute"] = rates["compute"] or rates["train"] / au
    copy, wrong = entry["copy_s"], [f"no {name}" for name, rate in rates.items() if not rate]
    if rates["compute"] and rates["train"] and rates["train"] > SLACK * rates["compute"]:
        wrong.append("it trains faster than it computes")
    if copy and copy["share"] and copy["share"] > SLACK:
        wrong.append("a copy takes longer than a step")
    stall = entry["prep_stall_s"] or {}
    least = stall.get("low") if stall.get("n", 0) > 1 else stall.get("value")
    if entry["case"] == STARVED and not (least or 0) > 0:
        wrong.append("the GPU waits for one worker, and no stall is found")
    return {"case": entry["case"], **rates, "copy": copy, "stall_s": stall, "wrong": wrong}


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=Path, default=Path("images"), help="of the containers")
    parser.add_argument("--image", default="", help="of your own for them: SIF, folder, docker://")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each stage")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names contain these")
    parser.add_argument("--results", type=Path, help="a new folder for the suite, for its report")
    args = parser.parse_args()
    facts = here()
    containers, left_out = usable(args.images, args.image)
    if len(facts["devices"]) < 2:
        left_out[RANKS] = "there is one GPU"
    able, lacking = possible(cases(containers, len(facts["devices"])))
    left_out.update(lacking)
    asked = [each for each in able if any(words in each["name"] for words in args.only)]
    wanted = document(asked, args.repeats)
    planned = load.expand(load.parse(wanted, where="benchmark"))
    with availability.services_of(planned, args.images, lambda line: print(line, flush=True)):
        settings = TrialSettings(compute_s=COMPUTE_S, images=images_for(planned, args.images))
        found = dataset(args.data, "imagenet-like", SAMPLES, [])
        analysis, records = run(wanted, found, settings=settings, results=args.results)
    rows = [row_of(entry) for entry in analysis["pipelines"]]
    devices = {
        rank.notes["trainer"].get("device_name")
        for record in records if record.trial.stage == "train"
        for rank in record.ranks if "trainer" in rank.notes
    }  # fmt: skip
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    for row in rows:
        rates = "  ".join(f"{k} {row[k] or 0:9,.0f}/s" for k in ("load", "compute", "train"))
        copy = row["copy"]
        copied = f"copy {1e3 * copy['seconds']['value']:.2f} ms" if copy else "nothing is copied"
        print(f"{row['case']:32} {rates}  {copied}  {'; '.join(row['wrong'])}")
    for name, reason in left_out.items():
        print(f"not tried: {name}: {reason}")
    wrong = [w for row in rows for w in row["wrong"]]
    on_gpu = bool(devices) and devices <= set(facts["devices"])
    return finish(
        args, {"here": facts, "rows": rows, "not_tried": left_out, "on": sorted(map(str, devices))},
        not wrong and on_gpu,
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
