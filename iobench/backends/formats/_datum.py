"""Caffe's ``Datum``, a sample in a database, written by hand: six fields need no protobuf.

``encoded`` data is the JPEG file; raw data is uint8, channels first, blue first (OpenCV's order,
which Caffe's own tools store).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Tuple, Union

import numpy as np

from iobench.core.errors import DatasetError
from iobench.core.protocols import StoredSample


class Datum(NamedTuple):
    """What a message holds: ``data`` is a view; shape is (0, 0, 0) where it is encoded."""

    data: Any
    label: int
    shape: Tuple[int, int, int]  # channels, height, width
    encoded: bool


def key_of(sample: StoredSample) -> bytes:
    """Return a sample's key, as convert_imageset writes it: ``%08d_<name>``.

    Keys ascend with the ids; one stays below LMDB's limit of 511 bytes.
    """
    return b"%08d_%s" % (sample.id, os.fsencode(sample.key)[:491])


def stored_in(message: Any) -> Tuple[Any, int]:
    """Return (data, label) of a serialised Datum: a view of the JPEG, or (h, w, 3) uint8 RGB.

    Raises DatasetError when it is none.
    """
    found = parse_datum(message)
    if found.encoded:
        return found.data, found.label
    planes = np.frombuffer(found.data, np.uint8).reshape(found.shape)
    return np.ascontiguousarray(planes[::-1].transpose(1, 2, 0)), found.label


def datum(sample: StoredSample) -> bytes:
    """Return a sample as a serialised Datum (caffe.proto: channels 1, height 2, width 3, data 4,
    label 5, encoded 7).
    """
    label = b"\x28" + _varint(sample.label)
    if isinstance(sample.data, np.ndarray):
        planes = sample.data[:, :, ::-1].transpose(2, 0, 1)
        head = b"".join(bytes([8 * (i + 1)]) + _varint(n) for i, n in enumerate(planes.shape))
        return head + b"\x22" + _varint(planes.size) + planes.tobytes() + label
    return b"".join((b"\x22", _varint(len(sample.data)), sample.data, label, b"\x38\x01"))


def parse_datum(message: Any) -> Datum:
    """Return the fields of a serialised Datum (bytes-like); ``data`` is a view of it.

    Raises DatasetError when it is no Datum with bytes in it.
    """
    view = memoryview(message)
    numbers = {1: 0, 2: 0, 3: 0, 5: 0, 7: 0}
    data = None
    at = 0
    try:
        while at < len(view):
            tag, at = read_varint(view, at)
            field, kind = tag >> 3, tag & 7
            value, at = read_varint(view, at)
            if kind == 2:
                if field == 4:
                    data = view[at : at + value]
                at += value
            elif kind == 0 and field in numbers:
                numbers[field] = value
            else:
                raise ValueError(f"field {field}, wire type {kind}")
        if data is None or at != len(view):
            raise ValueError("no data" if data is None else "cut short")
    except (ValueError, IndexError) as error:
        raise DatasetError(f"a value is no Caffe Datum ({error}): convert again") from None
    return Datum(data, numbers[5], (numbers[1], numbers[2], numbers[3]), bool(numbers[7]))


def _varint(number: int) -> bytes:
    """Return a protobuf varint: seven bits a byte, least significant first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(view: Union[bytes, memoryview], at: int) -> Tuple[int, int]:
    """Return (number, where it ends) of protobuf's and LevelDB's variable-length integer."""
    number = shift = 0
    while True:
        byte = view[at]
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7
