"""Which runtimes of a spec can run here: those of its matrix that cannot are left out and named.

A runtime that a spec names alone (``case.runtime``, ``[[cases]]``) must run, or that is an error.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from iobench.core import registry
from iobench.core.cases import Case, Plan
from iobench.core.errors import BackendUnavailable, ImageError
from iobench.core.own_images import is_own
from iobench.core.protocols import ImageUse, Say
from iobench.core.registry import form_of, runtime_of, stack_of
from iobench.data import striped
from iobench.host import files, locks, tools
from iobench.images import catalogue, docker_daemon, forms
from iobench.plan.resolve import fit
from iobench.run.command import check_launcher, image_of, images_for
from iobench.run.nodes import Nodes
from iobench.spec.contrast_rules import NAME
from iobench.spec.load import expand, extra_cases, named
from iobench.spec.schema import ExtraCase, Filter, Spec


def image_names(spec: Spec) -> list[str]:
    """Return the images that the spec's runtimes run, on this machine or another."""
    cases = [case for case in expand(spec) if not is_own(case.image)]
    return sorted({case.image for case in cases if runtime_of(case).form()})


def host_stacks(spec: Spec) -> list[str]:
    """Return the stacks that the spec needs on this host, no container, and that are not here."""
    bare = {stack_of(case) for case in expand(spec) if not runtime_of(case).form()}
    return sorted(name for name in bare if registry.unavailable("stacks", name))


def services_of(
    cases: Iterable[Case], folder: Path, say: Say
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which the daemons that the cases' runtimes need answer, where they can.

    Where none can be started, the runtime says so itself when it is asked for.
    """
    tools.extend_path()
    if any(case.runtime == "docker" for case in cases) and docker_daemon.possible():
        return docker_daemon.docker(say, folder)
    return contextlib.nullcontext()


def missing_runtimes(spec: Spec, folder: Path, say: Say, *, making: bool = True) -> dict[str, str]:
    """Return the runtimes of the spec's matrix that cannot run here, and why, in words.

    ``folder``: where the images are.  ``making``: forms of images that are not there yet are made.
    Raises BackendUnavailable or ImageError for a runtime that the spec names alone.
    """
    wanted = [str(name) for name in named(spec, "runtime")]
    why = {name: _why_not(spec, name, folder, say, making) for name in wanted}
    missing = {name: reason for name, reason in why.items() if reason}
    for case in _once(expand(fit(spec, missing)[0])):
        if why.get(case.runtime) != "":
            registry.require("runtimes", case.runtime)
            _ready(case, folder, say, making)
    return missing


def fitted(
    spec: Spec, missing: Mapping[str, str], root: Path | None = None
) -> tuple[Spec, list[str]]:
    """Leave out the cases of the matrix that this host or the data's mount cannot serve.

    Optional ones beside it too.  Return the rest, and notes on it.  ``missing``: runtimes that
    cannot run here.  ``root``: the dataset's folder, where striping and locks are tried; None: not.
    Raises BackendUnavailable for another case that the spec names alone, and where none is left.
    """
    cases = expand(fit(spec, missing)[0])
    why = {case.label: _lacks(case) or (_refused(case, root) if root else "") for case in cases}
    why = {label: reason for label, reason in why.items() if reason}
    extras = extra_cases(spec, cases)
    for label, extra in extras.items():
        if label in why and not extra.optional:
            raise BackendUnavailable(f"case {label}: {why[label]}")
    if len(why) == len(cases):
        raise BackendUnavailable(next(iter(why.values())))
    keys = ("pipeline", "decoder", "runtime", "trainer", "striping", "format_options", "workers")
    refused = [case for case in cases if case.label in why and case.label not in extras]
    left_out: list[Filter] = [{key: [getattr(case, key)] for key in keys} for case in refused]
    notes = [f"{label}: left out: {reason}" for label, reason in why.items()]
    left = _without(spec, [extra for label, extra in extras.items() if label in why])
    return left.model_copy(update={"exclude": (*spec.exclude, *left_out)}), notes


def _without(spec: Spec, absent: Sequence[ExtraCase]) -> Spec:
    """Return the spec without these extra cases, and without contrasts that need them."""
    if not absent:
        return spec
    cases = tuple(case for case in spec.cases if case not in absent)
    names = {case.name for case in cases if case.name}
    contrasts = tuple(
        c for c in spec.contrasts if c.over != NAME or (c.base in names and len(names) > 1)
    )
    return spec.model_copy(update={"cases": cases, "contrasts": contrasts})


def _lacks(case: Case) -> str:
    """Return why the members that load a case cannot run on this host, outside any container."""
    if runtime_of(case).form():
        return ""
    loader = registry.load("loaders", case.loader)
    here = registry.installed(loader.stack or stack_of(case))
    if here.python != sys.executable:
        return "" if here.own else registry.lacking(case)
    for axis, name in registry.loading(case).items():
        if reason := registry.unavailable(axis, name):
            return f"{axis[:-1]} {name!r} cannot run here: {reason}"
    return ""


def _refused(case: Case, root: Path) -> str:
    """Return why the filesystem of the dataset's folder does not do what a case asks of it."""
    option = registry.load("formats", case.format).locking
    readers = case.world_size * max(case.workers, 1)
    waits = option and case.format_options.get(option) and readers > 1
    if waits and (reason := _unshared(files.nearest(root.absolute()))):
        return f"{option} = true: a lock there is not shared: {reason}"
    return striped.refused(case, root)


@functools.lru_cache(maxsize=8)
def _unshared(folder: Path) -> str:
    with contextlib.suppress(OSError):  # nothing is written there
        return locks.unshared(folder)
    return ""


def on_nodes(
    several: Nodes | None, cases: Sequence[Case], images: Mapping[str, ImageUse], results: Path
) -> None:
    """Raise BackendUnavailable for a node that lacks a runtime, its image or the results."""
    if several is None:
        return
    for agent in several.agents:
        if reason := agent.absent(str(results)):
            raise BackendUnavailable(f"node {agent.node} does not see the results: {reason}")
    for case in _once(cases):
        form = form_of(case)
        for agent in several.first(case.nodes).agents if form and case.nodes > 1 else ():
            image = image_of(case, form, images)
            if reason := agent.lacks(case.runtime, case.runtime_options, image):
                raise BackendUnavailable(
                    f"node {agent.node}: runtime {case.runtime!r} cannot run there: {reason}"
                )


def same_images(plan: Plan, folder: Path, say: Say) -> None:
    """Make what a resumed suite's runtimes need; raises ImageError for a changed image."""
    own = images_for([case for case in plan.cases if is_own(case.image)], folder, say)
    for name, digest in plan.images.items():
        now = own[name].digest if name in own else catalogue.find(name, folder).digest
        if now != digest:
            raise ImageError(
                f"image {name} is now {now[:19]}, and this suite began with {digest[:19]}: bring "
                "that one back, or run the suite anew"
            )
    for case in _once(plan.cases):
        _ready(case, folder, say, making=True)


def _why_not(spec: Spec, runtime: str, folder: Path, say: Say, making: bool) -> str:
    if reason := registry.unavailable("runtimes", runtime):
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
    """Raise ImageError where the runtime itself finds that the image cannot run here.

    One of the user's own is looked into later (:mod:`iobench.run.own_images`).
    """
    runtime = runtime_of(case)
    if runtime.form() and not is_own(case.image):
        image = forms.in_form(catalogue.find(case.image, folder), runtime.form())
        if reason := runtime.identify(image).get("cannot_run"):
            raise ImageError(f"the image's Python does not start on this host: {reason}")


def _once(cases: Iterable[Case]) -> Sequence[Case]:
    """Return one case of each runtime, image and launcher: finding a form reads a whole tree.

    Of those alike the one on most nodes.
    """
    found = {
        (c.runtime, c.image, c.launcher, repr((c.runtime_options, c.launcher_options))): c
        for c in sorted(cases, key=lambda case: case.nodes)
    }
    return list(found.values())


def _ready(case: Case, folder: Path, say: Say, making: bool) -> None:
    """Have the case's image in the form that its runtime takes, or its stack on this host.

    Raises ImageError, or BackendUnavailable for options, a stack or a launcher not possible here.
    """
    runtime = runtime_of(case)
    if case.runtime_options and (reason := runtime.available()):
        options = ", ".join(f"{k} = {v!r}" for k, v in case.runtime_options.items())
        raise BackendUnavailable(f"runtime {case.runtime!r} with {options}: {reason}")
    form = runtime.form()
    if not form:
        check_launcher(case, registry.installed(stack_of(case)).env)
        return
    if is_own(case.image):
        return
    image = catalogue.find(case.image, folder)
    if not making:
        return
    try:
        forms.in_form(image, form)
    except ImageError:
        forms.make_form(image, form, say)
