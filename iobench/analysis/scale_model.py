"""Measured parts of a step on few ranks -> training on many: docs/method.md, "Many ranks"."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from iobench.analysis.evidence import Evidence
from iobench.analysis.scale_results import ScaleModel, ScalePrediction
from iobench.core.cases import Case
from iobench.equations import ssgd
from iobench.equations.ssgd import AllReduce, StepParts

#: Nodes that a prediction is made for.
NODES = tuple(2**k for k in range(11))
#: Ranks that together load less than this share of what they would alone share a limit.
SHARED = 0.9
INPUT, COMPUTE, EXCHANGE = "input", "compute", "exchange"
#: (ranks, nodes) -> seconds in which every rank loads a batch, where that was measured.
_Inputs = Mapping[tuple[int, int], float]


@dataclasses.dataclass(frozen=True)
class _Buckets:
    """The exchange as it was measured on ``ranks`` ranks of ``nodes`` nodes."""

    ranks: int
    nodes: int
    sizes: tuple[float, ...]
    ready_s: tuple[float, ...]
    exchange: AllReduce


def model(found: Evidence, cases: Sequence[Case], cache: str) -> ScaleModel | None:
    """Return the model of a study (its cases by ranks); None without loading and compute.

    ``cases`` have one batch a rank.  The parts: loading on one node with as many ranks, the compute
    rung on one rank, and the buckets of gradients on the most ranks that were measured.
    """
    compute_s, inputs = _alone_s(found, cases), _inputs(found, cases, cache)
    if not inputs or compute_s is None:
        return None
    buckets = _buckets(found, cases)
    step = _step(compute_s, buckets, ahead=cases[0].workers > 0)
    exchange = buckets.exchange if buckets else AllReduce(0.0, 0.0)
    each = max(case.ranks_per_node for case in cases)
    grid = {(case.world_size, case.nodes): case for case in cases}
    measured = {place: _mean_step_s(found, case, "train", cache) for place, case in grid.items()}
    places = sorted({*grid, *((nodes * each, nodes) for nodes in NODES)})
    return ScaleModel(
        cache=cache,
        io_s=inputs[min(inputs)],
        compute_s=compute_s,
        latency_s=exchange.latency_s,
        byte_s=exchange.byte_s,
        exchange_ranks=buckets.ranks if buckets else 0,
        exposed_s=_exposed_s(step, _comm_s(buckets, buckets.ranks)) if buckets else 0.0,
        predictions=[
            _prediction(step, buckets, inputs, place, cases[0].batch, cache, measured.get(place))
            for place in places
        ],
        note=_note(buckets, inputs, cache),
    )


def _prediction(
    step: StepParts, buckets: _Buckets | None, inputs: _Inputs, place: tuple[int, int], batch: int,
    cache: str, measured_s: float | None,
) -> ScalePrediction:  # fmt: skip
    ranks, nodes = place
    comm_s = _comm_s(buckets, ranks) if buckets and ranks > 1 else []
    io_s, worst_s = _io_s(inputs, ranks, nodes, cache)
    likely, worst = (dataclasses.replace(step, io_s=s) for s in (io_s, worst_s))
    seconds = likely.seconds(comm_s)
    return ScalePrediction(
        nodes=nodes,
        ranks=ranks,
        samples_per_s=ranks * batch / seconds,
        worst=ranks * batch / worst.seconds(comm_s),
        limit=_limit(likely, comm_s),
        measured=ranks * batch / measured_s if measured_s else None,
        error=measured_s / seconds - 1 if measured_s else None,
    )


def _inputs(found: Evidence, cases: Sequence[Case], cache: str) -> _Inputs:
    each = {(c.world_size, c.nodes): _mean_step_s(found, c, "load", cache) for c in cases}
    return {place: seconds for place, seconds in each.items() if seconds is not None}


def _io_s(inputs: _Inputs, ranks: int, nodes: int, cache: str) -> tuple[float, float]:
    """Return (seconds in which every rank loads a batch, the same in the worst case).

    What the ranks of a node take from each other is in what was measured on fewest nodes with as
    many ranks on each.  Storage is what nodes share: loading on several that is slower than on one
    has met its limit.
    """
    if (ranks, nodes) in inputs:
        return (inputs[ranks, nodes],) * 2
    near = min(inputs, key=lambda place: (abs(place[0] / place[1] - ranks / nodes), place[1]))
    alone_s = inputs[near]
    if cache != "cold":
        return alone_s, alone_s
    (most, over), slowest_s = max(inputs.items())
    shared_s = slowest_s / most if over > near[1] and alone_s < SHARED * slowest_s else 0.0
    likely_s = max(alone_s, ranks * shared_s)
    return likely_s, max(likely_s, alone_s * ranks / near[0])


def _exposed_s(step: StepParts, comm_s: Sequence[float]) -> float:
    return ssgd.exposed_s(step.backward_s, comm_s) if comm_s else 0.0


def _limit(step: StepParts, comm_s: Sequence[float]) -> str:
    exposed = _exposed_s(step, comm_s)
    if step.io_s + step.h2d_s > step.compute_s + exposed:
        return INPUT
    return EXCHANGE if exposed > step.compute_s else COMPUTE


def _mean_step_s(found: Evidence, case: Case, stage: str, cache: str) -> float | None:
    """Return the seconds in which every rank gets through one batch."""
    windows = found.windows(case, stage, *(("warm", "-") if cache == "warm" else (cache,)))
    each = [w.seconds_per_sample * case.batch * case.world_size for w in windows]
    return fmean(each) if each else None


def _alone_s(found: Evidence, cases: Sequence[Case]) -> float | None:
    """Return the seconds of a step of the compute rung on one rank."""
    for case in cases:
        windows = found.compute(case)[0] if case.world_size == 1 else found.alone(case)
        if windows:
            return fmean(w.step_s for w in windows)
    return None


def _buckets(found: Evidence, cases: Sequence[Case]) -> _Buckets | None:
    """Return the exchange on the most ranks that were measured, in the compute rung or in train."""
    for case in reversed(cases):
        for stage in ("compute", "train"):
            records = found.shared(case, stage) if stage == "compute" else found.of(case, stage)
            each = [_parts_of(r.notes) for record in records for r in record.ranks]
            known = [b for b in each if b]
            if case.world_size > 1 and known and len({len(b) for b in known}) == 1:
                return _mean_buckets(case, known)
    return None


def _parts_of(notes: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return a rank's buckets; one that exchanges all gradients after the backward pass has one."""
    trainer = notes.get("trainer") or {}
    if notes.get("buckets") or not trainer.get("comm_bytes"):
        return notes.get("buckets") or ()
    ready_s = float(trainer.get("forward_s", 0.0)) + float(trainer.get("backward_s", 1.0))
    return [{"bytes": trainer["comm_bytes"], "ready_s": ready_s, "comm_s": trainer["comm_s"]}]


def _mean_buckets(case: Case, known: Sequence[Sequence[Mapping[str, Any]]]) -> _Buckets:
    places = range(len(known[0]))
    sizes, ready, comm = (
        tuple(fmean(float(b[i][key]) for b in known) for i in places)
        for key in ("bytes", "ready_s", "comm_s")
    )
    return _Buckets(case.world_size, case.nodes, sizes, ready, ssgd.fitted(sizes, comm))


def _step(compute_s: float, buckets: _Buckets | None, *, ahead: bool) -> StepParts:
    """Return the parts of one rank's step: what comes before each bucket is ready, and the rest.

    The buckets are ready when they were on several ranks, or sooner where a step is shorter alone.
    """
    if not buckets:
        return StepParts(0.0, compute_s, (), ahead=ahead)
    scale = min(1.0, compute_s / buckets.ready_s[-1])
    ready = [scale * s for s in buckets.ready_s]
    pieces = (ready[0], *(max(0.0, b - a) for a, b in zip(ready, ready[1:], strict=False)))
    update_s = max(0.0, compute_s - sum(pieces))
    return StepParts(0.0, 0.0, pieces, update_s=update_s, ahead=ahead)


def _comm_s(buckets: _Buckets, ranks: int) -> list[float]:
    exchange = ssgd.ring(buckets.exchange, buckets.ranks, ranks)
    return [exchange.seconds(size) for size in buckets.sizes]


def _note(buckets: _Buckets | None, inputs: _Inputs, cache: str) -> str:
    parts = []
    if not buckets:
        parts.append("the ranks exchange no gradients")
    elif not buckets.exchange.latency_s:
        parts.append("latency was not parted from bandwidth, and is none")
    if buckets and buckets.nodes == 1:
        parts.append("the exchange was measured inside one node, not over a network")
    if cache == "cold" and max(nodes for _, nodes in inputs) == 1:
        parts.append("what the storage has for several nodes was not measured: see the worst case")
    return "; ".join(parts)
