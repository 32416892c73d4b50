"""Ranks that exchange gradients by torch.distributed: how they meet, and what an exchange takes.

From memory they exchange by gloo, from GPUs by nccl.

A rank that waits for a peer waits inside the exchange, where the peer's late batch would look like
a slow network.  What a rank does by itself, from the end of one exchange until it has the gradients
of the next, waiting for its batch too, no network lengthens.  So every rank records that, the ranks
compare it after the loop, and one waits for its peers as long as the longest of them lasts longer
than its own.  The rest of the exchange is the exchange's, on all ranks.  Each duration is of one
clock, and nothing is sent for it during the loop.
"""

from __future__ import annotations

import hashlib
import socket
from array import array
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from iobench.core.cases import Scalar
from iobench.core.clock import clock as real_clock
from iobench.core.errors import BackendUnavailable
from iobench.core.peers import Peers


def split(
    ready: Sequence[float], met: Sequence[float], done: Sequence[float]
) -> Tuple[float, float, float]:
    """Return (waited for peers, waited for the exchange, exchange in all) of one step, in seconds.

    Clock readings of every bucket, in the order in which they are sent: when this rank had its
    gradients, when the rank that works longest would have had them, when they were exchanged.  The
    first wait begins with this rank's last bucket and ends with that rank's; what passes from then
    on is the second, the same on all ranks.
    """
    exchange, before = 0.0, ready[0]
    for all_have, end in zip(met, done):
        exchange += max(0.0, end - max(all_have, before))  # one after the other
        before = max(before, end)
    peers = max(0.0, met[-1] - ready[-1])
    return peers, max(0.0, before - max(met[-1], ready[-1])), exchange


def spans(
    begun: float, ready: Sequence[float], met: Sequence[float], done: Sequence[float]
) -> List[Tuple[float, float]]:
    """Return of every bucket of one step, which began at ``begun``: the seconds until it was ready,
    and of its exchange, one after the other.
    """
    found, free = [], ready[0]
    for own, all_have, end in zip(ready, met, done):
        found.append((own - begun, max(0.0, end - max(all_have, free))))
        free = max(free, end)
    return found


def buckets_of(begins: Sequence[Tuple[float, int]], count: int) -> List[Tuple[int, int]]:
    """Return of every step the places of its first bucket and of the one after its last."""
    firsts = [first for _, first in begins]
    return list(zip(firsts, [*firsts[1:], count]))


def free_since(begins: Sequence[Tuple[float, int]], done: Sequence[float]) -> np.ndarray[Any, Any]:
    """Return of every bucket when the exchange of the step before it was over.

    ``begins``: of every step when its batch was there, which stands for an exchange before the
    first, and the place of its first bucket in ``done``.
    """
    places = buckets_of(begins, len(done))
    ends = [max(done[first:last]) for first, last in places[:-1]]
    return np.repeat([begins[0][0], *ends], [last - first for first, last in places])


class StreamClock:
    """Moments of a GPU's current stream by the host's clock, read when a step is over.

    A step begins when the GPU has nothing to do; its other moments are so long after that, as the
    GPU measures.  ``torch``: the module.
    """

    def __init__(self, torch: Any, clock: Callable[[], float]) -> None:
        self._torch, self._clock = torch, clock
        self._noted: List[Tuple[Any, int, Any]] = []
        self._began, self._first = 0.0, None

    def begin(self) -> float:
        """Begin a step; return when, in seconds."""
        self.read()
        self._first = self._event()
        self._began = self._clock()
        return self._began

    def note(self, times: Any, place: int) -> None:
        """Have the moment at which all work so far is done written to ``times[place]``."""
        self._noted.append((times, place, self._event()))

    def read(self) -> None:
        """Write what was noted, once it has happened."""
        for times, place, event in self._noted:
            event.synchronize()
            times[place] = self._began + self._first.elapsed_time(event) / 1e3  # type: ignore[attr-defined]
        self._noted.clear()

    def _event(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class TorchRanks:
    """The ranks of a case, connected: a ``begin`` a step, a ``reduce`` for every bucket.

    Readings of clocks are this rank's own, in seconds.  ``group``: torch's, of the gradients; None:
    the usual one.
    """

    def __init__(
        self, peers: Peers, *, clock: Callable[[], float] = real_clock, device: str = "cpu"
    ) -> None:
        """Connect all ranks; ``device``: where the gradients are, cpu or cuda.

        Raises BackendUnavailable where this torch cannot, or ranks share a GPU.
        """
        try:
            import torch
            from torch import distributed
        except ImportError as error:
            raise BackendUnavailable(
                f"ranks exchange gradients by torch, and this Python has none ({error}): use "
                "image torch, or install it there"
            ) from error
        dist: Any = distributed
        if not dist.is_available() or not dist.is_gloo_available():
            raise BackendUnavailable("this torch has no gloo: install a build that has")
        self._dist, self._clock, self._peers = dist, clock, peers
        #: Readings of every bucket so far, and of every step its begin and first bucket.
        self._ready, self._done = array("d"), array("d")
        self._begins: List[Tuple[float, int]] = []
        self._sizes: List[int] = []  # bytes of the last step's buckets
        self._split: List[Tuple[float, float, float]] = []
        self._spans: List[List[Tuple[float, float]]] = []
        mine: Dict[str, Any] = {}
        if not peers.rank:  # at the address that the others use; by itself it takes all interfaces
            family = socket.AF_INET6 if ":" in peers.address else socket.AF_INET
            listener = socket.create_server((peers.address, 0), family=family)
            port = listener.getsockname()[1]
            mine = {"master_listen_fd": listener.detach(), "wait_for_workers": False}
        host, _, port = peers.agree(f"{peers.address}:{port if mine else 0}").rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=bool(mine), **mine)
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=peers.address)]
        dist.init_process_group(
            "gloo", store=store, rank=peers.rank, world_size=peers.world_size, pg_options=options
        )
        self._torch: Any = torch
        self.group: Any = None
        self._stream = StreamClock(torch, clock) if device == "cuda" else None
        if self._stream:
            self.group = self._gpus()
        dist.barrier()  # gloo connects two ranks when they first talk: not in the loop

    def _gpus(self) -> Any:
        """Return a group of all ranks by nccl, connected."""
        dist, cuda = self._dist, self._torch.cuda
        if not dist.is_nccl_available():
            raise BackendUnavailable("this torch has no nccl: install a CUDA build")
        mine = self._peers.address, str(cuda.get_device_properties(0).uuid)
        found: List[Any] = [None] * self._peers.world_size
        dist.all_gather_object(found, mine)
        if len(set(found)) < len(found):
            raise BackendUnavailable(
                "several ranks of a node use the same GPU, which nccl cannot: have the launcher "
                "give each its own, or set ranks_per_node to the number of GPUs"
            )
        group = dist.new_group(backend="nccl")
        dist.all_reduce(self._torch.zeros(1, device="cuda"), group=group)
        cuda.synchronize()
        return group

    def _note(self, times: array[float], place: int) -> None:
        """Write this moment to ``times[place]``; on a GPU, that of the work so far."""
        if self._stream:
            self._stream.note(times, place)
        else:
            times[place] = self._clock()

    def begin(self) -> None:
        """Begin a step: the batch is there; a GPU has nothing to do."""
        begun = self._stream.begin() if self._stream else self._clock()
        self._begins.append((begun, len(self._ready)))
        self._sizes = []

    def reduce(self, gradients: Any) -> Any:
        """Begin to replace a tensor by its mean over the ranks; return the future of it.

        All ranks call it with equal tensors, in one order.
        """
        place = len(self._ready)
        self._ready.append(0.0)
        self._done.append(0.0)
        self._note(self._ready, place)
        self._sizes.append(int(gradients.nbytes))
        work = self._dist.all_reduce(gradients, group=self.group, async_op=True)

        def mean(future: Any) -> Any:
            self._note(self._done, place)
            return future.value()[0].div_(self._peers.world_size)

        return work.get_future().then(mean)

    def exchanges(self) -> Mapping[str, List[float]]:
        """Return the columns of :class:`iobench.core.records.Steps` that these ranks fill.

        All ranks call it, with equally many steps.
        """
        self._settle()
        peers, waited, _ = zip(*self._split) if self._split else ((), (), ())
        return {"peers_s": list(peers), "exchange_s": list(waited)}

    def _settle(self) -> None:
        """Work out what was waited for whom, once the loop is over."""
        if len(self._split) == len(self._begins):
            return
        if self._stream:
            self._stream.read()
        free = free_since(self._begins, self._done)
        longest: Any = self._torch.from_numpy(np.array(self._ready) - free)
        self._dist.all_reduce(longest, op=self._dist.ReduceOp.MAX)
        met = (free + longest.numpy()).tolist()
        places = buckets_of(self._begins, len(met))
        for (begun, _), (first, last) in zip(self._begins, places):
            times = self._ready[first:last], met[first:last], self._done[first:last]
            self._split.append(split(*times))
            self._spans.append(spans(begun, *times))

    def buckets(self) -> List[Dict[str, float]]:
        """Return of every bucket its bytes, and medians over the steps: ``ready_s`` after the
        batch was there, and ``comm_s``, its exchange alone.
        """
        self._settle()
        count, known = len(self._sizes), self._spans[1:] or self._spans
        steps = [s for s in known if len(s) == count]  # torch regroups once
        return [
            {
                "bytes": float(nbytes),
                "ready_s": _median([s[i][0] for s in steps]),
                "comm_s": _median([s[i][1] for s in steps]),
            }
            for i, nbytes in enumerate(self._sizes)
        ]

    def describe(self) -> Mapping[str, Scalar]:
        """Return medians over the steps: ``comm_s`` (the exchange, also what is hidden behind the
        backward pass), ``comm_waited_s`` (the part that is not), ``peers_s``; bytes and ranks.
        """
        self._settle()
        peers, waited, whole = zip(*(self._split[1:] or self._split)) if self._split else [()] * 3
        medians = {"comm_s": whole, "comm_waited_s": waited, "peers_s": peers}
        return {
            "ranks": self._peers.world_size,
            "exchange": "nccl" if self._stream else "gloo",
            "comm_bytes": sum(self._sizes),
            **{name: _median(times) for name, times in medians.items()},  # the first step allocates
        }

    def close(self) -> None:
        """Part from the others.  Idempotent."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()


def weights_digest(parameters: Any) -> str:
    """Return a digest of every parameter, bit by bit: equal on ranks that have trained one net."""
    digest = hashlib.blake2b(digest_size=16)
    for parameter in parameters:
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _median(times: Sequence[float]) -> float:
    return float(np.median(times)) if len(times) else 0.0
