"""Our generator against DLIO's on the same cores in the same run, and what the samples are like.

    make bench-dataset-generation [ARGS='--samples 2000 --rounds 5 --no-dlio']

Prints, as JSON lines: encodes a sample, the size distribution against its target, decode time per
byte against real photos (those of scikit-learn's package, cropped and encoded to the same
resolution and size), JPEGs a second of both generators, alternating, and their ratio.

DLIO gets a virtual environment of its own under build/peers/dlio. Its plain install fails (it asks
for a DALI that is a placeholder), hence --no-deps and its needs by name; TensorFlow, which it
imports always, makes that 2 GB. Both are asked for the same number of files and the same mean
size; DLIO's files are grey noise and about half as long as asked (DLIO 2.0), ours are colour photos
of the size asked, hashed and indexed. ``dlio_longer`` is DLIO asked for so much more that its files
are as long as ours: the same job. Two ratios to each: whole runs of a fresh process, files written
back to the device (sync) included; and generation alone, from the first file to the last, by DLIO's
log and by our progress. Generation alone is judged against ``dlio_longer``; against ``dlio``, whose
files have 0.6 of the bytes, it is printed, in files and in bytes.

Nothing is deleted before the last run, and two runs of this want five minutes between them: ext4
reuses an inode only minutes after its file was deleted, and a generator that starts soon after pays
for the search (0.1 to 0.3 ms a file) where one that first imports TensorFlow pays less.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import suites
from iobench.core import dataset as datasets
from iobench.core.clock import clock
from iobench.data import make, recipes, size_model

BUILD = Path(__file__).resolve().parent.parent / "build" / "peers"
RECIPE = "imagenet-like"
MEAN_BYTES = 114_660  # what DLIO's resnet50 workload asks for
DLIO = ["dlio-benchmark==2.0.0", "pydftracer==1.0.2"]
#: torch as it is here: a newer one would bring CUDA. mpich: mpiexec, as a wheel.
DLIO_NEEDS = [f"torch=={version('torch').partition('+')[0]}", "mpi4py", "mpich", "h5py"]
DLIO_NEEDS += ["omegaconf", "hydra-core", "pandas", "psutil", "pillow", "pyyaml", "tensorflow-cpu"]


#: Everything said, for --json.
ROWS: list[dict[str, Any]] = []


def say(**facts: Any) -> None:
    ROWS.append(facts)
    print(json.dumps(facts), flush=True)


def dlio_python() -> Path:
    """Return the Python of DLIO's own environment, made on first use."""
    home = BUILD / "dlio"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        say(installing=str(home), what="DLIO and what it needs, 2 GB, once")
        venv.create(home, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
        subprocess.run([*pip, "--no-deps", *DLIO], check=True)
        subprocess.run([*pip, *DLIO_NEEDS], check=True)
        (home / "complete").touch()
    return python


def timed(argv: list[str]) -> tuple[float, str]:
    """Return (seconds until the process ended and its files were written back, its output)."""
    start = clock()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    os.sync()
    wall_s = clock() - start
    if done.returncode:
        sys.exit(f"{argv[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return wall_s, done.stdout + done.stderr


def ours(folder: Path, samples: int, workers: int) -> dict[str, float]:
    code = (
        "import sys; from iobench.data import make; from iobench.core.clock import clock; at = [];"
        "make.make(sys.argv[1], sys.argv[2], samples=int(sys.argv[3]), "
        "workers=int(sys.argv[4]), progress=lambda done, total: at.append(clock()));"
        "print(at[-1] - at[0])"
    )
    argv = [sys.executable, "-c", code, RECIPE, str(folder / "set"), str(samples), str(workers)]
    wall_s, output = timed(argv)
    made = datasets.locate(folder / "set")
    return {
        "samples_per_s": samples / wall_s,
        "mean_bytes": made.bytes / samples,
        "without_startup_per_s": samples / float(output),
    }


def dlio(
    folder: Path, samples: int, workers: int, asked_bytes: int = MEAN_BYTES
) -> dict[str, float]:
    overrides = {
        "workload": "resnet50_v100",
        "workload.workflow.generate_data": True,
        "workload.workflow.train": False,
        "workload.framework": "pytorch",
        "workload.reader.data_loader": "pytorch",
        "workload.dataset.format": "jpeg",
        "workload.dataset.num_files_train": samples,
        "workload.dataset.num_files_eval": 0,
        "workload.dataset.num_samples_per_file": 1,
        "workload.dataset.record_length": asked_bytes,
        "workload.dataset.data_folder": str(folder / "set"),
        "workload.output.folder": str(folder / "log"),
        "hydra.run.dir": str(folder / "log"),
    }
    python = dlio_python()
    workload, *rest = (f"{key}={value}" for key, value in overrides.items())
    argv = [str(python.parent / "dlio_benchmark"), workload, *(f"++{each}" for each in rest)]
    if workers > 1:
        argv = [str(python.parent / "mpiexec"), "-n", str(workers), *argv]
    wall_s, output = timed(argv)
    files = list((folder / "set").rglob("*.jpeg"))
    facts = {
        "samples_per_s": len(files) / wall_s,
        "mean_bytes": statistics.mean(path.stat().st_size for path in files),
    }
    log = output + "".join(p.read_text() for p in (folder / "log").rglob("*.log"))
    stamps = [
        int(h) * 3600 + int(m) * 60 + float(s)
        for line in log.splitlines()
        if "enerat" in line
        for h, m, s in re.findall(r"T(\d\d):(\d\d):(\d\d(?:\.\d+)?)", line)[:1]
    ]
    facts["without_startup_per_s"] = len(files) / (max(stamps) - min(stamps))
    return facts


def race(folder: Path, samples: int, rounds: int, workers: int) -> None:
    """Alternate the three, the order reversed each round; print every rate and the ratios."""
    asked = MEAN_BYTES
    makers: dict[str, Callable[[Path, int, int], dict[str, float]]] = {
        "dlio": dlio,
        "ours": ours,
        "dlio_longer": lambda place, samples, workers: dlio(place, samples, workers, asked),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in makers}
    dlio_python()  # installed before anything is timed
    for number in range(rounds):
        for name in list(makers)[:: -1 if number % 2 else 1]:
            place = folder / f"{name}-{number}"
            place.mkdir(parents=True)
            facts = makers[name](place, samples, workers)
            found[name].append(facts)
            say(round=number, generator=name, **facts)
            if name == "ours" and not number:
                asked = round(MEAN_BYTES * facts["mean_bytes"] / found["dlio"][0]["mean_bytes"])
    for rival in ("dlio", "dlio_longer"):
        for what in ("samples_per_s", "without_startup_per_s"):
            pairs = [a[what] / b[what] for a, b in zip(found["ours"], found[rival], strict=True)]
            longer = statistics.mean(a["mean_bytes"] for a in found["ours"]) / statistics.mean(
                b["mean_bytes"] for b in found[rival]
            )
            ratio = statistics.median(pairs)
            say(what=what, rival=rival, ratio=ratio, in_bytes=ratio * longer, ratios=pairs)


def sizes(folder: Path, samples: int) -> datasets.SampleIndex:
    """Make a set and print how its sizes stand to the target."""
    for name in recipes.names():
        recipe = recipes.load(name)
        count = {"large": 32, "smoke": 64, RECIPE: samples}.get(name, 2000)
        made = make.make(name, folder / name, samples=count)
        found = datasets.load_index(made)
        cdf = np.vectorize(size_model.SizeDistribution(recipe).cdf)
        say(
            recipe=name,
            samples=count,
            encodes_per_sample=made.recipe["encodes_per_sample"],
            padding_share=made.recipe["padding_share"],
            mean_bytes=float(found.sizes.mean()),
            mean_over_target=float(found.sizes.mean()) / recipe.mean_bytes,
            ks_distance=float(stats.kstest(found.sizes, cdf).statistic),
        )
    return datasets.load_index(datasets.locate(folder / RECIPE))


def photos() -> list[np.ndarray[Any, Any]]:
    """Return scikit-learn's two photos, (427, 640, 3) each."""
    import simplejpeg
    import sklearn.datasets

    folder = Path(sklearn.datasets.__file__).parent / "images"
    return [simplejpeg.decode_jpeg((folder / f"{n}.jpg").read_bytes()) for n in ("china", "flower")]


def decode_s(data: bytes) -> float:
    """Return the fastest of 15 decodes: content and library decide it, not the neighbours."""
    import simplejpeg

    times = []
    for _ in range(15):
        start = clock()
        simplejpeg.decode_jpeg(data)
        times.append(clock() - start)
    return min(times)


def comparable(photo: np.ndarray[Any, Any], shape: tuple[int, int], size: int) -> bytes | None:
    """Return the photo cropped to ``shape`` and encoded within 10 % of ``size``; None if it can't.

    A crop that the photo is too small for is scaled down with its share of the bytes.
    """
    import simplejpeg

    crop = np.ascontiguousarray(photo[: shape[0], : shape[1]])
    wanted = size * (crop.shape[0] * crop.shape[1]) / (shape[0] * shape[1])
    files = [simplejpeg.encode_jpeg(crop, q, colorsubsampling="420") for q in range(30, 101)]
    best: bytes = min(files, key=lambda data: abs(len(data) - wanted))
    return best if abs(len(best) / wanted - 1) <= 0.1 else None


def decode_cost(folder: Path, index: datasets.SampleIndex, samples: int = 40) -> None:
    """Print decode time per byte, synthetic / photo, over samples of every size."""
    import simplejpeg

    pictures = photos()

    def ratios() -> Iterator[tuple[float, float]]:
        by_size = np.argsort(index.sizes)
        for i in by_size[:: max(1, len(by_size) // samples)]:
            data = (folder / RECIPE / "jpeg" / index.files[i]).read_bytes()
            height, width, *_ = simplejpeg.decode_jpeg_header(data)
            same = [comparable(photo, (height, width), len(data)) for photo in pictures]
            real = [decode_s(each) / len(each) for each in same if each]
            if real:
                yield decode_s(data) / len(data), statistics.mean(real)

    pairs = list(ratios())
    say(
        decode_s_per_mb=statistics.mean(a for a, _ in pairs) * 1e6,
        photos_s_per_mb=statistics.mean(b for _, b in pairs) * 1e6,
        ratio_to_photos=statistics.mean(a for a, _ in pairs) / statistics.mean(b for _, b in pairs),
        median_of_ratios=statistics.median(a / b for a, b in pairs),
        compared=len(pairs),
    )


def verdicts(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Return target -> met, for the targets that the rows tell of."""
    met: dict[str, bool] = {}
    for row in rows:
        if "rival" in row and (row["what"], row["rival"]) != ("without_startup_per_s", "dlio"):
            met[f"{row['what']} at least those of {row['rival']}"] = row["ratio"] >= 1
        if "ratio_to_photos" in row:
            met["decode per byte within 15 % of photos"] = 0.85 <= row["ratio_to_photos"] <= 1.15
        if "ks_distance" in row:
            met[f"{row['recipe']}: sizes, padding, encodes"] = (
                abs(row["mean_over_target"] - 1) <= 0.02
                and row["ks_distance"] < 0.05
                and row["padding_share"] <= 0.03
                and row["encodes_per_sample"] <= 1.1
            )
    return met


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--no-dlio", action="store_true")
    asked = parser.parse_args()
    folder = asked.data / "generation"
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty: delete it, wait five minutes and run this again")
    try:
        if not asked.no_dlio:  # before the small sets, that they find no others' deleted files
            race(folder / "race", asked.samples, asked.rounds, asked.workers)
        index = sizes(folder, min(asked.samples, 1000))
        decode_cost(folder, index)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    met = verdicts(ROWS)
    for target, reached in met.items():
        print(f"{target}: {'yes' if reached else 'NO'}")
    return suites.finish(asked, ROWS, all(met.values()))


if __name__ == "__main__":
    sys.exit(main())
