"""A dataset on disk: where it is, what is in it, and whether it is whole.

::

    <root>/dataset.json      written last, by an atomic rename: without it there is no dataset
    <root>/samples.tsv       one line a sample, in id order: key, label, bytes, digest [, file]
    <root>/left_out.tsv      user's trees: file and why it was left out
    <root>/jpeg/<class>/<name>.jpg
    <root>/<form>/           lmdb, hdf5, lmdb-raw, hdf5-float ...; format.json in it, written last

The worker reads datasets through this module: Python 3.9, NumPy, BLAKE3 and the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from iobench.errors import DatasetError
from iobench.model import Dataset, to_json

MARKER, INDEX, LEFT_OUT, FORM_MARKER = "dataset.json", "samples.tsv", "left_out.tsv", "format.json"
#: Says what is being made while it is not whole.
PARTIAL = "partial.json"
#: Hexadecimal digits of a digest.
DIGEST_DIGITS = 32


class SampleIndex(NamedTuple):
    """What ``samples.tsv`` holds; entry i belongs to sample id i.

    ``keys``: relative path without suffix; ``files``: relative path of the JPEG under the JPEG
    root; ``labels`` and ``sizes`` (encoded bytes): int64, shape (n,); ``digests``: hex.
    """

    keys: List[str]
    labels: Any
    sizes: Any
    digests: List[str]
    files: List[str]


class Row(NamedTuple):
    """One sample of the index."""

    key: str
    label: int
    size: int
    digest: str
    file: str


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
            labels[i], sizes[i] = int(label), int(size)
    if len(keys) != dataset.samples:
        raise DatasetError(
            f"{path} has {len(keys)} samples, {dataset.samples} were made: make the dataset again"
        )
    return SampleIndex(keys, labels, sizes, digests, files)


def write_index(root: Path, rows: Iterable[Row]) -> None:
    """Write ``samples.tsv``; the fifth column only where the file is not ``<key>.jpg``."""
    path = root / INDEX
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for key, label, size, digest, name in rows:
            last = "" if name == key + ".jpg" else "\t" + name
            file.write(f"{key}\t{label}\t{size}\t{digest}{last}\n")


def form_root(dataset: Dataset, stored_form: str) -> Path:
    """Return the folder of a stored form (``jpeg``, ``lmdb``, ``lmdb-raw`` ...)."""
    if stored_form == "jpeg":
        return Path(dataset.jpeg_root)
    return Path(dataset.root, stored_form)


def has_form(dataset: Dataset, stored_form: str) -> bool:
    """Return whether a form is there and whole."""
    return stored_form == "jpeg" or (form_root(dataset, stored_form) / FORM_MARKER).exists()


def forms(dataset: Dataset) -> List[str]:
    """Return every stored form that is there and whole, ``jpeg`` first."""
    found = [path.parent.name for path in Path(dataset.root).glob(f"*/{FORM_MARKER}")]
    return ["jpeg", *sorted(name for name in found if "." not in name)]


def form_facts(dataset: Dataset, stored_form: str) -> Dict[str, Any]:
    """Return what ``format.json`` says of a form: format, content, options, samples, bytes."""
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


def finish(dataset: Dataset) -> Dataset:
    """Settle the files on the device, then write ``dataset.json``: now the dataset is there."""
    root = Path(dataset.root)
    settle(root)
    write_json(root / MARKER, to_json(dataset))
    (root / PARTIAL).unlink(missing_ok=True)
    return dataset


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all: temporary name, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextlib.contextmanager
def hold(root: Path) -> Iterator[None]:
    """Keep other writers out of ``root``; raises DatasetError when one is at it."""
    fd = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(f"another process is writing into {root}: wait for it") from None
        except OSError as error:
            raise DatasetError(
                f"{root} cannot be locked ({error.strerror}): choose another folder by --out"
            ) from None
        yield
    finally:
        os.close(fd)


def settle(path: Path) -> None:
    """Write the dirty pages of the filesystem under ``path`` out (syncfs(2)).

    A dirty page cannot be evicted from the page cache, and a marker must not survive a crash that
    its data did not.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd):
            number = ctypes.get_errno()
            raise DatasetError(f"cannot sync the filesystem of {path}: {os.strerror(number)}")
    finally:
        os.close(fd)


def check_space(folder: Path, need_bytes: int, need_files: int, what: str) -> None:
    """Raise DatasetError unless the filesystem of ``folder`` has room, with 2 % to spare."""
    free = shutil.disk_usage(folder).free
    if need_bytes * 1.02 > free:
        raise DatasetError(
            f"{what} needs {need_bytes / 1e6:,.1f} MB, {folder} has {free / 1e6:,.1f} MB free: "
            f"free some, ask for fewer samples or choose another folder"
        )
    stat = os.statvfs(folder)
    if stat.f_files and need_files > stat.f_favail:
        raise DatasetError(
            f"{what} needs {need_files:,} files, {folder} has {stat.f_favail:,} inodes free: ask "
            f"for fewer samples or choose another folder"
        )


def class_count(labels: Sequence[int]) -> int:
    """Return the number of classes that the labels use."""
    return len(set(map(int, labels)))


def totals(rows: Sequence[Row]) -> Tuple[int, int, str]:
    """Return (bytes, classes, digest) of the samples in id order."""
    labels = [row.label for row in rows]
    digest = samples_digest(range(len(rows)), labels, [row.digest for row in rows])
    return sum(row.size for row in rows), class_count(labels), digest


def make(
    recipe: Any,
    root: Path,
    *,
    samples: Optional[int] = None,
    seed: Optional[int] = None,
    workers: Optional[int] = None,
    progress: Optional[Callable[[int, int], None]] = None,
) -> Dataset:
    """Make a synthetic dataset: :func:`iobench.synthesis.make`, imported where it is needed (the
    worker side reads datasets and lacks what making one takes).
    """
    from iobench import synthesis

    return synthesis.make(
        recipe, root, samples=samples, seed=seed, workers=workers, progress=progress
    )


def info(dataset: Dataset) -> Dict[str, Any]:
    """Return what a person wants to know of a dataset, JSON-able, in reading order."""
    index = load_index(dataset)
    quantiles = np.quantile(index.sizes, (0.05, 0.5, 0.95)).round().astype(int).tolist()
    facts: Dict[str, Any] = {
        "name": dataset.name,
        "root": dataset.root,
        "source": dataset.source,
        "samples": dataset.samples,
        "classes": dataset.classes,
        "bytes": dataset.bytes,
        "mean_bytes": round(dataset.bytes / dataset.samples),
        "sd_bytes": round(float(index.sizes.std())),
        "bytes_p5_p50_p95": quantiles,
        "seed": dataset.seed,
        "digest": dataset.digest,
        "in_place": dataset.in_place,
    }
    for key in ("encodes_per_sample", "padding_share"):
        if key in dataset.recipe:
            facts[key] = round(float(dataset.recipe[key]), 5)
    facts["forms"] = {form: form_facts(dataset, form) for form in forms(dataset)}
    left_out = load_left_out(dataset)
    if left_out or "not_drawn" in dataset.recipe:
        facts["not_drawn"] = dataset.recipe.get("not_drawn", 0)
        facts["left_out"] = [{"file": file, "reason": reason} for file, reason in left_out]
    return facts


def load_left_out(dataset: Dataset) -> List[Tuple[str, str]]:
    """Return (file, reason) of what a user's tree held and the dataset does not."""
    path = Path(dataset.root, LEFT_OUT)
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    rows = [line.partition("\t") for line in text.split("\n") if line]
    return [(json.loads(file), reason) for file, _, reason in rows]
