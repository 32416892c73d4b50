"""NVIDIA DALI: its own readers for jpeg, lmdb and tar, an external source for everything else.

As its users run it: the JPEG decoder that decodes only a random crop, the same worker threads for
decode, resize and normalise, a prefetch queue.  On the CPU, or decoding on the GPU (``mixed``).
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Literal, Optional, Tuple

import numpy as np

from iobench import codec
from iobench.dataset import sample_digest
from iobench.errors import BackendUnavailable, DatasetError, IobenchError, SpecError
from iobench.model import Batch, Extent
from iobench.protocols import LoaderBackend, LoadRequest, Reader

#: Formats that DALI reads by itself.
NATIVE = ("jpeg", "lmdb", "tar")
_STORED = frozenset({"stored"})
_SEEDS = 2**31
_BLOCK = 512  # tar: a header is one, a member is padded to whole ones


class DaliLoader:
    """One epoch of one rank through one DALI pipeline, built here and first run by ``batches``."""

    def __init__(
        self,
        request: LoadRequest,
        *,
        device: Literal["cpu", "mixed"] = "cpu",
        reader: Literal["native", "external"] = "native",
        mmap: bool = True,
        antialias: bool = False,
        start_method: Literal["spawn", "fork"] = "spawn",
    ) -> None:
        """``device``: where JPEGs are decoded.  ``reader``: ``external`` goes through the format's
        own Reader, in as many processes as there are workers.  ``mmap``: how native readers read
        files.  ``antialias``: smooth when shrinking (OpenCV's bilinear, the torch loader's, does
        not).

        Raises SpecError for values that are not possible, BackendUnavailable without a GPU for
        mixed, DatasetError when the stored form does not match the request.
        """
        _check(request, device, reader)
        self.queue_batches = request.prefetch
        self._request = request
        self._count = len(request.ids) // request.batch
        self._form = request.root.name if request.format_name != "jpeg" else "jpeg"
        self._native = reader == "native" and self._form in NATIVE
        self._mmap, self._antialias, self._device = mmap, antialias, device
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self._pipe: Any = self._build(start_method)

    def batches(self) -> Iterator[Batch]:
        """Run the pipeline ``len(ids) // batch`` times, from an empty queue.

        Raises DatasetError, naming the sample, when one cannot be read, decoded or cropped.
        """
        request = self._request
        every = np.asarray(request.ids, np.int64)
        for k in range(self._count):
            try:
                outputs = self._pipe.run()
            except RuntimeError as error:
                self.close()
                raise DatasetError(self._blame(k, error)) from error
            ids = every[k * request.batch : (k + 1) * request.batch]
            yield self._batch(ids, outputs)

    def processes(self) -> List[int]:
        """Return the external source's processes; DALI does not wait until they have imported."""
        pool = getattr(self._pipe, "_py_pool", None)
        return [] if pool is None else list(pool.pids())

    def close(self) -> None:
        """Stop the threads and reap the processes; harmless twice.

        Batches that were handed out stay valid.
        """
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pool = getattr(pipe, "_py_pool", None)
            getattr(
                pipe, "_shutdown", pipe.__del__
            )()  # joins DALI's threads now, not when the garbage collector comes
            if pool is not None:
                pool.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _build(self, start_method: str) -> Any:
        request = self._request
        on_gpu = self._device == "mixed"
        seed = codec.SampleRandom(request.seed, request.epoch).below(_SEEDS)
        pipe = _dali().pipeline.Pipeline(
            batch_size=request.batch,
            num_threads=max(request.workers, 1),
            device_id=0 if on_gpu else None,
            prefetch_queue_depth=request.prefetch,
            # the default of 1.53 and 2.4, said because batches are views: the other executor uses
            # a batch's memory again while it is still looked at
            exec_dynamic=True,
            seed=seed,
            py_num_workers=max(request.workers, 1),
            py_start_method=start_method,
        )
        with pipe:
            stored, facts = self._source()
            self._facts = list(facts)
            pipe.set_outputs(self._work(stored), stored.shape(), *facts.values())
        pipe.build()
        return pipe

    def _source(self) -> Tuple[Any, Dict[str, Any]]:
        """Return the node of the stored bytes, and those of the facts that come with them."""
        fn = _dali().fn

        request = self._request
        if not self._native:
            return self._external()
        common: Dict[str, Any] = {"dont_use_mmap": not self._mmap}
        if self._form == "jpeg":
            ids = request.ids.tolist()
            # in id order; not through extents(), which asks for every file's size
            paths = request.format.files(request.dataset, request.root)
            files = [str(paths[i]) for i in ids]
            stored, seen = fn.readers.file(files=files, labels=ids, **common)
            return stored, {"ids": seen}
        _check_stored(request)
        if self._form == "lmdb":
            stored, labels = fn.readers.caffe(path=str(request.root), **common)
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
        fn, types = _dali().fn, _dali().types

        request = self._request
        stored, ids, labels = fn.external_source(
            source=_Source(request),
            num_outputs=3,
            batch=False,
            parallel=True,
            dtype=[types.UINT8, types.INT64, types.INT64],
            ndim=[3 if self._form.endswith("-raw") else 1, 1, 1],
            prefetch_queue_depth=request.prefetch,
            bytes_per_sample_hint=int(np.asarray(request.sizes).max()) + 1024,
        )
        return stored, {"ids": ids, "labels": labels}

    def _work(self, stored: Any) -> Any:
        """Return the node of what the stage makes of the stored bytes."""
        fn, types = _dali().fn, _dali().types

        request = self._request
        if request.stage == "read":
            # one pass over the bytes, on the worker threads: a mapped file is read by touching it
            return stored if request.digest else fn.reductions.max(stored)
        transform = codec.transform(request.transform)
        raw = self._form.endswith("-raw")
        decoder: Dict[str, Any] = {"device": self._device, "output_type": types.RGB}
        crop: Dict[str, Any] = {}
        if request.transform == "rrc224":
            area: Dict[str, Any] = {
                "random_area": list(codec.AREA),
                "random_aspect_ratio": list(codec.RATIO),
                "num_attempts": codec.TRIES,
            }
            scale: Dict[str, Any] = {
                "interp_type": types.INTERP_LINEAR,
                "antialias": self._antialias,
            }
            if raw:
                images = fn.random_resized_crop(stored, size=[224, 224], **area, **scale)
            else:
                images = fn.decoders.image_random_crop(stored, **decoder, **area)
                images = fn.resize(images, resize_x=224, resize_y=224, **scale)
        else:
            images = stored if raw else fn.decoders.image(stored, **decoder)
            if request.transform == "crop224":
                where = fn.random.uniform(range=(0.0, 1.0)), fn.random.uniform(range=(0.0, 1.0))
                crop = {"crop": (224, 224), "crop_pos_x": where[0], "crop_pos_y": where[1]}
            else:
                images = _padded_crop(images)
        return fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="CHW",
            mirror=fn.random.coin_flip(probability=0.5),
            mean=list(transform.mean),
            std=list(transform.std),
            **crop,
        )

    def _tar_index(self) -> Tuple[List[str], List[str]]:
        """Return the shards and an index of each, written from the format's own.

        Without one DALI would scan every shard when it starts, which warms a cold cache.
        """
        request = self._request
        rows: Dict[str, List[str]] = {}
        with _opened(request) as reader:
            for i, label in enumerate(np.asarray(request.labels).tolist()):
                path, offset, length = _only(reader, i)
                digits = offset + _blocks(length) + _BLOCK, len(str(label))
                row = f"jpg {offset} {length} cls {digits[0]} {digits[1]}"
                rows.setdefault(path, []).append(row)
        self._folder = tempfile.TemporaryDirectory(prefix="iobench-dali-")
        indices = []
        for number, lines in enumerate(rows.values()):
            index = Path(self._folder.name, f"{number}.idx")
            index.write_text("\n".join([f"v1.1 {len(lines)}", *lines]) + "\n")
            indices.append(str(index))
        return list(rows), indices

    def _batch(self, wanted: np.ndarray, outputs: Any) -> Batch:
        request = self._request
        made, shapes = outputs[:2]
        facts = {name: _array(out) for name, out in zip(self._facts, outputs[2:])}
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
            data = _data(made)
        nbytes = int(_array(shapes).prod(axis=1).sum())
        return Batch(data, labels, ids, nbytes, digests)

    def _blame(self, k: int, error: Exception) -> str:
        """Return one line that names the sample: DALI says what, seldom which."""
        request = self._request
        end = (k + 1 + request.prefetch) * request.batch
        with _opened(request) as reader:
            for sample in np.asarray(request.ids)[k * request.batch : end].tolist():
                complaint = _complaint(reader, sample, request.transform)
                if complaint:
                    return f"sample {sample} of {request.root}: {complaint} (DALI stopped there)"
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
    codec.transform(request.transform)
    if device not in ("cpu", "mixed"):
        raise SpecError(f"device {device!r} is not possible; allowed: cpu, mixed")
    if reader not in ("native", "external"):
        raise SpecError(f"reader {reader!r} is not possible; allowed: native, external")
    if request.decode_delay_s:
        raise SpecError("decode_delay_s cannot be put into DALI's decoder: use the torch loader")
    if device == "mixed":
        import torch

        if not torch.cuda.is_available():
            raise BackendUnavailable("DALI device 'mixed' needs a GPU and a CUDA build of torch")


def _check_stored(request: LoadRequest) -> None:
    """Hold the request against what a reader that only walks forward can do."""
    if not np.array_equal(request.ids, np.arange(len(request.ids))):
        raise SpecError(
            f"DALI's own {request.root.name} reader walks the whole dataset in stored order on one "
            "rank: use order stored, all samples and world_size 1, or loader option "
            "reader = external"
        )


def _dali() -> Any:
    import nvidia.dali.fn
    import nvidia.dali.pipeline
    import nvidia.dali.types

    return nvidia.dali


@contextlib.contextmanager
def _opened(request: LoadRequest) -> Iterator[Reader]:
    reader = request.format.open(request.dataset, request.root)
    try:
        yield reader
    finally:
        reader.close()


def _complaint(reader: Reader, sample: int, transform: str) -> str:
    """Return what is wrong with a sample, "" when our own codec can use it."""
    chosen = codec.transform(transform)
    try:
        pixels = codec.decode(reader.read(sample)[0])
        chosen.apply(pixels, codec.SampleRandom(sample), np.empty(chosen.shape, np.float32))
    except (IobenchError, OSError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


def _blocks(length: int) -> int:
    """Return ``length`` rounded up to whole tar blocks."""
    return -(-length // _BLOCK) * _BLOCK


def _only(reader: Reader, sample: int) -> Extent:
    extents = reader.extents(sample)
    if len(extents) != 1:
        raise DatasetError(f"sample {sample} lies in {len(extents)} pieces; DALI reads one")
    return extents[0]


def _padded_crop(images: Any) -> Any:
    """Cut 32x32 at random out of the image padded by 4: CIFAR's augmentation."""
    fn, types = _dali().fn, _dali().types

    room = fn.cast(images.shape()[:2], dtype=types.FLOAT) + (4 + 4 - 32 + 1)
    start = fn.cast(fn.random.uniform(range=(0.0, 1.0), shape=[2]) * room - 4.5, dtype=types.INT32)
    return fn.slice(
        images, start=start, shape=(32, 32), axes=(0, 1), out_of_bounds_policy="pad", fill_values=0
    )


def _array(outputs: Any) -> np.ndarray:
    """Return a dense CPU or GPU list of equal shapes as an array, without a copy on the CPU."""
    return np.asarray(outputs.as_cpu().as_tensor())


def _data(outputs: Any) -> Any:
    """Return the batch where it lies: a NumPy view of host memory, a torch view of the GPU's.

    The view keeps DALI's buffer alive; the pipeline goes on in other buffers.
    """
    tensor = outputs.as_tensor()
    if "GPU" not in type(outputs).__name__:
        return np.asarray(tensor)
    import torch

    return torch.from_dlpack(tensor)  # type: ignore[attr-defined]


_FUSED = "DALI decodes only the random crop, fused with the transform: not a step that runs alone"

BACKEND = LoaderBackend(
    DaliLoader,
    "NVIDIA DALI: own readers for jpeg, lmdb and tar; hdf5 through an external source",
    requires=("nvidia.dali", "simplejpeg", "cv2"),
    stages=frozenset({"read", "load"}),
    no_stage={"decode": _FUSED},
    formats=frozenset({"jpeg", "lmdb", "tar", "hdf5", "hdf5-raw", "lmdb-raw"}),
    native=frozenset(NATIVE),
    orders={"lmdb": _STORED, "tar": _STORED},
    sharings={"lmdb": frozenset(), "tar": frozenset()},
)
