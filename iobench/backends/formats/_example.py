"""``tf.train.Example``, with ImageNet's names of features: what formats of TensorFlow's world hold.

Written by hand, so that TensorFlow is not needed; the JPEG is the last thing in each.
"""

from __future__ import annotations

JPEG, LABEL, ID = b"image/encoded", b"image/class/label", b"image/id"


def example(jpeg: bytes, label: int, sample: int) -> bytes:
    """Return a ``tf.train.Example`` of three features, the JPEG at its end."""
    numbers = [(LABEL, label), (ID, sample)]
    features = [_entry(name, _field(3, _field(1, _varint(n)))) for name, n in numbers]
    features.append(_entry(JPEG, _field(1, _field(1, jpeg))))
    return _field(1, b"".join(features))


def _entry(name: bytes, feature: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, feature))


def _field(number: int, data: bytes) -> bytes:
    """Return a field of protocol buffers that holds so many bytes."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
