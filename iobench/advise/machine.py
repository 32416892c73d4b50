"""What can and cannot be measured here, and why: one :class:`Check` a fact, with its remedy."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from iobench import cgroups, containers, fio, pagecache, registry, residency_calls, stacks, starting
from iobench.errors import BackendUnavailable, CacheStateError, ImageError
from iobench.images import prefix
from iobench.model import Case, IoCounters
from iobench.mounts import describe_mount, filesystem_for
from iobench.timing import clock

#: Shared memory that default batches need: workers x prefetch x 64 samples of 3 x 224 x 224 floats.
SHM_BYTES = 2 * 2 * 64 * 3 * 224 * 224 * 4
#: Read-ahead above this turns random reads in one small file into nearly sequential ones.
READ_AHEAD_KB = 4096
_OLDEST_PYTHON = (3, 11)


@dataclasses.dataclass(frozen=True)
class Check:
    """One fact.  ``remedy`` says what to do where ``ok`` is False."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def examine(data_path: Path) -> list[Check]:
    """Return every check, for data under ``data_path`` (or its nearest existing parent)."""
    path = data_path.resolve()
    while not path.exists():
        path = path.parent
    checks: list[Callable[[], Check]] = [
        _python,
        lambda: _mount(path),
        lambda: _cold(path),
        _residency,
        lambda: _bytes(path),
        lambda: _read_ahead(path),
        lambda: _memory(path),
        _shared_memory,
        _reclaim,
        _drop_caches,
        _cores,
        _frequency,
        _steal,
        _clock,
        _fio,
        _strace,
        _torch,
        lambda: _library("dali", "nvidia.dali", "nvidia-dali-cuda120", "pipelines dali:*"),
        lambda: _library("lmdb", "lmdb", "lmdb", "format lmdb"),
        lambda: _library("h5py", "h5py", "h5py", "format hdf5"),
        _caffe,
    ]
    return [check() for check in checks] + _launchers() + _runtimes()


def _python() -> Check:
    version = platform.python_version()
    return Check(
        "python",
        sys.version_info >= _OLDEST_PYTHON,
        f"{version} at {sys.executable}",
        "the driver needs Python 3.11 or later (workers: 3.9): make setup PYTHON=python3.11",
    )


def _mount(path: Path) -> Check:
    facts = describe_mount(path)
    words = [f"{facts['fstype']} at {facts['mount_point']} ({facts['source']})"]
    if facts.get("virtual_disk"):
        words.append("a virtual disk: what its host caches is unknown")
    if facts.get("overlay"):
        words.append("an overlay: its layers may lie elsewhere")
    if facts.get("loop"):
        words.append(f"a loop device on {facts.get('loop_backing_file')}")
    return Check("mount", True, "; ".join(words))


def _cold(path: Path) -> Check:
    """Write a scratch file, read it, evict it and count its pages, as this very user."""
    reason = filesystem_for(path)[1].cold()
    if reason:
        return Check("cold", False, reason, "choose a folder on another mount for OUT / --out")
    try:
        with tempfile.NamedTemporaryFile(prefix="iobench-doctor-", dir=path) as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            scratch = [Path(file.name)]
            pagecache.warm(scratch)
            warm = pagecache.residency(scratch)
            pagecache.evict(scratch)
            cold = pagecache.residency(scratch)
    except OSError as error:
        return Check("cold", False, f"{path} is not writable: {error.strerror}", "choose another")
    except CacheStateError as error:
        return Check("cold", False, str(error), "choose another folder")
    ok = cold.fraction == 0.0 and warm.fraction == 1.0
    detail = (
        f"evicted 1 MiB without root: {warm.fraction} of its pages resident, then {cold.fraction}"
    )
    return Check(
        "cold", ok, detail, "eviction has no effect here: cold trials will be INVALID; see docs"
    )


def _residency() -> Check:
    if residency_calls.cachestat_works():
        return Check("residency proof", True, "cachestat(2)")
    return Check(
        "residency proof",
        True,
        "mincore(2); cachestat(2) needs Linux 6.5 and is hidden by some containers",
    )


def _bytes(path: Path) -> Check:
    name, filesystem = filesystem_for(path)
    count, counter = filesystem.storage_bytes(IoCounters())
    if not Path("/proc/self/io").exists():
        count, counter = None, ""
    return Check(
        "byte counter",
        count is not None,
        f"{name}: {counter or 'nothing counts the bytes that cross this mount'}",
        "trials that need that proof will be EXPLORATORY; put data on a block device to be VALID",
    )


def _read_ahead(path: Path) -> Check:
    ahead = describe_mount(path).get("read_ahead_kb")
    if not isinstance(ahead, int):
        return Check("read-ahead", True, "not shown for this mount")
    return Check(
        "read-ahead",
        ahead <= READ_AHEAD_KB,
        f"{ahead} KiB",
        "random reads inside a small shard become nearly sequential: use a dataset much larger "
        "than that, or lower /sys/class/bdi/*/read_ahead_kb",
    )


def _memory(path: Path) -> Check:
    memory = pagecache.effective_memory_bytes()
    folders = [f for f in (path, path.parent) if (f / "dataset.json").exists()]
    detail = f"{memory / 2**30:.1f} GiB effective (MemTotal and cgroup limits)"
    remedy = "warm trials will be refused: fewer samples, or more memory"
    if not folders:
        return Check("memory", True, detail)
    nbytes = sum(f.stat().st_size for f in folders[0].rglob("*") if f.is_file())
    try:
        pagecache.check_warmable(nbytes)
    except CacheStateError as error:
        return Check("memory", False, str(error), remedy)
    return Check("memory", True, f"{detail}; the dataset's forms take {nbytes / 2**30:.2f} GiB")


def _shared_memory() -> Check:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Check("/dev/shm", False, "absent", "torch workers need it: mount a tmpfs there")
    return Check(
        "/dev/shm",
        free >= SHM_BYTES,
        f"{free / 2**20:.0f} MiB free; the default batches need {SHM_BYTES / 2**20:.0f} MiB",
        "torch workers die with 'bus error': enlarge it (docker: --shm-size) or shrink the batch",
    )


def _reclaim() -> Check:
    """DAMON schemes page idle cache out; so does a memory cgroup that is near its limit."""
    admin = Path("/sys/kernel/mm/damon/admin/kdamonds")
    states = [state.read_text().strip() for state in sorted(admin.glob("*/state"))]
    module = Path("/sys/module/damon_reclaim/parameters/enabled")
    on = "on" in states or (module.exists() and module.read_text().strip() == "Y")
    return Check(
        "proactive reclaim",
        True,
        "DAMON is on: idle cached files shrink by several percent in minutes; a warm trial warms "
        "what is missing and proves it, before and after"
        if on
        else "none seen (DAMON off or absent)",
    )


def _drop_caches() -> Check:
    allowed = os.access(pagecache.DROP_CACHES, os.W_OK)
    return Check(
        "drop_caches",
        True,
        "possible, used only when asked for (label client-cold; it hits every user here)"
        if allowed
        else "not allowed to this user; not needed: files are evicted one by one (label data-cold)",
    )


def _cores() -> Check:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = cgroups.cpu_limit()
    limit = min(usable, quota) if quota else usable
    words = f"{usable} of {present} usable" + (f", cgroup quota {quota:g}" if quota else "")
    return Check(
        "cores",
        limit >= 2,
        words,
        "loader and trainer share one core: prep stalls will be mostly contention; ask for more",
    )


def _frequency() -> Check:
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    flags = Path("/proc/cpuinfo").read_text()
    virtual = " hypervisor" in flags
    if not governor.exists():
        where = "a virtual machine: " if virtual else ""
        return Check("cpu frequency", True, f"{where}governor and turbo are not visible")
    name = governor.read_text().strip()
    return Check(
        "cpu frequency",
        name == "performance",
        f"governor {name}",
        "speed follows load: set it to performance (cpupower frequency-set -g performance), or "
        "trust only paired blocks",
    )


def _steal() -> Check:
    words = Path("/proc/stat").read_text().splitlines()[0].split()
    ticks = [int(word) for word in words[1:9]]
    share = ticks[7] / max(sum(ticks), 1)
    return Check(
        "stolen time",
        share < 0.01,
        f"{share:.2%} of CPU time since boot",
        "other guests take this machine's CPU: measure at another time, or with more pairs",
    )


def _clock() -> Check:
    readings = [clock() for _ in range(2000)]
    steps = [b - a for a, b in zip(readings, readings[1:]) if b > a]
    step = statistics.median(steps)
    return Check(
        "clock",
        step < 1e-5,
        f"{step * 1e9:.0f} ns a reading",
        "the clock source is slow (hpet?): prefer tsc or kvm-clock",
    )


def _fio() -> Check:
    try:
        return Check("fio", True, fio.version())
    except BackendUnavailable as error:
        return Check("fio", False, "no ceiling stage", str(error))


def _strace() -> Check:
    found = shutil.which("strace")
    if found is None:
        remedy = "install it (Debian: strace)"
        return Check("strace", False, "no counts of a difference's system calls", remedy)
    return Check("strace", True, found)


def _torch() -> Check:
    """Look at torch without importing it: that takes seconds."""
    found = _library("torch", "torch", "torch", "pipelines torch:* and no trainer torch")
    if not found.ok:
        return found
    version = importlib.metadata.version("torch")
    cuda = Path("/dev/nvidiactl").exists()
    if cuda and "+cpu" in version:
        return Check("torch", False, f"{version} cannot use the GPU", "install a CUDA build")
    return Check("torch", True, f"{version}; {'a GPU is here' if cuda else 'no GPU: CPU only'}")


def _library(name: str, module: str, distribution: str, use: str) -> Check:
    try:
        present = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        present = False
    if not present:
        return Check(name, False, f"not installed, so no {use}", "`make setup` installs it")
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "version unknown"
    return Check(name, True, version)


def _caffe() -> Check:
    """Start the stack's own Python: what lies there may not run here."""
    try:
        stack = stacks.on_host("caffe")
    except BackendUnavailable as error:
        reason, _, remedy = str(error).partition(": ")
        return Check("caffe", False, f"{reason}, so no Caffe without a container", remedy)
    env = {**os.environ, **stack.env, "PYTHONPATH": os.pathsep.join(stack.python_path)}
    argv = [stack.python, "-c", _ABOUT_CAFFE]
    if stack.own and not stack.packages:
        argv = ["caffe", "--version"]
    code, said = containers.ask(argv, env=env)
    facts = stacks.record(stack.prefix)
    kind = "your own build" if stack.own else f"OpenBLAS {facts.get('openblas', '?')}"
    if code:
        remedy = "`make caffe ARGS=--force` installs it anew"
        if stack.own:
            remedy = "look at CAFFE_ROOT, CAFFE_PYTHON and the modules that it was built with"
        return Check("caffe", False, f"{stack.prefix} does not start: {said}", remedy)
    detail = f"{said}; {kind}; at {stack.prefix}"
    if not stack.own and _is_stale(facts):
        remedy = "it was made by another recipe than this iobench's: `make caffe` renews it"
        return Check("caffe", False, detail, remedy)
    return Check("caffe", True, detail)


def _is_stale(facts: Mapping[str, str]) -> bool:
    """Tell whether a prefix differs from what would be made now; outside a clone nobody knows."""
    try:
        return facts.get("recipe") != prefix.wanted()
    except ImageError:
        return False


_ABOUT_CAFFE = (
    "import platform, caffe, numpy; "
    "print('%s, Python %s, numpy %s' % "
    "(caffe.__version__, platform.python_version(), numpy.__version__))"
)


def _launchers() -> list[Check]:
    """One line a launcher of several ranks: here, or brought by the stack caffe alone."""
    checks = []
    for name in registry.names("launchers"):
        if name == "local":
            continue
        reason = registry.unavailable("launchers", name)
        detail = reason or "can run here"
        if reason and not stacks.missing("caffe"):
            try:
                starting.check_launcher(Case(launcher=name), stacks.on_host("caffe").env)
                detail = "in the stack caffe; cases of other stacks: " + reason
            except BackendUnavailable:
                pass
        checks.append(Check(f"launcher {name}", True, detail))
    return checks


def _runtimes() -> list[Check]:
    """One line a container runtime; what is not here is no fault of this machine's."""
    checks = [
        Check(f"runtime {name}", True, registry.unavailable("runtimes", name) or "can run here")
        for name in registry.names("runtimes")
        if name != "bare"
    ]
    for name, reason in (
        ("user namespaces", containers.user_namespaces()),
        ("/dev/fuse", containers.fuse()),
    ):
        checks.append(Check(name, True, reason or "usable by this user"))
    return checks
