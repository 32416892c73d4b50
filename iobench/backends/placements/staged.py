"""A copy in a folder that the spec names (``stage_to``): node-local disk, burst buffer."""

from __future__ import annotations

from pathlib import Path

from iobench.backends.placements._folders import FolderPlacing
from iobench.core.errors import DatasetError
from iobench.core.members import PlacementBackend
from iobench.core.protocols import Site
from iobench.host import files
from iobench.host.mounts import same_mount


class Staged(FolderPlacing):
    """Copies the data to ``stage_to``."""

    def parent(self, site: Site) -> Path:
        """Return the folder ``stage_to``.  Raises DatasetError if the spec sets none."""
        if not site.stage_to:
            raise DatasetError(
                "placement 'staged' needs a folder to copy to: set stage_to in the spec, "
                'such as stage_to = "/local/scratch"'
            )
        folder = Path(site.stage_to).absolute()
        if same_mount(files.nearest(folder), Path(site.dataset.root)):
            site.say(
                f"note: stage_to = {site.stage_to} is on the same mount as the data: staging gains "
                "nothing"
            )
        return folder


BACKEND = PlacementBackend(Staged, "a copy in the folder stage_to of the spec", stage_to=True)
