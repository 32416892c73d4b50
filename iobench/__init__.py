"""iobench: why is this training run slow, by how much, and which settings cure it?"""

from __future__ import annotations

__version__ = "0.1.0"
