"""The probe of the cores' speed: what it compares, and that it runs as long as asked."""

from __future__ import annotations

import os
import threading
import time

from iobench.host import speed_noise


def test_neighbouring_slices_are_compared() -> None:
    found = speed_noise.measure(1.0, 0.1, len(os.sched_getaffinity(0)))
    assert found.slice_s == 0.1
    assert 1.0 <= found.seconds < 30
    assert 0 < found.sd < 3


def test_a_thread_more_is_seen() -> None:
    """A rival that takes a core every second slice doubles what neighbours differ by."""
    stop = threading.Event()

    def rival() -> None:
        while not stop.is_set():
            end = time.monotonic() + 0.1
            while time.monotonic() < end and not stop.is_set():
                sum(range(1000))
            time.sleep(0.1)

    other = threading.Thread(target=rival)
    other.start()
    try:
        disturbed = speed_noise.measure(3.0, 0.1, 1)
    finally:
        stop.set()
        other.join()
    assert disturbed.sd > 0.05


def test_a_short_probe_still_has_pairs() -> None:
    assert speed_noise.measure(0.0, 0.01, 1).sd >= 0
