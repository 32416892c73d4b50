"""Synchronous SGD on many ranks: the time of a step from the times of its parts.

Sources.  [Shi] Shi, Wang, Chu, arXiv 1711.05979 and 1805.03812, the recurrences as in the authors'
MG-WFBP.  Times are seconds; ``n`` is a number of ranks; "derived" as in stalls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """An all-reduce of so many bytes takes ``latency_s + byte_s * bytes`` ([Shi])."""

    latency_s: float
    byte_s: float

    def seconds(self, nbytes: float) -> float:
        """Return the seconds of one all-reduce."""
        return self.latency_s + self.byte_s * nbytes


def fitted(nbytes: Sequence[float], seconds: Sequence[float]) -> AllReduce:
    """Return the all-reduce that fits measured ones by least squares.

    Where they do not part latency from bandwidth (one size, or a part below 0), all is the bytes'.
    """
    sizes, times = np.asarray(nbytes, float), np.asarray(seconds, float)
    if len(set(nbytes)) > 1:
        byte_s, latency_s = np.polyfit(sizes, times, 1)
        if byte_s >= 0 and latency_s >= 0:
            return AllReduce(float(latency_s), float(byte_s))
    return AllReduce(0.0, float(times @ sizes / (sizes @ sizes)))


def ring(exchange: AllReduce, measured: int, n: int) -> AllReduce:
    """Return the all-reduce on ``n`` ranks of one measured on ``measured`` (2 or more), by a ring.

    A ring takes 2 (n-1) messages of bytes/n each: latency grows with n-1, bytes with (n-1)/n
    (Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009).
    """
    if n < 2:
        return AllReduce(0.0, 0.0)
    latency_s = exchange.latency_s * (n - 1) / (measured - 1)
    return AllReduce(latency_s, exchange.byte_s * ((n - 1) / n) / ((measured - 1) / measured))


def exchanges_s(backward_s: Sequence[float], comm_s: Sequence[float]) -> list[tuple[float, float]]:
    """Return (begin, end) of every exchange under wait-free backpropagation ([Shi]).

    Both in the order of the backward pass, whose start is 0: the exchange of a layer begins when
    its gradients are there and the one before is through.
    """
    found, ready, free = [], 0.0, 0.0
    for backward, comm in zip(backward_s, comm_s, strict=True):
        ready += backward
        begin = max(ready, free)
        free = begin + comm
        found.append((begin, free))
    return found


def exposed_s(backward_s: Sequence[float], comm_s: Sequence[float]) -> float:
    """Return t_c_no, the part of the exchanges that the backward pass does not hide ([Shi])."""
    return exchanges_s(backward_s, comm_s)[-1][1] - sum(backward_s)


@dataclasses.dataclass(frozen=True)
class StepParts:
    """The parts of one rank's step: a batch fetched and prepared, copied to the device, forward,
    backward of each layer or bucket (in the order of the backward pass), update.

    ``ahead``: the next batch is made while this one is computed on.
    """

    io_s: float
    forward_s: float
    backward_s: tuple[float, ...]
    update_s: float = 0.0
    h2d_s: float = 0.0
    ahead: bool = True

    @property
    def compute_s(self) -> float:
        """Forward, backward and update."""
        return self.forward_s + sum(self.backward_s) + self.update_s

    def seconds(self, comm_s: Sequence[float] = (), *, wait_free: bool = True) -> float:
        """Return the time of a step whose exchanges take ``comm_s`` (in the order of
        ``backward_s``; (): one rank) ([Shi]).

        ``wait_free``: exchanges run while the backward pass goes on; else after it.
        """
        comm = 0.0
        if comm_s:
            comm = exposed_s(self.backward_s, comm_s) if wait_free else sum(comm_s)
        fetch, rest = self.io_s + self.h2d_s, self.compute_s + comm
        return max(fetch, rest) if self.ahead else fetch + rest


def shared_io_s(io_s: float, n: int, *, nbytes: float, bytes_per_s: float | None) -> float:
    """Return t_io(n) of ranks that read ``nbytes`` each from one storage (derived).

    ``bytes_per_s``: what it has for all; None: no limit is known.
    """
    return max(io_s, n * nbytes / bytes_per_s) if bytes_per_s else io_s
