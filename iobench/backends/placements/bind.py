"""The dataset where it is, on the mount under test."""

from iobench.core.members import PlacementBackend

BACKEND = PlacementBackend(lambda: None, "the dataset where it is")
