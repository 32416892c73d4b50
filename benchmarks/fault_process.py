"""Faults of the command's own process: signals, streams, environment, limits."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.fault_kinds import (
    ANY,
    CONTAINERS,
    MEASURED,
    STRUCK,
    Act,
    Fault,
    absent,
    lift,
    prelude,
    root_only,
    usual,
)
from benchmarks.fault_scene import IMAGES, Scene, family, kill
from iobench.core.cases import Case
from iobench.core.errors import ImageError
from iobench.core.registry import runtime_of
from iobench.run.command import images_for

# -- signals ---------------------------------------------------------------------------------------


def send(number: signal.Signals, *, group: bool = False, times: int = 1) -> Act:
    """Send a signal to the command, or as a terminal does to all of its group."""

    def strike(scene: Scene) -> None:
        assert scene.process is not None
        for turn in range(times):
            if turn:
                time.sleep(0.3)
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(scene.process.pid, number)

    return strike


def kill_driver(scene: Scene) -> None:
    """Kill the process below the one that the user started, which does the work."""
    assert scene.process is not None
    for process in family(scene.process.pid)[1:2]:
        process.kill()


def kill_worker(scene: Scene) -> None:
    """Kill a rank."""
    for process in scene.workers()[:1]:
        process.kill()


def pause(scene: Scene) -> None:
    """Ctrl-Z, and fg after a second."""
    assert scene.process is not None
    os.killpg(scene.process.pid, signal.SIGTSTP)
    time.sleep(1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(scene.process.pid, signal.SIGCONT)


def no_runtime(name: str) -> str:
    """Return why containers of a runtime cannot be run here."""
    if reason := runtime_of(Case(runtime=name)).available():
        return str(reason)
    try:
        images_for([Case(runtime=name)], IMAGES)
    except ImageError as error:
        return str(error)
    return ""


def signals() -> list[Fault]:
    """Return the faults that are signals."""
    ended, killed = frozenset((130,)), frozenset((-signal.SIGKILL,))
    resumes = "interrupted"
    few = ("preparing", "warm", "turns")
    kinds = {
        "Ctrl-C": (send(signal.SIGINT, group=True), STRUCK),
        "Ctrl-C twice": (send(signal.SIGINT, group=True, times=2), (*few, "reporting")),
        "SIGINT to the driver": (send(signal.SIGINT), few),
        "SIGTERM": (send(signal.SIGTERM), STRUCK),
        "SIGHUP": (send(signal.SIGHUP, group=True), STRUCK),
    }
    faults = [Fault(n, m, strike=s, statuses=ended, says=resumes) for n, (s, m) in kinds.items()]
    contained = [
        Fault(
            f"{name} in {runtime}",
            ("turns",),
            strike=strike,
            suite=runtime,
            statuses=killed if strike is kill else ended,
            needs=functools.partial(no_runtime, runtime),
        )
        for runtime in CONTAINERS
        for name, (strike, _) in {**kinds, "SIGKILL": (kill, ())}.items()
        if strike is kill or runtime in ("apptainer", "podman")
    ]
    contained.append(
        Fault("SIGKILL under mpirun", ("turns",), strike=kill, suite="mpirun", statuses=killed,
              needs=lambda: absent("mpirun"))
    )  # fmt: skip
    return [
        *faults,
        *contained,
        Fault("SIGKILL", STRUCK, strike=kill, statuses=killed),
        Fault(
            "SIGKILL of its child",
            few,
            strike=kill_driver,
            statuses=killed,
        ),
        Fault("SIGKILL of a worker", MEASURED, strike=kill_worker, statuses=ANY, lost_rung=True),
        Fault("Ctrl-Z, then fg", few, strike=pause, statuses=frozenset((0, 1))),
    ]


# -- standard streams ------------------------------------------------------------------------------


def reader_leaves(stream: int) -> tuple[Act, Act]:
    """Return what makes a stream a pipe, and what ends its reader."""

    def arrange(scene: Scene) -> None:
        fifo = scene.root.with_name(f"{scene.root.name}.fifo")
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        scene.prelude = f"exec {stream}>'{fifo}'"
        scene.undo.callback(lambda: _close(reader))
        scene.undo.callback(lambda: fifo.unlink(missing_ok=True))
        scene.fds.append(reader)

    def strike(scene: Scene) -> None:
        for each in scene.fds:
            _close(each)
        scene.fds.clear()

    return arrange, strike


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def streams() -> list[Fault]:
    """Return the faults of standard streams."""
    whole = ("resume", "report")
    kinds = {
        "</dev/null": ("exec </dev/null", True),
        "<&-": ("exec <&-", True),
        ">&-": ("exec >&-", True),
        "2>&-": ("exec 2>&-", False),
        "<&- >&- 2>&-": ("exec <&- >&- 2>&-", False),
        ">/dev/full": ("exec >/dev/full", True),
        "2>/dev/full": ("exec 2>/dev/full", False),
        ">/dev/full 2>&1": ("exec >/dev/full 2>&1", False),
    }
    found = [
        Fault(name, whole, arrange=prelude(words), cure=lift, heard=heard, says="No space|writing")
        for name, (words, heard) in kinds.items()
    ]
    for stream, name in ((1, "reader of stdout leaves"), (2, "reader of stderr leaves")):
        arrange, strike = reader_leaves(stream)
        moments = ("preparing", "turns", "reporting")
        found.append(
            Fault(name, moments, arrange=arrange, strike=strike, cure=lift, heard=stream == 1)
        )
    return found


# -- environment -----------------------------------------------------------------------------------


def environment(*, empty: bool = False, **changes: str | None) -> Act:
    """Set variables, or delete those that are None."""

    def arrange(scene: Scene) -> None:
        if empty:
            scene.env.clear()
        for name, value in changes.items():
            scene.env.pop(name, None)
            if value is not None:
                scene.env[name] = value

    return arrange


def temporary(name: str, *, made: bool = True) -> Act:
    """Set TMPDIR to a folder of this name."""

    def arrange(scene: Scene) -> None:
        scene.tmp = scene.root / "odd" / name
        if made:
            scene.tmp.mkdir(parents=True)
        scene.env["TMPDIR"] = str(scene.tmp)

    return arrange


def hostile_modules(variable: str | None) -> Act:
    """Put modules that raise where Python looks for its own: on PYTHONPATH, or where it starts."""

    def arrange(scene: Scene) -> None:
        folder = scene.root / "hostile"
        folder.mkdir()
        for name in ("numpy", "lmdb", "pydantic", "random"):
            (folder / f"{name}.py").write_text("raise ImportError('not what was meant')\n")
        if variable:
            scene.env[variable] = str(folder)
        else:
            scene.cwd = folder

    return arrange


def no_cwd(scene: Scene) -> None:
    """Start in a folder that has been deleted."""
    scene.prelude = "mkdir gone && cd gone && rmdir ../gone"


def environments() -> list[Fault]:
    """Return the faults of environment, locale and place."""
    run, both, go_on = ("run",), ("run", "report"), ("resume",)
    kinds: dict[str, tuple[Act, tuple[str, ...]]] = {
        "LC_ALL=C": (environment(LC_ALL="C"), run),
        "LC_ALL=POSIX, no UTF-8 mode": (
            environment(LC_ALL="POSIX", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0"), both,
        ),
        "a locale that is missing": (environment(LC_ALL="xx_YY.UTF-8", LANG="xx_YY"), run),
        "LC_ALL=C.UTF-8": (environment(LC_ALL="C.UTF-8"), go_on),
        "LC_ALL=tr_TR.UTF-8": (environment(LC_ALL="tr_TR.UTF-8"), run),
        "PYTHONIOENCODING=ascii": (environment(PYTHONIOENCODING="ascii"), go_on),
        "an empty environment": (environment(empty=True), both),
        "no HOME": (environment(HOME=None), go_on),
        "a HOME that is missing": (environment(HOME="/no/such/home"), go_on),
        "no PATH": (environment(PATH=None), go_on),
        "a PATH without entries": (environment(PATH=""), go_on),
        "TMPDIR missing": (temporary("missing", made=False), both),
        "TMPDIR long": (temporary("/".join(["x" * 60] * 3)), run),
        "TMPDIR with spaces and a quote": (temporary("a b 'c\" $d"), run),
        "TMPDIR with a line end": (temporary("a\nb"), run),
        "TMPDIR not UTF-8": (temporary(os.fsdecode(b"\xff\xfe")), run),
        "TMPDIR relative": (lambda s: s.env.__setitem__("TMPDIR", "tmp"), run),
        "PYTHONPATH with hostile modules": (hostile_modules("PYTHONPATH"), both),
        "a working folder with hostile modules": (hostile_modules(None), both),
        "a working folder that is gone": (no_cwd, both),
        "OMP_* and BLAS threads set": (
            environment(OMP_NUM_THREADS="1", OMP_PROC_BIND="true", MKL_NUM_THREADS="3"), go_on,
        ),
        "OMP_NUM_THREADS nonsense": (environment(OMP_NUM_THREADS="many"), go_on),
        "proxy variables": (
            environment(http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9"), go_on,
        ),
        "TERM=dumb, COLUMNS=1": (environment(TERM="dumb", COLUMNS="1", LINES="1"), both),
        "FORCE_COLOR, a wide terminal": (environment(FORCE_COLOR="1", COLUMNS="400"), go_on),
        "PYTHONWARNINGS=error": (environment(PYTHONWARNINGS="error"), both),
        "PYTHONOPTIMIZE=2": (environment(PYTHONOPTIMIZE="2"), both),
        "PYTHONDEVMODE=1": (environment(PYTHONDEVMODE="1"), go_on),
        "PYTHONSAFEPATH=1": (environment(PYTHONSAFEPATH="1"), go_on),
        "umask 077": (prelude("umask 077"), run),
        "umask 000": (prelude("umask 000"), run),
    }  # fmt: skip
    return [Fault(n, m, arrange=a, cure=usual) for n, (a, m) in kinds.items()]


# -- limits ----------------------------------------------------------------------------------------


def limits() -> list[Fault]:
    """Return the low limits."""
    whole = ("run", "report")
    kinds = {
        "32 open files": "ulimit -n 32",
        "64 open files": "ulimit -n 64",
        "1 GB of address space": "ulimit -v 1000000",
        "3 GB of address space": "ulimit -v 3000000",
        "no lockable memory": "ulimit -l 0",
        "files of 64 KB": "ulimit -f 128",
        "files of 1 KB": "ulimit -f 2",
        "no core, a stack of 1 MB": "ulimit -c 0 -s 1024",
    }
    found = [Fault(n, whole, arrange=prelude(w), cure=lift) for n, w in kinds.items()]
    few = Fault("20 processes", ("run",), arrange=few_processes, cure=lift, needs=no_pids)
    shm = Fault(
        "a /dev/shm of 64 KB", ("measure",), arrange=small_shm, cure=large_shm, needs=root_only,
        suite="torch",
    )  # fmt: skip
    return [*found, few, shm]


PIDS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


def no_pids() -> str:
    """Return why processes cannot be limited: RLIMIT_NPROC does not bind root."""
    found = [p for p in PIDS if (p / "cgroup.procs").exists() and os.access(p, os.W_OK)]
    return "" if found else "no control group that counts processes"


def few_processes(scene: Scene) -> None:
    """Start in a control group of few processes."""
    parent = next(p for p in PIDS if (p / "cgroup.procs").exists())
    group = parent / f"faults-{os.getpid()}"
    group.mkdir(exist_ok=True)
    (group / "pids.max").write_text("20")
    scene.undo.callback(group.rmdir)
    scene.prelude = f"echo $$ >{group}/cgroup.procs"


def small_shm(scene: Scene) -> None:
    """Mount a small /dev/shm over the other; in this benchmark's own mount namespace."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "shm", "/dev/shm"], check=True)
    scene.undo.callback(large_shm, scene)
    scene.small_shm = True


def large_shm(scene: Scene) -> None:
    """Take the small one away."""
    if scene.small_shm:
        subprocess.run(["umount", "/dev/shm"], check=True)
    scene.small_shm = False


def table() -> dict[str, list[Fault]]:
    """Return all of them, by kind."""
    return {
        "signals": signals(), "streams": streams(), "environments": environments(),
        "limits": limits(),
    }  # fmt: skip
