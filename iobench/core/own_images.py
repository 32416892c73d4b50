"""Images of the user's own: how a spec names them, and what such an image can be run as."""

from __future__ import annotations

from typing import Tuple

#: How a reference begins -> the forms of image that it can be brought into.
SOURCES = {
    "docker://": ("docker", "podman", "sif"),
    "docker-daemon:": ("docker", "sif"),
    "docker-archive:": ("sif",),
}
#: How a spec may name one, for messages.
EXAMPLES = "'docker://name:tag', '/path/image.sif' or '/path/folder'"


def is_own(image: str) -> bool:
    """Return whether a case's ``image`` is a reference or a path, not the name of a stack."""
    return any(mark in image for mark in "/:.")


def source_of(image: str) -> str:
    """Return how a reference begins (a key of ``SOURCES``), "" for a path."""
    return next((start for start in SOURCES if image.startswith(start)), "")


def forms_of(image: str) -> Tuple[str, ...]:
    """Return the forms that an own image can take, by its name alone."""
    if source := source_of(image):
        return SOURCES[source]
    return ("sif",) if image.endswith(".sif") else ("rootfs",)
