"""How fast stated accelerators consume samples: the one table that emulation and forecasts read."""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple

#: Of every figure below.
SOURCE = "DLIO's workload files and MLPerf Storage v2"


class Accelerator(NamedTuple):
    """One training step of a workload."""

    batch: int
    step_s: float

    @property
    def samples_per_s(self) -> float:
        """Samples that it consumes where it never waits."""
        return self.batch / self.step_s


class Workload(NamedTuple):
    """A model and its data: bytes of a stored sample, the AU that a submission needs, the steps."""

    sample_bytes: int
    least_au: float
    accelerators: Mapping[str, Accelerator]


WORKLOADS: Dict[str, Workload] = {
    "resnet50": Workload(
        114_660,
        0.90,
        {
            "v100": Accelerator(64, 0.195),
            "a100": Accelerator(400, 0.435),
            "h100": Accelerator(400, 0.224),
        },
    ),
    "unet3d": Workload(
        146_600_628,
        0.90,
        {
            "v100": Accelerator(4, 1.3604),
            "a100": Accelerator(7, 0.636),
            "h100": Accelerator(7, 0.323),
        },
    ),
    "cosmoflow": Workload(
        2_828_486,
        0.70,
        {
            "v100": Accelerator(1, 0.00936),
            "a100": Accelerator(1, 0.00551),
            "h100": Accelerator(1, 0.00350),
        },
    ),
}
