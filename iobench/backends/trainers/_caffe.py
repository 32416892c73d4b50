"""What both Caffe trainers share: their options, what Caffe is asked to train, and its losses."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Mapping, Sequence

from iobench.backends.caffe import layers, nets
from iobench.backends.caffe import solver as solvers
from iobench.backends.caffe.prototxt import Message
from iobench.core import registry
from iobench.core.cases import Case, Scalar
from iobench.core.errors import SpecError
from iobench.core.options import Count, Rate
from iobench.core.own_images import is_own
from iobench.core.protocols import Trainer


class SolverTrainer(Trainer):
    """Training by a solver of Caffe; a subclass runs it."""

    #: What a record should say of every run.
    _remark = ""

    def __init__(
        self,
        *,
        batch: int,
        rank: int = 0,
        world_size: int = 1,
        sharers: int = 1,
        labels: int = 0,
        net: str = nets.DEFAULT_NET,
        classes: Count = 0,  # 0: the published number, or as many as the data's labels need
        learning_rate: Rate = 0.01,
        momentum: Rate = 0.9,
        weight_decay: Rate = 0.0005,
        seed: Count = 0,
        threads: Count = 0,  # of OpenBLAS (0: the rank's share of the cores)
        solver: str = "",
        losses: bool = False,  # record the loss of every step
    ) -> None:
        """``solver``: a file of the user's, whose net and rule count instead of ``net``,
        ``classes`` and the rates.

        Raises SpecError for an unknown net or a solver that does not fit.
        """
        if threads < 0 or classes < 0 or seed < 0:
            raise SpecError("threads, classes and seed must be 0 (the default) or more")
        self._shape = nets.input_shape({"net": net, "solver": solver})
        self._batch, self._net_name, self._users = batch, net, solver
        self._classes = 0 if solver else nets.classes(net, classes, labels)
        self._rates = {
            "base_lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay,
        }  # fmt: skip
        self._seed = seed + rank  # each rank its own crops, mirrors and dropout
        self._keep_losses = losses
        self._begin(threads, world_size, sharers)

    def _begin(self, threads: int, world_size: int, sharers: int) -> None:
        """Get ready to train; options as above."""
        raise NotImplementedError

    def _job(
        self, data: Message, steps: int, *, display: int = 0, frozen: bool = False
    ) -> solvers.SolverJob:
        """Return what Caffe is asked to train on this data layer (:func:`solver.running`)."""
        frozen = frozen or self._rates["base_lr"] == 0
        run = solvers.running(steps, self._seed, display, frozen=frozen)
        if self._users:
            return solvers.users(self._users, data, run)
        return solvers.ours(self._net_name, data, self._classes, run, **self._rates)

    def _facts_of(self, losses: Sequence[float]) -> Dict[str, Scalar]:
        """Return what is recorded of the steps' losses, with a remark where they vanished."""
        facts: Dict[str, Scalar] = {}
        if losses:
            facts = {"first_loss": losses[0], "last_loss": losses[-1]}
        remarks = [remark for remark in (self._remark, solvers.vanished(losses)) if remark]
        if remarks:
            facts["remark"] = "; ".join(remarks)
        if self._keep_losses:
            facts["losses"] = " ".join(f"{loss:.9g}" for loss in losses)
        return facts


def judge(case: Case) -> None:
    """Raise SpecError for a solver of the user's that the trainer cannot use where it runs."""
    path = case.trainer_options.get("solver")
    if not path:
        return
    if registry.load("runtimes", case.runtime).isolated and not is_own(case.image):
        raise SpecError(
            f"solver = {path!r} is a file of this host, which runtime {case.runtime!r} does not "
            "show; allowed: runtime bare or unpacked"
        )
    if not Path(str(path)).is_absolute():
        raise SpecError(f"solver = {path!r}: write its whole path; workers start elsewhere")
    if not is_own(case.image):
        data = layers.memory(case.batch, nets.input_shape(case.trainer_options))
        solvers.users(str(path), data, solvers.running(1, 0, 0))


def unused(case: Case) -> Mapping[str, str]:
    """Return the options that a solver of the user's replaces, with the reason."""
    kept = ("solver", "seed", "threads", "losses")
    replaced = [key for key in case.trainer_options if key not in kept]
    why = "the solver's own counts"
    return {f"trainer_options.{key}": why for key in replaced if case.trainer_options.get("solver")}
