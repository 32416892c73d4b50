"""What can and cannot be measured here, and why: one :class:`Check` a fact, with its remedy."""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from iobench.advise import software
from iobench.advise.software import Check
from iobench.core import registry
from iobench.core.clock import clock
from iobench.core.errors import BackendUnavailable, CacheStateError
from iobench.core.records import IoCounters
from iobench.host import (
    cgroups,
    files,
    fio,
    locks,
    page_cache,
    page_lock,
    probes,
    residency,
    rivals,
)
from iobench.host.filesystems import describe_mount, filesystem_for, unseen, zeros
from iobench.host.mounts import stack
from iobench.host.stacked import caches_of

#: Shared memory that default batches need: workers x prefetch x 64 samples of 3 x 224 x 224 floats.
SHM_BYTES = 2 * 2 * 64 * 3 * 224 * 224 * 4
#: Read-ahead above this turns random reads in one small file into nearly sequential ones.
READ_AHEAD_KB = 4096
#: What one stored form of the main job's data takes.
LOCKED_BYTES = 256 << 20
CPUS = Path("/sys/devices/system/cpu")
_OLDEST_PYTHON = (3, 11)


def examine(data_path: Path) -> list[Check]:
    """Return every check, for data under ``data_path`` (or its nearest existing parent)."""
    path = files.nearest(data_path.resolve())
    checks = [_python(), *_storage(path), *_memory(path), *_kernel(), *_processor(), _drivers()]
    stacks = [software.stack(name) for name in registry.names("stacks")]
    return [*checks, *_programs(), *stacks, *software.launchers(), *_runtimes()]


def _python() -> Check:
    return Check(
        "python",
        sys.version_info >= _OLDEST_PYTHON,
        f"{platform.python_version()} at {sys.executable}",
        "the driver needs Python 3.11 or later (workers: 3.9): make setup PYTHON=python3.11",
    )


def _storage(path: Path) -> Iterator[Check]:
    """Yield what the mount of ``path`` is, and what can be made, proven and counted there."""
    facts = describe_mount(path)
    mount = stack(path)
    words = [str(mount)]
    if facts.get("virtual_disk"):
        words.append("a virtual disk: what its host caches is unknown")
    if mount.fstype == "overlay" and not mount.below:
        words.append("where the layers lie is not seen here")
    if facts.get("loop"):
        words.append(f"a loop device on {facts.get('loop_backing_file')}")
    yield Check("mount", True, "; ".join(words))
    yield from _cold(path)
    yield _locks(path)
    name, filesystem = filesystem_for(path)
    count, counter, _ = filesystem.crossed(IoCounters(), zeros(filesystem, path))
    yield Check(
        "byte counter",
        count is not None,
        f"{name}: {counter}"
        if count is not None
        else f"nothing counts the bytes that cross this mount ({counter or name})",
        "trials that need that proof will be EXPLORATORY; put data on a block device to be VALID",
    )
    if kept := caches_of(filesystem):
        yield Check(
            "client's caches",
            False,
            ", ".join(f"{key} {n / 1e6:.1f} MB" for key, n in kept.items()) + ", of its own",
            f"cold trials that they serve will be INVALID: {facts['cache_control']}",
        )
    ahead = facts.get("read_ahead_kb")
    if not isinstance(ahead, int):
        yield Check("read-ahead", True, "not shown for this mount")
    else:
        yield Check(
            "read-ahead",
            ahead <= READ_AHEAD_KB,
            f"{ahead} KiB",
            "random reads inside a small shard become nearly sequential: use a dataset much larger "
            "than that, or lower /sys/class/bdi/*/read_ahead_kb",
        )


def _locks(path: Path) -> Check:
    """Try a lock between two processes; what holds between nodes is known by the mount alone."""
    remedy = "let no two iobench work there from two nodes at once"
    try:
        why = locks.broken(path) or locks.reach(path)
    except OSError as error:
        why, remedy = f"{path} is not writable: {error.strerror}", "choose another"
    return Check("locks", not why, why or "two processes exclude one another", remedy)


def _drivers() -> Check:
    found = rivals.seen()
    return Check(
        "other drivers",
        not found,
        "; ".join(map(str, found)) or "no other iobench runs on this node",
        "measure when they have ended: each disturbs the other",
    )


def _cold(path: Path) -> Iterator[Check]:
    """Yield whether a scratch file can be read, evicted and its pages counted, as this very user.

    What a daemon of this host may keep besides is named: eviction does not reach it.
    """
    refused = filesystem_for(path)[1].cold()
    elsewhere = "choose a folder on another mount for OUT / --out"
    try:
        warm, cold = _tried(path)
    except OSError as error:
        untried = f"not tried: no file can be made in {path} ({error.strerror})"
        yield Check("cold", False, refused or untried, elsewhere)
        yield Check("residency proof", False, untried, "give a folder that can be written")
        return
    except CacheStateError as error:
        yield Check("cold", False, refused or str(error), elsewhere)
        yield Check("residency proof", False, str(error), elsewhere)
        return
    proven = warm.fraction is not None and cold.fraction is not None
    detail = warm.unproven or cold.unproven
    if proven:
        detail = f"evicted 1 MiB: {warm.fraction:.0%} of it was resident, then {cold.fraction:.0%}"
    ok, remedy = (cold.fraction, warm.fraction) == (0.0, 1.0), elsewhere
    if ok and (daemons := unseen(path)):
        ok, remedy = False, "cold trials will be EXPLORATORY; see its options for its own cache"
        detail += f", but {daemons} may keep data in memory, where nobody can look"
    elif proven and not ok:
        remedy = f"eviction has no effect here, cold trials will be INVALID: {elsewhere}"
    yield Check("cold", ok and not refused, refused or detail, elsewhere if refused else remedy)
    absent = "" if residency.cachestat_works() else "; cachestat(2) needs Linux 6.5"
    counted = f"{warm.method}(2){absent}" if proven else detail
    yield Check("residency proof", proven, counted, elsewhere)


def _tried(path: Path) -> tuple[page_cache.Residency, page_cache.Residency]:
    """Return what of a scratch file is resident when read, and when evicted."""
    with tempfile.NamedTemporaryFile(prefix="iobench-doctor-", dir=path) as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        scratch = [Path(file.name)]
        page_cache.warm(scratch)
        warm = page_cache.residency(scratch)
        page_cache.evict(scratch)
        return warm, page_cache.residency(scratch)


def _memory(path: Path) -> Iterator[Check]:
    """Yield whether the data fit into memory, and a loader's queue into /dev/shm."""
    memory = page_cache.effective_memory_bytes()
    folders = [f for f in (path, path.parent) if (f / "dataset.json").exists()]
    detail = f"{memory / 2**30:.1f} GiB effective (MemTotal and cgroup limits)"
    remedy = ""
    if folders:
        nbytes = sum(f.stat().st_size for f in folders[0].rglob("*") if f.is_file())
        detail += f"; the dataset's forms take {nbytes / 2**30:.2f} GiB"
        try:
            page_cache.check_warmable(nbytes)
        except CacheStateError as error:
            detail = str(error)
            remedy = "warm trials will be refused: fewer samples, or more memory"
    yield Check("memory", not remedy, detail, remedy)
    capacity, free = probes.shared_memory()
    if not capacity:
        yield Check("/dev/shm", False, "absent", "torch workers need it: mount a tmpfs there")
        return
    yield Check(
        "/dev/shm",
        free >= SHM_BYTES,
        f"{free / 2**20:.0f} MiB free; the default batches need {SHM_BYTES / 2**20:.0f} MiB",
        "torch workers die with 'bus error': enlarge it (docker: --shm-size) or shrink the batch",
    )


def _kernel() -> Iterator[Check]:
    """Yield what evicts pages: DAMON's schemes page idle cache out, drop_caches everything."""
    admin = Path("/sys/kernel/mm/damon/admin/kdamonds")
    states = [probes.read(state) for state in admin.glob("*/state")]
    on = "on" in states or probes.read("/sys/module/damon_reclaim/parameters/enabled") == "Y"
    yield Check(
        "proactive reclaim",
        True,
        "DAMON is on: idle cached files shrink by several percent in minutes; warm trials lock the "
        "data's pages in memory, where this user may"
        if on
        else "no DAMON is on",
    )
    limit = page_lock.limit_bytes()
    yield Check(
        "locked memory",
        limit is None or limit >= LOCKED_BYTES,
        "no limit: warm data can be locked in memory"
        if limit is None
        else f"{limit >> 20} MiB (ulimit -l): more warm data than that are not locked in memory, "
        "and what the kernel pages out meanwhile makes trials EXPLORATORY or INVALID",
        "raise memlock for this user (/etc/security/limits.d, LimitMEMLOCK= of slurmd), or "
        "`ulimit -l unlimited` before iobench",
    )
    allowed = os.access(page_cache.DROP_CACHES, os.W_OK)
    yield Check(
        "drop_caches",
        True,
        "possible, used only when asked for (label client-cold; it hits every user here)"
        if allowed
        else "not allowed to this user; files are evicted one by one (label data-cold)",
    )


def _processor() -> Iterator[Check]:
    """Yield how many cores there are, and whether their speed and their clock can be trusted."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = cgroups.cpu_limit()
    limit = min(usable, quota) if quota else usable
    words = f"{usable} of {present} usable" + (f", cgroup quota {quota:g}" if quota else "")
    yield Check(
        "cores",
        limit >= 2,
        words,
        "loader and trainer share one core: prep stalls will be mostly contention; ask for more",
    )
    yield _frequency()
    ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
    share = ticks[7] / max(sum(ticks), 1)
    yield Check(
        "stolen time",
        share < 0.01,
        f"{share:.2%} of CPU time since boot",
        "other guests take this machine's CPU: measure at another time, or with more pairs",
    )
    readings = [clock() for _ in range(2000)]
    steps = [b - a for a, b in zip(readings, readings[1:]) if b > a]
    step = statistics.median(steps) if steps else math.inf
    yield Check(
        "clock",
        step < 1e-5,
        f"{step * 1e9:.0f} ns a reading" if steps else f"no change in {len(readings)} readings",
        "the clock source is slow (hpet?): prefer tsc or kvm-clock",
    )


def _frequency() -> Check:
    governors = CPUS.glob("cpu[0-9]*/cpufreq/scaling_governor")
    names = sorted(set(filter(None, map(probes.read, governors))))
    if not names:
        where = "a virtual machine: " if " hypervisor" in probes.read("/proc/cpuinfo") else ""
        return Check("cpu frequency", True, f"{where}the governor is not visible")
    return Check(
        "cpu frequency",
        names == ["performance"],
        f"governor {' and '.join(names)}",
        "speed follows load: set it to performance (cpupower frequency-set -g performance), or "
        "trust only paired blocks",
    )


def _programs() -> Iterator[Check]:
    """Yield the programs that some stages run."""
    try:
        yield Check("fio", True, fio.version())
    except BackendUnavailable as error:
        yield Check("fio", False, "no ceiling stage", str(error))
    found = shutil.which("strace")
    detail = found or "no counts of a difference's system calls"
    yield Check("strace", found is not None, detail, "" if found else "install it (Debian: strace)")


def _runtimes() -> Iterator[Check]:
    for name in registry.names("runtimes"):
        if name != "bare":
            found = "found; nothing is known to keep it from running"
            yield software.member(f"runtime {name}", registry.unavailable("runtimes", name), found)
    usable = "usable by this user"
    yield software.member("user namespaces", probes.user_namespaces(), usable)
    yield software.member("/dev/fuse", probes.fuse(), usable)
