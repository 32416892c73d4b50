"""How the ranks of a case find one another, and what their trainers measure of it.

A trainer that takes ``peers`` gets :class:`Peers`.  It may have ``exchanges() -> Mapping[str,
Sequence[float]]``: ``peers_s`` and ``exchange_s`` of :class:`iobench.core.records.Steps`; and
``buckets()``: for each part of the gradients that is exchanged by itself, in order, medians over
the steps: ``bytes``, ``ready_s`` after the batch was there, ``comm_s`` of its exchange.
"""

from __future__ import annotations

from typing import Callable, NamedTuple


class Peers(NamedTuple):
    """The ranks of a case, as one of them finds the others.

    ``address``: of this rank's node, as the others reach it.  ``agree``: gives every rank the value
    of rank 0; all ranks call it equally often, in one order.
    """

    rank: int
    world_size: int
    address: str
    agree: Callable[[str], str]
