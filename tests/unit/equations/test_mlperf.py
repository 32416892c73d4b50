"""MLPerf Storage's AU and its rules of size, against figures computed by hand."""

from __future__ import annotations

import pytest

from iobench.equations.mlperf import utilisation, wanted

GIB = 1 << 30


def test_au_is_the_stated_compute_time_over_the_running_time_after_the_first_step() -> None:
    # five steps of 0.3 s stated; the first ends at 7.0 (its reading is left out), the last at 8.5
    done = [7.0, 7.4, 7.7, 8.1, 8.5]
    assert utilisation(done, 0.3) == pytest.approx(4 * 0.3 / 1.5)
    assert utilisation([1.0, 1.323], 0.323) == pytest.approx(1.0)


@pytest.mark.parametrize("done", [[], [3.0], [3.0, 3.0]])
def test_no_au_without_two_steps(done: list[float]) -> None:
    assert utilisation(done, 0.3) is None


@pytest.mark.parametrize(
    ("batch", "accelerators", "memory", "record", "by_steps", "by_memory"),
    [
        # 3D U-Net on 8 H100, two hosts of 256 GiB: 500 * 7 * 8; 5 * 512 GiB / 146,600,628
        (7, 8, 512 * GIB, 146_600_628, 28_000, 18_751),
        # ResNet-50 on one, 64 GiB: 500 * 400; 5 * 64 GiB / 114,660 = 2,996,663.04
        (400, 1, 64 * GIB, 114_660, 200_000, 2_996_664),
        # CosmoFlow on 4, 16 GiB: 500 * 1 * 4; 5 * 16 GiB / 2,828,486 = 30,369.37
        (1, 4, 16 * GIB, 2_828_486, 2_000, 30_370),
    ],
)
def test_the_rules_ask_for_steps_and_for_more_than_the_memory(
    batch: int, accelerators: int, memory: int, record: int, by_steps: int, by_memory: int
) -> None:
    found = wanted(batch, accelerators, memory, record)
    assert (found.by_steps, found.by_memory) == (by_steps, by_memory)
    assert found.samples == max(by_steps, by_memory)
