"""What the analysis finds across numbers of ranks, as values; the keys of ``analysis.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from iobench.equations.stats import Interval

WEAK, STRONG = "weak", "strong"


@dataclasses.dataclass(frozen=True)
class ScalePoint:
    """One rung of one case against the same rung of its study's smallest case.

    ``speedup``: how many times more samples/s; ``efficiency``: that, over how many times more
    ranks.  ``paired``: both ran in the same blocks.
    """

    case: str
    nodes: int
    ranks: int
    stage: str
    cache: str
    samples_per_s: Interval
    speedup: Interval
    efficiency: Interval
    paired: bool
    standing: str


@dataclasses.dataclass(frozen=True)
class ScalePrediction:
    """Training on so many ranks by the model, samples/s.

    ``worst``: where all ranks share what storage gives to those that were measured; equal to
    ``samples_per_s`` from memory.  ``limit``: input, compute or exchange.  ``measured`` and
    ``error`` (predicted / measured - 1): None where nobody measured it.
    """

    nodes: int
    ranks: int
    samples_per_s: float
    worst: float
    limit: str
    measured: float | None = None
    error: float | None = None


@dataclasses.dataclass(frozen=True)
class ScaleModel:
    """Training at one cache state as its parts say: docs/method.md, "Many ranks".

    ``latency_s``, ``byte_s``: of the exchange, as on ``exchange_ranks`` (0: none was measured).
    ``exposed_s``: what is not hidden there.  ``note``: what the figures leave out.
    """

    cache: str
    io_s: float
    compute_s: float
    latency_s: float
    byte_s: float
    exchange_ranks: int
    exposed_s: float
    predictions: Sequence[ScalePrediction]
    note: str


@dataclasses.dataclass(frozen=True)
class ScalingStudy:
    """Cases that differ in ranks and nodes: one batch a rank (weak), or one in all (strong)."""

    name: str
    kind: str
    points: Sequence[ScalePoint]
    models: Sequence[ScaleModel] = ()


@dataclasses.dataclass(frozen=True)
class StragglerResult:
    """A rank that takes longer for its own part of a step than the others, in every repeat.

    ``excess_s``: seconds a step more than the median of the others; ``share``: of theirs.
    ``cause``: read, decode, compute or arrival.  ``others_wait_s``: what the others wait for it in
    a step, the one that waits longest (None: they do not wait, or the trainer does not count it).
    """

    case: str
    stage: str
    cache: str
    rank: int
    node: str
    excess_s: Interval
    share: float
    cause: str
    standing: str
    others_wait_s: float | None = None


@dataclasses.dataclass(frozen=True)
class StartResult:
    """How long it takes until all ranks of a case have started and imported their libraries.

    ``seconds``: from the start of the launcher or runtime; its mean is ``before_s`` (launcher and
    runtime, before the slowest rank's interpreter), ``python_s`` (the interpreter and this package)
    and ``imports_s`` (the libraries) together.  ``bytes``: of the software, ``fetched``: of them
    brought into memory meanwhile, on all nodes; None: not known.
    """

    case: str
    runtime: str
    form: str
    nodes: int
    ranks: int
    cache: str
    seconds: Interval
    before_s: float
    python_s: float
    imports_s: float
    bytes: float | None
    fetched: float | None
    filesystem: str
    standing: str
