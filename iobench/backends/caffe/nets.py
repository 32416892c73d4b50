"""The networks that the Caffe trainers train, from their descriptions to prototxt.

- ``alexnet``, ``resnet18``, ``resnet50``: the networks of ``trainers/_torch_nets`` (AlexNet with
  one tower, ResNets whose 3x3 convolution strides), so that frameworks do equal work.
- ``caffenet``: BVLC's reference net: AlexNet with two groups, pooling before normalisation
  (Jia et al., arXiv 1408.5093).
- ``googlenet``: Szegedy et al. (arXiv 1409.4842), table 1, without the two auxiliary classifiers,
  which only training from scratch to a good accuracy needs.
- ``small``: one convolution and one linear layer, for tests: no dropout, no normalisation.

Caffe rounds a pooling's size up, others down: where the two differ the padding is chosen so that
the shapes are those of the papers.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from iobench.backends.caffe.prototxt import Message, Word, message
from iobench.backends.trainers import _torch_nets as shared
from iobench.backends.trainers._torch_nets import Network
from iobench.core.cases import Scalar
from iobench.core.errors import SpecError

Shape = Tuple[int, int, int]

#: Names of the two blobs that every data layer fills.
DATA, LABEL = "data", "label"
#: Blob of the class scores, and of the loss.
SCORE, LOSS = "score", "loss"
DEFAULT_NET = "caffenet"

_MSRA = message(type="msra")
_XAVIER = message(type="xavier")
_GAUSSIAN = message(type="gaussian", std=0.01)


class _Builder:
    """Layers as they are added; knows the shape of every top and counts what is trained."""

    def __init__(self, shape: Shape) -> None:
        self.layers: List[Message] = []
        self.shapes: Dict[str, Shape] = {DATA: shape}
        self.parameters = 0

    def add(
        self,
        kind: str,
        name: str,
        *bottoms: str,
        top: str = "",
        shape: Optional[Shape] = None,
        **fields: Any,
    ) -> str:
        """Append a layer; return its top: its own name, in the shape of its first bottom."""
        top = top or name
        self.layers.append(message(name=name, type=kind, bottom=list(bottoms), top=top, **fields))
        self.shapes[top] = shape or self.shapes[bottoms[0]]
        return top

    def conv(
        self,
        name: str,
        bottom: str,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        pad: int = 0,
        group: int = 1,
        bias: Optional[float] = 0.0,
        filler: Message = _XAVIER,
    ) -> str:
        """``bias``: its first value; None: without one."""
        channels, height, width = self.shapes[bottom]
        sizes = [(n + 2 * pad - kernel) // stride + 1 for n in (height, width)]
        parameter = message(
            num_output=outputs,
            kernel_size=kernel,
            pad=pad or None,
            stride=stride if stride > 1 else None,
            group=group if group > 1 else None,
            bias_term=False if bias is None else None,
            weight_filler=filler,
            bias_filler=None if bias is None else _constant(bias),
        )
        self.parameters += outputs * (channels // group) * kernel * kernel
        self.parameters += 0 if bias is None else outputs
        shape = outputs, sizes[0], sizes[1]
        return self.add("Convolution", name, bottom, shape=shape, convolution_param=parameter)

    def relu(self, bottom: str) -> str:
        return self.add("ReLU", f"relu_{bottom}", bottom, top=bottom)

    def pool(
        self,
        name: str,
        bottom: str,
        kernel: int = 3,
        *,
        stride: int = 2,
        pad: int = 0,
        average: bool = False,
    ) -> str:
        channels, height, width = self.shapes[bottom]
        parameter = message(
            pool=Word("AVE" if average else "MAX"), kernel_size=kernel, stride=stride,
            pad=pad or None,
        )  # fmt: skip
        sizes = [_pooled(n, kernel, stride, pad) for n in (height, width)]
        shape = channels, sizes[0], sizes[1]
        return self.add("Pooling", name, bottom, shape=shape, pooling_param=parameter)

    def lrn(self, name: str, bottom: str) -> str:
        parameter = message(local_size=5, alpha=0.0001, beta=0.75)
        return self.add("LRN", name, bottom, lrn_param=parameter)

    def norm(self, bottom: str) -> str:
        """Batch normalisation in place: Caffe's statistics and its scale are two layers."""
        self.add("BatchNorm", f"bn_{bottom}", bottom, top=bottom)
        self.parameters += 2 * self.shapes[bottom][0]
        scale = message(bias_term=True)
        return self.add("Scale", f"scale_{bottom}", bottom, top=bottom, scale_param=scale)

    def dropout(self, bottom: str, ratio: float = 0.5) -> str:
        parameter = message(dropout_ratio=ratio)
        return self.add("Dropout", f"drop_{bottom}", bottom, top=bottom, dropout_param=parameter)

    def linear(
        self, name: str, bottom: str, outputs: int, filler: Message = _XAVIER, bias: float = 0.0
    ) -> str:
        channels, height, width = self.shapes[bottom]
        parameter = message(num_output=outputs, weight_filler=filler, bias_filler=_constant(bias))
        self.parameters += outputs * (channels * height * width + 1)
        shape = outputs, 1, 1
        return self.add("InnerProduct", name, bottom, shape=shape, inner_product_param=parameter)

    def concat(self, name: str, bottoms: Sequence[str]) -> str:
        _, height, width = self.shapes[bottoms[0]]
        channels = sum(self.shapes[b][0] for b in bottoms)
        return self.add("Concat", name, *bottoms, shape=(channels, height, width))

    def sum(self, name: str, first: str, second: str) -> str:
        if self.shapes[first] != self.shapes[second]:
            raise ValueError(f"{name}: {self.shapes[first]} and {self.shapes[second]}")
        parameter = message(operation=Word("SUM"))
        return self.add("Eltwise", name, first, second, eltwise_param=parameter)


def _constant(value: float) -> Message:
    return message(type="constant", value=value)


def _pooled(size: int, kernel: int, stride: int, pad: int) -> int:
    """Return Caffe's size of a pooled side: rounded up, no window that starts in the padding."""
    out = -(-(size + 2 * pad - kernel) // stride) + 1
    return out - 1 if pad and (out - 1) * stride >= size + pad else out


def _alexnet(b: _Builder, classes: int) -> None:
    top = b.relu(b.conv("conv1", DATA, 64, 11, stride=4, pad=2, filler=_MSRA))
    top = b.pool("pool1", top)
    top = b.relu(b.conv("conv2", top, 192, 5, pad=2, filler=_MSRA))
    top = b.pool("pool2", top)
    for name, outputs in (("conv3", 384), ("conv4", 256), ("conv5", 256)):
        top = b.relu(b.conv(name, top, outputs, 3, pad=1, filler=_MSRA))
    top = b.dropout(b.pool("pool5", top))
    top = b.dropout(b.relu(b.linear("fc6", top, 4096)))
    top = b.relu(b.linear("fc7", top, 4096))
    b.linear(SCORE, top, classes)


def _caffenet(b: _Builder, classes: int) -> None:
    top = b.relu(b.conv("conv1", DATA, 96, 11, stride=4, filler=_GAUSSIAN))
    top = b.lrn("norm1", b.pool("pool1", top))
    top = b.relu(b.conv("conv2", top, 256, 5, pad=2, group=2, bias=1.0, filler=_GAUSSIAN))
    top = b.lrn("norm2", b.pool("pool2", top))
    top = b.relu(b.conv("conv3", top, 384, 3, pad=1, filler=_GAUSSIAN))
    for name, outputs in (("conv4", 384), ("conv5", 256)):
        top = b.relu(b.conv(name, top, outputs, 3, pad=1, group=2, bias=1.0, filler=_GAUSSIAN))
    top = b.pool("pool5", top)
    for name in ("fc6", "fc7"):
        top = b.linear(name, top, 4096, message(type="gaussian", std=0.005), 1.0)
        top = b.dropout(b.relu(top))
    b.linear(SCORE, top, classes, _GAUSSIAN)


#: Of every inception module: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; after the pooling.
_INCEPTIONS = (
    ("3a", 64, 96, 128, 16, 32, 32),
    ("3b", 128, 128, 192, 32, 96, 64),
    ("4a", 192, 96, 208, 16, 48, 64),
    ("4b", 160, 112, 224, 24, 64, 64),
    ("4c", 128, 128, 256, 24, 64, 64),
    ("4d", 112, 144, 288, 32, 64, 64),
    ("4e", 256, 160, 320, 32, 128, 128),
    ("5a", 256, 160, 320, 32, 128, 128),
    ("5b", 384, 192, 384, 48, 128, 128),
)


def _googlenet(b: _Builder, classes: int) -> None:
    def conv(name: str, bottom: str, outputs: int, kernel: int, stride: int = 1) -> str:
        made = b.conv(name, bottom, outputs, kernel, stride=stride, pad=kernel // 2, bias=0.2)
        return b.relu(made)

    top = b.lrn("norm1", b.pool("pool1", conv("conv1", DATA, 64, 7, 2)))
    top = conv("conv2", conv("conv2_reduce", top, 64, 1), 192, 3)
    top = b.pool("pool2", b.lrn("norm2", top))
    for name, one, reduce3, three, reduce5, five, pooled in _INCEPTIONS:
        if name in ("4a", "5a"):
            top = b.pool(f"pool{name[0]}", top)
        branches = [
            conv(f"i{name}_1x1", top, one, 1),
            conv(f"i{name}_3x3", conv(f"i{name}_3x3_reduce", top, reduce3, 1), three, 3),
            conv(f"i{name}_5x5", conv(f"i{name}_5x5_reduce", top, reduce5, 1), five, 5),
            conv(f"i{name}_proj", b.pool(f"i{name}_pool", top, 3, stride=1, pad=1), pooled, 1),
        ]
        top = b.concat(f"i{name}", branches)
    top = b.pool("pool6", top, 7, stride=1, average=True)
    b.linear(SCORE, b.dropout(top, 0.4), classes)


def _resnet(b: _Builder, classes: int, depths: Sequence[int], bottleneck: bool) -> None:
    def conv(name: str, bottom: str, outputs: int, kernel: int, stride: int = 1) -> str:
        made = b.conv(
            name, bottom, outputs, kernel, stride=stride, pad=kernel // 2, bias=None, filler=_MSRA
        )
        return b.norm(made)

    top = b.relu(conv("conv1", DATA, 64, 7, 2))
    top = b.pool("pool1", top)  # 112 -> 56 without padding, as Caffe rounds up
    for stage, depth in enumerate(depths):
        width = 64 << stage
        outputs = width * 4 if bottleneck else width
        for block in range(depth):
            name = f"s{stage + 1}b{block + 1}"
            stride = 2 if stage and not block else 1
            if bottleneck:
                body = b.relu(conv(f"{name}_1", top, width, 1))
                body = b.relu(conv(f"{name}_2", body, width, 3, stride))
                body = conv(f"{name}_3", body, outputs, 1)
            else:
                body = b.relu(conv(f"{name}_1", top, width, 3, stride))
                body = conv(f"{name}_2", body, width, 3)
            if b.shapes[body] != b.shapes[top]:
                top = conv(f"{name}_shortcut", top, outputs, 1, stride)
            top = b.relu(b.sum(name, top, body))
    top = b.pool("pool5", top, b.shapes[top][1], stride=1, average=True)
    b.linear(SCORE, top, classes)


_resnet18 = functools.partial(_resnet, depths=(2, 2, 2, 2), bottleneck=False)
_resnet50 = functools.partial(_resnet, depths=(3, 4, 6, 3), bottleneck=True)


def _small(b: _Builder, classes: int) -> None:
    scaled = b.add("Power", "scaled", DATA, power_param=message(scale=1 / 58))
    top = b.pool("pool1", b.relu(b.conv("conv1", scaled, 16, 8, stride=8)), 2)
    b.linear(SCORE, top, classes)


def _as_shared(name: str, build: Callable[[_Builder, int], None], rate: float) -> Network:
    """Return a net that trainers/_torch_nets has too: its shape, classes and parameters."""
    return dataclasses.replace(shared.NETS[name], build=build, cpu_samples_per_s=rate)


NETS: Dict[str, Network] = {
    "alexnet": _as_shared("alexnet", _alexnet, 30),
    "caffenet": Network(_caffenet, 60_965_224, 30),
    "googlenet": Network(_googlenet, 6_998_552, 12),
    "resnet18": _as_shared("resnet18", _resnet18, 10),
    "resnet50": _as_shared("resnet50", _resnet50, 4),
    "small": Network(_small, 34_458, 2000, classes=10),
}


def net(name: str) -> Network:
    """Return the network of that name; raises SpecError with the valid names."""
    return shared.net(name, NETS)


def step_s(batch: int, options: Mapping[str, Scalar]) -> float:
    """Return about how many seconds two cores need for a step of a trainer with these options."""
    return batch / net(str(options.get("net", DEFAULT_NET))).cpu_samples_per_s


def input_shape(options: Mapping[str, Scalar]) -> Shape:
    """Return what a trainer with these options takes; of a user's net: what Caffe's crop gives."""
    return (
        Network.shape if options.get("solver") else net(str(options.get("net", DEFAULT_NET))).shape
    )


def classes(name: str, wanted: int, labels: int) -> int:
    """Return how many classes the net gets: ``wanted``, or 0 for as many as data and paper have.

    Raises SpecError where the data have more: Caffe itself would read past the scores.
    """
    if wanted and wanted < labels:
        raise SpecError(
            f"label {labels - 1} is beyond the {wanted} classes of net {name}: set trainer option "
            f"classes to {labels} or more, or leave it out"
        )
    return wanted or max(net(name).classes, labels)


def describe(name: str, data: Message, classes: int = 0) -> Tuple[Message, int]:
    """Return (the net's prototxt with ``data`` as its first layer, values that are trained).

    ``classes``: 0 for the published number.
    """
    chosen = net(name)
    builder = _Builder(chosen.shape)
    chosen.build(builder, classes or chosen.classes)
    builder.layers.append(
        message(name=LOSS, type="SoftmaxWithLoss", bottom=[SCORE, LABEL], top=LOSS)
    )
    return message(name=name, layer=[data, *builder.layers]), builder.parameters
