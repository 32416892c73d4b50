"""Caffe's own data layers, in C++, in a net of their own: what `caffe train` reads with.

A layer has one thread that reads, decodes, crops and queues whole batches (HDF5Data has none: it
loads a file at a time, when a batch asks for it).  The net is built when the batches are asked for,
so the queue is empty when the clock starts.

ImageData decodes the first image of every batch twice, to learn its size.  OpenCV (4.5) opens a
file three times: for its signature, its pixels in reads of 4 KiB, and its EXIF orientation.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Dict, Iterator, List, Literal, Mapping, Optional, Tuple

import numpy as np

from iobench.backends.caffe import hdf5, layers, library, sources
from iobench.backends.caffe.nets import DATA, LABEL
from iobench.backends.caffe.prototxt import Message, message, render
from iobench.core import transforms
from iobench.core.cases import Batch, Case, Scalar
from iobench.core.dataset import sample_digest
from iobench.core.errors import DatasetError, SpecError
from iobench.core.members import LoaderBackend
from iobench.core.options import Count, Range
from iobench.core.protocols import LoadRequest

#: Grey levels by which another JPEG library may differ (none do by default: libjpeg-turbo's
#: accurate transform and smooth upsampling are everybody's).
TOLERANCE = 4
_LAYERS = {
    "lmdb": "Data", "leveldb": "Data", "jpeg": "ImageData", "hdf5": "HDF5Data", "null": "DummyData",
}  # fmt: skip


class NativeLoader:
    """One epoch of one rank through one of Caffe's data layers."""

    def __init__(
        self,
        request: LoadRequest,
        *,
        shuffle: bool = False,  # Caffe's own (jpeg list, hdf5), beside the case's order
        rand_skip: Count = 0,  # likewise (jpeg list)
        new_height: Annotated[
            int, Range(0, 65_535)
        ] = 0,  # resizes the jpeg list's images before the crop
        new_width: Annotated[int, Range(0, 65_535)] = 0,
        mirror: bool = True,  # this and the next: of crop224, or not
        mean: Literal["imagenet", "none"] = "imagenet",
        scale: float = 1.0,  # multiplies what the mean was taken off
    ) -> None:
        """Raises SpecError for what the layer of this format has not, or that asks too much."""
        self._layer = _LAYERS[request.format_name]
        self._queues = self._layer in ("Data", "ImageData")
        self._shuffle, self._rand_skip = shuffle, rand_skip
        self._any_order = shuffle or rand_skip > 0  # Caffe itself changes the order
        self._size = {"new_height": new_height, "new_width": new_width}
        self._mirror, self._mean, self._scale = mirror, mean, scale
        self._request = request
        self._check()
        walks = self._layer in ("Data", "HDF5Data")
        self._rank, self._world = sources.stride(request) if walks else (0, 1)
        self.queue_batches = request.prefetch if self._queues else 0
        self.in_pieces = self._layer == "HDF5Data"
        self._sources = sources.Sources(request)
        self._net: Any = None
        rows = 1 if request.digest else request.batch  # only one by one may images be of any size
        self._text = render(message(name="data", layer=[self.layer(rows, plain=request.digest)]))

    def batches(self) -> Iterator[Batch]:
        """Build the net and yield ``len(ids) // batch`` batches.

        Arrays show the layer's own memory: they are good until the next batch is asked for.  The
        one batch of a request for one is a copy.  Raises DatasetError when the labels are not those
        of the samples asked for.
        """
        if self._request.digest:
            yield from self._proof()
            return
        net = self._open()
        every = self._request.batches()
        seen: List[np.ndarray] = []
        for wanted in every:
            net._forward(0, 0)
            data = net.blobs[DATA].data
            address = library.address_of(data)
            found = library.view(address, data.shape, net)
            numbers = net.blobs[LABEL].data.astype(np.int64).ravel()
            ids, labels = self._who(wanted, numbers)
            seen.append(numbers)
            reads = self._layer != "DummyData"
            nbytes = int(np.asarray(self._request.sizes)[ids].sum()) if reads else 0
            del data
            yield Batch(found.copy() if len(every) == 1 else found, labels, ids, nbytes)
        self._hold_against(np.concatenate(seen), every.ravel())

    def close(self) -> None:
        """Stop the layer's thread and take away what was written for it.  Idempotent.

        An array that is still held keeps the layer, and its thread, until it is let go.
        """
        self._net = None
        self._sources.close()

    def describe(self) -> Mapping[str, Scalar]:
        """Return the layer, its threads, and what it does to the pixels."""
        facts: Dict[str, Scalar] = {
            "layer": self._layer,
            "decode_threads": 1 if self._queues else 0,
            "mirror": self._mirror and self._layer != "HDF5Data",
            "mean": self._mean,
            "scale": self._scale,
        }
        if self._layer == "ImageData":
            facts["decodes_per_batch"] = self._request.batch + 1
        if self._any_order:
            facts.update(shuffle=self._shuffle, rand_skip=self._rand_skip)
        if self._layer == "HDF5Data":
            facts["ids"] = "unknown" if self._shuffle else "by position"
        return facts

    def layer(self, batch: int, *, rows: bool = True, plain: bool = False) -> Message:
        """Return the data layer; what it reads from beside the data is written on the way.

        ``rows``: where a list has labels, they are the samples' places in the request, so that
        every batch shows which samples it holds.  ``plain``: pixels as they are stored.  The files
        last until :meth:`close`.
        """
        request = self._request
        queued: Dict[str, Any] = {
            "batch": batch,
            "prefetch": request.prefetch,
            "transform": self._transform(plain),
        }
        if self._layer == "Data":
            return layers.database(str(self._sources.database), request.format_name, **queued)
        if self._layer == "ImageData":
            if not plain:
                skip = min(self._rand_skip, len(request.ids))
                queued.update(shuffle=self._shuffle, rand_skip=skip, **self._size)
            return layers.images(self._sources.listed(rows), **queued)
        if self._layer == "HDF5Data":
            files = self._sources.files(shuffled=self._shuffle)
            return layers.hdf5(files, batch=batch, shuffle=self._shuffle and not plain)
        return layers.dummy(batch, transforms.transform(request.transform).shape)

    def _check(self) -> None:
        request = self._request
        asked = {"shuffle": self._shuffle, "rand_skip": self._rand_skip, **self._size}
        _check_options(self._layer, asked)
        if not 0 <= self._rand_skip <= request.dataset.samples:
            raise SpecError(f"rand_skip {self._rand_skip}: allowed is 0 to the number of samples")
        if self._mean not in ("imagenet", "none"):
            raise SpecError(f"mean {self._mean!r} is not possible; allowed: imagenet, none")
        if request.transform != "crop224":
            raise SpecError(f"{_NO_TRANSFORM}: use transform crop224")
        if request.decode_delay_s:
            raise SpecError("decode_delay_s cannot be put into Caffe's decoder")
        if request.stage != "load" and not request.digest:
            raise SpecError(f"stage {request.stage!r}: {_ONE_THREAD}")

    def _transform(self, plain: bool) -> Optional[Message]:
        colour = self._layer == "Data" and not self._request.root.name.endswith("-raw")
        if plain:
            return layers.transform(colour=colour)
        chosen = transforms.transform(self._request.transform)
        mean = tuple(reversed(chosen.mean)) if self._mean == "imagenet" else ()
        return layers.transform(
            crop=chosen.shape[1], mirror=self._mirror, mean=mean, scale=self._scale, colour=colour
        )

    def _open(self) -> Any:
        """Build the net of the data layer alone; its thread begins to fill the queue."""
        caffe = library.load()
        request = self._request
        library.share(caffe, self._rank, self._world)
        seed = transforms.SampleRandom(request.seed + request.rank, request.epoch)
        caffe.set_random_seed(seed.below(1 << 31))  # a rank its own crops and mirrors
        path = self._sources.folder / "data.prototxt"
        path.write_text(self._text)
        # the phase that crops at random, and in which ranks share the records
        self._net = caffe.Net(str(path), caffe.TRAIN)
        return self._net

    def _who(self, wanted: np.ndarray, numbers: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Return (ids, labels) of a batch: from its numbers, or as they were requested."""
        labels = np.asarray(self._request.labels, np.int64)
        if self._layer == "ImageData":
            ids = np.asarray(self._request.ids, np.int64)[numbers]
            return ids, labels[ids]
        return wanted, labels[wanted] if self._layer == "DummyData" else numbers

    def _hold_against(self, numbers: np.ndarray, wanted: np.ndarray) -> None:
        """Raise DatasetError when the numbers that came are not those of the samples wanted."""
        if self._layer == "DummyData":
            return
        expected = np.asarray(self._request.labels, np.int64)[wanted]
        if self._layer == "ImageData":
            expected = np.arange(len(wanted))
        elif self._shuffle and len(wanted) < self._request.dataset.samples:
            return  # which part of all was shuffled to the front is not known
        if self._any_order:
            numbers, expected = np.sort(numbers), np.sort(expected)
        wrong = np.flatnonzero(numbers != expected)
        if len(wrong):
            raise DatasetError(
                f"Caffe's {self._layer} layer gave other samples than asked for, {len(wrong)} of "
                f"{len(wanted)}, the first at place {wrong[0]}: convert again, or run "
                f"`iobench data verify`"
            )

    def _proof(self) -> Iterator[Batch]:
        """Yield digests: of the stored bytes where the layer's whole pixels are our decoder's.

        One sample a batch, uncropped: only so does Caffe take images of any size.  Where the pixels
        differ by more than :data:`TOLERANCE` the digest is that of the layer's own pixels.
        """
        request = self._request
        net = self._open()
        with contextlib.closing(request.format.open(request.dataset, request.root)) as reader:
            for wanted in request.batches():
                digests, numbers = [], []
                for sample in wanted.tolist():
                    net._forward(0, 0)
                    seen = self._pixels(net.blobs[DATA].data[0])
                    numbers.append(int(net.blobs[LABEL].data.ravel()[0]))
                    stored, _ = reader.read(sample)
                    digests.append(_digest(seen, stored))
                ids, labels = self._who(wanted, np.array(numbers, np.int64))
                yield Batch(None, labels, ids, 0, digests)

    def _pixels(self, planes: np.ndarray) -> np.ndarray:
        """Return what the layer gave as (h, w, 3) uint8 RGB."""
        if self._layer == "HDF5Data":
            return hdf5.pixels(planes)
        return np.ascontiguousarray(planes[::-1].transpose(1, 2, 0).astype(np.uint8))


def _digest(seen: np.ndarray, stored: Any) -> str:
    expected = transforms.decode(stored)
    if seen.shape != expected.shape:
        return sample_digest(seen)
    same = transforms.pixel_differences(seen, expected)["max"] <= TOLERANCE
    return sample_digest(stored if same else seen)


def _check_options(layer: str, asked: Mapping[str, Any]) -> None:
    """Raise SpecError for options that the layer has not, or that exclude one another."""
    for name in ("shuffle", "rand_skip", "new_height", "new_width"):
        able = ("ImageData", "HDF5Data") if name == "shuffle" else ("ImageData",)
        if asked.get(name) and layer not in able:
            raise SpecError(
                f"Caffe's {layer} layer has no {name} (only {' and '.join(able)}): leave that "
                "loader option out"
            )
    if asked.get("shuffle") and asked.get("rand_skip"):
        raise SpecError(
            "shuffle and rand_skip together: Caffe shuffles again where the list ends, so that an "
            "epoch holds some samples twice; give one of them"
        )
    height, width = asked.get("new_height", 0), asked.get("new_width", 0)
    if (height > 0) != (width > 0) or min(height, width) < 0:
        raise SpecError(
            f"new_height = {height} and new_width = {width} go together: give both, or neither"
        )


def _unused(case: Case) -> Mapping[str, str]:
    found: Dict[str, str] = {}
    layer = _LAYERS[case.format]
    if layer not in ("Data", "ImageData"):
        found["prefetch"] = f"Caffe's {layer} layer has no queue"
        for name in ("mirror", "mean", "scale"):
            found[f"loader_options.{name}"] = f"Caffe's {layer} layer does not transform"
    return found


_ONE_THREAD = "one thread of Caffe's data layer reads, decodes and crops: no step of it runs alone"
_NO_TRANSFORM = "Caffe's layers crop, mirror and take a mean off, and resize nothing at random"
_TURNS = "Caffe decodes with OpenCV's imread, which turns them and has no option against it here"
_STORED = frozenset({"stored"})
_WALKED = ("lmdb", "lmdb-raw", "leveldb", "leveldb-raw", "hdf5-float", "null")

# no serial probe: our reader and decoder are not Caffe's, and its own cannot be timed apart
BACKEND = LoaderBackend(
    NativeLoader,
    "Caffe's own data layers: LMDB, LevelDB, a list of JPEG files, HDF5 floats",
    requires=("caffe",),
    stack="caffe",
    stages=frozenset({"load"}),
    no_stage={"read": _ONE_THREAD, "decode": _ONE_THREAD},
    formats=frozenset({"jpeg", *_WALKED}),
    native=frozenset({"jpeg", *_WALKED}),
    orders=dict.fromkeys(_WALKED, _STORED),
    sharings=dict.fromkeys(_WALKED, frozenset({"stride"})),
    transforms=frozenset({"crop224"}),
    no_transform=_NO_TRANSFORM,
    threads=1,
    turns=_TURNS,
    judge=lambda case: _check_options(_LAYERS[case.format], case.loader_options),
    unused=_unused,
)
