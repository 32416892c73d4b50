"""The networks that the torch trainer trains, built from their papers' descriptions.

What every framework's trainers need of a network (:class:`Network`) is here as well.

- AlexNet: Krizhevsky, "One weird trick" (arXiv 1404.5997), the one-tower variant; 224x224.
- ResNet-18/50: He et al. (arXiv 1512.03385), table 1; the 3x3 convolution of a bottleneck strides.
- ResNet-44 for CIFAR: the same paper, section 4.2, n = 7, shortcuts without parameters.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from iobench.core.cases import Batch
from iobench.core.errors import SpecError, near, shown


@dataclasses.dataclass(frozen=True)
class Network:
    """A network: input shape, published classes and the parameter count that goes with them.

    ``build``: makes a torch module of a number of classes; Caffe's: adds the layers to a builder.
    """

    build: Callable[..., Any]
    parameters: int
    cpu_samples_per_s: float  # a rough training rate of two cores, to estimate a suite's time
    classes: int = 1000
    shape: Tuple[int, int, int] = (3, 224, 224)


def net(name: str, nets: Optional[Mapping[str, Network]] = None) -> Network:
    """Return the network of that name, of torch's or of ``nets``.

    Raises SpecError with the valid names.
    """
    known = nets or NETS
    if name not in known:
        raise SpecError(f"unknown net {shown(name)}{near(name, sorted(known))}")
    return known[name]


def fitting_labels(
    batch: Batch, trainer: str, net: str, shape: Tuple[int, ...], classes: int
) -> np.ndarray:
    """Return a batch's labels (int64).  ``shape``: (n, c, h, w), or (c, h, w) for any n.

    Raises SpecError for a batch without data, of another shape, or with a label beyond ``classes``.
    """
    if batch.data is None:
        raise SpecError(
            f"the {trainer} trainer needs batches with data: use a loader that has them"
        )
    found = tuple(batch.data.shape[4 - len(shape) :])
    if found != shape:
        raise SpecError(
            f"net {net} takes {'x'.join(map(str, shape))}, the batch is "
            f"{'x'.join(map(str, found))}: choose a transform that fits"
        )
    labels = np.asarray(batch.labels, np.int64)
    if labels.min() < 0 or labels.max() >= classes:
        raise SpecError(
            f"label {labels.max()} is beyond the {classes} classes of net {net}: "
            f"set trainer option classes to {labels.max() + 1} or more"
        )
    return labels


def parameters(module: Any) -> int:
    """Return the number of trained values of a torch module."""
    return sum(p.numel() for p in module.parameters())


def alexnet(classes: int) -> Any:
    """Return AlexNet: five convolutions, three linear layers."""
    from torch import nn

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, pad: int = 1) -> Any:
        return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, pad), nn.ReLU(inplace=True))

    return nn.Sequential(
        conv(3, 64, 11, 4, 2),
        nn.MaxPool2d(3, 2),
        conv(64, 192, 5, 1, 2),
        nn.MaxPool2d(3, 2),
        conv(192, 384, 3),
        conv(384, 256, 3),
        conv(256, 256, 3),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, classes),
    )


def resnet(classes: int, *, depths: Sequence[int], bottleneck: bool) -> Any:
    """Return an ImageNet ResNet with ``depths`` blocks in its four stages."""
    from torch import nn

    residual, _ = _modules()
    layers = [*_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        outputs = width * 4 if bottleneck else width
        for block in range(depth):
            stride = 2 if stage and not block else 1
            body = _body(channels, width, stride, bottleneck=bottleneck)
            shortcut: Any = nn.Identity()
            if stride > 1 or channels != outputs:
                shortcut = nn.Sequential(*_conv(channels, outputs, 1, stride))
            layers.append(residual(body, shortcut))
            channels = outputs
    return _initialised(nn.Sequential(*layers, *_head(channels, classes)))


def resnet_cifar(classes: int, *, blocks: int) -> Any:
    """Return a CIFAR ResNet of 6 * ``blocks`` + 2 layers, shortcuts padded with zeros."""
    from torch import nn

    residual, padded = _modules()
    layers = [*_conv(3, 16, 3, 1), nn.ReLU(inplace=True)]
    channels = 16
    for width in (16, 32, 64):
        for block in range(blocks):
            stride = 2 if width > 16 and not block else 1
            shortcut = padded(stride, width - channels) if stride > 1 else nn.Identity()
            layers.append(residual(_body(channels, width, stride), shortcut))
            channels = width
    return _initialised(nn.Sequential(*layers, *_head(channels, classes)))


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> Tuple[Any, Any]:
    from torch import nn

    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


def _body(inputs: int, width: int, stride: int, *, bottleneck: bool = False) -> Any:
    from torch import nn

    parts = [(width, 3, stride), (width, 3, 1)]
    if bottleneck:
        parts = [(width, 1, 1), (width, 3, stride), (width * 4, 1, 1)]
    layers: List[Any] = []
    for outputs, kernel, step in parts:
        layers += [*_conv(inputs, outputs, kernel, step), nn.ReLU(inplace=True)]
        inputs = outputs
    return nn.Sequential(*layers[:-1])  # the last ReLU comes after the sum


def _head(channels: int, classes: int) -> Tuple[Any, ...]:
    from torch import nn

    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)


@functools.cache
def _modules() -> Tuple[Any, Any]:
    """Return the two classes that torch has not; made here, so that torch is imported late."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        """``relu(body(x) + shortcut(x))``."""

        def __init__(self, body: Any, shortcut: Any) -> None:
            super().__init__()
            self.body, self.shortcut = body, shortcut

        def forward(self, x: Any) -> Any:
            return torch.relu_(self.body(x) + self.shortcut(x))

    class Padded(nn.Module):
        """Every ``stride``-th pixel, with zeros for the channels that are new."""

        def __init__(self, stride: int, channels: int) -> None:
            super().__init__()
            self.stride, self.channels = stride, channels

        def forward(self, x: Any) -> Any:
            low = self.channels // 2
            x = x[:, :, :: self.stride, :: self.stride]
            return nn.functional.pad(x, (0, 0, 0, 0, low, self.channels - low))

    return Residual, Padded


def _initialised(module: Any) -> Any:
    """Draw the convolutions' weights as He et al. (arXiv 1502.01852) do."""
    from torch import nn

    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return module


_resnet18 = functools.partial(resnet, depths=(2, 2, 2, 2), bottleneck=False)
_resnet50 = functools.partial(resnet, depths=(3, 4, 6, 3), bottleneck=True)
_resnet44cifar = functools.partial(resnet_cifar, blocks=7)

NETS: Dict[str, Network] = {
    "alexnet": Network(alexnet, 61_100_840, 60),
    "resnet18": Network(_resnet18, 11_689_512, 28),
    "resnet50": Network(_resnet50, 25_557_032, 10),
    "resnet44cifar": Network(_resnet44cifar, 658_586, 300, classes=10, shape=(3, 32, 32)),
}
