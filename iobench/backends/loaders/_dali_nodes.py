"""Nodes of DALI's graph, and what comes out of it as arrays."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from iobench.core import transforms
from iobench.core.protocols import LoadRequest

_TURN = "adjust_orientation"


def dali() -> Any:
    """Return the package nvidia.dali, its parts imported."""
    import nvidia.dali.backend
    import nvidia.dali.fn
    import nvidia.dali.pipeline
    import nvidia.dali.types

    return nvidia.dali


def processed(request: LoadRequest, stored: Any, *, device: str, antialias: bool, raw: bool) -> Any:
    """Return the node of what the stage makes of the stored bytes.

    ``device``: where JPEGs are decoded.  ``raw``: the bytes are pixels.  ``antialias``: smooth when
    shrinking.
    """
    fn, types = dali().fn, dali().types
    if request.stage == "read":
        # one pass over the bytes, on the worker threads: a mapped file is read by touching it
        return stored if request.digest else fn.reductions.max(stored)
    transform = transforms.transform(request.transform)
    decoder: Dict[str, Any] = {"device": device, "output_type": types.RGB, **_as_stored()}
    crop: Dict[str, Any] = {}
    if request.transform == "rrc224":
        area: Dict[str, Any] = {
            "random_area": list(transforms.AREA),
            "random_aspect_ratio": list(transforms.RATIO),
            "num_attempts": transforms.TRIES,
        }
        scale: Dict[str, Any] = {"interp_type": types.INTERP_LINEAR, "antialias": antialias}
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
            images = padded_crop(images)
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mirror=fn.random.coin_flip(probability=0.5),
        mean=list(transform.mean),
        std=list(transform.std),
        **crop,
    )


def _as_stored() -> Dict[str, bool]:
    """Return the decoders' option not to turn pictures by their EXIF orientation.

    DALI 2 turns them by default; DALI 1 has no such option and turns none.
    """
    schema = dali().backend.GetSchema("decoders__Image")
    return {_TURN: False} if schema.HasArgument(_TURN) else {}


def padded_crop(images: Any) -> Any:
    """Cut 32x32 at random out of the image padded by 4: CIFAR's augmentation."""
    fn, types = dali().fn, dali().types
    room = fn.cast(images.shape()[:2], dtype=types.FLOAT) + (4 + 4 - 32 + 1)
    start = fn.cast(fn.random.uniform(range=(0.0, 1.0), shape=[2]) * room - 4.5, dtype=types.INT32)
    return fn.slice(
        images, start=start, shape=(32, 32), axes=(0, 1), out_of_bounds_policy="pad", fill_values=0
    )


def as_array(outputs: Any) -> np.ndarray:
    """Return a dense CPU or GPU list of equal shapes as an array, without a copy on the CPU."""
    return np.asarray(outputs.as_cpu().as_tensor())


def as_batch(outputs: Any) -> Any:
    """Return the batch where it lies: a NumPy view of host memory, a torch view of the GPU's.

    The view keeps DALI's buffer alive; the pipeline goes on in other buffers.
    """
    tensor = outputs.as_tensor()
    if "GPU" not in type(outputs).__name__:
        return np.asarray(tensor)
    import torch

    return torch.from_dlpack(tensor)  # type: ignore[attr-defined]
