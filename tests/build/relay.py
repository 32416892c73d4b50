"""A cable that holds every frame for a while: taps in the network namespaces of two processes.

``python relay.py PID NAME PID NAME SECONDS`` makes a tap of that name in each, says ``up``, and
ends when its standard input closes; the taps go with it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from typing import Deque, Tuple

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x4000_0000
#: linux/if_tun.h
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x4004_54CA, 0x0002, 0x1000
FRAME = 1 << 16


def tap(pid: str, name: str) -> int:
    """Return a new tap device in the network namespace of a process; this one goes there too."""
    with open(f"/proc/{pid}/ns/net") as there:
        if LIBC.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def relay(one: int, other: int, delay_s: float) -> None:
    """Pass frames on until standard input closes."""
    held: Deque[Tuple[float, int, bytes]] = collections.deque()
    across = {one: other, other: one}
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        ready, _, _ = select.select([*across, 0], [], [], wait_s)
        if 0 in ready:
            return
        for device in ready:
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame = os.read(device, FRAME)
                    held.append((time.monotonic() + delay_s, across[device], frame))
        while held and held[0][0] <= time.monotonic():
            _, device, frame = held.popleft()
            with contextlib.suppress(OSError):  # it is not up yet, or not any more
                os.write(device, frame)


if __name__ == "__main__":
    both = tap(*sys.argv[1:3]), tap(*sys.argv[3:5])
    os.write(1, b"up\n")
    relay(*both, float(sys.argv[5]))
