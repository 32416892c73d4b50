"""Is Apptainer faster than bare metal, and does the mount of its image file make it look so?

A SIF is mounted anew for every container: code that the first batch needs is read from it again.
In each block: bare metal; Apptainer; Apptainer on the unpacked folder, which mounts nothing (the
cause taken away); the image's files without a container; the same from the SIF's squashfs, mounted
anew for every run (the cause added).  Loops one after the other are one epoch, 0.3 s, in which
milliseconds count; then the same arms in turns, which start once and run for --loop-s.

Printed: time a sample of the steps after the warm-up and of the whole loop, and how much later a
worker's first batch comes.  The mount is the cause where adding it makes the steps after the
warm-up look faster and taking it away makes them slower, each by an interval of 95 % for itself.
No target: it reports what is so.  Needs root, which mounts.
Every pipeline is a suite of its own under --results; the same command goes on with what is there.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.suites import arguments, dataset, finish, run
from iobench.analysis.evidence import startup_parts, trial_window
from iobench.core.cases import Dataset
from iobench.core.records import VALID, Record
from iobench.equations.stats import Interval, geometric_interval, t_interval
from iobench.run import availability
from iobench.run.command import images_for
from iobench.run.trial import TrialSettings
from iobench.spec import load

PIPELINES = ("lmdb", "jpeg", "dali")
PAIRS, TURNED, BATCH, SAMPLES, LOOP_S = 60, 12, 16, 320, 3.0
#: Arm and base of each comparison.
REMOVED, ADDED = ("folder", "apptainer"), ("fresh", "unpacked")
COMPARED = (
    ("apptainer", "bare"),
    ("folder", "bare"),
    REMOVED,
    ("unpacked", "bare"),
    ("fresh", "bare"),
    ADDED,
)
SQUASHFS, ALIGNED, FIRST = b"hsqs", 4096, 1 << 20
_FOLDER = """import dataclasses
import functools

from iobench.backends.runtimes import apptainer

BACKEND = dataclasses.replace(
    apptainer.BACKEND,
    make=functools.partial(apptainer.Apptainer, mode="sandbox"),
    summary="Apptainer on the unpacked folder",
)
"""
_FRESH = """import dataclasses

from iobench.backends.runtimes import unpacked

# mount's own loop option refuses a file that a container has mounted beside this
SCRIPT = (
    'loop=$(losetup --find --show --read-only --offset "$1" "$2") && '
    'mount -t squashfs -o ro "$loop" "$3" && losetup --detach "$loop" && shift 3 && exec "$@"'
)
SHELL = ["unshare", "--mount", "/bin/sh", "-c", SCRIPT, "sh", "{offset}", {sif!r}]


class Fresh(unpacked.Unpacked):
    def argv(self, command, start):
        return [*SHELL, start.image, *super().argv(command, start)]


BACKEND = dataclasses.replace(
    unpacked.BACKEND, make=Fresh, summary="the image's files, mounted anew"
)
"""


def plug_in(folder: Path, sif: Path) -> None:
    """Put the runtimes without the mount, and with it alone, where iobench finds them."""
    (folder / "runtimes").mkdir(parents=True, exist_ok=True)
    fresh = _FRESH.format(offset=squashfs_of(sif), sif=str(sif.resolve()))
    for name, text in (("folder", _FOLDER), ("fresh", fresh)):
        (folder / "runtimes" / f"{name}.py").write_text(text)
    os.environ["IOBENCH_PLUGINS"] = str(folder.resolve())


def squashfs_of(sif: Path) -> int:
    """Return the first byte of the squashfs in an image file.  Raises ValueError for none."""
    with open(sif, "rb") as file:
        head = file.read(FIRST)
    for begin in range(0, len(head), ALIGNED):
        if head.startswith(SQUASHFS, begin):
            return begin
    raise ValueError(f"{sif} has no squashfs in its first MiB")


def document(pipeline: str, turns: bool, pairs: int, loop_s: float) -> dict[str, Any]:
    """Return the spec of one pipeline, loops in turns or one after the other."""
    return {
        "name": "image-mount",
        "budget": "3h",
        "case": {"trainer": "null", "batch": BATCH, "workers": 2, "pipeline": pipeline},
        "matrix": {"runtime": ["bare", "apptainer", "folder", "unpacked", "fresh"]},
        "ladder": {  # the least that a suite has: one run
            "stages": ["load"], "caches": ["warm"], "repeats": 1, "probe": False, "digest": False,
            "only": {"runtime": ["bare"]},
        },
        "contrasts": [
            {"over": "runtime", "base": "bare", "caches": ["warm"], "pairs": pairs, "probes": 0,
             **({"loop_s": loop_s} if turns else {"slice_s": 0})},
        ],
    }  # fmt: skip


def rows_of(records: Sequence[Record]) -> dict[str, dict[str, Interval]]:
    """Return ``arm / base`` -> each figure's interval of 95 %, over the blocks that have both.

    ``after``: ratio of seconds a sample after the warm-up; ``whole``: the same of the whole loop;
    ``first_batch_s``: arm - base, seconds from an empty queue to the first batch.
    """
    blocks: dict[int, dict[str, Record]] = {}
    for record in records:
        if record.status == VALID and record.trial.contrast:
            blocks.setdefault(record.trial.block, {})[record.trial.case.runtime] = record
    rows = {}
    for arm, base in COMPARED:
        pairs = [(b[arm], b[base]) for b in blocks.values() if arm in b and base in b]
        if pairs:
            rows[name_of((arm, base))] = {
                "after": _ratio(pairs, lambda record: _seconds(record, whole=False)),
                "whole": _ratio(pairs, lambda record: _seconds(record, whole=True)),
                "first_batch_s": t_interval([_first_s(a) - _first_s(b) for a, b in pairs]),
            }
    return rows


def name_of(compared: tuple[str, str]) -> str:
    """Return a comparison's name."""
    return " / ".join(compared)


def _ratio(pairs: Sequence[tuple[Record, Record]], of: Callable[[Record], float]) -> Interval:
    return geometric_interval([of(arm) / of(base) for arm, base in pairs])


def _seconds(record: Record, *, whole: bool) -> float:
    window = trial_window(record, whole=whole)
    assert window is not None, f"{record.trial.id} is VALID and has no step"
    return window.seconds_per_sample


def _first_s(record: Record) -> float:
    parts = startup_parts(record)
    assert parts is not None, f"{record.trial.id} is VALID and has no rank"
    return parts.first_batch_s


def cause(rows: Mapping[str, Mapping[str, Interval]]) -> bool:
    """Return whether the mount is a cause: added it looks faster, taken away slower."""
    added, removed = (rows.get(name_of(pair), {}).get("after") for pair in (ADDED, REMOVED))
    return added is not None and removed is not None and added.high < 1 < removed.low


def _print(pipeline: str, how: str, rows: Mapping[str, Mapping[str, Interval]]) -> None:
    for name, row in rows.items():
        words = [f"{pipeline:5} {how:19} {name:20} {row['after'].n:3} pairs:"]
        words.append(f"steps after the warm-up {_span(row['after'], 1, '.3f')},")
        words.append(f"whole loop {_span(row['whole'], 1, '.3f')},")
        words.append(f"first batch later by {_span(row['first_batch_s'], 1e3, '.1f')} ms")
        print(*words, flush=True)


def _span(found: Interval, scale: float, form: str) -> str:
    point, low, high = (format(scale * v, form) for v in (found.value, found.low, found.high))
    return f"{point} ({low} to {high})"


def study(pipeline: str, args: Any, found: Dataset, settings: TrialSettings) -> dict[str, Any]:
    """Measure one pipeline both ways; return its rows and whether the mount is a cause."""
    figures: dict[str, Any] = {"pipeline": pipeline}
    for how, turns, pairs in (
        ("one after the other", False, args.pairs), ("in turns", True, args.turned),
    ):  # fmt: skip
        wanted = document(pipeline, turns, pairs, args.loop_s)
        folder = args.results / f"{pipeline}-{'turns' if turns else 'serial'}"
        _, records = run(wanted, found, results=folder, settings=settings, quiet=True)
        rows = rows_of(records)
        _print(pipeline, how, rows)
        if not turns:
            figures["cause"] = cause(rows)
        figures[how] = {
            name: {key: dataclasses.asdict(span) for key, span in row.items()}
            for name, row in rows.items()
        }
    said = "is" if figures["cause"] else "is not shown to be"
    print(f"{pipeline:5} the mount {said} a cause of short loops that look faster", flush=True)
    return figures


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=Path, default=Path("images"), help="of the containers")
    parser.add_argument("--results", type=Path, default=Path("results/image-mount"))
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES))
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of loops one after the other")
    parser.add_argument("--turned", type=int, default=TURNED, help="pairs in turns")
    parser.add_argument(
        "--loop-s", type=float, default=LOOP_S, help="of each run in turns, at least"
    )
    args = parser.parse_args()
    sif = args.images / "torch.sif"
    if os.geteuid() or not sif.exists():
        parser.error(f"needs root, which mounts, and {sif} (`make images`)")
    plug_in(args.results / "plugins", sif)
    cases = load.expand(load.parse(document("jpeg", False, 1, 1.0), where="benchmark"))
    with availability.services_of(cases, args.images, lambda line: print(line, flush=True)):
        settings = TrialSettings(images=images_for(cases, args.images))
        forms = sorted({p for p in args.pipelines if p in ("lmdb", "hdf5", "tar")})
        data = dataset(args.data, "imagenet-like", SAMPLES, forms)
        rows = [study(pipeline, args, data, settings) for pipeline in args.pipelines]
    return finish(args, rows, None)


if __name__ == "__main__":
    raise SystemExit(main())
