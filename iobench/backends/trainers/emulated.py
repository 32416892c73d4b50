"""A stated accelerator's step time, slept: the host is as idle as beside a real accelerator."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Mapping, Optional

from iobench.core.accelerators import WORKLOADS
from iobench.core.cases import Batch, Case, Scalar
from iobench.core.clock import clock as real_clock
from iobench.core.errors import SpecError
from iobench.core.members import TrainerBackend
from iobench.core.options import Seconds
from iobench.core.protocols import Trainer

#: Of ResNet-50 on ImageNet-sized images.
ACCELERATORS = WORKLOADS["resnet50"].accelerators
DEFAULT = "v100"


def step_seconds(
    batch: int, accelerator: Optional[str] = None, step_s: Optional[float] = None
) -> float:
    """Return seconds a step: ``step_s`` as it is, or the table's value scaled by the batch.

    Scaling is linear, batch / the table's batch: a real accelerator is less efficient at small
    batches.  Raises SpecError when both are given, or a value is not possible.
    """
    if step_s is not None:
        if accelerator is not None:
            raise SpecError("accelerator and step_s are both given: give one of them")
        if step_s < 0:
            raise SpecError(f"step_s {step_s} is not possible; allowed: 0 or more seconds")
        return float(step_s)
    name = accelerator or DEFAULT
    if name not in ACCELERATORS:
        raise SpecError(
            f"accelerator {name!r} is not known; allowed: {', '.join(sorted(ACCELERATORS))}, "
            "or give step_s"
        )
    nominal = ACCELERATORS[name]
    return nominal.step_s * batch / nominal.batch


class EmulatedTrainer(Trainer):
    """Returns from each step at an absolute deadline: its start plus the step's seconds.

    It sleeps until ``spin_s`` before the deadline (timers wake late by 50-100 microseconds) and
    spins the rest.  ``busy`` spins throughout, as a framework that polls its device does: that
    takes a core from the loader and is another trainer, never to be pooled with this one.
    """

    def __init__(
        self,
        *,
        batch: int,
        accelerator: Optional[str] = None,
        step_s: Optional[Seconds] = None,
        spin_s: Seconds = 200e-6,
        busy: bool = False,
        clock: Callable[[], float] = real_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``accelerator``: v100 (default), a100 or h100; or ``step_s``: seconds a step."""
        if spin_s < 0:
            raise SpecError(f"spin_s {spin_s} is not possible; allowed: 0 or more seconds")
        self._batch = batch
        self._accelerator = "" if step_s is not None else accelerator or DEFAULT
        self._step_s = step_seconds(batch, accelerator, step_s)
        self._spin_s = self._step_s if busy else min(spin_s, self._step_s)
        self._sleep_s = self._step_s - self._spin_s
        self._busy = busy
        self._clock = clock
        self._sleep = sleep

    def step(self, batch: Batch) -> None:
        """Return when the step's time is over; the batch is not looked at."""
        clock = self._clock
        deadline = clock() + self._step_s
        if self._sleep_s > 0:
            self._sleep(self._sleep_s)
        while clock() < deadline:
            pass

    def describe(self) -> Mapping[str, Scalar]:
        """Return the step's seconds and where they come from."""
        facts: Dict[str, Scalar] = {
            "kind": "emulated-busy" if self._busy else "emulated",
            "device": "cpu",
            "batch": self._batch,
            "step_s": self._step_s,
            "busy": self._busy,
            "spin_s": self._spin_s,
        }
        if self._accelerator:
            nominal = ACCELERATORS[self._accelerator]
            facts.update(
                accelerator=self._accelerator,
                nominal_batch=nominal.batch,
                nominal_step_s=nominal.step_s,
                scaled_by=self._batch / nominal.batch,
            )
        return facts


def _guess(batch: int, options: Mapping[str, Any]) -> float:
    return step_seconds(batch, options.get("accelerator") or None, options.get("step_s"))


def _unused(case: Case) -> Mapping[str, str]:
    if case.trainer_options.get("busy"):
        return {"trainer_options.spin_s": "a busy trainer spins all the time"}
    return {}


BACKEND = TrainerBackend(
    EmulatedTrainer,
    "a stated accelerator's step time, slept: v100, a100, h100 (ResNet-50), or step_s=",
    step_s=_guess,
    ranks=True,
    unused=_unused,
)
