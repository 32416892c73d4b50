"""A case's cpus and memory, enforced alike on every runtime, or refused before anything runs.

A runtime with a daemon of its own (docker, podman) gets them as flags.  Every other one is
started inside a control group that the driver makes beneath its own and takes away at the end, so
limits that are there already still hold.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable
from iobench.host import cgroups
from iobench.host.probes import read

#: Joins the groups before ``--``, then becomes the command: no shell, and nothing of it remains.
_JOIN = (
    "import os, sys; at = sys.argv.index('--'); "
    "[open(p, 'w').write(str(os.getpid())) for p in sys.argv[1:at]]; "
    "os.execvp(sys.argv[at + 1], sys.argv[at + 1:])"
)
_PERIOD_US = 100_000
#: An interpreter that has imported numpy takes more.
LEAST_MEMORY = 32 << 20
_BY_BATCH = "limit the whole job by the batch system"


def check(cases: Iterable[Case]) -> None:
    """Raise BackendUnavailable, before a suite runs, for a limit that nothing here can enforce."""
    for case in cases:
        if reason := refused(case):
            wanted = ", ".join(
                [f"cpus = {case.cpus:g}"] * bool(case.cpus)
                + [f"memory = {case.memory_bytes} bytes"] * bool(case.memory_bytes)
            )
            raise BackendUnavailable(f"case {case.label or case.pipeline!r}: {wanted}: {reason}")


def refused(case: Case) -> str:
    """Return why the case's limits cannot be enforced here, with the remedy; "" when they can."""
    if not case.cpus and not case.memory_bytes:
        return ""
    here = os.cpu_count() or 1
    if case.cpus > here:
        return f"this machine has {here}: ask for no more"
    if 0 < case.memory_bytes < LEAST_MEMORY:
        return f"no worker starts in less than {LEAST_MEMORY >> 20}M: raise memory"
    own = registry.load("runtimes", case.runtime).limits
    if own is not None:
        return str(own())
    return _no_group(_wanted(case.cpus, case.memory_bytes))


def _wanted(cpus: float, memory_bytes: int) -> list[str]:
    return ["cpu"] * bool(cpus) + ["memory"] * bool(memory_bytes)


def _no_group(controllers: Sequence[str]) -> str:
    for wanted in _together(controllers):
        parent, names = _parent(wanted), " and ".join(wanted)
        if parent is None:
            several = "s" * (len(wanted) > 1)
            return (
                f"no control group with the controller{several} {names} is here; leave the limit "
                f"out, or {_BY_BATCH}"
            )
        if not os.access(parent, os.W_OK):
            return (
                f"this user may make no control group in {parent}: run as root, have "
                f"the group delegated (systemd-run --user --scope -p Delegate=yes ...), or "
                f"{_BY_BATCH}"
            )
        if _occupied(parent, wanted):
            return (
                f"processes are in the control group {parent} itself, so its children get no "
                f"{names}: leave the limit out, or {_BY_BATCH}"
            )
    return ""


def _together(controllers: Sequence[str]) -> list[list[str]]:
    """Return the controllers by the group they need: those of version 2 share one hierarchy."""
    alone = [[c] for c in controllers if cgroups.membership(c) is not None]
    shared = [c for c in controllers if [c] not in alone]
    return [*alone, shared] if shared else alone


def _parent(controllers: Sequence[str]) -> Path | None:
    """Return the folder under which one group with these can be made; None: there is none.

    Version 1 (one controller): this process's own group.  Version 2: a group that has processes
    can give its children no controller, so the nearest one above it, or the top.
    """
    found = cgroups.membership(controllers[0])
    if found is not None:
        folder = found[0] / found[1].lstrip("/")
        return folder if folder.is_dir() else found[0]
    found = cgroups.membership("")
    if found is None:
        return None
    top, path = found
    folder = top / path.lstrip("/")
    while folder != top:
        folder = folder.parent
        if set(controllers) <= set(read(folder / "cgroup.subtree_control").split()):
            return folder
    return top if set(controllers) <= set(read(top / "cgroup.controllers").split()) else None


def _occupied(parent: Path, controllers: Sequence[str]) -> bool:
    """Return whether processes in a group of version 2 keep it from giving its children these.

    The real root, which alone may have both, has no ``cgroup.type``; a container's top has one.
    """
    missing = set(controllers) - set(read(parent / "cgroup.subtree_control").split())
    inner = (parent / "cgroup.type").exists()
    return inner and bool(missing) and bool(read(parent / "cgroup.procs").split())


@contextlib.contextmanager
def group(cpus: float, memory_bytes: int, name: str) -> Iterator[list[str]]:
    """Make control groups with these limits (0: none), and remove them at the end.

    Yields the words before a command that shall join them, [] without a limit.  Raises
    BackendUnavailable where this user may not, or the kernel refuses.
    """
    controllers = _wanted(cpus, memory_bytes)
    if reason := _no_group(controllers):
        raise BackendUnavailable(reason)
    with contextlib.ExitStack() as undo:
        folders: list[Path] = []
        for wanted in _together(controllers):
            parent = _parent(wanted)
            assert parent is not None
            folder = parent / name
            try:
                if folder not in folders:  # version 1 may have both in one hierarchy
                    _enable(parent, wanted)
                    folder.mkdir()
                    undo.callback(_remove, folder)
                    folders.append(folder)
                if "cpu" in wanted:
                    _limit_cpus(folder, cpus)
                if "memory" in wanted:
                    _limit_memory(folder, memory_bytes)
            except OSError as error:
                raise BackendUnavailable(
                    f"no control group with {' and '.join(wanted)} can be made in {parent} "
                    f"({error.strerror}): leave the limit out, or {_BY_BATCH}"
                ) from None
        files = [str(folder / "cgroup.procs") for folder in folders]
        yield [sys.executable, "-I", "-S", "-c", _JOIN, *files, "--"] if files else []


def killed(enter: Sequence[str]) -> int:
    """Return how many processes the kernel has ended for want of memory in the groups of
    :func:`group`; ``enter``: what that yielded."""
    events = [*_counts(enter, "memory.events"), *_counts(enter, "memory.oom_control")]
    return sum(counts.get("oom_kill", 0) for counts in events)


def read_again(enter: Sequence[str]) -> int:
    """Return how many bytes of files the groups of :func:`group` had in memory, gave up for want of
    it, and read again (``workingset_refault_file``; before Linux 5.9 ``workingset_refault``)."""
    pages = 0
    for counts in _counts(enter, "memory.stat"):
        pages += counts.get("workingset_refault_file", counts.get("workingset_refault", 0))
    return pages * os.sysconf("SC_PAGE_SIZE")


def _counts(enter: Sequence[str], name: str) -> list[dict[str, int]]:
    """Return what a file of each of these groups counts, by the names in it."""
    files = [Path(word).with_name(name) for word in enter if word.endswith("/cgroup.procs")]
    lines = [[line.split() for line in read(path).splitlines()] for path in files]
    return [{key: int(value) for key, value in of_file} for of_file in lines]


def killed_since() -> Callable[[], int | None]:
    """Return what counts the processes of this machine that the kernel ends from now on for want of
    memory, whatever group they are in; it returns None where the kernel does not count them.
    """
    before = _killed_ever()

    def since() -> int | None:
        now = _killed_ever()
        return None if before is None or now is None else now - before

    return since


def _killed_ever() -> int | None:
    """Return how many since it was started (Linux 4.13 and newer)."""
    found = re.search(r"^oom_kill (\d+)$", read(Path("/proc/vmstat")), re.MULTILINE)
    return int(found[1]) if found else None


def _enable(parent: Path, controllers: Sequence[str]) -> None:
    """Version 2: let the children of ``parent`` have the controllers."""
    control = parent / "cgroup.subtree_control"
    if not control.exists():
        return
    for controller in sorted(set(controllers) - set(read(control).split())):
        control.write_text(f"+{controller}")


def _limit_cpus(folder: Path, cpus: float) -> None:
    quota = round(cpus * _PERIOD_US)
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))


def _limit_memory(folder: Path, memory_bytes: int) -> None:
    """Limit memory, page cache included, and leave no way out to swap."""
    if (folder / "memory.max").exists():
        (folder / "memory.max").write_text(str(memory_bytes))
        knob, value = folder / "memory.swap.max", "0"
    else:
        (folder / "memory.limit_in_bytes").write_text(str(memory_bytes))
        knob, value = folder / "memory.memsw.limit_in_bytes", str(memory_bytes)
    if knob.exists():
        knob.write_text(value)


def _remove(folder: Path) -> None:
    """Remove a group; processes that were just killed may be in it for a moment more."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
        if not folder.exists():
            return
        time.sleep(0.02)
    for pid in read(folder / "cgroup.procs").split():  # nobody that we started: let them live
        with contextlib.suppress(OSError):
            (folder.parent / "cgroup.procs").write_text(pid)
    folder.rmdir()
