"""Makes a synthetic dataset: parallel, resumable, whole or recognisably not.

The work is cut into chunks.  A chunk is done when its index rows are renamed into ``.parts``;
whatever else a kill left behind is made again, to the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from iobench.core import dataset as datasets
from iobench.core.cases import Dataset
from iobench.core.errors import DatasetError
from iobench.data import pixels, recipes, records, size_model
from iobench.data.index import Row, declare
from iobench.host import files, interrupts, locks

Progress = Callable[[int, int], None]

#: Version of the bytes that a recipe and a seed give; golden digests hold it.
SYNTHESIS = 3
PARTS = ".parts"
#: How the names of files begin that are there before a dataset is.
_OURS = (f".{datasets.PARTIAL}.", locks.NAME)
CHUNK_SAMPLES, CHUNK_BYTES = 32, 8 << 20
#: A file may exceed its target by this share before it is encoded a second time.
TOLERANCE = 0.03


class Encoded(NamedTuple):
    """One finished sample: its file, and what it took."""

    data: bytes
    encodes: int
    padding: int


@dataclasses.dataclass(frozen=True)
class MakeJob:
    """Everything a worker needs to make any sample; made before the fork and shared by it."""

    recipe: recipes.Recipe
    seed: int
    samples: int
    root: Path
    bank: pixels.Bank | None  # None: of a recipe without pictures
    targets: Sequence[int]

    @property
    def classes(self) -> int:
        """Classes of this dataset: no more than samples."""
        return min(self.recipe.classes, self.samples)

    def label(self, index: int) -> int:
        """Return the class of a sample; ids ascend by class, as in a sorted ImageFolder tree."""
        return index * self.classes // self.samples

    def key(self, index: int) -> str:
        """Return the sample's path without suffix; sorted keys are in id order."""
        return f"c{self.label(index):04d}/{index:08d}"


def make(
    recipe: str | Path,
    root: Path,
    *,
    samples: int | None = None,
    seed: int | None = None,
    sizes: tuple[int, int] = (0, 0),
    workers: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Make the dataset of a recipe (a name in ``datasets/`` or a ``.toml`` file) under ``root``.

    A killed run goes on where it was; a finished dataset is returned as it is.  ``workers``:
    processes (default: the cores this process may use).  ``progress(done, total)`` counts samples.
    ``sizes``: mean and standard deviation in place of an opaque recipe's (0: its own).

    Raises DatasetError for an unknown recipe, a folder that holds something else, or no space.
    """
    made = recipes.sized(recipes.load(recipe), *sizes)
    count = made.samples if samples is None else samples
    seed = made.seed if seed is None else seed
    check_count(made, count)
    what = recipes.identity(made)
    identity = {"recipe": what, "samples": count, "seed": seed, "version": SYNTHESIS}
    root = Path(root).absolute()
    with claim(root, identity) as found:
        if found is not None:
            return found
        targets = size_model.target_sizes(made, count, seed)
        files.check_space(root, sum(targets) + 4096 * count, count, f"{count} samples")
        bank = None if made.opaque else pixels.bank(made, seed)
        job = MakeJob(made, seed, count, root, bank, targets)
        size = max(1, min(CHUNK_SAMPLES, CHUNK_BYTES // (sum(targets) // count)))
        chunks = [range(i, min(i + size, count)) for i in range(0, count, size)]
        (root / PARTS).mkdir(exist_ok=True)
        todo = [chunk for chunk in chunks if not _part(root, chunk).exists()]
        done = count - sum(len(chunk) for chunk in todo)
        _run(job, todo, workers or len(os.sched_getaffinity(0)), done, progress)
        return _assemble(job, chunks, identity)


def check_count(recipe: recipes.Recipe, count: int) -> None:
    """Raise DatasetError for more samples than a recipe makes, or none."""
    if recipe.opaque and count >= 1:
        return
    _, shifts = pixels.bank_shape(recipe)
    if not 1 <= count <= pixels.capacity(shifts):
        raise DatasetError(
            f"samples = {count}: recipe {recipe.name!r} makes 1 to {pixels.capacity(shifts)} "
            "samples without repeating a block"
        )


@contextlib.contextmanager
def claim(root: Path, identity: dict[str, Any]) -> Iterator[Dataset | None]:
    """Hold ``root`` for one maker; give the finished dataset if it is already there.

    Raises DatasetError when another process holds it, or it holds anything else.
    """
    identity = json.loads(json.dumps(identity))
    if root.exists() and not root.is_dir():
        raise DatasetError(f"{root} is a file: choose another folder for the dataset")
    if (root / datasets.MARKER).exists():  # whole: also where this user may not write
        yield _found(root, identity)
        return
    root.mkdir(parents=True, exist_ok=True)
    _check_ours(root)
    with files.hold(root):
        if (root / datasets.MARKER).exists():
            yield _found(root, identity)
            return
        if (root / datasets.PARTIAL).exists():
            _same(root, json.loads((root / datasets.PARTIAL).read_text()), identity)
        else:
            files.write_json(root / datasets.PARTIAL, identity)
        yield None


def _check_ours(root: Path) -> None:
    """Raise DatasetError for a folder of something else, before anything is written to it."""
    strange = any(not path.name.startswith(_OURS) for path in root.iterdir())
    begun = (root / datasets.PARTIAL).exists() or (root / datasets.MARKER).exists()
    if strange and not begun:
        raise DatasetError(f"{root} is not empty and holds no dataset: choose a new folder")


def _found(root: Path, identity: dict[str, Any]) -> Dataset:
    found = datasets.locate(root)
    _same(root, found.recipe.get("identity"), identity)
    return found


def _same(root: Path, there: Any, wanted: dict[str, Any]) -> None:
    if there == wanted:
        return
    there = there if isinstance(there, dict) else {}
    keys = [key for key in {**wanted, **there} if there.get(key) != wanted.get(key)]
    differing = ", ".join(f"{k} = {_brief(there.get(k))} not {_brief(wanted.get(k))}" for k in keys)
    raise DatasetError(
        f"{root} holds another dataset ({differing}): choose another folder or delete that one"
    )


def _brief(value: Any) -> str:
    return repr(value["name"]) if isinstance(value, dict) and "name" in value else repr(value)


def encode(job: MakeJob, index: int, pattern: pixels.Planes, buffer: pixels.Plane) -> Encoded:
    """Return the JPEG file of a sample (``buffer``: scratch for the pixels)."""
    import simplejpeg

    recipe, target = job.recipe, job.targets[index]
    if job.bank is None:
        return Encoded(records.record(job.seed, index, target), 1, 0)
    how = size_model.encoding_for(recipe, target, job.seed, index)
    side, shifts = pixels.bank_shape(recipe)
    where = pixels.placement(index, job.seed, side, shifts, how.height, how.width)
    image = pixels.compose(job.bank, where, pattern, (how.height, how.width), buffer)
    if recipe.fixed:
        image = pixels.with_contrast(image, size_model.contrast_for(image, target))
    for quality in range(how.quality, 0, -1):
        data: bytes = simplejpeg.encode_jpeg_yuv_planes(*image, quality=quality)
        if len(data) <= target * (1 + TOLERANCE):
            break
    padded = size_model.pad(data, target)
    return Encoded(padded, how.quality - quality + 1, len(padded) - len(data))


def _part(root: Path, chunk: range) -> Path:
    return root / PARTS / f"{chunk.start:08d}.tsv"


def _run(
    job: MakeJob, chunks: Sequence[range], workers: int, done: int, progress: Progress | None
) -> None:
    """Make the chunks in forked processes, which share the bank's memory."""
    import simplejpeg  # noqa: F401  once, not in every process

    report = progress or (lambda done, total: None)
    report(done, job.samples)
    context = multiprocessing.get_context("fork")
    turns = _turns(len(chunks))
    processes, readers = [], []
    try:
        for _ in range(min(workers, len(chunks))):
            reader, writer = context.Pipe(duplex=False)
            work = (job, chunks, turns, writer, os.getpid())
            process = context.Process(target=_work, args=work, daemon=True)
            with interrupts.held():  # this process ends it
                process.start()
                processes.append(process)
            writer.close()
            readers.append(reader)
        for made in _messages(readers):
            done += made
            report(done, job.samples)
        for process in processes:
            process.join()
            if process.exitcode:
                raise DatasetError(
                    f"a worker making {job.root} ended with status {process.exitcode} (out of "
                    f"memory?): run the same command again, with fewer workers if it recurs"
                )
    finally:
        for process in processes:
            process.kill()
            process.join()
        for reader in readers:
            reader.close()
        os.close(turns)


def _turns(count: int) -> int:
    """Return a file of the numbers below ``count``: whoever reads the next one takes that chunk.

    Forked processes share its position; a killed one leaves no lock behind.  The kernel moves the
    position of an opened file one read at a time, but not that of the descriptor that memfd_create
    gives: there two may read the same number.
    """
    made = os.memfd_create("chunks")
    try:
        os.write(made, np.arange(count, dtype=np.int64).tobytes())
        return os.open(f"/proc/self/fd/{made}", os.O_RDONLY)
    finally:
        os.close(made)


def _messages(readers: Sequence[Connection]) -> Iterator[int]:
    """Yield the samples that workers say they made, until all have closed their ends.

    Raises DatasetError with a worker's own message.
    """
    waiting = list(readers)
    while waiting:
        ready: Any
        for ready in wait(waiting):
            try:
                message: Any = ready.recv()
            except EOFError:
                waiting.remove(ready)
                continue
            if isinstance(message, str):
                raise DatasetError(message)
            yield message


def _work(
    job: MakeJob, chunks: Sequence[range], turns: int, results: Connection, parent: int
) -> None:
    """Make chunks, by ``turns``, until they are done; the kernel ends it with its parent.

    The folder's lock is the parent's alone: whoever holds it next is the only writer.
    """
    interrupts.end_with(parent)
    gc.disable()  # a sample makes no cycles
    buffer = np.empty(job.recipe.max_side**2 * 3, np.uint8)
    try:
        while turn := os.read(turns, 8):
            chunk = chunks[int.from_bytes(turn, sys.byteorder)]
            _make_chunk(job, chunk, buffer)
            results.send(len(chunk))
    except OSError as error:
        results.send(
            f"cannot write {error.filename or job.root}: {error.strerror}; free some space or make "
            "it writable, and run the same command again"
        )


def _make_chunk(job: MakeJob, chunk: range, buffer: pixels.Plane) -> None:
    label, rows = -1, []
    for index in chunk:
        if job.label(index) != label:
            label = job.label(index)
            pattern = pixels.pattern(job.seed, label, job.recipe)
            (job.root / "jpeg" / f"c{label:04d}").mkdir(parents=True, exist_ok=True)
        data, encodes, padding = encode(job, index, pattern, buffer)
        key = job.key(index)
        Path(f"{job.root}/jpeg/{key}.jpg").write_bytes(data)
        digest = datasets.sample_digest(data)
        rows.append(f"{key}\t{label}\t{len(data)}\t{digest}\t{encodes}\t{padding}\n")
    part = _part(job.root, chunk)
    temporary = part.with_suffix(".tmp")
    temporary.write_text("".join(rows))
    temporary.rename(part)


def _assemble(job: MakeJob, chunks: Sequence[range], identity: dict[str, Any]) -> Dataset:
    """Join the parts into the index, and declare the dataset whole."""
    rows, encodes, padding = [], 0, 0
    for chunk in chunks:
        for line in _part(job.root, chunk).read_text().splitlines():
            key, label, size, digest, tries, filler = line.split("\t")
            rows.append(Row(key, int(label), int(size), digest, key + ".jpg"))
            encodes += int(tries)
            padding += int(filler)
    shutil.rmtree(job.root / PARTS)
    return declare(
        job.root,
        rows,
        name=job.recipe.name,
        seed=job.seed,
        source=f"recipe {job.recipe.name}",
        jpeg_root=str(job.root / "jpeg"),
        recipe={
            "identity": identity,
            "encodes_per_sample": encodes / job.samples,
            "padding_share": padding / sum(row.size for row in rows),
        },
    )
