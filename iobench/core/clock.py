"""The one clock, and an exact delay."""

from __future__ import annotations

from time import perf_counter, sleep

#: Monotonic seconds.  Nothing else in iobench reads a clock.
clock = perf_counter


def delay(seconds: float, *, spin_s: float = 200e-6) -> None:
    """Return after exactly ``seconds``: sleep to an absolute deadline, spin the last ``spin_s``.

    A timer alone wakes 0.05 to 0.1 ms late.
    """
    deadline = clock() + seconds
    if seconds > spin_s:
        sleep(seconds - spin_s)
    while clock() < deadline:
        pass
