"""Gradients of synchronous data parallel training: averaged over the ranks by one MPI all-reduce.

For frameworks whose parameters are blobs with ``data`` and ``diff`` (Caffe).  A step is forward,
backward, the exchange, update.  As all ranks begin with rank 0's weights and add the same mean,
they stay the same, and n ranks of batch b do what one does with batch n b (but for layers that look
at a whole batch: BatchNorm).  mpi4py is imported by the first exchange of several ranks.

A rank's wait for a peer is told from the exchange by what each does by itself from the end of one
exchange until it has the gradients of the next, which ranks compare after the loop
(:mod:`iobench.backends.trainers._torch_ranks`): nothing is sent for it during the loop.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any, Callable, Mapping, Sequence, Tuple

import numpy as np

from iobench.core.cases import Scalar
from iobench.core.clock import clock as real_clock
from iobench.core.errors import BackendUnavailable, SpecError


class Alone:
    """One rank: there is nobody to exchange with."""

    def broadcast(self) -> None:
        """Do nothing."""

    def __call__(self) -> None:
        """Do nothing."""

    def exchanges(self) -> Mapping[str, Sequence[float]]:
        """Return {}."""
        return {}

    def describe(self) -> Mapping[str, Scalar]:
        """Return {}."""
        return {}


class Gradients:
    """The parameters of one rank's net, and the communicator of all ranks."""

    def __init__(
        self, params: Sequence[Any], comm: Any, *, clock: Callable[[], float] = real_clock
    ) -> None:
        """``params``: blobs whose ``data`` and ``diff`` are float32 arrays of one shape.

        ``comm``: an mpi4py communicator.  Raises SpecError where the ranks' nets differ.
        """
        self._params, self._comm, self._clock = list(params), comm, clock
        sizes = [int(np.size(blob.data)) for blob in self._params]
        count = sum(sizes)
        self._flat = np.empty(count, np.float32)
        #: Views of ``_flat``, one a blob in its shape.
        parts = zip(np.split(self._flat, np.cumsum(sizes)[:-1]), self._params)
        self._parts = [part.reshape(blob.data.shape) for part, blob in parts]
        #: Seconds of each step so far: in the exchange, copies too, and by itself before it.
        self.seconds, self.own = array("d"), array("d")
        self._free = clock()  # since when this rank has worked by itself
        self._waits: Any = np.zeros(0)
        counts = comm.allgather((len(self._params), count))
        if len(set(counts)) > 1:
            raise SpecError(
                f"the ranks' nets differ: (blobs, parameters) are {', '.join(map(str, counts))}; "
                "give every rank the same net"
            )

    def broadcast(self) -> None:
        """Give every rank the weights of rank 0, and have MPI connect the ranks.

        It does that, and reads the libraries for it, at the first all-reduce: not in the loop.
        """
        from mpi4py import MPI

        self._gather("data")
        self._comm.Bcast(self._flat, root=0)
        self._scatter("data")
        self._comm.Allreduce(MPI.IN_PLACE, self._flat, op=MPI.SUM)
        self._free = self._clock()

    def __call__(self) -> None:
        """Replace every rank's gradients by their mean; call it between backward and update."""
        from mpi4py import MPI

        begun = self._clock()
        self._gather("diff")
        ready = self._clock()
        self._comm.Allreduce(MPI.IN_PLACE, self._flat, op=MPI.SUM)
        free = self._clock()
        self._flat *= np.float32(1.0 / self._comm.Get_size())
        self._scatter("diff")
        self.own.append(ready - self._free)
        self.seconds.append(self._clock() - begun)
        self._free = free

    def exchanges(self) -> Mapping[str, Sequence[float]]:
        """Return the columns of :class:`iobench.core.records.Steps` that ranks in step fill.

        All ranks call it, with equally many steps.
        """
        waits, seconds = self._settle()
        return {"peers_s": waits.tolist(), "exchange_s": seconds.tolist()}

    def _settle(self) -> Tuple[Any, Any]:
        """Return of each step the seconds of the wait for peers, and of the exchange itself."""
        from mpi4py import MPI

        if len(self._waits) < len(self.own):
            longest = np.array(self.own)
            self._comm.Allreduce(MPI.IN_PLACE, longest, op=MPI.MAX)
            self._waits = longest - np.array(self.own)
        return self._waits, np.maximum(0.0, np.array(self.seconds) - self._waits)

    def describe(self) -> Mapping[str, Scalar]:
        """Return ``comm_s`` (the median exchange, seconds a step), its bytes and the ranks;
        ``peers_s``: the median wait for the rank that works longest.  All ranks call it.

        ``weights_digest``: of every parameter, bit by bit: equal on all ranks, or they have not
        trained one net.
        """
        waits, seconds = self._settle()
        digest = hashlib.blake2b(digest_size=16)
        for blob in self._params:
            digest.update(np.ascontiguousarray(blob.data).tobytes())
        return {
            "ranks": int(self._comm.Get_size()),
            "comm_bytes": int(self._flat.nbytes),
            "comm_s": float(np.median(seconds)) if self.seconds else 0.0,
            "peers_s": float(np.median(waits)) if self.seconds else 0.0,
            "comm_first_s": float(seconds[0]) if self.seconds else 0.0,
            "weights_digest": digest.hexdigest(),
        }

    def _gather(self, name: str) -> None:
        for blob, part in zip(self._params, self._parts):
            part[...] = getattr(blob, name)

    def _scatter(self, name: str) -> None:
        for blob, part in zip(self._params, self._parts):
            getattr(blob, name)[...] = part


def mean(params: Sequence[Any], world_size: int) -> Any:
    """Return the exchange of a net's parameters: a :class:`Gradients`, or :class:`Alone`.

    ``params``: those that are learned; statistics (BatchNorm's) are each rank's own.  Raises
    BackendUnavailable without mpi4py, or where this process's MPI knows of another number of ranks
    (its mpirun and its mpi4py are of two installations: then every rank believes that it is alone).
    """
    if world_size == 1:
        return Alone()
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise BackendUnavailable(
            f"several ranks need mpi4py in the trainer's Python ({error}): use image caffe, or "
            "install it there"
        ) from error
    comm = MPI.COMM_WORLD
    if comm.Get_size() != world_size:
        raise BackendUnavailable(
            f"{world_size} ranks were started and mpi4py sees {comm.Get_size()}: it is linked to "
            "another MPI than the mpirun that started them; set launcher option program to that "
            "MPI's"
        )
    return Gradients(params, comm)
