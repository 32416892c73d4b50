"""The data in a filesystem image that is laid over the runtime's own image."""

from iobench.backends.placements._squash import SquashPlacing
from iobench.core.members import PlacementBackend


class Overlaid(SquashPlacing):
    """Puts the data into one squashfs file."""

    mount = "overlay"


BACKEND = PlacementBackend(
    Overlaid, "in a filesystem image laid over the runtime's", in_image=True,
    refused=lambda runtime: runtime.no_overlay,
)  # fmt: skip
