"""Caffe, its Python 3.9 and Open MPI.

On the host it is the prefix that `make caffe` puts at ``.tools/caffe`` (the image's own files; a
site may have them at ``PREFIX_INSIDE``), or what ``CAFFE_ROOT`` names: such a prefix, or a Caffe of
the user's (Intel-Caffe, a module).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Dict, Iterable, Mapping

from iobench.backends.stacks import _prefix
from iobench.backends.stacks._libraries import DECODING
from iobench.core.errors import BackendUnavailable
from iobench.core.inside import PREFIX_INSIDE
from iobench.core.members import ImageRecipe, Installed, Stack
from iobench.host import tools

CAFFE_ROOT, CAFFE_PYTHON = "CAFFE_ROOT", "CAFFE_PYTHON"
_LIBRARIES = "lib/x86_64-linux-gnu"
#: glog: errors and fatal lines only, on standard error; else it writes files into /tmp.
_GLOG = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "2"}
#: Variables that name a folder of plug-ins -> that of the prefix, which need not be there.
_PLUGINS = {
    "HWLOC_PLUGINS_PATH": "hwloc",
    "FI_PROVIDER_PATH": "libfabric",
    "UCX_MODULE_DIR": "ucx",
    "HDF5_PLUGIN_PATH": "hdf5",
    "OPENSSL_ENGINES": "engines-1.1",
    "SASL_PATH": "sasl2",
}
#: Of libraries that are told to load none.
_NO_PLUGINS = {"GDAL_DRIVER_PATH": "disable", "OPENCV_OPENCL_RUNTIME": "disabled"}
_OWN_PYTHON = ("python", "share/python")
_OWN_PROGRAM = ("build/tools", "bin", "tools")
_OWN_LIBRARIES = ("build/lib", "lib", "lib64")
_WHAT_ROOT = (
    "set it to a folder with python/caffe and the program caffe in build/tools or bin, or unset it "
    "and run `make caffe`"
)


def environment(prefix: str) -> Dict[str, str]:
    """Return the variables that processes of the prefix (a path as they see it) need.

    A library of the prefix must load no plug-in of the host, which another version of it made.
    """
    libraries = f"{prefix}/{_LIBRARIES}"
    own_mpi = {
        "OPAL_PREFIX": prefix,
        "OPAL_SYSCONFDIR": f"{prefix}/etc/openmpi",  # else the host's /etc/openmpi is read
        # else ~/.openmpi and ~/.pmix are read too: components, and settings of another version
        "OMPI_MCA_mca_base_component_path": f"{libraries}/openmpi/lib/openmpi3",
        "OMPI_MCA_mca_base_param_files": f"{prefix}/etc/openmpi/openmpi-mca-params.conf",
        "PMIX_PREFIX": f"{libraries}/pmix2",
        "PMIX_SYSCONFDIR": f"{libraries}/pmix2/share",
        "PMIX_MCA_mca_base_component_path": f"{libraries}/pmix2/lib/pmix",
        "PMIX_MCA_mca_base_param_files": f"{libraries}/pmix2/share/pmix-mca-params.conf",
        **{name: f"{libraries}/{folder}" for name, folder in _PLUGINS.items()},
        **_NO_PLUGINS,
    }
    # mpirun's helper on another node, which gets no environment of its own
    helper = ["/usr/bin/env", *(f"{n}={v}" for n, v in own_mpi.items()), f"{prefix}/bin/orted"]
    return {**_GLOG, **own_mpi, "OMPI_MCA_orte_launch_agent": " ".join(helper)}


def on_host(variables: Mapping[str, str]) -> Installed:
    """Return the prefix of `make caffe` or ``CAFFE_ROOT``.  Raises BackendUnavailable."""
    root = variables.get(CAFFE_ROOT, "")
    if root and not Path(root).is_dir():
        raise BackendUnavailable(f"{CAFFE_ROOT}={root} is not a folder: {_WHAT_ROOT}")
    if root and not _prefix.has_record(root):
        return _own(Path(root).absolute(), variables)
    places = [Path(root)] if root else [tools.FOLDER / "caffe", Path(PREFIX_INSIDE)]
    prefix = next((str(p.absolute()) for p in places if _prefix.has_record(p)), None)
    if prefix is None:
        raise BackendUnavailable(
            "Caffe is not installed on this host: `make caffe` installs it without root, or set "
            f"{CAFFE_ROOT} to a build of your own"
        )
    env = BACKEND.prefix_environment(prefix, variables)
    return Installed(f"{prefix}/bin/python3", env, (), prefix, _prefix.record(prefix))


def _own(root: Path, variables: Mapping[str, str]) -> Installed:
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
    path = variables.get("PATH", os.defpath)
    ours = str(Path(sys.prefix) / "bin")
    others = os.pathsep.join(folder for folder in path.split(os.pathsep) if folder != ours)
    python = shutil.which(wanted or "python3", path=others)
    if python is None:
        raise BackendUnavailable(
            f"no interpreter {wanted or 'python3'!r} for {CAFFE_ROOT}={root}: set {CAFFE_PYTHON} "
            "to the Python that it was built for (3.9 or newer, with numpy)"
        )
    libraries = [str(root / name) for name in _OWN_LIBRARIES if (root / name).is_dir()]
    env = {
        **_GLOG,
        "PATH": _joined([str(p) for p in programs], path),
        "LD_LIBRARY_PATH": _joined(libraries, variables.get("LD_LIBRARY_PATH", "")),
    }
    own_path = [str(p) for p in packages[:1]]
    own_path += [f for f in variables.get("PYTHONPATH", "").split(os.pathsep) if f]
    return Installed(
        python,
        env,
        tuple(own_path),
        str(root),
        own=True,
        modules=("caffe", "numpy") if packages else (),
        probe=() if packages else (f"{programs[0]}/caffe", "--version"),
    )


def _joined(folders: Iterable[str], rest: str) -> str:
    return os.pathsep.join([*folders, *filter(None, rest.split(os.pathsep))])


BACKEND = Stack(
    summary="BVLC Caffe 1.0, its Python 3.9, Open MPI and DALI",
    on_host=on_host,
    libraries={"numpy": "numpy", "caffe": "caffe", "mpi4py": "mpi4py", **DECODING},
    remedy="run `make caffe`, or look at CAFFE_ROOT and CAFFE_PYTHON (`iobench doctor`)",
    environment=environment,
    image=ImageRecipe(
        description="What iobench's Caffe workers run in: BVLC Caffe 1.0, Open MPI, DALI",
        python="3.9",
        suite="bullseye",
        first="prefix",
        wheels=("--no-deps", "--require-hashes", "-r", "caffe.txt"),
        files=(
            "caffe.txt", "debian-bookworm.txt", "debian-bullseye.txt", "image-caffe.sh",
            "caffe_prefix.py", "elf.py",
        ),
        store_bytes=6e9,
        archive_bytes=2e9,
        wheels_bytes=1.5e9,
        locked=True,
        script="caffe_prefix.py",
        prefix_bytes=2.6e9,
    ),
)  # fmt: skip
