"""Which runtimes of a spec can run here: those of its matrix that cannot are left out, and said.

A runtime that a spec names alone (``case.runtime``, ``[[cases]]``) must run, or that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from iobench import images, registry
from iobench.errors import ImageError
from iobench.model import Case
from iobench.spec import Spec, expand

Say = Callable[[str], None]


def asks_for(spec: Spec) -> set[str]:
    """Return every runtime that the spec names."""
    return {case.runtime for case in expand(spec)}


def without_missing(spec: Spec, folder: Path, say: Say) -> tuple[Spec, list[str]]:
    """Return the spec less the runtimes of its matrix that cannot run here, and why, in words.

    ``folder``: where the images are.  An image's form that a runtime takes and that is not there
    yet is made.  Contrasts that say ``instead`` stay only where no other has anything to compare.

    Raises BackendUnavailable or ImageError for a runtime that the spec names alone.
    """
    wanted = [str(name) for name in spec.matrix.get("runtime", [])]
    why = {name: why_not(name, _images_of(spec, name), folder, say) for name in wanted}
    notes = [f"runtime {name} is left out: {reason}" for name, reason in why.items() if reason]
    left = [name for name in wanted if not why[name]]
    if wanted:
        spec = spec.model_copy(update={"matrix": {**spec.matrix, "runtime": left or ["bare"]}})
    for case in expand(spec):
        if case.runtime not in left:
            registry.require("runtimes", case.runtime)
            ready(case.runtime, case.image, folder, say)
    return spec, notes


def why_not(runtime: str, names: Iterable[str], folder: Path, say: Say) -> str:
    """Return why ``runtime`` cannot run these images here, with the remedy; "" when it can."""
    reason = registry.unavailable("runtimes", runtime)
    if reason:
        return reason
    try:
        for name in names:
            ready(runtime, name, folder, say)
    except ImageError as error:
        return str(error)
    return ""


def ready(runtime: str, name: str, folder: Path, say: Say) -> str:
    """Return the image as ``runtime`` takes it ("" where it takes none), making that form first.

    Raises ImageError when the image is missing or stale, or its form cannot be made.
    """
    form = registry.load("runtimes", runtime).make().form()
    if not form:
        return ""
    image = images.find(name, folder)
    try:
        return images.in_form(image, form)
    except ImageError:
        images.make_form(image, form, say)
        return images.in_form(image, form)


def digests(cases: Sequence[Case], folder: Path) -> dict[str, str]:
    """Return image name -> digest of every image that the cases run."""
    names = {c.image for c in cases if registry.load("runtimes", c.runtime).make().form()}
    return {name: images.find(name, folder).digest for name in sorted(names)}


def _images_of(spec: Spec, runtime: str) -> set[str]:
    return {case.image for case in expand(spec) if case.runtime == runtime}
