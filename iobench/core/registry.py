"""name -> backend.  A backend is a file in its axis's folder; the file's stem is its name, and one
that begins with ``_`` is a helper, no backend.

``IOBENCH_PLUGINS`` names a folder with a subfolder an axis: files there join it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from iobench.core import trusted
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable, SpecError, near, shown
from iobench.core.inside import PLUGINS_INSIDE
from iobench.core.members import Installed
from iobench.core.own_images import forms_of, is_own
from iobench.core.protocols import Decode, Format

AXES = (
    "formats", "loaders", "decoders", "trainers", "runtimes", "launchers", "filesystems",
    "placements", "stacks", "schedulers", "stages",
)  # fmt: skip
#: Axes whose files lie elsewhere than in ``iobench/backends/<axis>``.
_PACKAGES = {"stages": "iobench.worker.stages"}
#: The four short names of pipelines.
ALIASES = {"lmdb": "torch:lmdb", "hdf5": "torch:hdf5", "jpeg": "torch:jpeg", "dali": "dali:jpeg"}
#: The stack of the driver's own Python: where a member that names none runs.
DEFAULT_STACK = Case.image


def _package_name(axis: str) -> str:
    return _PACKAGES.get(axis, f"iobench.backends.{axis}")


def _package(axis: str) -> ModuleType:
    package = importlib.import_module(_package_name(axis))
    plugins = os.environ.get("IOBENCH_PLUGINS")
    if plugins:
        if not Path(plugins).is_dir():
            raise SpecError(
                f"IOBENCH_PLUGINS={plugins} is not a folder; name one that holds {', '.join(AXES)}"
            )
        _check_plugins(plugins)
        package.__path__[:] = [str(Path(package.__file__ or "").parent), str(Path(plugins, axis))]
    elif len(package.__path__) > 1:
        del package.__path__[1:]  # plug-ins of an earlier moment in this process
    return package


@functools.cache
def _check_plugins(plugins: str) -> None:
    """Raise SpecError for plug-ins that somebody else may have written; once in a process."""
    if plugins == PLUGINS_INSIDE:  # the driver has looked; owners have other numbers in a container
        return
    trusted.check_tree(plugins, AXES, f"IOBENCH_PLUGINS={plugins}")


def names(axis: str) -> List[str]:
    """Return the members of an axis, sorted."""
    own, *plugins = _package(axis).__path__
    return sorted({*_own(own), *_modules(plugins)})


@functools.cache
def _own(folder: str) -> FrozenSet[str]:
    """Return the members in a folder of this package: they do not change while it runs."""
    return _modules([folder])


def _modules(folders: List[str]) -> FrozenSet[str]:
    return frozenset(m.name for m in pkgutil.iter_modules(folders) if m.name[0] != "_")


def load(axis: str, name: str) -> Any:
    """Return the ``BACKEND`` value of ``name``.

    Raises SpecError for an unknown name, with the valid ones, and BackendUnavailable for a file
    that cannot be imported or holds no BACKEND.  Loading imports no framework: backends import
    theirs inside functions.
    """
    known = names(axis)
    if name not in known:
        raise SpecError(f"unknown {axis[:-1]} {shown(name)}{near(name, known)}")
    try:
        return importlib.import_module(f"{_package_name(axis)}.{name}").BACKEND
    except (SyntaxError, ImportError, AttributeError, NameError, TypeError) as error:
        raise BackendUnavailable(
            f"{axis}/{name}.py cannot be loaded: {type(error).__name__}: {error}; fix that file, "
            "or take it out of IOBENCH_PLUGINS"
        ) from error


def known(axis: str, name: str) -> Optional[Any]:
    """Return what :func:`load` does; None where results are of a plug-in that is not here."""
    try:
        return load(axis, name)
    except SpecError:
        return None


def unavailable(axis: str, name: str) -> str:
    """Return why ``name`` cannot run on this machine, with the remedy; "" when it can."""
    backend = load(axis, name)
    if axis == "stages":  # the case's members decide where it runs
        return ""
    if axis == "stacks":
        try:
            backend.on_host(os.environ)
        except BackendUnavailable as error:
            return str(error)
        return ""
    missing = [m for m in backend.requires if not importable(m)]
    if missing:
        return f"needs {', '.join(missing)}: {_remedy(axis, name, missing)}"
    if axis in ("runtimes", "launchers", "schedulers"):
        return str(backend.make().available())
    return ""


def _remedy(axis: str, name: str, missing: Sequence[str]) -> str:
    """Return what to do where modules of a member are missing."""
    backend = load(axis, name)
    stack = load("stacks", backend.stack or DEFAULT_STACK)
    if all(module in stack.libraries for module in missing):
        return str(stack.remedy)
    packages = " ".join(backend.libraries.get(module, module) for module in missing)
    if name in _own(str(Path(_package(axis).__file__ or "").parent)):
        return f"run `make setup-extra`, or install {packages} into this Python"
    return f"install {packages} into this Python"


def require(axis: str, name: str) -> Any:
    """Return the backend, or raise BackendUnavailable with the reason."""
    reason = unavailable(axis, name)
    if reason:
        raise BackendUnavailable(f"{axis[:-1]} {name!r} cannot run here: {reason}")
    return load(axis, name)


def importable(module: str) -> bool:
    """Return whether this Python finds a module; only its parents are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def home_stack(trainer: str, loader: str) -> str:
    """Return the stack's name for a case of these members: the trainer's, else the loader's."""
    wanted = [load("trainers", trainer).stack, load("loaders", loader).stack]
    return next(filter(None, wanted), DEFAULT_STACK)


def stack_of(case: Case) -> str:
    """Return the stack of a case: what its image is named by, unless that is the user's own."""
    return home_stack(case.trainer, case.loader) if is_own(case.image) else case.image


def loading(case: Case) -> Dict[str, str]:
    """Return axis -> name of the members that make a case's batches.

    A decoder is among them where the loader takes one and the samples are encoded; not of a loader
    that is not here.
    """
    found = {"formats": case.format, "loaders": case.loader}
    loader = known("loaders", case.loader)
    if case.content == "jpeg" and loader and loader.decodes:
        found["decoders"] = case.decoder
    return found


def lacking(case: Case) -> str:
    """Return why the members that load cannot run in the case's stack, "" where they can.

    They bring a library that the stack has neither in an image nor in a prefix.
    """
    stack = load("loaders", case.loader).stack or stack_of(case)
    known = load("stacks", stack).libraries
    for axis, name in loading(case).items():
        backend = load(axis, name)
        lost = [m for m in backend.requires if m not in known]
        if lost:
            packages = ", ".join(backend.libraries.get(m, m) for m in lost)
            return f"{axis[:-1]} {name!r} needs {packages}, which the stack {stack!r} does not have"
    return ""


def decoder(name: str) -> Decode:
    """Return the function that decodes by the named library."""
    return _decoder(name, os.environ.get("IOBENCH_PLUGINS", ""))


@functools.cache
def _decoder(name: str, plugins: str) -> Decode:
    made: Decode = load("decoders", name).make()
    return made


def libraries(stack: str, **members: str) -> Tuple[Mapping[str, str], Mapping[str, str]]:
    """Return (the stack's libraries, what the members bring beside them): module -> distribution.

    ``members``: axis -> name.
    """
    known: Mapping[str, str] = load("stacks", stack).libraries
    brought: Dict[str, str] = {}
    for axis, name in members.items():
        brought.update(load(axis, name).libraries)
    return known, {module: name for module, name in brought.items() if module not in known}


def installed(stack: str) -> Installed:
    """Return a stack on this host.  Raises BackendUnavailable with the remedy where it is not."""
    found: Installed = load("stacks", stack).on_host(os.environ)
    return found


def format_of(case: Case) -> Format:
    """Return the case's format, made with its options."""
    made: Format = load("formats", case.format).make(**case.format_options)
    return made


def layout_of(format_name: str, options: Mapping[str, Any]) -> str:
    """Return what a form's folder adds to its name for options that shape what is written.

    "" for the usual layout, else such as ``+chunk-16+compression-gzip``.
    """
    make = load("formats", format_name).make
    usual, wanted = (getattr(make(**o), "layout", {}) for o in ({}, options))
    return "".join(f"+{k}-{v}" for k, v in sorted(wanted.items()) if usual.get(k) != v)


def runtime_of(case: Case) -> Any:
    """Return the case's runtime, made with its options; it need not be available."""
    return load("runtimes", case.runtime).make(**case.runtime_options)


def scope_of(case: Case) -> str:
    """Return whether a container is started for each ``rank`` or for each ``node``; "": for none.

    A launcher outside of containers starts one a rank, one inside starts the ranks of its node.
    """
    if not load("runtimes", case.runtime).isolated:
        return ""
    inside = load("launchers", case.launcher).inside and case.nodes == 1
    return case.scope or ("node" if inside else "rank")


def form_of(case: Case) -> str:
    """Return the form of image that the case's runtime is started with; "" for none.

    An image of the user's own comes as it is, where the runtime takes several forms.
    """
    form = str(runtime_of(case).form())
    if form and is_own(case.image) and form not in forms_of(case.image):
        others: Tuple[str, ...] = load("runtimes", case.runtime).takes
        return next((f for f in others if f in forms_of(case.image)), form)
    return form
