"""iobench: why is this training run slow, by how much, and which settings cure it?"""

__version__ = "0.1.0"
