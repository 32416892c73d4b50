"""Trainers: exact deadlines, real nets."""

from __future__ import annotations

from typing import Iterator, List

import numpy as np
import pytest

from iobench.analysis import windows
from iobench.backends.trainers import _torch_nets
from iobench.backends.trainers.emulated import ACCELERATORS, BACKEND, EmulatedTrainer, step_seconds
from iobench.core.cases import Batch
from iobench.core.errors import BackendUnavailable, SpecError
from iobench.worker import loop
from tests.capabilities import missing, need

BATCH = Batch(None, np.zeros(4, np.int64), np.arange(4), 0)


class Time:
    """A clock that moves by ``tick`` when read, and by what is slept plus ``late``."""

    def __init__(self, *, tick: float = 0.0, late: float = 0.0) -> None:
        self.now, self.tick, self.late = 0.0, tick, late
        self.slept: List[float] = []

    def clock(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late


def emulated(time: Time, **options: object) -> EmulatedTrainer:
    return EmulatedTrainer(batch=64, clock=time.clock, sleep=time.sleep, **options)  # type: ignore[arg-type]


def test_it_sleeps_all_but_the_spin_and_ends_on_the_deadline() -> None:
    time = Time(tick=2**-14)
    trainer = emulated(time, step_s=0.25, spin_s=2**-10)
    trainer.step(BATCH)
    assert time.slept == [0.25 - 2**-10]
    assert time.now == 2**-14 + 0.25  # the first reading of the clock, plus the step


@pytest.mark.parametrize("late", [0.0, 2**-12, 2**-11])
def test_a_late_wake_up_within_the_spin_costs_nothing(late: float) -> None:
    time = Time(tick=2**-16, late=late)
    trainer = emulated(time, step_s=0.5, spin_s=2**-10)
    for step in range(1, 5):
        trainer.step(BATCH)
        assert time.now == step * (0.5 + 2**-16)


def test_a_wake_up_after_the_deadline_is_not_made_up_for() -> None:
    time = Time(tick=2**-16, late=0.125)
    trainer = emulated(time, step_s=0.5, spin_s=0.0)
    trainer.step(BATCH)
    assert time.now == 2**-16 + 0.5 + 0.125 + 2**-16


def test_busy_never_sleeps_and_is_another_trainer() -> None:
    time = Time(tick=2**-10)
    trainer = emulated(time, step_s=0.5, busy=True)
    trainer.step(BATCH)
    assert time.slept == []
    assert time.now == 2**-10 + 0.5
    assert trainer.describe()["kind"] == "emulated-busy"
    assert emulated(Time(), step_s=0.5).describe()["kind"] == "emulated"


def test_steps_shorter_than_the_spin_only_spin() -> None:
    time = Time(tick=2**-20)
    trainer = emulated(time, step_s=2**-14)
    trainer.step(BATCH)
    assert time.slept == []
    assert time.now == 2**-20 + 2**-14
    idle = Time(tick=1.0)
    emulated(idle, step_s=0.0).step(BATCH)
    assert idle.slept == []


def test_the_measured_loop_sees_exactly_the_step() -> None:
    time = Time()
    trainer = emulated(time, step_s=0.25, spin_s=0.0)

    def batches():  # type: ignore[no-untyped-def]
        for _ in range(5):
            time.now += 0.125
            yield BATCH

    measured = loop.measure(batches(), trainer, warmup=1, clock=time.clock)
    window = windows.window(measured.steps)
    assert window.wait_s == 4 * 0.125
    assert window.compute_s == 4 * 0.25
    assert window.wall_s == 4 * 0.375


@pytest.mark.parametrize(("name", "batch", "step_s"), [("v100", 64, 0.195), ("h100", 200, 0.112)])
def test_the_table_is_scaled_by_the_batch_and_says_so(name: str, batch: int, step_s: float) -> None:
    trainer = EmulatedTrainer(batch=batch, accelerator=name)
    facts = trainer.describe()
    assert facts["step_s"] == pytest.approx(step_s)
    assert facts["accelerator"] == name
    assert facts["nominal_batch"] == ACCELERATORS[name].batch
    assert facts["nominal_step_s"] == ACCELERATORS[name].step_s
    assert facts["scaled_by"] == batch / ACCELERATORS[name].batch
    assert BACKEND.step_s(batch, {"accelerator": name}) == pytest.approx(step_s)


def test_the_table_is_the_one_of_the_method() -> None:
    rates = {n: round(a.batch / a.step_s) for n, a in ACCELERATORS.items()}
    assert rates == {"v100": 328, "a100": 920, "h100": 1786}
    assert step_seconds(64) == 0.195
    assert BACKEND.step_s(32, {}) == 0.195 / 2
    assert BACKEND.step_s(32, {"step_s": 0.5}) == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accelerator": "b200"}, "allowed: a100, h100, v100, or give step_s"),
        ({"step_s": -1.0}, "step_s -1.0 is not possible"),
        ({"step_s": 1.0, "accelerator": "v100"}, "give one of them"),
        ({"spin_s": -1.0}, "spin_s -1.0 is not possible"),
    ],
)
def test_impossible_options(options: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        EmulatedTrainer(batch=64, **options)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small steps on many threads spend their time waiting when other tests run beside."""
    need("torch")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", sorted(_torch_nets.NETS))
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    need("torch")
    published = {
        "alexnet": 61_100_840,
        "resnet18": 11_689_512,
        "resnet50": 25_557_032,
        "resnet44cifar": 658_586,
    }
    net = _torch_nets.net(name)
    assert _torch_nets.parameters(net.build(net.classes)) == published[name] == net.parameters


@pytest.mark.parametrize("name", sorted(_torch_nets.NETS))
def test_nets_answer_one_score_a_class(name: str) -> None:
    need("torch")
    import torch

    net = _torch_nets.net(name)
    scores = net.build(7).eval()(torch.zeros(2, *net.shape))
    assert scores.shape == (2, 7)
    assert torch.isfinite(scores).all()


def learnable(step: int) -> Batch:
    random = np.random.default_rng(step)
    labels = random.integers(0, 3, 24)
    data = random.normal(0, 0.3, (24, 3, 32, 32)).astype(np.float32)
    data[np.arange(24), labels] += 1.0  # the class is the bright channel
    return Batch(data, labels, np.arange(24), 0)


@pytest.mark.usefixtures("one_thread")
def test_real_training_learns_the_labels() -> None:
    from iobench.backends.trainers.torch import TorchTrainer

    trainer = TorchTrainer(batch=24, net="resnet44cifar", learning_rate=0.05, seed=1)
    trainer.step(learnable(0))
    first = trainer.describe()["last_loss"]
    for step in range(1, 10):
        trainer.step(learnable(step))
    facts = trainer.describe()
    assert isinstance(first, float)
    assert float(facts["last_loss"] or 9) < 0.5 * first
    assert facts["parameters"] == 658_586
    trainer.close()
    trainer.close()


@pytest.mark.usefixtures("one_thread")
def test_numpy_and_torch_batches_and_layouts_train_alike() -> None:
    import torch

    from iobench.backends.trainers.torch import TorchTrainer

    losses = []
    for as_torch, channels_last in ((False, False), (True, False), (True, True)):
        trainer = TorchTrainer(batch=24, net="resnet44cifar", channels_last=channels_last, seed=3)
        for step in range(2):
            batch = learnable(step)
            if as_torch:
                batch = batch._replace(data=torch.from_numpy(batch.data))
            trainer.step(batch)
        losses.append(trainer.describe()["last_loss"])
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(losses[2], rel=1e-3)


def test_threads_are_set_and_stated() -> None:
    need("torch")
    import torch

    from iobench.backends.trainers.torch import TorchTrainer

    before = torch.get_num_threads()
    try:
        assert TorchTrainer(batch=1, net="resnet44cifar", threads=1).describe()["threads"] == 1
    finally:
        torch.set_num_threads(before)


def test_what_does_not_fit_the_net_is_named() -> None:
    need("torch")
    from iobench.backends.trainers.torch import TorchTrainer

    trainer = TorchTrainer(batch=2, net="resnet44cifar")
    with pytest.raises(SpecError, match="needs batches with data"):
        trainer.step(BATCH)
    images = np.zeros((2, 3, 224, 224), np.float32)
    with pytest.raises(SpecError, match="takes 3x32x32, the batch is 3x224x224"):
        trainer.step(Batch(images, np.zeros(2, np.int64), np.arange(2), 0))
    small = np.zeros((2, 3, 32, 32), np.float32)
    with pytest.raises(SpecError, match=r"label 12 is beyond the 10 classes.*classes to 13"):
        trainer.step(Batch(small, np.array([0, 12]), np.arange(2), 0))
    many = TorchTrainer(batch=2, net="resnet44cifar", labels=13)
    assert many.describe()["classes"] == 13
    many.step(Batch(small, np.array([0, 12]), np.arange(2), 0))
    assert TorchTrainer(batch=2, net="resnet44cifar", labels=3).describe()["classes"] == 10
    with pytest.raises(SpecError, match="unknown net 'vgg'; allowed: alexnet"):
        TorchTrainer(batch=2, net="vgg")
    with pytest.raises(SpecError, match="device 'tpu' is not possible; allowed: cpu, cuda"):
        TorchTrainer(batch=2, device="tpu")


def test_cuda_without_a_gpu_is_refused() -> None:
    need("torch")
    if not missing("cuda"):
        pytest.skip("a GPU is here: the next test trains on it")
    from iobench.backends.trainers.torch import TorchTrainer

    with pytest.raises(BackendUnavailable, match="needs a GPU"):
        TorchTrainer(batch=2, device="cuda")


def test_training_on_a_gpu_matches_the_cpu() -> None:
    need("cuda")
    from iobench.backends.trainers.torch import TorchTrainer

    losses = []
    for device in ("cpu", "cuda"):
        trainer = TorchTrainer(batch=24, net="resnet44cifar", device=device, seed=3)
        trainer.step(learnable(0))
        losses.append(trainer.describe()["last_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_a_copy_is_on_the_gpu_when_it_returns() -> None:
    need("cuda")
    import torch

    from iobench.backends.trainers.torch import TorchTrainer

    trainer = TorchTrainer(batch=24, net="resnet44cifar", device="cuda")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    trainer.copy(learnable(0))
    assert torch.cuda.memory_stats()["allocation.all.allocated"] > before
