"""What could make two arms differ: taken in the worker, inside each arm, compared in words."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import socket
import sys
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, Dict, Iterable, List, Mapping

from iobench.host import cgroups, container_io, loaded_libraries, probes
from iobench.host.mounts import mount_of

_NONE: Mapping[str, str] = MappingProxyType({})
#: Distributions that count only where the process has loaded them -> the module that shows it.
IF_LOADED = {
    "mxnet": "mxnet",
    "pillow": "PIL",
    "protobuf": "google.protobuf",
    "tensorflow": "tensorflow",
}
#: Environment variables that set thread counts, change allocators or steer a library, such as by
#: the instructions that it uses (OPENBLAS_CORETYPE): other sums, and another speed.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "GLIBC_TUNABLES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NUMEXPR_NUM_THREADS",
    "PYTHONMALLOC",
)
#: So do all whose name begins so.
FAMILIES = (
    "ATEN_", "BLIS_", "CUBLAS_", "CUDNN_", "DALI_", "DNNL_", "GOMP_", "GOTO_", "HDF5_", "KMP_",
    "MALLOC_", "MKL_", "NCCL_", "NPY_", "NVPL_", "OMP_", "OMPI_MCA_btl", "OMPI_MCA_coll",
    "OMPI_MCA_mpi_yield", "OMPI_MCA_pml", "ONEDNN_", "OPENBLAS_", "OPENCV_", "PYTORCH_", "TORCH_",
    "UCX_",
)  # fmt: skip

#: What differs between nodes of one kind: an NFS client's address, the GPU that a job was given.
_OWN_OPTIONS, _OWN_VARIABLES = ("clientaddr=",), ("CUDA_VISIBLE_DEVICES",)


def collect(
    data_path: Path, stack: Mapping[str, str] = _NONE, brought: Mapping[str, str] = _NONE
) -> Dict[str, Any]:
    """Return the fingerprint of this process and of the mount under ``data_path``.

    ``stack``, ``brought``: module -> distribution, of the stack and of what members bring beside
    it (:func:`iobench.core.registry.libraries`).  Nested dicts of JSON scalars and lists; libraries
    are not imported.  What this machine does not show is left out.
    """
    return {
        "pid": os.getpid(),
        "boot_id": probes.read("/proc/sys/kernel/random/boot_id"),
        "host": socket.gethostname(),
        "mount_namespace": _mount_namespace(),
        "python": platform.python_version(),
        "libraries": _libraries([*stack.values(), *brought.values()]),
        "mapped": loaded_libraries.libraries(brought),
        "sources": loaded_libraries.sources(brought),
        "threads": _threads(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "cpu": _cpu(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "environment": steering(os.environ),
        "python_path": _python_path(),
        "limits": _limits(),
        "memory_bytes": _memory_bytes(),
        "dev_shm_bytes": probes.shared_memory()[0] or None,
        "thp": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "mount": _mount(data_path),
        **_container(data_path),
    }


def _container(data_path: Path) -> Dict[str, Any]:
    found = container_io.faults(container_io.look(data_path))
    return {"container": found} if found else {}


def facts(data_path: Path, distributions: Iterable[str]) -> Dict[str, Any]:
    """Return what decides whether this node is of another one's kind; nested JSON values.

    Of a fingerprint's facts those that are of the node, of what a batch job has of it, and of the
    software: no names, and no numbers that nodes of one kind are given each their own.
    """
    found = collect(data_path)
    limits, mount = found["limits"], found["mount"]
    options = (o for o in mount["super_options"].split(",") if not o.startswith(_OWN_OPTIONS))
    return {
        **{name: found[name] for name in ("cpu", "kernel", "libc", "python", "thp")},
        "cores": len(found["affinity"]),
        "memory_bytes": _memory_bytes(),
        "libraries": _libraries(distributions),
        "environment": {n: v for n, v in found["environment"].items() if n not in _OWN_VARIABLES},
        "limits": {name: limits[name] for name in ("memory_bytes", "cpus")},
        "mount": {
            **{name: mount[name] for name in ("fstype", "source", "options", "read_ahead_kb")},
            "super_options": ",".join(options),
        },
    }


def _mount_namespace() -> str:
    """Return a name that processes in one container have in common, and no others of this host."""
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def _memory_bytes() -> int:
    """Return the bytes of this machine's memory, whatever a control group leaves of it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _python_path() -> List[str]:
    """Return the folders of PYTHONPATH that hold more than this package: they may hide others'."""
    folders = [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f]
    return [f for f in folders if not Path(f, "iobench", "worker").exists()]


def steering(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that can move a result."""
    return {
        n: v for n, v in sorted(environment.items()) if n in VARIABLES or n.startswith(FAMILIES)
    }


def _threads() -> Dict[str, int]:
    """Threads that the libraries loaded here would really use, by library."""
    found = {}
    for module, ask in (("torch", "get_num_threads"), ("cv2", "getNumThreads")):
        loaded = sys.modules.get(module)
        if hasattr(loaded, ask):
            found[module] = int(getattr(loaded, ask)())
    return found


def _libraries(distributions: Iterable[str]) -> Dict[str, str]:
    loaded = [name for name, module in IF_LOADED.items() if module in sys.modules]
    versions = ((name, version_of(name)) for name in sorted({*distributions, *loaded}))
    return {name: version for name, version in versions if version}


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution, "" where it is not installed.

    One that is named by a CUDA release (``nvidia-dali-cuda120``) counts as built for any other.
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pass
    stem = re.sub(r"(?<=-cuda)\d+$", "", distribution)
    others = importlib.metadata.distributions() if stem != distribution else ()
    release = re.compile(re.escape(stem) + r"\d+")
    return next((d.version for d in others if release.fullmatch(str(d.metadata["Name"]))), "")


def _cpu() -> Dict[str, Any]:
    """Model, a digest of the instruction flags, count, governor and turbo where visible."""
    facts: Dict[str, Any] = {"count": os.cpu_count(), "machine": platform.machine()}
    first = probes.fields(probes.read("/proc/cpuinfo").split("\n\n", 1)[0])
    if model := first.get("CPU part", first.get("model name")):
        facts["model"] = model
    if flags := first.get("flags", first.get("Features")):
        flags = " ".join(sorted(flags.split()))
        facts["flags_digest"] = blake2b(flags.encode(), digest_size=8).hexdigest()
    for name in (
        "cpu0/cpufreq/scaling_governor",
        "cpu0/cpufreq/scaling_max_freq",
        "intel_pstate/no_turbo",
        "cpufreq/boost",
    ):
        if value := probes.read(Path("/sys/devices/system/cpu", name)):
            facts[Path(name).name] = value
    return facts


def _limits() -> Dict[str, Any]:
    memory = cgroups.memory_limits_bytes()
    return {
        "memory_bytes": min(memory) if memory else None,
        "cpus": cgroups.cpu_limit(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def _mount(path: Path) -> Dict[str, Any]:
    mount = mount_of(path)
    return {
        "fstype": mount.fstype,
        "device": mount.device,
        "source": mount.source,
        "options": ",".join(sorted(mount.options)),
        "super_options": ",".join(sorted(mount.super_options)),
        "read_ahead_kb": probes.read(f"/sys/class/bdi/{mount.device}/read_ahead_kb") or None,
    }


def _chosen(path: str) -> str:
    """Return the word in brackets of a sysfs choice: "always [madvise] never" -> madvise."""
    text = probes.read(path)
    return text[text.index("[") + 1 : text.index("]")] if "[" in text else text
