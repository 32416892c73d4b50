"""Faults of places: folders, the data's own files, the clock, another iobench, limits."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.fault_kinds import Act, Fault, absent, root_only, usual
from benchmarks.fault_scene import Scene

# -- folders ---------------------------------------------------------------------------------------


def folder_of(scene: Scene, name: str) -> Path:
    """Return the folder of the scene with this name."""
    return {"results": scene.results, "data": scene.out, "TMPDIR": scene.tmp}[name]


def on_disk(name: str, before: str = "") -> Act:
    """Put a folder on a small disk, which ``before`` the command does something."""

    def arrange(scene: Scene) -> None:
        disk = scene.disk(folder_of(scene, name))
        if before:
            getattr(disk, before)()

    return arrange


def disk_does(name: str, what: str) -> Act:
    """Have the folder's disk fill, fail or vanish."""
    return lambda scene: getattr(scene.disks[folder_of(scene, name)], what)()


def moved(name: str) -> Act:
    """Move a folder away, with all that is in it."""
    return lambda scene: folder_of(scene, name).rename(scene.root / "moved")


def mend(name: str, *, emptied: bool = False) -> Act:
    """Have the folder again, as it was where its disk went away.

    ``emptied``: a TMPDIR where the command could remove what it had made.
    """

    def cure(scene: Scene) -> None:
        folder = folder_of(scene, name)
        if folder in scene.disks:
            scene.disks[folder].mend()
        if (scene.root / "moved").exists():
            shutil.rmtree(folder, ignore_errors=True)
            (scene.root / "moved").rename(folder)
        if name == "TMPDIR" and not emptied:
            for left in folder.glob("iobench-*"):  # nobody could remove it where it was
                shutil.rmtree(left)

    return cure


def folders() -> list[Fault]:
    """Return the faults of results, data and TMPDIR."""
    when = {
        "results": ("warm", "turns", "reporting"),
        "data": ("preparing", "converting", "cold", "first turns"),
        "TMPDIR": ("warm", "turns"),
    }
    begin = {"results": ("run", "resume", "report"), "data": ("run",), "TMPDIR": ("run", "report")}
    words = {
        "fill": "No space left on device|has 0.0 MB free",
        "fail": "Read-only file system|Input/output error|error",
        "vanish": ".",
    }
    kinds = {"fill": "full", "fail": "read-only", "vanish": "unmounted"}
    found = []
    for name in when:
        for what, adjective in kinds.items():
            if what != "vanish":
                found.append(
                    Fault(
                        f"{name} {adjective} from the start",
                        begin[name],
                        arrange=on_disk(name, what),
                        cure=mend(name),
                        says=words[what],
                        needs=root_only,
                    )
                )
            found.append(
                Fault(
                    f"{name} {adjective}",
                    when[name],
                    arrange=on_disk(name),
                    strike=disk_does(name, what),
                    cure=mend(name, emptied=what == "fill"),
                    says=words[what],
                    needs=root_only,
                )
            )
        found.append(
            Fault(f"{name} moved away", when[name], strike=moved(name), cure=mend(name), says=".")
        )
    return found


# -- data ------------------------------------------------------------------------------------------


def stored(scene: Scene, form: str) -> list[Path]:
    """Return the files that samples are read from."""
    pattern = {"jpeg": "data/*/jpeg/**/*.jpg", "lmdb": "data/*/lmdb/*.mdb"}.get(form)
    return sorted(scene.out.glob(pattern or f"data/*/{form}"))


def harm(form: str, how: str) -> Act:
    """Cut, edit or delete the files of a form; they are kept for :func:`restore`."""

    def strike(scene: Scene) -> None:
        kept = scene.root / "kept"
        found = stored(scene, form)
        assert found, f"no file of {form}"
        for path in found:
            copy = kept / path.relative_to(scene.out)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
            if how == "deleted":
                path.unlink()
            elif how == "cut":
                os.truncate(path, path.stat().st_size // 2)
            else:
                middle = path.stat().st_size // 2
                with open(path, "r+b") as file:
                    file.seek(middle)
                    file.write(b"\x55" * min(2000, middle))

    return strike


def restore(scene: Scene) -> None:
    """Put back what was cut, edited or deleted."""
    if (scene.root / "kept").exists():
        shutil.copytree(scene.root / "kept", scene.out, dirs_exist_ok=True)


def data() -> list[Fault]:
    """Return the faults of the data's own files."""
    found = []
    for form in ("jpeg", "lmdb", "dataset.json", "samples.tsv"):
        for how in ("cut", "edited", "deleted"):
            name = f"{form} {how}"
            act = harm(form, how)
            if form in ("jpeg", "lmdb"):
                found.append(Fault(name, ("warm", "turns"), strike=act, cure=restore, says="."))
            before = Fault(
                f"{name} before", ("measure",), arrange=act, cure=restore, says=".",
                suite="digested",
            )  # fmt: skip
            found.append(before)
    return found


# -- clock -----------------------------------------------------------------------------------------


#: A library that is loaded before libc: its time of day is off by what a file says.
_WALL_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long off(void) {
    long found = 0;
    FILE *file = fopen(getenv("FAULTS_CLOCK"), "r");
    if (file) { if (fscanf(file, "%ld", &found) != 1) found = 0; fclose(file); }
    return found;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, at);
    if (!status && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += off();
    return status;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
_DAY_S = 24 * 3600


def clock(scene: Scene) -> None:
    """Take the time of day from a file."""
    stamp, library = scene.root.with_name("clock"), scene.root.with_name("wall_clock.so")
    stamp.write_text("0\n")
    words = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(words, input=_WALL_CLOCK, text=True, check=True)
    scene.env.update(LD_PRELOAD=str(library), FAULTS_CLOCK=str(stamp))


def step(days: int) -> Act:
    """Step the time of day."""
    return lambda scene: scene.root.with_name("clock").write_text(f"{days * _DAY_S}\n")


def clocks() -> list[Fault]:
    """Return the steps of the clock."""
    moments = ("warm", "first turns")
    return [
        Fault(
            f"the clock steps {words}",
            moments,
            arrange=clock,
            strike=step(days),
            cure=usual,
            statuses=frozenset((0,)),
            needs=lambda: absent("gcc"),
        )
        for words, days in (("back by a day", -1), ("on by a year", 365))
    ]


# -- another iobench -------------------------------------------------------------------------------


def another(command: str, *, results: str = "") -> Act:
    """Start another iobench at the same place."""

    def strike(scene: Scene) -> None:
        words = scene.words(command)
        if results:
            words = (*words[:-1], str(scene.root / results))
        scene.second = scene.start(words, "second"), words

    return strike


def others() -> list[Fault]:
    """Return the faults that are a second iobench."""
    when = ("preparing", "cold", "turns")
    return [
        Fault("a second run, same data", when, strike=another("run", results="other")),
        Fault("a second run, same data and results", when, strike=another("run")),
        Fault("a second --resume", ("cold", "turns", "reporting"), strike=another("resume")),
        Fault("a report meanwhile", ("cold", "turns", "reporting"), strike=another("report")),
    ]


def table() -> dict[str, list[Fault]]:
    """Return all of them, by kind."""
    return {"folders": folders(), "data": data(), "clocks": clocks(), "rivals": others()}
