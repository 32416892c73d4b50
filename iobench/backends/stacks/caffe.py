"""Which software a case runs in: its interpreter on bare metal, and what its environment must say.

A stack has the name of an image (``Case.image``).  In an image, all of it is at ``PREFIX_INSIDE``.
On bare metal ``torch`` is the driver's own Python, and ``caffe`` the prefix that `make caffe` puts
at ``.tools/caffe`` (the image's own files; a site may have them at ``PREFIX_INSIDE``), or what
``CAFFE_ROOT`` names: such a prefix, or a Caffe of the user's (Intel-Caffe, a module).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from iobench import registry, tools
from iobench.errors import BackendUnavailable

#: Where an image has its stack.
PREFIX_INSIDE = "/opt/iobench"
DEFAULT = "torch"
#: Written last by whatever makes a prefix: what is in it, as JSON.
RECORD = "share/iobench-caffe.json"
CAFFE_ROOT, CAFFE_PYTHON = "CAFFE_ROOT", "CAFFE_PYTHON"
_LIBRARIES = "lib/x86_64-linux-gnu"
#: glog: errors and fatal lines only, on standard error; else it writes files into /tmp.
_GLOG = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "2"}
_OWN_PYTHON = ("python", "share/python")
_OWN_PROGRAM = ("build/tools", "bin", "tools")
_OWN_LIBRARIES = ("build/lib", "lib", "lib64")


@dataclasses.dataclass(frozen=True)
class Stack:
    """A stack on bare metal.

    ``python``: its interpreter.  ``env``: what it needs, beside ``PYTHONPATH``, of which
    ``python_path`` are its own folders.  ``prefix``: where it lies; "": the driver's own Python.
    ``own``: a build of the user's; ``packages``: with its Python package, not the program alone.
    """

    name: str
    python: str
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    prefix: str = ""
    own: bool = False
    packages: bool = True


def default_of(trainer: str, loader: str) -> str:
    """Return the stack that these members are at home in: the trainer's, else the loader's."""
    wanted = [registry.load("trainers", trainer).image, registry.load("loaders", loader).image]
    return next(filter(None, wanted), DEFAULT)


def environment(name: str, prefix: str) -> dict[str, str]:
    """Return what the stack at ``prefix`` (a path as its processes see it) needs set; pure."""
    if name != "caffe":
        return {}
    return {
        **_GLOG,
        "OPAL_PREFIX": prefix,
        "OPAL_SYSCONFDIR": f"{prefix}/etc/openmpi",  # else the host's /etc/openmpi is read
        "PMIX_MCA_mca_base_component_path": f"{prefix}/{_LIBRARIES}/pmix2/lib/pmix",
    }


def on_host(name: str, variables: Mapping[str, str] = os.environ) -> Stack:
    """Return the stack ``name`` on this host, outside any container.

    ``variables``: the driver's environment.  Raises BackendUnavailable with the remedy where it is
    not installed.
    """
    if name != "caffe":
        return Stack(name, sys.executable)
    root = variables.get(CAFFE_ROOT, "")
    if root and not Path(root).is_dir():
        raise BackendUnavailable(f"{CAFFE_ROOT}={root} is no folder: {_WHAT_ROOT}")
    if root and not (Path(root) / RECORD).exists():
        return _own(Path(root).absolute(), variables)
    places = [Path(root)] if root else [tools.FOLDER / "caffe", Path(PREFIX_INSIDE)]
    prefix = next((p.absolute() for p in places if (p / RECORD).exists()), None)
    if prefix is None:
        raise BackendUnavailable(
            "Caffe is not installed on this host: `make caffe` installs it without root, or set "
            f"{CAFFE_ROOT} to a build of your own"
        )
    env = from_prefix(name, str(prefix), variables)
    env["PYTHONHOME"] = ""  # as if unset: a host's would lead to another standard library
    return Stack(name, f"{prefix}/bin/python3", env, (), str(prefix))


def from_prefix(
    name: str, prefix: str, variables: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return what processes of a prefix need on the host: :func:`environment`, and its programs."""
    path = {"PATH": _joined([f"{prefix}/bin"], variables.get("PATH", os.defpath))}
    env = environment(name, prefix)
    return {**env, **(path if env else {}), "PYTHONNOUSERSITE": "1"}


_WHAT_ROOT = (
    "set it to a folder with python/caffe and the program caffe in build/tools or bin, or unset it "
    "and run `make caffe`"
)


def missing(name: str, variables: Mapping[str, str] = os.environ) -> str:
    """Return why the stack is not on this host, with the remedy; "" when it is."""
    try:
        on_host(name, variables)
    except BackendUnavailable as error:
        return str(error)
    return ""


def record(prefix: str | Path) -> dict[str, str]:
    """Return what the prefix says is in it; {} for one without a record, or a broken one."""
    try:
        facts = json.loads((Path(prefix) / RECORD).read_text()) if prefix else {}
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in facts.items()}


def _own(root: Path, variables: Mapping[str, str]) -> Stack:
    """Return a Caffe that the user built or loaded.

    Its interpreter is ``CAFFE_PYTHON``, or the first python3 on PATH that is not the driver's.
    """
    packages = [root / name for name in _OWN_PYTHON if (root / name / "caffe").is_dir()]
    packages += [p.parent for p in sorted(root.glob("lib*/python*/*-packages/caffe"))]
    programs = [root / name for name in _OWN_PROGRAM if (root / name / "caffe").is_file()]
    if not packages and not programs:
        raise BackendUnavailable(
            f"{CAFFE_ROOT}={root} holds neither the Python package caffe nor the program: "
            f"{_WHAT_ROOT}"
        )
    wanted = variables.get(CAFFE_PYTHON, "")
    python = shutil.which(wanted or "python3", path=_without_us(variables.get("PATH", os.defpath)))
    if python is None:
        raise BackendUnavailable(
            f"no interpreter {wanted or 'python3'!r} for {CAFFE_ROOT}={root}: set {CAFFE_PYTHON} "
            "to the Python that it was built for (3.9 or newer, with numpy)"
        )
    libraries = [str(root / name) for name in _OWN_LIBRARIES if (root / name).is_dir()]
    env = {
        **_GLOG,
        "PATH": _joined([str(p) for p in programs], variables.get("PATH", os.defpath)),
        "LD_LIBRARY_PATH": _joined(libraries, variables.get("LD_LIBRARY_PATH", "")),
    }
    own_path = [str(p) for p in packages[:1]]
    own_path += [f for f in variables.get("PYTHONPATH", "").split(os.pathsep) if f]
    return Stack(
        "caffe", python, env, tuple(own_path), str(root), own=True, packages=bool(packages)
    )


def _without_us(path: str) -> str:
    """Return PATH without the folder of the driver's own (virtual) environment."""
    ours = str(Path(sys.prefix) / "bin")
    return os.pathsep.join(f for f in path.split(os.pathsep) if f != ours)


def _joined(folders: Iterable[str], rest: str) -> str:
    return os.pathsep.join([*folders, *filter(None, rest.split(os.pathsep))])
