"""The trainer's roofline: FLOP of a step counted by hand, roofs from functions of known speed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import pytest

from iobench.backends.trainers import _roofs
from iobench.backends.trainers.caffe import _multiplying
from iobench.core.cases import Batch
from tests.capabilities import need

#: AlexNet with one tower: (values of its weights, places) of each layer, by its table; 1,000
#: classes.  The first reads the pictures, which need no gradient.
ALEXNET = (
    (64 * 3 * 11 * 11, 55 * 55), (192 * 64 * 5 * 5, 27 * 27), (384 * 192 * 3 * 3, 13 * 13),
    (256 * 384 * 3 * 3, 13 * 13), (256 * 256 * 3 * 3, 13 * 13), (256 * 6 * 6 * 4096, 1),
    (4096 * 4096, 1), (4096 * 1000, 1),
)  # fmt: skip
ALEXNET_FLOP = 4_144_577_280


def test_flop_are_two_a_product_once_forward_and_twice_backward() -> None:
    assert _roofs.layers_flop([(10, 3, True)]) == 3 * 2 * 30
    assert _roofs.layers_flop([(10, 3, False)]) == 2 * 2 * 30
    layers = [(weights, places, i > 0) for i, (weights, places) in enumerate(ALEXNET)]
    assert _roofs.layers_flop(layers) == ALEXNET_FLOP


@pytest.mark.parametrize("batch", [1, 2])
def test_torch_counts_as_many_flop_as_the_table(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch")
    from iobench.backends.trainers.torch import TorchTrainer

    monkeypatch.setattr(_roofs, "of_torch", lambda torch, device: {"peak_flops": 1.0})
    trainer = TorchTrainer(batch=batch, net="alexnet", learning_rate=0.0)
    data, ids = np.zeros((batch, 3, 224, 224), np.float32), np.arange(batch)
    found = trainer.flop(Batch(data, np.zeros(batch, np.int64), ids, 1))
    trainer.close()
    assert found["flop_per_step"] == batch * ALEXNET_FLOP
    assert (found["step_samples"], found["peak_flops"]) == (batch, 1.0)


def blob(*shape: int) -> Any:
    return SimpleNamespace(data=np.empty(shape, np.uint8))


def test_caffe_s_net_is_counted_from_its_blobs() -> None:
    """Two samples; a grouped convolution and a linear layer, with a pooling between them."""
    kinds: Dict[str, Tuple[str, List[str], List[str]]] = {
        "input": ("MemoryData", [], ["picture", "label"]),
        "conv": ("Convolution", ["picture"], ["conv"]),
        "pool": ("Pooling", ["conv"], ["pool"]),
        "fc": ("InnerProduct", ["pool"], ["fc"]),
    }
    net = SimpleNamespace(
        _layer_names=list(kinds),
        layers=[SimpleNamespace(type=kind) for kind, _, _ in kinds.values()],
        bottom_names={name: bottoms for name, (_, bottoms, _) in kinds.items()},
        top_names={name: tops for name, (_, _, tops) in kinds.items()},
        blobs={"conv": blob(2, 8, 5, 4), "fc": blob(2, 3)},
        params={"conv": [blob(8, 2, 3, 3), blob(8)], "fc": [blob(3, 64), blob(3)]},
    )
    # conv: 144 weights at 2 x 20 places; fc: 192 weights at 2
    assert _multiplying(net) == [(144, 40, False), (192, 2, True)]


def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [0.0]
    monkeypatch.setattr(_roofs, "clock", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_the_fastest_repeat_is_the_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = ticking(monkeypatch)
    asked: List[Tuple[str, int]] = []

    def slow(seconds: Iterator[float]) -> Callable[[], None]:
        return lambda: advance(next(seconds, 0.5))

    def product(rows: int) -> Callable[[], None]:
        asked.append(("product", rows))
        fastest = 0.04 * (rows / 2048) ** 3  # 1024 rows take 5 ms: too short to time
        return slow(iter([9.0, 2 * fastest, fastest, 3 * fastest]))

    def triad(values: int) -> Callable[[], None]:
        asked.append(("triad", values))
        return slow(iter([9.0, 0.2, 0.1, 0.3]))

    found = _roofs.measure(product, triad, "a library", cache_bytes=100 << 20)
    assert found["peak_flops"] == pytest.approx(2 * 2048**3 / 0.04)
    assert found["memory_bytes_per_s"] == pytest.approx(3 * (400 << 20) / 0.1)
    assert asked == [("product", 1024), ("product", 2048), ("triad", 100 << 20)]


def test_arrays_are_larger_than_any_cache_and_no_larger_than_a_gibibyte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance = ticking(monkeypatch)
    sizes: List[int] = []

    def triad(values: int) -> Callable[[], None]:
        sizes.append(4 * values)
        return lambda: advance(0.1)

    for cache in (0, 1 << 20, 10 << 30):
        _roofs.measure(lambda rows: lambda: advance(0.1), triad, "", cache)
    assert sizes == [256 << 20, 256 << 20, 1 << 30]


def test_numpy_s_triad_reads_two_arrays_and_writes_the_third(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: Dict[str, Any] = {}
    monkeypatch.setattr(_roofs, "measure", lambda p, t, by, cache: taken.update(p=p, t=t) or {})
    _roofs.of_numpy(3)
    sweep = taken["t"](5 * _roofs.BLOCK + 7)
    sweep()
    cells = dict(zip(sweep.__code__.co_freevars, sweep.__closure__ or ()))
    parts = cells["parts"].cell_contents
    assert sorted(np.concatenate(parts).tolist()) == [i * _roofs.BLOCK for i in range(6)]
    assert len(parts) == 3
    taken["p"](8)()


@pytest.mark.parametrize(
    ("device", "convolutions", "during", "said"),
    [
        ("cuda", True, "high", ", TF32"),
        ("cuda", False, "highest", ""),
        ("cpu", True, "highest", ""),
    ],
)
def test_a_gpus_roof_is_of_the_precision_of_its_convolutions(
    device: str, convolutions: bool, during: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network in TF32 would come close to, or above, a roof of whole float32."""
    chosen, seen = ["highest"], []

    def measured(product: Any, triad: Any, by: str, cache: int) -> dict[str, Any]:
        seen.append(chosen[-1])
        return {"by": by}

    monkeypatch.setattr(_roofs, "measure", measured)
    torch = SimpleNamespace(
        __version__="9",
        backends=SimpleNamespace(cudnn=SimpleNamespace(allow_tf32=convolutions)),
        get_float32_matmul_precision=lambda: chosen[-1],
        set_float32_matmul_precision=chosen.append,
    )
    assert _roofs.of_torch(torch, device) == {"by": f"torch 9{said}"}
    assert (seen, chosen[-1]) == ([during], "highest")
