"""pycaffe in this process: quiet, on the CPU, with as many BLAS threads as wanted."""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any, Dict, List, Tuple

import numpy as np

from iobench.core.errors import BackendUnavailable
from iobench.host.loaded_libraries import mapped_files

_SET = "openblas_set_num_threads"


def view(address: int, shape: Tuple[int, ...], owner: Any = None) -> np.ndarray:
    """Return a float32 array of the memory at ``address``, which keeps ``owner`` alive.

    pycaffe's own arrays keep only a blob alive, whose memory may be a data layer's; and a net keeps
    every array that it was given to read, so it is given one that owns nothing.
    """
    memory: Any = (ctypes.c_float * math.prod(shape)).from_address(address)
    memory.owner = owner
    return np.frombuffer(memory, np.float32).reshape(shape)


def address_of(array: np.ndarray) -> int:
    """Return where an array's first value lies."""
    return int(array.__array_interface__["data"][0])


def load() -> Any:
    """Return the module caffe, on the CPU; without its chatter unless GLOG_minloglevel is set."""
    os.environ.setdefault("GLOG_minloglevel", "2")
    os.environ.setdefault("GLOG_logtostderr", "1")
    try:
        import caffe
    except ImportError as error:
        raise BackendUnavailable(
            f"Python cannot import caffe ({error}): run `make caffe`, or set CAFFE_ROOT and "
            "CAFFE_PYTHON to a build of your own"
        ) from error
    caffe.set_mode_cpu()
    return caffe


def share(caffe: Any, rank: int, world_size: int) -> None:
    """Set in Caffe which of how many solvers this is, for every net that is made from now on.

    Its LMDB, LevelDB and HDF5 data layers of phase TRAIN then keep every ``world_size``-th record
    from ``rank`` on (in phase TEST all, and ImageData knows nothing of ranks: give it a list).
    Raises BackendUnavailable for several of a Caffe without such a setting (Intel's).
    """
    wanted = {
        "set_multiprocess": world_size > 1,
        "set_solver_count": world_size,
        "set_solver_rank": rank,
    }
    absent = [name for name in wanted if not hasattr(caffe, name)]
    if absent and world_size > 1:
        raise BackendUnavailable(
            f"this Caffe's Python has no {absent[0]}: its data layers cannot "
            "divide the data among ranks; use loader threads, or Caffe of `make caffe`"
        )
    for name, value in wanted.items():
        getattr(caffe, name, lambda _: None)(value)  # a Caffe that knows of one solver only


def set_threads(wanted: int, ranks: int = 1) -> Dict[str, Any]:
    """Have OpenBLAS use ``wanted`` threads; return the facts.

    0: this rank's share of the cores that it may use, where it is one of ``ranks`` on this host.
    ``blas``: the library's file name; ``threads``: what it uses now.  The environment variable
    counts when the library is loaded only, which is long ago here.  Raises BackendUnavailable where
    another BLAS cannot be set and ``wanted`` is not 0.
    """
    found = [(path, ctypes.CDLL(path)) for path in _mapped("openblas")]
    found = [(path, library) for path, library in found if hasattr(library, _SET)]
    if not found:
        if wanted:
            raise BackendUnavailable(
                "threads can be set for OpenBLAS only, and this Caffe has another BLAS: set its "
                "own variable (MKL_NUM_THREADS, OMP_NUM_THREADS) and leave threads out"
            )
        others = [*_mapped("mkl_rt"), *_mapped("libblas"), ""]
        return {"blas": os.path.basename(others[0]), "threads": None}
    for _, library in found:
        getattr(library, _SET)(wanted or share_of_cores(ranks))
    path, library = found[0]
    return {"blas": os.path.basename(path), "threads": int(library.openblas_get_num_threads())}


def share_of_cores(ranks: int) -> int:
    """Return the share of one of ``ranks`` processes that one parent started on this host.

    Ranks that are not bound share the parent's cores evenly; a bound one has no more than its own.
    """
    own = len(os.sched_getaffinity(0))
    if ranks == 1:
        return own
    together = len(os.sched_getaffinity(os.getppid()))
    return max(1, min(own, together // ranks))


def _mapped(name: str) -> List[str]:
    """Return the libraries that this process has mapped whose file name holds ``name``.

    Those that wheels bring for their own use come last.
    """
    paths = [path for path in mapped_files() if name in os.path.basename(path)]
    return sorted(paths, key=lambda path: ".libs/" in path)
