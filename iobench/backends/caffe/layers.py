"""Caffe's data layers as prototxt: blobs ``data`` and ``label``, the name ``data``."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

from iobench.backends.caffe.nets import DATA, LABEL
from iobench.backends.caffe.prototxt import Message, Word, message


def transform(
    *,
    crop: int = 0,
    mirror: bool = False,
    mean: Sequence[float] = (),
    scale: float = 1.0,
    colour: bool = False,
) -> Optional[Message]:
    """Return a ``transform_param``, None for none.

    ``mean``: one value a channel in the stored order (blue, green, red), taken off before
    ``scale`` multiplies.  ``colour``: grey JPEGs of a database get three channels, as those of a
    list do; else Caffe ends the process at the first (``mean_values_.size()``).
    """
    found = message(
        crop_size=crop or None,
        mirror=mirror or None,
        mean_value=list(map(float, mean)),
        scale=scale if scale != 1.0 else None,
        force_color=colour or None,
    )
    return found if found.fields else None


def database(
    source: str, format_name: str, *, batch: int, prefetch: int, transform: Optional[Message]
) -> Message:
    """Return a Data layer on a database's folder; one thread reads, decodes and crops."""
    parameter = message(
        source=source, batch_size=batch, backend=Word(format_name.upper()), prefetch=prefetch
    )
    return _layer("Data", transform_param=transform, data_param=parameter)


def images(
    source: str, *, batch: int, prefetch: int, transform: Optional[Message], **options: int
) -> Message:
    """Return an ImageData layer on a list file (``path number`` a line).

    ``options``: shuffle, rand_skip, new_height, new_width; 0: left out.  Its queue is as deep as
    ``data_param`` says: Caffe's prefetching base reads it there for every layer that prefetches.
    """
    given = {name: value or None for name, value in options.items()}
    parameter = message(source=source, batch_size=batch, **given)
    return _layer(
        "ImageData", transform_param=transform, image_data_param=parameter,
        data_param=message(prefetch=prefetch),
    )  # fmt: skip


def hdf5(source: str, *, batch: int, shuffle: bool = False) -> Message:
    """Return an HDF5Data layer on a list of files; it does not prefetch and does not transform."""
    parameter = message(source=source, batch_size=batch, shuffle=shuffle or None)
    return _layer("HDF5Data", hdf5_data_param=parameter)


def dummy(batch: int, shape: Tuple[int, int, int]) -> Message:
    """Return a DummyData layer: constants, filled once, label 0."""
    shapes = [message(dim=[batch, *shape]), message(dim=[batch])]
    fillers = [message(type="constant", value=value) for value in (1.0, 0.0)]
    return _layer("DummyData", dummy_data_param=message(shape=shapes, data_filler=fillers))


def memory(batch: int, shape: Tuple[int, int, int]) -> Message:
    """Return a MemoryData layer: batches are handed over by pointer."""
    channels, height, width = shape
    parameter = message(batch_size=batch, channels=channels, height=height, width=width)
    return _layer("MemoryData", memory_data_param=parameter)


def _layer(kind: str, **parameters: Optional[Message]) -> Message:
    return message(name=DATA, type=kind, top=[DATA, LABEL], **parameters)
