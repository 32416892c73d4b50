"""A stated accelerator's step time, slept: the host is as idle as beside a real accelerator.

Several ranks may exchange gradients for real, while their backward passes are slept."""

from __future__ import annotations

import time
from typing import Annotated, Any, Callable, Dict, List, Mapping, Optional, Sequence

from iobench.backends.trainers import _torch_ranks
from iobench.core.accelerators import WORKLOADS
from iobench.core.cases import Batch, Case, Scalar
from iobench.core.clock import clock as real_clock
from iobench.core.errors import SpecError
from iobench.core.members import TrainerBackend
from iobench.core.options import Count, Range, Seconds
from iobench.core.peers import Peers
from iobench.core.protocols import Trainer

#: Of ResNet-50 on ImageNet-sized images.
ACCELERATORS = WORKLOADS["resnet50"].accelerators
DEFAULT = "v100"
#: Share of the forward pass in a step: the backward pass computes two gradients a layer.
FORWARD = 1 / 3


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
        exchange_bytes: Count = 0,
        buckets: Annotated[int, Range(1, 1000)] = 4,
        peers: Optional[Peers] = None,
        clock: Callable[[], float] = real_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``accelerator``: v100 (default), a100 or h100; or ``step_s``: seconds a step.

        ``exchange_bytes``: gradients that several ranks exchange in every step, in ``buckets`` of
        equal size; one after the other is ready during the last two thirds of the step.
        """
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
        self._ranks: Optional[_torch_ranks.TorchRanks] = None
        self._gradients: List[Any] = []
        if exchange_bytes and peers and peers.world_size > 1:
            import torch

            self._ranks = _torch_ranks.TorchRanks(peers)
            size = -(-exchange_bytes // (4 * buckets))
            self._gradients = [torch.zeros(size) for _ in range(buckets)]

    def step(self, batch: Batch) -> None:
        """Return when the step's time is over; the batch is not looked at."""
        if self._ranks:
            self._exchange(self._ranks)
            return
        clock = self._clock
        deadline = clock() + self._step_s
        if self._sleep_s > 0:
            self._sleep(self._sleep_s)
        while clock() < deadline:
            pass

    def _exchange(self, ranks: _torch_ranks.TorchRanks) -> None:
        """Do a step whose buckets of gradients are exchanged while the rest is computed."""
        ranks.begin()
        begun = self._clock()
        forward_s = FORWARD * self._step_s
        each_s = (self._step_s - forward_s) / len(self._gradients)
        exchanges = []
        for i, gradients in enumerate(self._gradients, 1):
            self._until(begun + forward_s + i * each_s)
            exchanges.append(ranks.reduce(gradients))
        for exchange in exchanges:
            exchange.wait()

    def _until(self, deadline: float) -> None:
        rest = deadline - self._spin_s - self._clock()
        if rest > 0:
            self._sleep(rest)
        while self._clock() < deadline:
            pass

    def exchanges(self) -> Mapping[str, Sequence[float]]:
        """Return what every step waited for the other ranks, and for the exchange."""
        return self._ranks.exchanges() if self._ranks else {}

    def buckets(self) -> Sequence[Mapping[str, float]]:
        """Return what each bucket of gradients took: bytes, ready_s, comm_s."""
        return self._ranks.buckets() if self._ranks else []

    def close(self) -> None:
        """Part from the other ranks.  Idempotent."""
        if self._ranks:
            self._ranks.close()
            self._ranks = None

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
        if self._ranks:
            facts.update(self._ranks.describe())
        return facts


def _guess(batch: int, options: Mapping[str, Any]) -> float:
    return step_seconds(batch, options.get("accelerator") or None, options.get("step_s"))


def _unused(case: Case) -> Mapping[str, str]:
    found = {}
    if case.trainer_options.get("busy"):
        found["trainer_options.spin_s"] = "a busy trainer spins all the time"
    if case.world_size == 1 and case.trainer_options.get("exchange_bytes"):
        found["trainer_options.exchange_bytes"] = "one rank has nobody to exchange with"
    if case.world_size == 1 or not case.trainer_options.get("exchange_bytes"):
        found["trainer_options.buckets"] = "no gradients are exchanged"
    return found


BACKEND = TrainerBackend(
    EmulatedTrainer,
    "a stated accelerator's step time, slept: v100, a100, h100 (ResNet-50), or step_s=",
    step_s=_guess,
    ranks=True,
    unused=_unused,
)
