"""What the mount can give: fio reads the same extents on the host."""

from __future__ import annotations

from iobench.core.stages import Stage
from iobench.worker.stages._located import located

BACKEND = Stage(
    located,
    "fio with this format's access pattern: what the mount can give",
    rung=10,
    asks="",
    caches=("cold",),
    always=True,
    one_rank=True,
    on_host=True,
    by_fio=True,
    on_nodes=True,
)
