"""Clock readings of one rank -> its measured window."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from iobench.core.records import Slices, Steps
from iobench.equations.stalls import Window

Times = npt.NDArray[np.float64]


def between(begun: Sequence[float], ended: Sequence[float]) -> Times:
    """Return the seconds from each reading to the other of the same step."""
    found: Times = np.asarray(ended, float) - np.asarray(begun, float)
    return found


def ran_s(slices: Slices) -> float:
    """Return the seconds that an arm in turns ran."""
    return math.fsum(ended - begun for begun, ended in slices.thawed)


def running(times: npt.ArrayLike, began_s: float, slices: Slices) -> Times:
    """Return readings since ``began_s`` on a clock that stood still while the arm was stopped."""
    begun, ended = np.asarray(slices.thawed, float).T
    before = np.concatenate([[0.0], np.cumsum(ended - begun)])
    at = np.concatenate([[0.0], np.asarray(times, float)]) + began_s
    last = np.clip(np.searchsorted(begun, at, side="right") - 1, 0, None)
    ran: Times = before[last] + np.clip(at, begun[last], ended[last]) - begun[last]
    since: Times = ran[1:] - ran[0]
    return since


def thawed(steps: Steps, began_s: float, slices: Slices) -> Steps:
    """Return the readings on a clock that stood still while the arm was stopped.

    No step is left out: one that was interrupted lasts as long as it ran.
    """
    names = ("request_s", "ready_s", "done_s", "begun_s", "made_s")
    readings = {name: running(getattr(steps, name), began_s, slices).tolist() for name in names}
    return dataclasses.replace(steps, **readings)


def thawed_parts(
    probe: Mapping[str, Sequence[float]], began_s: float, slices: Slices
) -> dict[str, list[float]]:
    """Return the seconds of each part of a serial probe without those that it was stopped for."""
    found = {}
    for part in (name.removesuffix("_s") for name in probe if name.endswith("_s")):
        begun = np.asarray(probe[f"{part}_at"], float)
        ended = begun + np.asarray(probe[f"{part}_s"], float)
        start, end = (running(at, began_s, slices) for at in (begun, ended))
        found[f"{part}_s"] = (end - start).tolist()
    return found


def window(steps: Steps) -> Window:
    """Return the window from the end of the last warm-up step to the end of the last step.

    Raises ValueError when no step is left after the warm-up.
    """
    k = steps.warmup
    if len(steps.done_s) <= k:
        raise ValueError(f"{len(steps.done_s)} steps, all of them warm-up")
    ready, done = np.asarray(steps.ready_s, float), np.asarray(steps.done_s, float)
    return Window(
        block=0,
        steps=len(done) - k,
        samples=int(np.asarray(steps.samples)[k:].sum()),
        wall_s=float(done[-1] - (done[k - 1] if k else 0.0)),
        wait_s=float((ready - np.asarray(steps.request_s, float))[k:].sum()),
        compute_s=float((done - ready)[k:].sum()),
    )


def epoch(steps: Steps, first_s: float = 0.0, workers: int = 0) -> Window:
    """Return the whole loop from an empty queue, as seconds of the slower side.

    ``wall_s = max(arrival of the last batch waited for, last step's end - first arrival)``:
    docs/method.md, "What is measured".  ``first_s``: the first arrival at the last of several ranks
    that step together, before which none trains.  ``workers``: so many make the batches in turn,
    and both times count as if all of them had ended together, at the mean of the times at which
    they made their last batches; these differ by up to as many batches as a worker makes ahead.
    Workers in step deliver bursts: what comes with a batch waited for was there as well.  Without a
    warm-up nothing overlaps (the loader works in the loop itself): all of it counts.  Raises
    ValueError without a step.
    """
    if not steps.done_s:
        raise ValueError("no step")
    if not steps.warmup:
        return window(steps)
    ready, done = np.asarray(steps.ready_s, float), np.asarray(steps.done_s, float)
    compute_s = float((done - ready).sum())
    waits = ready - np.asarray(steps.request_s, float)
    waited_for = 0.5 * min(float(waits.sum()), compute_s) / len(waits)
    arrived, tail_s = float(ready[waits >= waited_for].max()), 0.0
    if workers and steps.made_s:
        tail_s = max(0.0, arrived - float(np.mean(steps.made_s[-workers:])))
    wall_s = max(arrived, float(done[-1]) - max(float(ready[0]), first_s)) - tail_s
    return Window(
        block=0,
        steps=len(done),
        samples=int(np.asarray(steps.samples).sum()),
        wall_s=wall_s,
        wait_s=wall_s - compute_s,
        compute_s=compute_s,
    )
