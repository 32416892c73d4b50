"""Real training by Caffe: its solver, stepped phase by phase, on batches handed over by pointer."""

from __future__ import annotations

import hashlib
import math
import statistics
import tempfile
from array import array
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from iobench.backends.caffe import gradients, layers, library, nets
from iobench.backends.trainers import _roofs
from iobench.backends.trainers._caffe import SolverTrainer, judge, unused
from iobench.backends.trainers._torch_nets import fitting_labels
from iobench.core.cases import Batch, Scalar
from iobench.core.clock import clock
from iobench.core.errors import SpecError
from iobench.core.members import TrainerBackend

_MANY = 1 << 30


class CaffeTrainer(SolverTrainer):
    """One solver; a step is forward, backward and update, each timed (clearing the gradients is
    the update's).

    Several ranks exchange gradients before the update (:mod:`iobench.backends.caffe.gradients`).
    """

    def _begin(self, threads: int, world_size: int, sharers: int) -> None:
        batch = self._batch
        job = self._job(layers.memory(batch, self._shape), _MANY)
        caffe = library.load()
        self._blas = library.set_threads(threads, sharers)
        with tempfile.TemporaryDirectory(prefix="iobench-caffe-") as folder:
            self._solver: Any = caffe.get_solver(str(job.write(Path(folder))))
        self._net: Any = self._solver.net
        self._last = len(self._net.layers) - 1
        self._exchange = gradients.mean(_learned(self._net), world_size)
        self._exchange.broadcast()
        self._name = job.name
        self._version = str(caffe.__version__)
        self._score = _score_of(self._net)
        self._classes = int(self._net.blobs[self._score].data.shape[1])
        self._parameters = job.parameters or sum(int(b.count) for b in _learned(self._net))
        self._labels = np.zeros((batch, 1, 1, 1), np.float32)
        self._address = 0
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
            digest = hashlib.blake2b(self._losses.tobytes(), digest_size=16)
            facts["losses_digest"] = digest.hexdigest()
        return {**facts, **self._facts_of(self._losses)}

    def flop(self, batch: Batch) -> Mapping[str, Scalar]:
        """Return the FLOP of one step, counted from the net, and the machine's roofs."""
        threads = int(self._blas["threads"] or 1)
        flop = _roofs.layers_flop(_multiplying(self._net))
        return _roofs.noted(flop, self._batch, threads, _roofs.of_numpy(threads))

    def exchanges(self) -> Mapping[str, Sequence[float]]:
        """Return what every step waited for the other ranks, and for the exchange."""
        found: Mapping[str, Sequence[float]] = self._exchange.exchanges()
        return found

    def close(self) -> None:
        """Free the net.  Idempotent."""
        self._net = self._solver = None
        self._exchange = gradients.Alone()

    def _give(self, batch: Batch) -> np.ndarray:
        """Point the net at a batch; the array returned must live until it was read."""
        labels = fitting_labels(
            batch, "caffe", self._name, (self._batch, *self._shape), self._classes
        )
        self._labels[:, 0, 0, 0] = labels
        data = np.ascontiguousarray(batch.data, np.float32)
        address = library.address_of(data)
        if address != self._address:  # the net keeps what it is given: an array that owns nothing
            given = library.view(address, data.shape)
            self._net._set_input_arrays(given, self._labels)
            self._address = address
        return data


def _score_of(net: Any) -> str:
    """Return the blob that the (last) loss layer compares with the labels.

    Raises SpecError for a net without a softmax loss.
    """
    kinds = dict(zip(net._layer_names, (layer.type for layer in net.layers)))
    losses = [name for name, kind in kinds.items() if kind == "SoftmaxWithLoss"]
    if not losses:
        raise SpecError(f"the net has no SoftmaxWithLoss layer: its layers are {sorted(kinds)}")
    return str(net.bottom_names[losses[-1]][0])


def _multiplying(net: Any) -> List[Tuple[int, int, bool]]:
    """Return the layers of a net that multiply by weights, as ``_roofs.layers_flop`` takes them.

    A convolution applies its weights at every place of every output; a linear layer once a sample.
    What reads the batch itself needs no gradient of it.
    """
    found, batch = [], net.top_names[net._layer_names[0]][0]
    for name, layer in zip(net._layer_names, net.layers):
        if layer.type not in ("Convolution", "InnerProduct"):
            continue
        top = net.blobs[net.top_names[name][0]].data.shape
        places = top[0] * (math.prod(top[2:]) if layer.type == "Convolution" else 1)
        weights = math.prod(net.params[name][0].data.shape)
        found.append((weights, places, batch not in net.bottom_names[name]))
    return found


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
    judge=judge,
    unused=unused,
    ranks=True,
)
