"""The storage roofline on devices whose bandwidth, IOPS and latency are known."""

from __future__ import annotations

from typing import List

import pytest

from iobench.equations import storage
from iobench.equations.storage import (
    BANDWIDTH,
    IOPS,
    LATENCY,
    METADATA,
    MountLimits,
    Pattern,
    Point,
)

SIZES = [4096 * 4**i for i in range(6)]
DEPTHS = (1, 4, 16)


def device(
    bandwidth: float = 1e12, iops: float = 1e9, latency_s: float = 1e-6, stream: float = 1e12
) -> List[Point]:
    """Return what a device with these limits shows; ``stream``: bytes/s of one request."""
    return [
        Point(s, d, min(bandwidth / s, iops, d / (latency_s + s / stream)))
        for s in SIZES
        for d in DEPTHS
    ]


def made(points: List[Point]) -> MountLimits:
    found = storage.mount(points)
    assert found is not None
    return found


def pattern(rate: float, size: float = 110_000, readers: int = 2) -> Pattern:
    return Pattern(requests=1.0, size=size, readers=readers, rate=rate)


def test_a_throttled_device_gives_its_ridge() -> None:
    found = made(device(bandwidth=100e6, iops=2000))
    assert (found.bandwidth_reached, found.iops_reached) == (True, True)
    assert found.bandwidth == pytest.approx(100e6)
    assert found.iops == pytest.approx(2000)
    assert found.ridge == pytest.approx(50_000)


@pytest.mark.parametrize(
    ("size", "readers", "rate", "name"),
    [
        (400_000, 2, 250.0, BANDWIDTH),
        (10_000, 2, 2000.0, IOPS),
        (400_000, 1, 250.0, BANDWIDTH),  # one in flight: a request lasts as long as the throttle's
        (10_000, 1, 2000.0, IOPS),
    ],
)
def test_on_either_side_of_the_ridge(size: float, readers: int, rate: float, name: str) -> None:
    found = made(device(bandwidth=100e6, iops=2000))
    roofs = storage.roofs(found, pattern(rate, size, readers))
    assert storage.binding(roofs) == name
    assert roofs[name] == pytest.approx(rate)


def test_latency_binds_and_more_in_flight_gives_littles_rate() -> None:
    found = made(device(bandwidth=1e9, latency_s=5e-3, stream=200e6))
    assert found.iops_reached is False  # the rate still rises with the depth
    assert found.request_s(110_000) == pytest.approx(5e-3 + 110_000 / 200e6)
    asked = pattern(rate=360.0)
    roofs = storage.roofs(found, asked)
    assert storage.binding(roofs) == LATENCY
    assert roofs[LATENCY] == pytest.approx(2 / 5.55e-3)
    assert storage.deeper(found, asked) == pytest.approx(16 / 5.55e-3)


def test_deeper_stops_at_the_bandwidth() -> None:
    found = made(device(bandwidth=100e6, latency_s=5e-3, stream=200e6))
    assert storage.deeper(found, pattern(rate=360.0)) == pytest.approx(100e6 / 110_000)


def test_read_ahead_beats_the_readers_latency() -> None:
    """One reader of a sequential shard has more requests in flight than itself."""
    found = made(device(bandwidth=100e6, latency_s=5e-3, stream=200e6))
    roofs = storage.roofs(found, pattern(rate=900.0, readers=1))
    assert LATENCY not in roofs
    assert storage.binding(roofs) == BANDWIDTH


def test_a_roof_that_was_not_reached_is_none() -> None:
    """Only large requests: whether fewer bytes a request would bind is not known."""
    found = made([p for p in device(bandwidth=100e6, iops=2000) if p.size >= 65536])
    assert (found.bandwidth_reached, found.iops_reached) == (True, False)
    assert IOPS not in storage.roofs(found, pattern(rate=900.0))


def test_no_roof_is_below_what_the_replay_reached() -> None:
    found = made(device(bandwidth=100e6, iops=2000))
    assert storage.roofs(found, pattern(rate=1000.0))[BANDWIDTH] == 1000.0


def test_a_small_request_that_was_disturbed_is_no_slower_than_a_larger_one() -> None:
    points = [p for p in device(latency_s=5e-3) if (p.size, p.depth) != (4096, 1)]
    found = made([*points, Point(4096, 1, 10.0)])
    assert found.request_s(4096) == pytest.approx(5e-3, rel=0.01)
    assert found.request_s(512) == found.request_s(4096)


def test_without_a_request_alone_there_is_no_mount() -> None:
    assert storage.mount([]) is None
    assert storage.mount([p for p in device() if p.depth > 1]) is None


def test_opens_that_no_more_processes_speed_up_are_a_roof() -> None:
    opened = storage.opens({1: 500.0, 4: 800.0, 16: 820.0})
    assert opened is not None
    assert (opened.per_s, opened.reached) == (820.0, True)
    found = storage.mount(device(bandwidth=100e6, iops=5000), opened)
    assert found is not None
    asked = Pattern(requests=1.0, size=4096, readers=16, rate=790.0, opens=1.0)
    roofs = storage.roofs(found, asked)
    assert roofs[METADATA] == 820.0
    assert storage.binding(roofs) == METADATA
    packed = Pattern(requests=1.0, size=4096, readers=16, rate=790.0, opens=0.001)
    assert storage.binding(storage.roofs(found, packed)) != METADATA


def test_opens_bind_where_a_request_is_no_slower() -> None:
    """A request of a small file opens it, so its IOPS cannot be more than opens."""
    found = storage.mount(device(iops=800), storage.opens({1: 500.0, 4: 1290.0, 16: 1300.0}))
    assert found is not None
    asked = Pattern(requests=1.0, size=4096, readers=16, rate=780.0, opens=1.0)
    assert storage.binding(storage.roofs(found, asked)) == METADATA


def test_opens_that_still_rise_are_no_roof() -> None:
    opened = storage.opens({1: 100.0, 4: 400.0, 16: 1600.0})
    assert opened is not None
    assert not opened.reached
    found = storage.mount(device(bandwidth=1e9, latency_s=5e-3, stream=200e6), opened)
    assert found is not None
    asked = Pattern(requests=1.0, size=110_000, readers=2, rate=120.0, opens=1.0)
    roofs = storage.roofs(found, asked)
    assert METADATA not in roofs
    assert storage.binding(roofs) == LATENCY
    assert storage.deeper(found, asked) == pytest.approx(1600)


def test_opens_are_not_known_without_one_process_alone() -> None:
    assert storage.opens({}) is None
    assert storage.opens({4: 100.0}) is None
