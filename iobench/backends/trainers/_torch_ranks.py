"""Ranks that exchange gradients by torch.distributed: how they meet, and what an exchange takes.

A rank that waits for a peer waits inside the exchange, where the peer's late batch would look like
a slow network.  So every rank records when it has the gradients of each bucket, and after the loop
the ranks compare: what passes until the last rank has come is the peers', what passes from then on
is the exchange's.  Nothing is sent for it during the loop.  The clocks of ranks on different hosts
are compared by round trips before and after the loop (Cristian 1989); of each series the shortest
counts, and half of it bounds the error.
"""

from __future__ import annotations

import hashlib
import socket
from array import array
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from iobench.core.cases import Scalar
from iobench.core.clock import clock as real_clock
from iobench.core.errors import BackendUnavailable
from iobench.core.peers import Peers

#: Round trips by which two clocks are compared: that one of them meets no other work.
PINGS = 30


def split(
    ready: Sequence[float], met: Sequence[float], done: Sequence[float]
) -> Tuple[float, float, float]:
    """Return (waited for peers, waited for the exchange, exchange in all) of one step, in seconds.

    Clock readings of every bucket, in the order in which they are sent: when this rank had its
    gradients, when the last rank had come with its own, when they were exchanged.  The first wait
    begins with this rank's last bucket and ends with the last rank's; what passes from then on is
    the second, the same on all ranks.
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


class Compared(NamedTuple):
    """At reading ``at`` of this rank's clock rank 0's showed ``ahead_s`` more, give or take
    ``error_s``.
    """

    at: float
    ahead_s: float
    error_s: float


class TorchRanks:
    """The ranks of a case, connected by gloo: a ``begin`` a step, a ``reduce`` for every bucket.

    Readings of clocks are this rank's own, in seconds.
    """

    def __init__(self, peers: Peers, *, clock: Callable[[], float] = real_clock) -> None:
        """Connect all ranks.  Raises BackendUnavailable where this torch cannot."""
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
        dist.barrier()  # gloo connects two ranks when they first talk: not in the loop
        self._compared = [self._compare()]

    def begin(self) -> None:
        """Begin a step: the batch is there."""
        self._begins.append((self._clock(), len(self._ready)))
        self._sizes = []

    def reduce(self, gradients: Any) -> Any:
        """Begin to replace a tensor by its mean over the ranks; return the future of it.

        All ranks call it with equal tensors, in one order.
        """
        place = len(self._ready)
        self._ready.append(self._clock())
        self._done.append(0.0)
        self._sizes.append(int(gradients.nbytes))
        work = self._dist.all_reduce(gradients, async_op=True)

        def mean(future: Any) -> Any:
            self._done[place] = self._clock()
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
        self._compared.append(self._compare())
        at, ahead = zip(*((each.at, each.ahead_s) for each in self._compared))
        ready = np.array(self._ready)
        shift = np.interp(ready, at, ahead)  # clocks drift apart evenly
        last_ready: Any = self._torch.from_numpy(ready + shift)
        self._dist.all_reduce(last_ready, op=self._dist.ReduceOp.MAX)
        met = (last_ready.numpy() - shift).tolist()
        firsts = [first for _, first in self._begins]
        for (begun, first), last in zip(self._begins, [*firsts[1:], len(met)]):
            times = self._ready[first:last], met[first:last], self._done[first:last]
            self._split.append(split(*times))
            self._spans.append(spans(begun, *times))

    def _compare(self) -> Compared:
        """Compare this rank's clock with rank 0's, by round trips.  All ranks call it."""
        reading: Any = self._torch.zeros(1, dtype=self._torch.float64)
        if not self._peers.rank:
            for other in range(1, self._peers.world_size):
                for _ in range(PINGS):
                    self._dist.recv(reading, src=other)
                    reading[0] = self._clock()
                    self._dist.send(reading, dst=other)
            return Compared(self._clock(), 0.0, 0.0)
        found = []
        for _ in range(PINGS):
            sent = self._clock()
            self._dist.send(reading, dst=0)
            self._dist.recv(reading, src=0)
            back = self._clock()
            middle = (sent + back) / 2
            found.append(Compared(middle, reading.item() - middle, (back - sent) / 2))
        return min(found, key=lambda each: each.error_s)

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
        backward pass), ``comm_waited_s`` (the part that is not), ``peers_s``; bytes, ranks, and
        ``clock_error_s``, by which this rank's clock may differ from rank 0's after comparing.
        """
        self._settle()
        peers, waited, whole = zip(*(self._split[1:] or self._split)) if self._split else [()] * 3
        medians = {"comm_s": whole, "comm_waited_s": waited, "peers_s": peers}
        return {
            "ranks": self._peers.world_size,
            "exchange": "gloo",
            "comm_bytes": sum(self._sizes),
            "clock_error_s": max(each.error_s for each in self._compared),
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
