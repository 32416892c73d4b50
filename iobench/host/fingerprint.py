"""What could make two arms differ: taken in the worker, inside each arm, compared in words."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import socket
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from iobench import cgroups, mapped
from iobench.mountinfo import mount_of

#: Distributions whose version can move a result: what workers use, loaded here or in a child.
LIBRARIES = (
    "h5py",
    "lmdb",
    "numpy",
    "nvidia-dali-cuda120",
    "opencv-python-headless",
    "plyvel",
    "simplejpeg",
    "torch",
)
#: Others that count only where the process has loaded them -> the module that tells.
IF_LOADED = {
    "mxnet": "mxnet",
    "pillow": "PIL",
    "protobuf": "google.protobuf",
    "tensorflow": "tensorflow",
}
#: Environment variables that set thread counts, change allocators or steer a library.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "GLIBC_TUNABLES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NUMEXPR_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONMALLOC",
)
#: So do all whose name begins so.
FAMILIES = (
    "DALI_", "GOMP_", "HDF5_", "KMP_", "MALLOC_", "MKL_", "OMP_", "OMPI_MCA_btl", "OMPI_MCA_coll",
    "OMPI_MCA_mpi_yield", "OMPI_MCA_pml", "OPENCV_", "TORCH_", "UCX_",
)  # fmt: skip
#: Facts that differ between any two processes and explain nothing.
VOLATILE = frozenset({"pid", "rank", "boot_id"})
#: What a bind mount may set beside the filesystem's own options.
BIND_FLAGS = frozenset({"ro", "rw", "nosuid", "nodev", "noexec", "relatime"})
#: Facts of the one kernel below all arms, which a container may hide: hidden is not different.
HOST_FACTS = ("cpu.", "thp", "mount.read_ahead_kb")
#: /dev/shm of this size and more is never what makes two arms differ: it can fill up, not slow.
ROOMY_SHM_BYTES = 1 << 30
#: Set by runtimes; it can make a run fail, never slow.
RUNTIME_FACTS = frozenset({"limits.open_files", "environment.LD_LIBRARY_PATH"})


def collect(data_path: Path) -> Dict[str, Any]:
    """Return the fingerprint of this process and of the mount under ``data_path``.

    Nested dicts of JSON scalars and lists; libraries are not imported.  What this machine does
    not show is left out.
    """
    return {
        "pid": os.getpid(),
        "boot_id": _text("/proc/sys/kernel/random/boot_id"),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "libraries": _libraries(),
        "mapped": {**mapped.libraries(), **mapped.sources()},
        "threads": _threads(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "cpu": _cpu(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "environment": steering(os.environ),
        "python_path": _python_path(),
        "limits": _limits(),
        "dev_shm_bytes": _capacity("/dev/shm"),
        "thp": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "mount": _mount(data_path),
    }


def _python_path() -> List[str]:
    """Return the folders of PYTHONPATH that hold more than this package: they may hide others'."""
    folders = [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f]
    return [f for f in folders if not Path(f, "iobench", "worker.py").exists()]


def steering(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that can move a result."""
    return {
        n: v for n, v in sorted(environment.items()) if n in VARIABLES or n.startswith(FAMILIES)
    }


def differences(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    *,
    across_runtimes: bool = False,
    across_libraries: bool = False,
    studied: Tuple[str, ...] = (),
) -> List[str]:
    """Return what differs, one line a fact: ``numpy: 1.26 against 2.4``; [] when nothing does.

    ``across_runtimes``: leave out what another runtime is by itself: the flags of a bind mount, the
    name of the host on the same kernel, facts of that kernel which one side cannot see.
    ``across_libraries``: each side brings its own and says on how many threads they run, so one
    that only one side has is no confounder; another version of one that both have is.
    ``studied``: beginnings of facts that are under study themselves (``mount.``, ``limits.cpus``).
    """
    first, second = _flat(a), _flat(b)
    lines = []
    for name in sorted({*first, *second}):
        if name.split(".")[-1] in VOLATILE:
            continue
        left, right = first.get(name, "absent"), second.get(name, "absent")
        if left == right or (across_runtimes and _of_runtime(name, first, second)):
            continue
        if name.startswith(studied) or (across_libraries and _brought(name, first, second)):
            continue
        lines.append(f"{_plain(name)}: {_short(left)} against {_short(right)}")
    return lines


def _brought(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if name.startswith(("libraries.", "mapped.")):
        return (name in a) != (name in b)
    return name.startswith("threads.")


def _of_runtime(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    left, right = a.get(name), b.get(name)
    if name == "host":
        return bool(a.get("boot_id")) and a.get("boot_id") == b.get("boot_id")
    if name == "mount.options":
        flags = {*str(left or "").split(",")} ^ {*str(right or "").split(",")}
        return flags <= BIND_FLAGS
    if name == "dev_shm_bytes":
        return min(int(left or 0), int(right or 0)) >= ROOMY_SHM_BYTES
    if name.startswith(HOST_FACTS):
        return left in (None, "") or right in (None, "")
    return name in RUNTIME_FACTS


def _threads() -> Dict[str, int]:
    """Threads that the libraries loaded here would really use, by library."""
    found = {}
    for module, ask in (("torch", "get_num_threads"), ("cv2", "getNumThreads")):
        loaded = sys.modules.get(module)
        if hasattr(loaded, ask):
            found[module] = int(getattr(loaded, ask)())
    return found


def _libraries() -> Dict[str, str]:
    loaded = [name for name, module in IF_LOADED.items() if module in sys.modules]
    versions = ((name, _version(name)) for name in (*LIBRARIES, *loaded))
    return {name: version for name, version in versions if version}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> Dict[str, Any]:
    """Model, a digest of the instruction flags, count, governor and turbo where visible."""
    facts: Dict[str, Any] = {"count": os.cpu_count(), "machine": platform.machine()}
    for line in _text("/proc/cpuinfo").split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "CPU part"):
            facts["model"] = value.strip()
        if key.strip() in ("flags", "Features"):
            flags = " ".join(sorted(value.split()))
            facts["flags_digest"] = blake2b(flags.encode(), digest_size=8).hexdigest()
    frequency = "/sys/devices/system/cpu/cpu0/cpufreq/"
    for name in ("scaling_governor", "scaling_max_freq"):
        value = _text(frequency + name)
        if value:
            facts[name] = value
    for path in (
        "/sys/devices/system/cpu/intel_pstate/no_turbo",
        "/sys/devices/system/cpu/cpufreq/boost",
    ):
        value = _text(path)
        if value:
            facts[Path(path).name] = value
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
        "read_ahead_kb": _text(f"/sys/class/bdi/{mount.device}/read_ahead_kb") or None,
    }


def _capacity(path: str) -> Any:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def _chosen(path: str) -> str:
    """Return the word in brackets of a sysfs choice: "always [madvise] never" -> madvise."""
    text = _text(path)
    return text[text.index("[") + 1 : text.index("]")] if "[" in text else text


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _flat(value: Mapping[str, Any], prefix: str = "") -> Dict[str, Any]:
    flat: Dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            flat.update(_flat(item, name + "."))
        else:
            flat[name] = list(item) if isinstance(item, tuple) else item
    return flat


def _plain(name: str) -> str:
    """Turn a dotted name into words: "cpu.flags_digest" -> "cpu flags digest"."""
    head, _, rest = name.partition(".")
    if head in ("mapped", "environment") and rest:
        return rest if head == "environment" else f"file {rest}"
    words = rest if head == "libraries" and rest else name.replace(".", " ")
    return words.replace("_", " ")


def _short(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
