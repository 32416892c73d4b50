"""What the analysis finds about a case's trainer: its roofline, its AU by MLPerf's rules.

The fields' names are the keys of ``analysis.json``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from iobench.equations.stats import Interval


@dataclasses.dataclass(frozen=True)
class ComputeRoof:
    """Williams' roofline of a case's trainer, from the rung ``roof``; FLOP/s and bytes/s.

    ``peak_flops`` and ``memory_bytes_per_s`` are the best of all trials with ``threads`` or fewer;
    ``ridge``: FLOP a byte where they meet.  ``compute_flops``, ``train_flops``: FLOP a sample times
    the rates of the rungs (cache state -> FLOP/s).  ``least_intensity``: FLOP a byte of memory
    traffic that the trainer has at least, as it computes at ``compute_flops``.  ``intensity`` None:
    its traffic was not counted, for the reason ``traffic``.
    """

    flop_per_sample: float
    threads: int
    peak_flops: float
    memory_bytes_per_s: float
    ridge: float
    by: str
    compute_flops: float | None
    train_flops: Mapping[str, float]
    least_intensity: float | None
    intensity: float | None
    traffic: str


@dataclasses.dataclass(frozen=True)
class CopyResult:
    """What copying a batch to the GPU takes, from the rung ``h2d``: ``seconds`` a batch of so many
    ``bytes``; ``share`` of a step of ``compute``, which has it in it (None: not measured).
    """

    seconds: Interval
    bytes: int
    bytes_per_s: float
    pinned: bool
    share: float | None
    standing: str


@dataclasses.dataclass(frozen=True)
class MlperfResult:
    """AU of the rung ``feed`` as MLPerf Storage counts it, and what its rules ask for.

    ``au``: mean over epochs and accelerators; ``floor``: the workload's.  ``steps``, ``samples``
    and ``bytes`` are an epoch's; ``wanted_*``: the rules' least.  ``short``: the rules that this
    run is too small for, in words.
    """

    workload: str
    au: Interval
    floor: float
    reached: bool
    accelerators: int
    epochs: int
    steps: int
    samples: int
    bytes: int
    samples_per_s: float
    wanted_steps: int
    wanted_samples: int
    wanted_bytes: int
    memory_bytes: int
    short: Sequence[str]
