"""nvImageCodec on the CPU: its own build of libjpeg-turbo.

Its GPU decoder is not used: each worker process would need a CUDA context of its own, and the
pixels would have to come back.  DALI's ``mixed`` decodes on the GPU, where the batches stay.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from iobench.core.members import DecoderBackend

_NO_DEVICE = -99999  # NVIMGCODEC_DEVICE_CPU_ONLY
_OWN = threading.local()


def decode(data: Any) -> np.ndarray:
    """Return the pixels of a bytes-like JPEG.  Raises ValueError where the library finds none."""
    import nvidia.nvimgcodec as nvimgcodec

    if getattr(_OWN, "process", 0) != os.getpid():  # a fork has none of its parent's threads
        backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]
        _OWN.decoder = nvimgcodec.Decoder(
            device_id=_NO_DEVICE, max_num_cpu_threads=1, backends=backends
        )
        _OWN.process = os.getpid()
    params = nvimgcodec.DecodeParams(apply_exif_orientation=False)
    try:
        image = _OWN.decoder.decode(bytes(data), params=params)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    if image is None:
        raise ValueError("nvImageCodec cannot decode it")
    return np.ascontiguousarray(np.asarray(image))


BACKEND = DecoderBackend(
    lambda: decode,
    "nvImageCodec on the CPU: libjpeg-turbo inside its wheel",
    requires=("nvidia.nvimgcodec",),
    libraries={"nvidia.nvimgcodec": "nvidia-nvimgcodec-cu12"},
)
