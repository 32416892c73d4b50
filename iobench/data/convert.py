"""Converts a dataset to other stored forms, and proves that every form holds the same samples."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iobench.backends.caffe import hdf5 as caffe_layout
from iobench.core import dataset as datasets
from iobench.core import registry, transforms
from iobench.core.cases import SCHEMA, Dataset
from iobench.core.errors import DatasetError, IobenchError
from iobench.core.members import FormatBackend
from iobench.core.options import check_options
from iobench.core.protocols import StoredSample
from iobench.data.make import Progress
from iobench.host import files

#: Pixels of raw content: the height and width Caffe's own preparation of ImageNet resizes to.  Of
#: float content, which is trained on as it is: what the networks take.
SIDES = {"raw": 256, "float": 224}
#: Bytes a value.
_VALUE_BYTES = {"raw": 1, "float": 4}


@dataclasses.dataclass(frozen=True)
class Verification:
    """Whether a form holds the dataset's samples; ``detail`` names the first one that differs."""

    form: str
    ok: bool
    samples: int
    detail: str = ""


def convert(
    dataset: Dataset,
    format_name: str,
    *,
    content: str = "jpeg",
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the dataset in another format and return the folder; one that is there is kept.

    ``content``: ``jpeg`` (the files as they are), ``raw`` (pixels resized to one square size, by
    option ``side``, default 256, or the size of a fixed-resolution recipe) or ``float`` (Caffe's
    values, ready to train on; ``side`` 224).  ``options``: the format's own, too.

    Raises SpecError for an unknown format or option, DatasetError when there is no space, the
    form is there with another layout, or a JPEG file differs from the index.
    """
    backend, form = _backend(format_name, content)
    chosen = dict(options or {})
    side = 0
    if content in SIDES:
        side = int(chosen.pop("side", 0) or _raw_side(dataset, content))
    check_options(f"format {format_name!r}", backend.make, chosen)
    writer = backend.make(**chosen)
    layout = {**getattr(writer, "layout", {}), **({"side": side} if side else {})}
    form += registry.layout_of(format_name, chosen)
    target = datasets.form_root(dataset, form)
    root = Path(dataset.root)
    if _there(dataset, form, layout):  # also where this user may not write
        return target
    with files.hold(root):
        if _there(dataset, form, layout):  # made meanwhile
            return target
        partial = root / f"{form}.partial"
        for leftover in (partial, target):
            if leftover.exists():
                shutil.rmtree(leftover)
        each = dataset.bytes // dataset.samples + 1
        if side:
            each = side * side * 3 * _VALUE_BYTES[content] * 17 // 16
        need = dataset.samples * (each + 8192)  # 8 KiB: a page, a heap header, a tar header or two
        files.check_space(root, need, 64, f"converting to {form}")
        partial.mkdir()
        writer.write(_stored(dataset, side, progress, content), partial)
        facts = {
            "schema": SCHEMA,
            "format": format_name,
            "content": content,
            "options": layout,
            "samples": dataset.samples,
            "bytes": sum(path.stat().st_size for path in writer.files(dataset, partial)),
            "digest": dataset.digest,
        }
        files.settle(partial)
        os.rename(partial, target)
        files.write_json(target / datasets.FORM_MARKER, facts)
    return target


def _there(dataset: Dataset, form: str, layout: Mapping[str, Any]) -> bool:
    """Return whether a form is there.  Raises DatasetError where it has another layout."""
    if not datasets.has_form(dataset, form):
        return False
    there = datasets.form_facts(dataset, form)["options"]
    if there != layout:
        raise DatasetError(
            f"{datasets.form_root(dataset, form)} is there with options {there}, wanted are "
            f"{layout}: delete that folder, or convert another dataset"
        )
    return True


def _backend(format_name: str, content: str) -> tuple[FormatBackend, str]:
    backend: FormatBackend = registry.require("formats", format_name)
    if format_name == "jpeg" or backend.fileless:
        raise DatasetError(f"nothing to convert to {format_name!r}: name another format")
    if content not in backend.contents:
        raise DatasetError(
            f"format {format_name!r} cannot hold {content!r} content, only "
            f"{', '.join(sorted(backend.contents))}"
        )
    return backend, format_name if content == "jpeg" else f"{format_name}-{content}"


def _raw_side(dataset: Dataset, content: str) -> int:
    recipe = dataset.recipe.get("identity", {}).get("recipe", {})
    fixed = recipe.get("fixed") and recipe["width"] == recipe["height"]
    return int(recipe["width"]) if fixed else SIDES[content]


def pixels(data: Any, side: int) -> np.ndarray[Any, Any]:
    """Return what raw content holds of a JPEG: (side, side, 3) uint8 RGB.

    The resize is OpenCV's bit-exact bilinear one, so it is the same on any CPU.
    """
    image: np.ndarray[Any, Any] = transforms.decode(data)
    if image.shape[:2] == (side, side):
        return image
    import cv2

    return np.asarray(cv2.resize(image, (side, side), interpolation=cv2.INTER_LINEAR_EXACT))


def _stored(
    dataset: Dataset, side: int, progress: Progress | None, content: str = "raw"
) -> Iterator[StoredSample]:
    """Yield every sample in id order; each file is held against its digest on the way."""
    index = datasets.load_index(dataset)
    reader = registry.load("formats", "jpeg").make().open(dataset, Path(dataset.jpeg_root))
    for i, (key, digest) in enumerate(zip(index.keys, index.digests, strict=True)):
        data, label = reader.read(i)
        if datasets.sample_digest(data) != digest:
            raise DatasetError(
                f"{dataset.jpeg_root}/{index.files[i]} differs from {datasets.INDEX}: it was "
                f"changed; make the dataset again"
            )
        stored: Any = pixels(data, side) if side else data
        if content == "float":
            stored = caffe_layout.planes(stored)
        yield StoredSample(i, key, stored, label)
        if progress:
            progress(i + 1, dataset.samples)


def verify(
    dataset: Dataset, forms: Sequence[str] | None = None, progress: Progress | None = None
) -> list[Verification]:
    """Read every sample of every form (default: all that are there) and compare it with the index.

    Labels, and the digest of the bytes, or of the pixels computed again from the JPEG file.  Raises
    DatasetError for a form that is not there.
    """
    wanted = list(forms) if forms else datasets.forms(dataset)
    index = datasets.load_index(dataset)
    results = []
    for number, form in enumerate(wanted):
        facts = datasets.form_facts(dataset, form)
        done = number * dataset.samples

        def report(i: int, done: int = done) -> None:
            if progress:
                progress(done + i, len(wanted) * dataset.samples)

        detail = _first_difference(dataset, index, form, facts, report)
        results.append(Verification(form, not detail, dataset.samples, detail))
    return results


def _first_difference(
    dataset: Dataset,
    index: datasets.SampleIndex,
    form: str,
    facts: Mapping[str, Any],
    report: Callable[[int], None],
) -> str:
    """Return "" or what is wrong with the first sample that differs."""
    root = datasets.form_root(dataset, form)
    try:
        reader = registry.require("formats", facts["format"]).make().open(dataset, root)
    except (DatasetError, OSError) as error:
        return f"cannot be opened: {error}"
    side = facts["options"].get("side", 0) if facts["content"] in SIDES else 0
    try:
        if len(reader) != dataset.samples:
            return f"{len(reader)} samples, {dataset.samples} expected"
        for i, key in enumerate(index.keys):
            expected = index.digests[i]
            try:
                data, label = reader.read(i)
                if side:
                    source = Path(dataset.jpeg_root, index.files[i]).read_bytes()
                    expected = datasets.sample_digest(pixels(source, side))
            except (IobenchError, OSError, KeyError, ValueError) as error:
                return f"sample {i} ({key}) cannot be read: {error}"
            if label != index.labels[i]:
                return f"sample {i} ({key}) has label {label}, expected {index.labels[i]}"
            if datasets.sample_digest(data) != expected:
                return f"sample {i} ({key}) has other {'pixels' if side else 'bytes'}"
            report(i + 1)
    finally:
        reader.close()
    return ""
