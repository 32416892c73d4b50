"""The dataset where it is, on the mount under test."""

from __future__ import annotations

from iobench.core.members import PlacementBackend

BACKEND = PlacementBackend(lambda: None, "the dataset where it is")
