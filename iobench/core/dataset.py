"""A dataset on disk: where it is, what is in it, and whether it is whole.

::

    <root>/dataset.json      written last, by an atomic rename: without it there is no dataset
    <root>/samples.tsv       one line a sample, in id order: key, label, bytes, digest [, file]
    <root>/files.tsv         user's trees: files left out, or worth knowing of (data/accounting)
    <root>/jpeg/<class>/<name>.jpg
    <root>/<form>/           lmdb, hdf5, lmdb-raw, hdf5-float ...; format.json in it, written last
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np

from iobench.core import registry
from iobench.core.cases import Case, Dataset
from iobench.core.errors import DatasetError, shown

MARKER, INDEX, FILES, FORM_MARKER = "dataset.json", "samples.tsv", "files.tsv", "format.json"
#: Describes what is being made, until it is complete.
PARTIAL = "partial.json"
#: Hexadecimal digits of a digest.
DIGEST_DIGITS = 32
#: What a field of the marker may hold, by its annotation.
_HOLDS = {"str": str, "int": int, "bool": bool, "Mapping[str, Any]": dict}


class SampleIndex(NamedTuple):
    """What ``samples.tsv`` holds; entry i belongs to sample id i."""

    keys: List[str]  # relative paths without suffix
    labels: Any  # int64, shape (n,)
    sizes: Any  # encoded bytes, likewise
    digests: List[str]  # hexadecimal
    files: List[str]  # relative to the JPEG root


def locate(path: Path) -> Dataset:
    """Return the complete dataset at ``path``; its root is the path given, so it may be moved.

    Raises DatasetError when there is none, when it is half-written or of another version.
    """
    root = Path(path).absolute()
    marker = root / MARKER
    try:
        document = json.loads(marker.read_text())
    except FileNotFoundError:
        if (root / PARTIAL).exists():
            raise DatasetError(
                f"the dataset at {root} is half-written: run the command that began it again, it "
                f"goes on where it stopped"
            ) from None
        raise DatasetError(
            f"no dataset at {root} (no {MARKER}): make one with `iobench data make`"
        ) from None
    except (OSError, ValueError) as error:
        raise DatasetError(f"cannot read {marker}: {error}; make the dataset again") from None
    try:
        found = Dataset(**document)
        for field in dataclasses.fields(found):
            if not isinstance(getattr(found, field.name), _HOLDS.get(str(field.type), object)):
                raise TypeError(f"{field.name} is {shown(getattr(found, field.name))}")
    except TypeError as error:
        raise DatasetError(f"{marker} is not of this version of iobench ({error})") from None
    moved = found.jpeg_root if found.in_place else str(root / "jpeg")
    return dataclasses.replace(found, root=str(root), jpeg_root=moved)


def load_index(dataset: Dataset) -> SampleIndex:
    """Return the samples of a dataset in id order.

    Raises DatasetError when ``samples.tsv`` is damaged: the line is named.
    """
    path = Path(dataset.root, INDEX)
    keys: List[str] = []
    files: List[str] = []
    digests: List[str] = []
    if not 0 <= dataset.samples <= os.stat(path).st_size:  # before memory is asked for
        raise DatasetError(f"{path} has not {dataset.samples} samples: make the dataset again")
    labels = np.empty(dataset.samples, np.int64)
    sizes = np.empty(dataset.samples, np.int64)
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        for i, line in enumerate(lines):
            fields = line.rstrip("\n").split("\t")
            if i >= dataset.samples or len(fields) not in (4, 5):
                raise DatasetError(f"{path}, line {i + 1} is damaged: make the dataset again")
            key, label, size, digest = fields[:4]
            keys.append(key)
            digests.append(digest)
            files.append(fields[4] if len(fields) == 5 else key + ".jpg")
            if not (_below(key) and _below(files[-1])):
                raise DatasetError(
                    f"{path}, line {i + 1} names a file outside the dataset ({shown(files[-1])}): "
                    "use no dataset of somebody whom you do not trust"
                )
            try:
                labels[i], sizes[i] = int(label), int(size)
            except (ValueError, OverflowError):
                raise DatasetError(
                    f"{path}, line {i + 1} is damaged: make the dataset again"
                ) from None
    if len(keys) != dataset.samples:
        raise DatasetError(
            f"{path} has {len(keys)} samples, {dataset.samples} were made: make the dataset again"
        )
    return SampleIndex(keys, labels, sizes, digests, files)


def _below(name: str) -> bool:
    """Return whether a path of an index stays in the folder that it is relative to."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


def form_root(dataset: Dataset, stored_form: str) -> Path:
    """Return the folder of a stored form (``jpeg``, ``lmdb``, ``lmdb-raw`` ...)."""
    if stored_form == "jpeg":
        return Path(dataset.jpeg_root)
    return Path(dataset.root, stored_form)


def files_of(case: Case, dataset: Dataset) -> List[Path]:
    """Return the files in which a dataset has the form that the case reads."""
    return registry.format_of(case).files(dataset, form_root(dataset, case.folder))


def has_form(dataset: Dataset, stored_form: str) -> bool:
    """Return whether a form is there and whole."""
    return stored_form == "jpeg" or (form_root(dataset, stored_form) / FORM_MARKER).exists()


def forms(dataset: Dataset) -> List[str]:
    """Return every stored form that is there and whole, ``jpeg`` first."""
    found = [path.parent.name for path in Path(dataset.root).glob(f"*/{FORM_MARKER}")]
    return ["jpeg", *sorted(name for name in found if not name.endswith(".partial"))]


def form_facts(dataset: Dataset, stored_form: str) -> Dict[str, Any]:
    """Return the contents of a form's ``format.json``: format, content, options, samples, bytes."""
    if stored_form == "jpeg":
        return {"format": "jpeg", "content": "jpeg", "options": {}, "bytes": dataset.bytes}
    path = form_root(dataset, stored_form) / FORM_MARKER
    try:
        facts: Dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise DatasetError(
            f"the dataset at {dataset.root} has no {stored_form}: "
            f"run `iobench data convert {dataset.root} {stored_form}`"
        ) from None
    except ValueError as error:
        raise DatasetError(
            f"{path} is damaged ({error}): delete {path.parent} and convert again"
        ) from None
    return facts


def stored_sizes(dataset: Dataset, stored_form: str, sizes: Any) -> Any:
    """Return the bytes that each sample takes in a form (int64, by id), without its frame.

    ``sizes``: those of the JPEG files.  Pixels are all of one size; compressed ones count as the
    mean of the form's files.  A form without facts counts as its JPEG files.
    """
    if stored_form == "jpeg" or not has_form(dataset, stored_form):
        return sizes
    facts = form_facts(dataset, stored_form)
    side = int(facts["options"].get("side") or 0)
    if not side:
        return sizes
    each = side * side * 3 * (4 if facts["content"] == "float" else 1)
    if facts["options"].get("compression"):
        each = int(facts["bytes"]) // dataset.samples
    return np.full(len(sizes), each, np.int64)


def sample_digest(data: Any) -> str:
    """Return the digest of one sample's stored bytes (bytes-like, or a C-ordered array).

    BLAKE3, 128 bits: cryptographic, and three times as fast as SHA-256 with the CPU's own
    instructions for it.
    """
    from blake3 import blake3

    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).data
    digest: str = blake3(data).hexdigest(length=DIGEST_DIGITS // 2)
    return digest


def samples_digest(ids: Sequence[int], labels: Sequence[int], digests: Sequence[str]) -> str:
    """Return one digest of a multiset of (id, label, digest), whatever its order."""
    whole = hashlib.sha256()
    for i, label, digest in sorted(zip(map(int, ids), map(int, labels), digests)):
        whole.update(f"{i}\t{label}\t{digest}\n".encode())
    return whole.hexdigest()[:DIGEST_DIGITS]
