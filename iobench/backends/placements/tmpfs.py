"""A copy in memory: never cold, and part of the memory that the trials have."""

from __future__ import annotations

from pathlib import Path

from iobench.backends.placements._folders import FolderPlacing
from iobench.core.members import PlacementBackend
from iobench.core.protocols import Site
from iobench.host import probes


class Memory(FolderPlacing):
    """Copies the data to /dev/shm."""

    def parent(self, site: Site) -> Path:
        """Return /dev/shm."""
        return Path(probes.SHARED_MEMORY)


BACKEND = PlacementBackend(Memory, "a copy in memory (/dev/shm)", in_memory=True)
