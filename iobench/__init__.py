"""iobench: why is this training run slow, by how much, and which settings cure it?"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "watch":  # imported when it is used: the worker side alone may be installed
        from iobench.worker.watch import watch

        return watch
    raise AttributeError(f"module 'iobench' has no attribute {name!r}")
