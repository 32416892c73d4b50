"""Real training by torch: SGD with momentum, cross entropy on the real labels; data parallel."""

from __future__ import annotations

import os
from typing import Any, Dict, Literal, Mapping, Optional, Sequence

import numpy as np

from iobench.backends.trainers import _roofs, _torch_nets, _torch_ranks
from iobench.core.cases import Batch, Scalar
from iobench.core.errors import BackendUnavailable, SpecError
from iobench.core.members import TrainerBackend
from iobench.core.options import Count, Rate
from iobench.core.peers import Peers
from iobench.core.protocols import Trainer
from iobench.host import gpus

DEFAULT_NET = "resnet18"


class TorchTrainer(Trainer):
    """Trains one of the nets of ``_torch_nets``; a step returns when the device has finished it.

    Several ranks are torch's DistributedDataParallel: they begin with rank 0's weights and exchange
    gradients, bucket by bucket, while the backward pass goes on.  BatchNorm's statistics are each
    rank's own.
    """

    def __init__(
        self,
        *,
        batch: int,
        labels: int = 0,
        net: str = DEFAULT_NET,
        device: Literal["cpu", "cuda"] = "cpu",
        channels_last: bool = False,
        threads: Count = 0,  # torch's (0: its own choice)
        classes: Count = 0,  # 0: the published number, or as many as the data's labels need
        learning_rate: Rate = 0.01,
        momentum: Rate = 0.9,
        seed: Count = 0,
        peers: Optional[Peers] = None,
        sharers: int = 1,
    ) -> None:
        """Raises SpecError for an unknown net or device, BackendUnavailable for an absent GPU.

        ``sharers``: ranks that share this node's cores; torch takes its part of them.
        """
        chosen = _torch_nets.net(net)
        if device not in ("cpu", "cuda"):
            raise SpecError(f"device {device!r} is not possible; allowed: cpu, cuda")
        if threads < 0 or classes < 0:
            raise SpecError("threads and classes must be 0 (the default) or more")
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            why = gpus.fault(torch.version.cuda)
            raise BackendUnavailable(f"device 'cuda' needs a GPU that torch can use, and {why}")
        if sharers > 1 and not threads:
            threads = max(1, len(os.sched_getaffinity(0)) // sharers)
        if threads:
            torch.set_num_threads(threads)
        torch.manual_seed(seed)
        self.device = device
        self._torch: Any = torch
        self._name, self._batch = net, batch
        self._shape = chosen.shape
        self._classes = classes or max(chosen.classes, labels)
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._channels_last = channels_last
        built: Any = chosen.build(self._classes).to(device)
        self._net = built.to(memory_format=self._layout).train()
        self._parameters = _torch_nets.parameters(self._net)
        self._optimiser: Any = torch.optim.SGD(
            self._net.parameters(), lr=learning_rate, momentum=momentum
        )
        self._loss: Any = None
        self._ranks: Optional[_torch_ranks.TorchRanks] = None
        if peers and peers.world_size > 1:
            self._ranks = _torch_ranks.TorchRanks(peers, device=device)
            self._net = torch.nn.parallel.DistributedDataParallel(
                self._net, process_group=self._ranks.group, forward_sync_buffers=False
            )
            self._net.register_comm_hook(
                self._ranks, lambda ranks, bucket: ranks.reduce(bucket.buffer())
            )

    def step(self, batch: Batch) -> None:
        """Forward, backward and update on one batch of (n, *shape) float32, numpy or torch.

        Raises SpecError when the batch's shape or labels do not fit the net.
        """
        if self._ranks:
            self._ranks.begin()
        data, labels = self._tensors(batch)
        self._optimiser.zero_grad(set_to_none=True)
        loss: Any = self._torch.nn.functional.cross_entropy(self._net(data), labels)
        loss.backward()
        self._optimiser.step()
        self._loss = loss.detach()
        self.sync()

    def copy(self, batch: Batch) -> None:
        """Copy a batch to the device, as a step does first; return when it is there."""
        self._tensors(batch)
        self.sync()

    def sync(self) -> None:
        """Wait for the GPU; on a CPU a step is complete when it returns."""
        if self.device == "cuda":
            self._torch.cuda.synchronize()

    def describe(self) -> Mapping[str, Scalar]:
        """Return the net, its parameters, where it ran, and the last step's loss."""
        facts: Dict[str, Scalar] = {
            "kind": "torch",
            "net": self._name,
            "parameters": self._parameters,
            "classes": self._classes,
            "batch": self._batch,
            "device": self.device,
            "threads": self._torch.get_num_threads(),
            "channels_last": self._channels_last,
            "version": self._torch.__version__,
        }
        if self.device == "cuda":
            facts["device_name"] = self._torch.cuda.get_device_name()
        if self._ranks:
            facts.update(self._ranks.describe())
            facts["weights_digest"] = _torch_ranks.weights_digest(self._net.parameters())
        if self._loss is not None:
            facts["last_loss"] = float(self._loss)
        return facts

    def flop(self, batch: Batch) -> Mapping[str, Scalar]:
        """Return the FLOP of one step, as torch counts its products, and the machine's roofs."""
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            self.step(batch)
        threads = int(self._torch.get_num_threads())
        roofs = _roofs.of_torch(self._torch, self.device)
        return _roofs.noted(counter.get_total_flops(), len(batch.ids), threads, roofs)

    def exchanges(self) -> Mapping[str, Sequence[float]]:
        """Return what every step waited for the other ranks, and for the exchange."""
        return self._ranks.exchanges() if self._ranks else {}

    def buckets(self) -> Sequence[Mapping[str, float]]:
        """Return what each bucket of gradients took: bytes, ready_s, comm_s."""
        return self._ranks.buckets() if self._ranks else []

    def close(self) -> None:
        """Free the net, part from the other ranks.  Idempotent."""
        self._net = self._optimiser = None
        if self._ranks:
            self._ranks.close()
            self._ranks = None

    def _tensors(self, batch: Batch) -> Any:
        labels = _torch_nets.fitting_labels(batch, "torch", self._name, self._shape, self._classes)
        data = batch.data
        tensor = self._torch.from_numpy(data) if isinstance(data, np.ndarray) else data
        tensor = tensor.to(self.device, non_blocking=True, memory_format=self._layout)
        return tensor, self._torch.from_numpy(labels).to(self.device, non_blocking=True)


def _chosen(options: Mapping[str, Scalar]) -> _torch_nets.Network:
    return _torch_nets.net(str(options.get("net", DEFAULT_NET)))


BACKEND = TrainerBackend(
    TorchTrainer,
    "real training: alexnet, resnet18, resnet50, resnet44cifar on cpu or cuda",
    requires=("torch",),
    step_s=lambda batch, options: batch / _chosen(options).cpu_samples_per_s,
    shape=lambda options: _chosen(options).shape,
    stack="torch",
    ranks=True,
)
