"""name -> backend.  A backend is a file in its axis's folder; the file's stem is its name.

``IOBENCH_PLUGINS`` names a folder with the same six subfolders: files there join their axis.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any, List

from iobench.errors import BackendUnavailable, SpecError

AXES = ("formats", "loaders", "trainers", "runtimes", "launchers", "filesystems")

#: The four short names of pipelines.
ALIASES = {
    "lmdb": "torch:lmdb",
    "hdf5": "torch:hdf5",
    "jpeg": "torch:jpeg",
    "dali": "dali:jpeg",
}


#: Stack -> what to do where one of its modules is missing.
_REMEDIES = {
    "": "run `make setup`, or install it into this Python",
    "caffe": "run `make caffe`, or look at CAFFE_ROOT and CAFFE_PYTHON (`iobench doctor`)",
}


def _package(axis: str) -> ModuleType:
    package = importlib.import_module(f"iobench.{axis}")
    plugins = os.environ.get("IOBENCH_PLUGINS")
    if plugins:
        if not Path(plugins).is_dir():
            raise SpecError(
                f"IOBENCH_PLUGINS={plugins} is no folder; name one that holds {', '.join(AXES)}"
            )
        package.__path__[:] = [str(Path(package.__file__ or "").parent), str(Path(plugins, axis))]
    elif len(package.__path__) > 1:
        del package.__path__[1:]  # plug-ins of an earlier moment in this process
    return package


def names(axis: str) -> List[str]:
    """Return the members of an axis, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(_package(axis).__path__))


def load(axis: str, name: str) -> Any:
    """Return the ``BACKEND`` value of ``name``.

    Raises SpecError for an unknown name, with the valid ones, and BackendUnavailable for a file
    that cannot be imported or holds no BACKEND.  Loading imports no framework: backends import
    theirs inside functions.
    """
    known = names(axis)
    if name not in known:
        raise SpecError(f"unknown {axis[:-1]} {name!r}; there are: {', '.join(known)}")
    try:
        return importlib.import_module(f"iobench.{axis}.{name}").BACKEND
    except (SyntaxError, ImportError, AttributeError, NameError, TypeError) as error:
        raise BackendUnavailable(
            f"{axis}/{name}.py cannot be loaded: {type(error).__name__}: {error}; mend that file, "
            "or take it out of IOBENCH_PLUGINS"
        ) from error


def unavailable(axis: str, name: str) -> str:
    """Return why ``name`` cannot run on this machine, with the remedy; "" when it can."""
    backend = load(axis, name)
    missing = [m for m in backend.requires if not _importable(m)]
    if missing:
        return f"needs {', '.join(missing)}: {_REMEDIES.get(backend.image, _REMEDIES[''])}"
    if axis in ("runtimes", "launchers"):
        return str(backend.make().available())
    return ""


def require(axis: str, name: str) -> Any:
    """Return the backend, or raise BackendUnavailable with the reason."""
    reason = unavailable(axis, name)
    if reason:
        raise BackendUnavailable(f"{axis[:-1]} {name!r} cannot run here: {reason}")
    return load(axis, name)


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
