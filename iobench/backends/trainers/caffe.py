"""Real training by Caffe: its solver, stepped phase by phase, on batches handed over by pointer."""

from __future__ import annotations

import hashlib
import statistics
import tempfile
from array import array
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

from iobench.backends.caffe import gradients, layers, library, nets
from iobench.backends.caffe import solver as solvers
from iobench.core.cases import Batch, Scalar
from iobench.core.clock import clock
from iobench.core.errors import SpecError
from iobench.core.members import TrainerBackend
from iobench.core.protocols import Trainer

_MANY = 1 << 30


class CaffeTrainer(Trainer):
    """One solver; a step is forward, backward and update, each timed (clearing the gradients is
    the update's).

    Of several ranks each has one, begins with the weights of rank 0 and, between backward and
    update, takes the mean of all ranks' gradients (:mod:`iobench.backends.caffe.gradients`).
    """

    def __init__(
        self,
        *,
        batch: int,
        rank: int = 0,
        world_size: int = 1,
        sharers: int = 1,
        labels: int = 0,
        net: str = nets.DEFAULT_NET,
        classes: int = 0,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0005,
        seed: int = 0,
        threads: int = 0,
        solver: str = "",
        losses: bool = False,
    ) -> None:
        """``classes``: 0 for the published number, or as many as the data's ``labels`` need.
        ``threads``: of OpenBLAS (0: the rank's share of the cores).  ``solver``: a solver file of
        the user's, whose net and rule count instead of ``net``, ``classes`` and the rates.
        ``losses``: record the loss of every step, not its digest alone.

        Raises SpecError for an unknown net or a solver that does not fit.
        """
        if threads < 0 or classes < 0 or seed < 0:
            raise SpecError("threads, classes and seed must be 0 (the default) or more")
        shape = nets.input_shape({"net": net, "solver": solver})
        data = layers.memory(batch, shape)
        frozen = learning_rate == 0
        # each rank its own crops, mirrors and dropout
        run = solvers.running(_MANY, seed + rank, frozen=frozen)
        if solver:
            job = solvers.users(solver, data, run)
        else:
            settings = solvers.SolverSettings(learning_rate, momentum, weight_decay)
            job = solvers.ours(net, data, nets.classes(net, classes, labels), settings, run)
        caffe = library.load()
        self._blas = library.set_threads(threads, sharers)
        with tempfile.TemporaryDirectory(prefix="iobench-caffe-") as folder:
            self._solver: Any = caffe.get_solver(str(job.write(Path(folder))))
        self._net: Any = self._solver.net
        self._last = len(self._net.layers) - 1
        self._exchange = gradients.mean(_learned(self._net), world_size)
        self._exchange.broadcast()
        self._shape, self._batch, self._name = (batch, *shape), batch, job.name
        self._version = str(caffe.__version__)
        self._score = _score_of(self._net)
        self._classes = int(self._net.blobs[self._score].data.shape[1])
        self._parameters = job.parameters or sum(int(b.count) for b in _learned(self._net))
        self._labels = np.zeros((batch, 1, 1, 1), np.float32)
        self._address = 0
        self._keep_losses = losses
        self._losses = array("f")
        self._times: Tuple[array[float], ...] = (array("d"), array("d"), array("d"))

    def step(self, batch: Batch) -> None:
        """Forward, backward and update on one batch of (n, 3, h, w) float32.

        Raises SpecError when the batch's shape or labels do not fit the net.
        """
        data = self._give(batch)
        net = self._net
        begun = clock()
        net.clear_param_diffs()
        cleared = clock()
        loss = net._forward(0, self._last)
        forward = clock()
        net._backward(self._last, 0)
        backward = clock()
        self._exchange()
        exchanged = clock()
        self._solver.apply_update()
        done = clock()
        del data  # the net reads it no more
        self._losses.append(loss)
        forwards, backwards, updates = self._times
        forwards.append(forward - cleared)
        backwards.append(backward - forward)
        updates.append(cleared - begun + done - exchanged)

    def right(self, batch: Batch) -> int:
        """Return how many of a batch's samples the net, as it is, gives their own class.

        In the training phase: a net with dropout or batch normalisation does worse than it could.
        """
        data = self._give(batch)
        self._net._forward(0, self._last)
        del data
        scores = self._net.blobs[self._score].data.reshape(self._batch, -1)
        return int((scores.argmax(axis=1) == np.asarray(batch.labels)).sum())

    def describe(self) -> Mapping[str, Scalar]:
        """Return the net, its parameters and threads, the phases' medians and means, the losses.

        ``losses_digest`` is of every step's loss, bit by bit.
        """
        facts: Dict[str, Scalar] = {
            "kind": "caffe",
            "net": self._name,
            "parameters": self._parameters,
            "classes": self._classes,
            "batch": self._batch,
            "device": self.device,
            "version": self._version,
            **self._blas,
            **self._exchange.describe(),
        }
        for name, times in zip(("forward_s", "backward_s", "update_s"), self._times):
            rest = times[1:] or times  # the first step allocates
            if rest:
                facts[name] = statistics.median(rest)
                facts[name.replace("_s", "_mean_s")] = statistics.fmean(rest)
        if self._losses:
            facts["first_loss"], facts["last_loss"] = self._losses[0], self._losses[-1]
            digest = hashlib.blake2b(self._losses.tobytes(), digest_size=16)
            facts["losses_digest"] = digest.hexdigest()
        remark = solvers.vanished(self._losses)
        if remark:
            facts["remark"] = remark
        if self._keep_losses:
            facts["losses"] = " ".join(f"{loss:.9g}" for loss in self._losses)
        return facts

    def close(self) -> None:
        """Free the net.  Idempotent."""
        self._net = self._solver = None
        self._exchange = gradients.Alone()

    def _give(self, batch: Batch) -> np.ndarray:
        """Point the net at a batch; the array returned must live until it was read."""
        if batch.data is None:
            raise SpecError("the caffe trainer needs batches with data: use a loader that has them")
        data = np.ascontiguousarray(batch.data, np.float32)
        if data.shape != self._shape:
            raise SpecError(
                f"net {self._name} takes {_by(self._shape)}, the batch is {_by(data.shape)}: "
                "choose a transform that fits"
            )
        labels = np.asarray(batch.labels)
        if labels.min() < 0 or labels.max() >= self._classes:
            raise SpecError(
                f"label {labels.max()} is beyond the {self._classes} classes of net {self._name}: "
                f"set trainer option classes to {labels.max() + 1} or more"
            )
        self._labels[:, 0, 0, 0] = labels
        address = library.address_of(data)
        if address != self._address:  # the net keeps what it is given: an array that owns nothing
            given = library.view(address, data.shape)
            self._net._set_input_arrays(given, self._labels)
            self._address = address
        return data


def _by(shape: Tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _score_of(net: Any) -> str:
    """Return the blob that the (last) loss layer compares with the labels.

    Raises SpecError for a net without a softmax loss.
    """
    kinds = dict(zip(net._layer_names, (layer.type for layer in net.layers)))
    losses = [name for name, kind in kinds.items() if kind == "SoftmaxWithLoss"]
    if not losses:
        raise SpecError(f"the net has no SoftmaxWithLoss layer: its layers are {sorted(kinds)}")
    return str(net.bottom_names[losses[-1]][0])


def _learned(net: Any) -> List[Any]:
    """Return all parameters but batch normalisation's statistics."""
    kinds = dict(zip(net._layer_names, (layer.type for layer in net.layers)))
    return [
        blob for name, found in net.params.items() if kinds[name] != "BatchNorm" for blob in found
    ]


BACKEND = TrainerBackend(
    CaffeTrainer,
    "real training by Caffe (CPU): alexnet, caffenet, googlenet, resnet18, resnet50, or solver=",
    requires=("caffe",),
    stack="caffe",
    step_s=nets.step_s,
    shape=nets.input_shape,
    ranks=True,
)
