"""NVIDIA DALI: its own readers for jpeg, lmdb and tar, an external source for everything else.

As its users run it: the JPEG decoder that decodes only a random crop, the same worker threads for
decode, resize and normalise, a prefetch queue.  On the CPU, or decoding on the GPU (``mixed``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Literal, Mapping, Optional, Tuple

import numpy as np

from iobench.backends.loaders import _dali_nodes
from iobench.backends.loaders._batches import REQUIRES, BatchMaker
from iobench.core import transforms
from iobench.core.cases import Batch, Case
from iobench.core.dataset import sample_digest
from iobench.core.errors import BackendUnavailable, DatasetError, SpecError
from iobench.core.members import LoaderBackend
from iobench.core.protocols import LoadRequest, Reader

#: Formats that DALI reads by itself.
NATIVE = ("jpeg", "lmdb", "tar")
_STORED = frozenset({"stored"})
_SEEDS = 2**31
_BLOCK = 512  # tar: a header is one, a member is padded to whole ones


class DaliLoader:
    """One epoch of one rank through one DALI pipeline, built here and first run by ``batches``.

    One that reads LMDB is built there too: it opens the database, and the read-ahead around its
    first page would come in before the clock starts.
    """

    def __init__(
        self,
        request: LoadRequest,
        *,
        device: Literal["cpu", "mixed"] = "cpu",  # where JPEGs are decoded
        reader: Literal["native", "external"] = "native",
        mmap: bool = True,  # how native readers read files
        antialias: bool = False,  # when shrinking; OpenCV's bilinear (the torch loader's): not
        start_method: Literal["spawn", "fork"] = "spawn",
    ) -> None:
        """``reader``: ``external`` goes through the format's own Reader, in as many processes as
        there are workers.

        Raises SpecError for values that are not possible, BackendUnavailable without a GPU for
        mixed, DatasetError when the stored form does not match the request.
        """
        _check(request, device, reader)
        self.queue_batches = request.prefetch
        self._request = request
        named = request.root.name.partition("+")[0]  # the layout's name follows
        self._form = named if request.format_name != "jpeg" else "jpeg"
        self._raw = self._form.endswith("-raw")
        self._native = reader == "native" and self._form in NATIVE
        self._mmap, self._antialias, self._device = mmap, antialias, device
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self._links = itertools.count()
        self._start_method = start_method
        walks = self._native and self._form != "jpeg"
        if walks:
            _check_stored(request)
        self._pipe: Any = None if walks and self._form == "lmdb" else self._build()

    def batches(self) -> Iterator[Batch]:
        """Run the pipeline ``len(ids) // batch`` times, from an empty queue.

        Raises DatasetError, naming the sample, when one cannot be read, decoded or cropped.
        """
        if self._pipe is None:
            self._pipe = self._build()
        for k, ids in enumerate(self._request.batches()):
            try:
                outputs = self._pipe.run()
            except RuntimeError as error:
                self.close()
                raise DatasetError(self._blame(k, error)) from error
            yield self._batch(ids, outputs)

    def processes(self) -> List[int]:
        """Return the external source's processes; DALI does not wait until they have imported."""
        pool = getattr(self._pipe, "_py_pool", None)
        return [] if pool is None else list(pool.pids())

    def close(self) -> None:
        """Stop the threads and reap the processes.  Idempotent.

        Batches that were handed out stay valid.
        """
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pool = getattr(pipe, "_py_pool", None)
            # joins DALI's threads now, not when the garbage collector comes
            getattr(pipe, "_shutdown", pipe.__del__)()
            if pool is not None:
                pool.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _build(self) -> Any:
        request = self._request
        on_gpu = self._device == "mixed"
        seed = transforms.SampleRandom(request.seed, request.epoch).below(_SEEDS)
        pipe = _dali_nodes.dali().pipeline.Pipeline(
            batch_size=request.batch,
            num_threads=max(request.workers, 1),
            device_id=0 if on_gpu else None,
            prefetch_queue_depth=request.prefetch,
            # the default of 1.53 and 2.4, set because batches are views: the other executor reuses
            # a batch's memory while it is still read
            exec_dynamic=True,
            seed=seed,
            py_num_workers=max(request.workers, 1),
            py_start_method=self._start_method,
        )
        with pipe:
            stored, facts = self._source()
            self._facts = list(facts)
            made = _dali_nodes.processed(
                request, stored, device=self._device, antialias=self._antialias, raw=self._raw
            )
            pipe.set_outputs(made, stored.shape(), *facts.values())
        pipe.build()
        return pipe

    def _source(self) -> Tuple[Any, Dict[str, Any]]:
        """Return the node of the stored bytes, and those of the facts that come with them."""
        fn = _dali_nodes.dali().fn
        request = self._request
        if not self._native:
            return self._external()
        common: Dict[str, Any] = {"dont_use_mmap": not self._mmap}
        if self._form == "jpeg":
            ids = request.ids.tolist()
            # in id order; not through extents(), which asks for every file's size
            paths = request.format.files(request.dataset, request.root)
            files = [self._named(str(paths[i])) for i in ids]
            stored, seen = fn.readers.file(files=files, labels=ids, **common)
            return stored, {"ids": seen}
        if self._form == "lmdb":
            stored, labels = fn.readers.caffe(path=self._named(str(request.root)), **common)
            return stored, {"labels": labels}
        shards, indices = self._tar_index()
        stored, digits = fn.readers.webdataset(
            paths=shards,
            index_paths=indices,
            ext=["jpg", "cls"],
            missing_component_behavior="error",
            **common,
        )
        return stored, {"digits": fn.pad(digits, fill_value=ord(" "))}

    def _external(self) -> Tuple[Any, Dict[str, Any]]:
        fn, types = _dali_nodes.dali().fn, _dali_nodes.dali().types
        request = self._request
        stored, ids, labels = fn.external_source(
            source=_Source(request),
            num_outputs=3,
            batch=False,
            parallel=True,
            dtype=[types.UINT8, types.INT64, types.INT64],
            ndim=[3 if self._raw else 1, 1, 1],
            prefetch_queue_depth=request.prefetch,
            bytes_per_sample_hint=int(np.asarray(request.sizes).max()) + 1024,
        )
        return stored, {"ids": ids, "labels": labels}

    def _tar_index(self) -> Tuple[List[str], List[str]]:
        """Return the shards and an index of each, written from the format's own.

        Without one DALI would scan every shard when it starts, which warms a cold cache.
        """
        request = self._request
        rows: Dict[str, List[str]] = {}
        with contextlib.closing(request.format.open(request.dataset, request.root)) as reader:
            for i, label in enumerate(np.asarray(request.labels).tolist()):
                ((path, offset, length),) = reader.extents(i)  # tar: a member is in one piece
                digits = offset + -(-length // _BLOCK) * _BLOCK + _BLOCK
                row = f"jpg {offset} {length} cls {digits} {len(str(label))}"
                rows.setdefault(path, []).append(row)
        indices = []
        for number, lines in enumerate(rows.values()):
            index = Path(self._made(), f"{number}.idx")
            index.write_text("\n".join([f"v1.1 {len(lines)}", *lines]) + "\n")
            indices.append(str(index))
        return [self._named(path) for path in rows], indices

    def _made(self) -> str:
        """Return the folder of what is written for DALI, which lasts until :meth:`close`."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="iobench-dali-")
        return self._folder.name

    def _named(self, path: str) -> str:
        """Return a path as DALI takes it: text, or a link where its bytes are not UTF-8."""
        try:
            path.encode()
        except UnicodeEncodeError:
            link = f"{self._made()}/{next(self._links)}"
            os.symlink(os.path.abspath(path), link)
            return link
        return path

    def _batch(self, wanted: np.ndarray, outputs: Any) -> Batch:
        request = self._request
        made, shapes = outputs[:2]
        facts = {name: _dali_nodes.as_array(out) for name, out in zip(self._facts, outputs[2:])}
        ids = facts["ids"].ravel().astype(np.int64) if "ids" in facts else wanted
        if "labels" in facts:
            labels = facts["labels"].ravel().astype(np.int64)
        elif "digits" in facts:
            text = np.ascontiguousarray(facts["digits"])
            labels = text.view(f"S{text.shape[1]}").ravel().astype(np.int64)
        else:
            labels = np.asarray(request.labels, np.int64)[ids]
        data = digests = None
        if request.digest:
            digests = [sample_digest(np.asarray(made.at(i))) for i in range(len(ids))]
        elif request.stage == "load":
            data = _dali_nodes.as_batch(made)
        nbytes = int(_dali_nodes.as_array(shapes).prod(axis=1).sum())
        return Batch(data, labels, ids, nbytes, digests)

    def _blame(self, k: int, error: Exception) -> str:
        """Return one line that names the sample, which DALI's own error seldom does."""
        request = dataclasses.replace(self._request, stage="load", digest=False)
        row = np.empty((1, *transforms.transform(request.transform).shape), np.float32)
        with contextlib.closing(BatchMaker(request)) as ours:
            try:
                for sample in request.batches()[k : k + 1 + request.prefetch].reshape(-1, 1):
                    ours.make(sample, row)
            except DatasetError as complaint:
                return f"{complaint} (DALI stopped there)"
        text = " ".join(str(error).split())
        return f"DALI failed on samples of {request.root}: {text[:300]}"


class _Source:
    """The parallel external source: one sample a call, through the format's Reader."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        self._reader: Reader = request.format.open(request.dataset, request.root)

    def __call__(self, info: Any) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (stored, id, label) of the sample at ``info.idx_in_epoch``."""
        request = self._request
        if info.idx_in_epoch >= len(request.ids):
            raise StopIteration
        sample = int(request.ids[info.idx_in_epoch])
        stored, label = self._reader.read(sample)
        if not isinstance(stored, np.ndarray):
            stored = np.frombuffer(stored, np.uint8)
        return stored, np.array([sample], np.int64), np.array([label], np.int64)


def _check(request: LoadRequest, device: str, reader: str) -> None:
    transforms.transform(request.transform)
    if device not in ("cpu", "mixed"):
        raise SpecError(f"device {device!r} is not possible; allowed: cpu, mixed")
    if reader not in ("native", "external"):
        raise SpecError(f"reader {reader!r} is not possible; allowed: native, external")
    if request.decode_delay_s:
        raise SpecError("decode_delay_s cannot be put into DALI's decoder: use the torch loader")
    if device == "mixed" and not _cuda():
        raise BackendUnavailable("DALI device 'mixed' needs a GPU and a CUDA build of torch")


def _cuda() -> bool:
    try:
        import torch
    except ImportError:  # a stack without it
        return False
    return torch.cuda.is_available()


def _check_stored(request: LoadRequest) -> None:
    """Hold the request against what a reader that only walks forward can do."""
    if not np.array_equal(request.ids, np.arange(len(request.ids))):
        raise SpecError(
            f"DALI's own {request.root.name} reader walks the whole dataset in stored order on one "
            "rank: use order stored, all samples and world_size 1, or loader option "
            "reader = external"
        )


def _judge(case: Case) -> None:
    if _own_reader(case) and case.stored_form != "jpeg" and case.samples:
        raise SpecError(
            f"samples = {case.samples}: DALI's own {case.stored_form} reader walks the whole "
            "dataset; leave samples out, or use another loader"
        )


def _own_reader(case: Case) -> bool:
    return case.stored_form in NATIVE and case.loader_options.get("reader") != "external"


def _unused(case: Case) -> Mapping[str, str]:
    if _own_reader(case):
        return {"loader_options.start_method": "DALI's own readers start no process"}
    return {"loader_options.mmap": "it is of DALI's own readers, and this is an external source"}


_FUSED = "DALI decodes only the random crop, fused with the transform: not a step that runs alone"

BACKEND = LoaderBackend(
    DaliLoader,
    "NVIDIA DALI: own readers for jpeg, lmdb and tar; hdf5 through an external source",
    requires=("nvidia.dali", "simplejpeg", *REQUIRES),
    stages=frozenset({"read", "load"}),
    no_stage={"decode": _FUSED},
    formats=frozenset({"jpeg", "lmdb", "tar", "hdf5", "hdf5-raw", "lmdb-raw"}),
    native=frozenset(NATIVE),
    orders={"lmdb": _STORED, "tar": _STORED},
    sharings={"lmdb": frozenset(), "tar": frozenset()},
    also_audited=({"reader": "external"},),
    judge=_judge,
    unused=_unused,
)
