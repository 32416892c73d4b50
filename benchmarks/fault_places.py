"""Faults of places: folders, the data's own files, the clock, another iobench, limits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchmarks.fault_kinds import Act, Fault, root_only, usual
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
    return lambda scene: folder_of(scene, name).rename(scene.root / "moved") and None


def mend(name: str) -> Act:
    """Have the folder again, as it was where its disk went away."""

    def cure(scene: Scene) -> None:
        folder = folder_of(scene, name)
        if folder in scene.disks:
            scene.disks[folder].mend()
        if (scene.root / "moved").exists():
            shutil.rmtree(folder, ignore_errors=True)
            (scene.root / "moved").rename(folder)

    return cure


def folders() -> list[Fault]:
    """Return the faults of results, data and TMPDIR."""
    when = {
        "results": ("warm", "turns", "reporting"),
        "data": ("preparing", "converting", "cold", "turns"),
        "TMPDIR": ("warm", "turns"),
    }
    begin = {"results": ("run", "resume", "report"), "data": ("run",), "TMPDIR": ("run", "report")}
    words = {
        "fill": "No space left on device",
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
                    cure=mend(name),
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


def faketime() -> list[Path]:
    """Return libfaketime, where it is installed (Debian: package faketime)."""
    return sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


def clock(scene: Scene) -> None:
    """Take the time of day from a file."""
    stamp = scene.root.with_name("clock")
    stamp.write_text("+0\n")
    scene.env.update(
        LD_PRELOAD=str(faketime()[0]), FAKETIME_TIMESTAMP_FILE=str(stamp), FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1", FAKETIME_DONT_RESET="1",
    )  # fmt: skip


def step(offset: str) -> Act:
    """Step the time of day."""
    return lambda scene: scene.root.with_name("clock").write_text(f"{offset}\n") and None


def clocks() -> list[Fault]:
    """Return the steps of the clock."""
    moments = ("warm", "turns")
    return [
        Fault(
            f"the clock steps {words}",
            moments,
            arrange=clock,
            strike=step(offset),
            cure=usual,
            statuses=frozenset((0,)),
            needs=lambda: "" if faketime() else "no libfaketime",
        )
        for words, offset in (("back by a day", "-1d"), ("on by a year", "+1y"))
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


def table() -> list[Fault]:
    """Return all of them."""
    return [*folders(), *data(), *clocks(), *others()]
