"""Do all loaders and decoders give the same pixels?  An audit over a corpus of odd files.

The corpus is adopted as a user's tree is.  What adoption leaves out is named beforehand; every
other file goes through every loader that is installed, in the Python of each stack, over every
stored form that it reads.  The reference is Pillow's decoding, which ignores EXIF orientation and
profiles.  Reported is the largest difference of any value, in grey levels of 255.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import decoders, odd_files, suites
from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Dataset
from iobench.core.errors import BackendUnavailable
from iobench.core.members import Installed
from iobench.core.protocols import Decode
from iobench.data import accounting
from iobench.data.adopt import adopt
from iobench.data.convert import convert

#: Grey levels by which any value of any loader may differ from the reference.  Resampling of
#: chroma and the inverse transform are the same code in most libraries, which then differ by 0.
TOLERANCE = 2.0
#: Side of the forms that hold pixels: that of the corpus' pictures, which are then not resized.
SIDE = odd_files.SIDE
#: In place of a figure: adoption leaves such a file out, so no loader meets it.
REFUSED = "named"
ROOT = Path(__file__).parents[1]


class Corpus(NamedTuple):
    """Odd files, adopted and converted, and the references beside them.

    ``keys``: name of each sample, by id.  ``refused``: name -> the reason in the accounting.
    """

    folder: Path
    keys: Sequence[str]
    flat: Sequence[str]
    refused: Mapping[str, str]
    files: Mapping[str, odd_files.Odd]


def prepare(folder: Path, files: Sequence[odd_files.Odd], forms: Iterable[str]) -> Corpus:
    """Write the trees, adopt and convert them; ``folder`` is new."""
    flat = [odd for odd in files if odd.flat]
    placed = odd_files.write(folder / "odd", [odd for odd in files if not odd.flat])
    kept = _adopted(folder / "odd", folder / "kept", in_place=True)
    names = datasets.load_index(kept).files
    by_key = {odd.key: odd for odd in files}
    for name in names:
        path = folder / "plain" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        odd = placed[name]
        path.write_bytes(by_key[odd.twin].data if odd.twin else odd.data)
    found = {
        "kept": kept,
        "copied": _adopted(folder / "odd", folder / "copied"),
        "twins": _adopted(folder / "plain", folder / "twins", in_place=True),
    }
    keys = {name: datasets.load_index(each).keys for name, each in found.items()}
    if keys["kept"] != keys["copied"] or keys["kept"] != keys["twins"]:
        raise AssertionError("the three datasets do not hold the same samples")
    odd_files.write_flat(folder / "narrow", flat)
    found["flat"] = _adopted(folder / "narrow", folder / "flat")
    forms = list(forms)
    for each in found.values():
        for form in forms:
            _convert(each, form)
    narrow = [Path(name).stem for name in datasets.load_index(found["flat"]).files]
    _references(folder / "pixels", [placed[name].data for name in names])
    document = {name: each.root for name, each in found.items()}
    (folder / "audit.json").write_text(
        json.dumps(
            {
                **document,
                "forms": ["jpeg", *forms],
                "colours": [_colour(by_key[key].data) for key in narrow],
                "pixels": str(folder / "pixels"),
            }
        )
    )
    rows = accounting.read(kept)
    left_out = [row for row in rows if row.kind in accounting.LEFT_OUT]
    refused = {placed[row.file].key: accounting.LEFT_OUT[row.kind].words for row in left_out}
    return Corpus(
        folder,
        [placed[name].key for name in names],
        narrow,
        refused,
        {odd.key: odd for odd in [*placed.values(), *flat]},
    )


def _adopted(tree: Path, out: Path, *, in_place: bool = False) -> Dataset:
    return adopt(tree, out, max_samples=1000, max_bytes=1 << 30, seed=1, in_place=in_place)


def _convert(found: Dataset, form: str) -> None:
    name, _, content = form.partition("-")
    options = {"side": SIDE} if content else {}
    convert(found, name, content=content or "jpeg", options=options)


def _colour(data: bytes) -> list[int]:
    """Return the one colour of a picture."""
    pixels = decoders.decoders()["pillow"](data)
    assert (pixels == pixels[0, 0]).all()
    return [int(value) for value in pixels[0, 0]]


def _references(folder: Path, files: Sequence[bytes]) -> None:
    """Store the reference pixels of each file by id: whole, and as forms of pixels hold them."""
    import cv2

    by_pillow = decoders.decoders()["pillow"]
    for name in ("whole", "resized"):
        (folder / name).mkdir(parents=True)
    for i, data in enumerate(files):
        pixels = by_pillow(data)
        np.save(folder / "whole" / f"{i}.npy", pixels)
        if pixels.shape[:2] != (SIDE, SIDE):
            pixels = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR_EXACT)
        np.save(folder / "resized" / f"{i}.npy", pixels)


def convertible() -> list[str]:
    """Return every stored form but the JPEG files that a loader here or in a stack may read."""
    forms = []
    for name in registry.names("formats"):
        backend = registry.load("formats", name)
        here = all(map(registry.importable, backend.requires))
        if name != "jpeg" and not backend.fileless and here:
            forms += backend.stored_forms(name)
    return forms


def through_loaders(
    corpus: Corpus, only: Sequence[str] = (), stacks: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Run every pipeline in the Python of each stack; return one entry a pipeline.

    A stack that is not installed has one entry, ``absent``, with the reason.  ``only``: these
    loaders; ``stacks``: these stacks.
    """
    asked = []
    rows: list[dict[str, Any]] = []
    for stack in stacks or registry.names("stacks"):
        try:
            installed = registry.installed(stack)
        except BackendUnavailable as error:
            rows.append({"stack": stack, "pipeline": "all", "absent": str(error)})
            continue
        asked += [(stack, installed, loader) for loader in only or registry.names("loaders")]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for found in pool.map(lambda each: _by(corpus, *each), asked):
            rows += found
    return rows


def _by(corpus: Corpus, stack: str, installed: Installed, loader: str) -> list[dict[str, Any]]:
    """Run a loader's pipelines in a process of its own, which Caffe may end."""
    env = {
        **os.environ,
        **installed.env,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *installed.python_path]),
    }
    argv = [installed.python, "-B", "-m", "benchmarks.pixel_rows"]
    argv += [str(corpus.folder / "audit.json"), loader]
    found = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        reason = " ".join(found.stderr.split())[-500:]
        return [{"stack": stack, "pipeline": f"{loader}:all", "failed": reason}]
    return [{"stack": stack, **row} for row in json.loads(found.stdout.splitlines()[-1])]


def through_decoders(corpus: Corpus) -> list[dict[str, Any]]:
    """Decode every file, also those left out, by each library; return one entry a library."""
    table = decoders.decoders()
    rows = []
    for name, decode in table.items():
        found: dict[str, Any] = {}
        for key, odd in corpus.files.items():
            if key == "huge":
                continue  # left out so that nobody decodes it
            found[key] = _difference(decode, table["pillow"], odd.data)
        rows.append({"decoder": name, "differences": found})
    return rows


def _difference(decode: Decode, reference: Decode, data: bytes) -> Any:
    """Return the largest difference, or in words why there is none."""
    try:
        pixels = decode(data)
    except Exception:  # noqa: BLE001 - any library's own
        return "refuses"
    if pixels is None or not pixels.ndim:
        return "refuses"
    try:
        expected = reference(data)
    except Exception:  # noqa: BLE001
        return "decodes, Pillow refuses"
    if pixels.shape != expected.shape:
        return f"{pixels.shape[1]}x{pixels.shape[0]}"
    return int(np.abs(pixels.astype(int) - expected).max())


def problems(loaders: Sequence[Mapping[str, Any]], corpus: Corpus) -> list[str]:
    """Return one line for each pipeline that failed and each sample beyond the tolerance."""
    lines = []
    for row in loaders:
        who = f"{row['stack']} {row['pipeline']}"
        if "failed" in row:
            lines.append(f"{who}: {row['failed']}")
        named = ((corpus.keys, row.get("differences", ())), (corpus.flat, row.get("flat", ())))
        for keys, gaps in named:
            lines += [
                f"{who}: {key} differs by {gap:g} grey levels, allowed are {TOLERANCE:g}"
                for key, gap in zip(keys, gaps, strict=False)
                if not gap <= TOLERANCE
            ]
    return lines


def group(key: str) -> str:
    """Return the row of the table that a file belongs to."""
    heads = {"exif": "EXIF orientation", "sub": "subsampling", "name": "odd names", "flat": "1 x n"}
    return heads.get(key.partition("-")[0].partition(" ")[0], key)


def table(
    corpus: Corpus, loaders: Sequence[Mapping[str, Any]], libraries: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    """Return rows of cells: a kind of file, and the largest difference by each loader and library.

    Pipelines of one loader in one stack share a column, and files of one kind a row.
    """
    columns: dict[str, dict[str, list[Any]]] = {}
    for row in loaders:
        if "absent" in row:
            continue
        column = columns.setdefault(f"{row['pipeline'].partition(':')[0]} ({row['stack']})", {})
        keys = [*corpus.keys, *(corpus.flat if "flat" in row else ())]
        gaps = [*row.get("differences", ()), *row.get("flat", ())]
        for key, gap in zip(keys, gaps, strict=False):
            column.setdefault(group(key), []).append(gap)
    for row in libraries:
        column = columns.setdefault(row["decoder"], {})
        for key, gap in row["differences"].items():
            column.setdefault(group(key), []).append(gap)
    refused = collections.defaultdict(list)
    for key, reason in corpus.refused.items():
        refused[group(key)].append(reason)
    rows = [["file", *columns, "left out because"]]
    for name in dict.fromkeys(map(group, [*corpus.keys, *corpus.flat, *corpus.refused])):
        cells = [_worst(column.get(name, [])) or REFUSED for column in columns.values()]
        rows.append([name, *cells, ", ".join(dict.fromkeys(refused.get(name, [])))])
    return rows


def _worst(gaps: Sequence[Any]) -> str:
    words = sorted({gap for gap in gaps if isinstance(gap, str)})
    numbers = [gap for gap in gaps if not isinstance(gap, str)]
    return ", ".join([*([f"{max(numbers):g}"] if numbers else []), *words])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table, the first its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def audit(
    folder: Path, forms: Sequence[str] = (), large: tuple[int, int] = odd_files.LARGE
) -> tuple[Corpus, list[dict[str, Any]], list[dict[str, Any]]]:
    """Make the corpus in an empty folder; return it, the loaders' entries and the decoders'.

    ``forms``: beside JPEG files; none: all.  ``large``: height and width of the largest picture.
    """
    with warnings.catch_warnings():  # Pillow's, of broken EXIF, say nothing of pixels
        warnings.simplefilter("ignore")
        wanted = [form for form in convertible() if not forms or form in forms]
        corpus = prepare(folder, odd_files.corpus(large), wanted)
        return corpus, through_loaders(corpus), through_decoders(corpus)


def main() -> int:
    args = suites.arguments((__doc__ or "").splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory(prefix="iobench-pixels-") as folder:
        corpus, loaders, libraries = audit(Path(folder))
    print(markdown(table(corpus, loaders, libraries)))
    for row in loaders:
        if "absent" in row:
            print(f"not here: {row['stack']} {row['pipeline']}: {row['absent']}")
    found = problems(loaders, corpus)
    for line in found:
        print(line)
    figures = {"loaders": loaders, "libraries": libraries, "refused": dict(corpus.refused)}
    return suites.finish(args, {**figures, "keys": corpus.keys, "flat": corpus.flat}, not found)


if __name__ == "__main__":
    sys.exit(main())
