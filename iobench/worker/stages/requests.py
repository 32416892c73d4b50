"""What the mount gives by request size and requests in flight: fio reads the same files."""

from __future__ import annotations

from iobench.core.stages import Stage
from iobench.worker.stages._located import located

BACKEND = Stage(
    located,
    "fio by request size and depth: the mount's bandwidth, IOPS and latency",
    rung=5,
    asks="",
    caches=("cold",),
    once=False,
    always=True,
    one_rank=True,
    on_host=True,
    by_fio=True,
    of_mount=True,
    loop_s=15.0,
    named=True,
)
