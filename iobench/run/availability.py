"""Which runtimes of a spec can run here: those of its matrix that cannot are left out, and said.

A runtime that a spec names alone (``case.runtime``, ``[[cases]]``) must run, or that is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from iobench import images, registry, services, stacks, tools
from iobench.errors import BackendUnavailable, ImageError
from iobench.model import Case, Plan
from iobench.protocols import Say
from iobench.spec import Spec, expand, left_out, named
from iobench.starting import check_launcher, runtime_of
from iobench.starting import images_for as images_of

__all__ = [
    "host_stacks",
    "image_names",
    "images_of",
    "same_images",
    "services_of",
    "without_missing",
]


def image_names(spec: Spec) -> list[str]:
    """Return the images that the spec's runtimes run, on this machine or another."""
    return sorted({case.image for case in expand(spec) if runtime_of(case).form()})


def host_stacks(spec: Spec) -> list[str]:
    """Return the stacks that the spec needs on this host, no container, and that are not here."""
    bare = {case.image for case in expand(spec) if not runtime_of(case).form()}
    return sorted(name for name in bare if stacks.missing(name))


def services_of(spec: Spec, folder: Path, say: Say) -> contextlib.AbstractContextManager[None]:
    """Return a context in which the daemons that the spec's runtimes need answer, where they can.

    Where none can be started, the runtime says so itself when it is asked for.
    """
    tools.extend_path()
    if any(case.runtime == "docker" for case in expand(spec)) and services.possible():
        return services.docker(say, folder)
    return contextlib.nullcontext()


def without_missing(
    spec: Spec, folder: Path, say: Say, *, making: bool = True
) -> tuple[Spec, list[str]]:
    """Return the spec less the runtimes of its matrix that cannot run here, and why, in words.

    ``folder``: where the images are.  With ``making``, an image's form that a runtime takes and
    that is not there yet is made.  Contrasts that say ``instead`` stay only where no runtimes are
    left to compare.

    Raises BackendUnavailable or ImageError for a runtime that the spec names alone.
    """
    wanted = [str(name) for name in named(spec, "runtime")]
    why = {name: _why_not(spec, name, folder, say, making) for name in wanted}
    notes = [f"runtime {name} is left out: {reason}" for name, reason in why.items() if reason]
    left = [name for name in wanted if not why[name]]
    if wanted:
        spec = spec.model_copy(update={"matrix": tuple(_tables_left(spec, left))})
    notes += left_out(spec)
    for note in notes:
        say(f"note: {note}")
    for case in _once(expand(spec)):
        if case.runtime not in left:
            registry.require("runtimes", case.runtime)
            _ready(case, folder, say, making)
    return _contrasts_left(spec), notes


def _tables_left(spec: Spec, left: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """Yield the matrix's tables with the runtimes that are left; the only one keeps ``bare``."""
    for table in spec.matrix:
        names = [name for name in table.get("runtime", []) if name in left]
        if "runtime" not in table:
            yield table
        elif names or len(spec.matrix) == 1:
            yield {**table, "runtime": names or ["bare"]}


def same_images(plan: Plan, folder: Path, say: Say) -> None:
    """Make what a resumed suite's runtimes need.

    Raises ImageError when an image is another than the one that the suite began with: its trials
    must not be mixed.
    """
    for name, digest in plan.images.items():
        now = images.find(name, folder).digest
        if now != digest:
            raise ImageError(
                f"image {name} is now {now[:19]}, and this suite began with {digest[:19]}: bring "
                f"that one back to {folder}, or run the suite anew"
            )
    for case in _once(plan.cases):
        _ready(case, folder, say, making=True)


def _why_not(spec: Spec, runtime: str, folder: Path, say: Say, making: bool) -> str:
    reason = registry.unavailable("runtimes", runtime)
    if reason:
        return reason
    try:
        for case in _once(c for c in expand(spec) if c.runtime == runtime):
            _ready(case, folder, say, making)
            if making:
                _starts(case, folder)
    except (BackendUnavailable, ImageError) as error:
        return str(error)
    return ""


def _starts(case: Case, folder: Path) -> None:
    """Raise ImageError where the runtime itself finds that the image cannot run here."""
    runtime = runtime_of(case)
    if runtime.form():
        image = images.in_form(images.find(case.image, folder), runtime.form())
        reason = runtime.identify(image).get("cannot_run")
        if reason:
            raise ImageError(f"the image's Python does not start on this host: {reason}")


def _once(cases: Iterable[Case]) -> Sequence[Case]:
    """Return one case of each runtime, image and launcher: finding a form reads a whole tree."""
    found = {}
    for c in cases:
        options = repr((c.runtime_options, c.launcher_options))
        found[c.runtime, c.image, c.launcher, options] = c
    return list(found.values())


def _ready(case: Case, folder: Path, say: Say, making: bool) -> None:
    """Have the case's image in the form that its runtime takes, or its stack on this host.

    Raises ImageError, and BackendUnavailable where the runtime's options are not possible here or
    the stack or the launcher is not installed.
    """
    runtime = runtime_of(case)
    if case.runtime_options and (reason := runtime.available()):
        options = ", ".join(f"{k} = {v!r}" for k, v in case.runtime_options.items())
        raise BackendUnavailable(f"runtime {case.runtime!r} with {options}: {reason}")
    form = runtime.form()
    if not form:
        check_launcher(case, stacks.on_host(case.image).env)
        return
    image = images.find(case.image, folder)
    if not making:
        return
    try:
        images.in_form(image, form)
    except ImageError:
        images.make_form(image, form, say)


def _contrasts_left(spec: Spec) -> Spec:
    """Drop what the runtimes here leave nothing to compare for, or the contrasts ``instead``."""
    alone = len({case.runtime for case in expand(spec)}) == 1
    kept = tuple(c for c in spec.contrasts if (c.over != "runtime" if alone else not c.instead))
    return spec if kept == spec.contrasts else spec.model_copy(update={"contrasts": kept})
