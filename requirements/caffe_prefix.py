"""Makes a prefix that runs from any folder out of Debian's files: Caffe, its Python, Open MPI.

    python3 caffe_prefix.py ROOT PREFIX WHEELS PINS

ROOT: a Debian root with the packages of debian-bullseye.txt (installed, or merely unpacked).
PREFIX: the folder to make; it must not exist.  WHEELS: a folder with the wheels of caffe.txt.
PINS: a file with the state of the packages, ``exact`` or ``moved``.

Used by the image's build and by `make caffe` alike: the same packages give the same files, so an
image and a host without containers measure the same binaries.  What differs from Debian's files:
programs get a DT_RPATH relative to themselves, libraries lose their DT_RUNPATH (which names
/usr/lib and would hide the programs' DT_RPATH), OpenBLAS is copied over the alternatives' links,
and byte code is made beforehand.  glibc is not part of it: the host's (2.31 or newer) is taken.

Standard library of Python 3.9 only; needs no root.  Complaints are one line on standard error.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Dict, List, Optional, Set, Tuple

from elf import elf, elves, forget_path

TRIPLET = "x86_64-linux-gnu"
#: Where an image has the prefix; byte code names this folder wherever it is made.
HOME = "/opt/iobench"
LIBRARIES = f"lib/{TRIPLET}"
#: Folders of libraries below LIBRARIES that are taken whole (plug-ins, found by their path).
TREES = ("openmpi/lib", "ucx", "pmix2")
RPATH = (LIBRARIES, f"{LIBRARIES}/openmpi/lib", f"{LIBRARIES}/ucx", f"{LIBRARIES}/pmix2/lib")
#: Where Debian keeps libraries; OpenBLAS before the reference BLAS.
SEARCHED = (
    f"usr/lib/{TRIPLET}/openblas-pthread",
    f"usr/lib/{TRIPLET}",
    f"lib/{TRIPLET}",
    "usr/lib",
    "usr/lib/libpsm1",
    f"usr/lib/{TRIPLET}/openmpi/lib",
    f"usr/lib/{TRIPLET}/ucx",
    f"usr/lib/{TRIPLET}/pmix2/lib",
)
PROGRAMS = ("caffe", "python3.9", "orterun", "orted", "ompi_info")
LINKS = {"python3": "python3.9", "mpirun": "orterun", "mpiexec": "orterun"}
#: What pycaffe and mpi4py import, and no more; the rest comes as wheels.
PACKAGES = (
    "PIL",
    "caffe",
    "decorator",
    "google",
    "imageio",
    "mpi4py",
    "numpy",
    "pkg_resources",
    "scipy",
    "six",
    "skimage",
    "tifffile",
)
SITE = "lib/python3/dist-packages"
STDLIB = "lib/python3.9"
#: What has to be importable in the end.
MODULES = (
    "caffe", "mpi4py", "numpy",
    "blake3", "cv2", "h5py", "lmdb", "nvidia.dali", "plyvel", "simplejpeg",
)  # fmt: skip
#: glibc's own: the host's, or the image's.
GLIBC = {
    *("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libmvec.so.1", "libdl.so.2"),
    *("libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2", "libanl.so.1"),
}
#: Libraries that only a machine with a GPU has.
OF_DRIVER = re.compile(r"lib(cuda|nvidia-.*|nvcuvid|cufile)\.so")
RECORD = "share/iobench-caffe.json"
#: Debian's name of what the record says the version of.
RECORDED = {
    "caffe": "libcaffe1",
    "openblas": "libopenblas0-pthread",
    "python": "python3.9",
    "numpy": "python3-numpy",
    "openmpi": "libopenmpi3",
    "mpi4py": "python3-mpi4py",
}


class Failure(Exception):
    """One line for the user."""


# -- programs ---------------------------------------------------------------------------------


def set_rpath(program: Path, prefix: Path, root: Path) -> None:
    """Give a program a DT_RPATH that is relative to itself, by the root's own patchelf."""
    relative = ":".join(f"$ORIGIN/../{folder}" for folder in RPATH)
    calls = [["--force-rpath", "--set-rpath", relative]]
    if program.name.startswith("python"):  # wheels have a DT_RUNPATH of their own: loaded before
        calls = [["--add-needed", name] for name in ("libstdc++.so.6", "libgcc_s.so.1")] + calls
    for words in calls:  # one change a call: old versions mix up the strings of several
        with_libraries([root / "usr/bin/patchelf", *words, program], prefix)


def with_libraries(argv: List[object], prefix: Path) -> str:
    """Run a program with the prefix's libraries, which hold no glibc of another version."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(prefix / LIBRARIES)}
    done = subprocess.run(
        [str(w) for w in argv], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Failure(f"{argv[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


# -- copying ---------------------------------------------------------------------------------


def real(root: Path, path: Path) -> Optional[Path]:
    """Return what ``path`` is, its links followed inside ``root``; None where it leads nowhere."""
    for _ in range(40):
        if not path.is_symlink():
            return path if path.exists() else None
        target = os.readlink(path)
        path = root / target.lstrip("/") if target.startswith("/") else path.parent / target
    return None


def copy_tree(root: Path, source: Path, target: Path) -> None:
    """Copy a folder: relative links stay links; byte code, tests, links out of it are left out."""

    def unwanted(folder: str, names: List[str]) -> Set[str]:
        out = {"__pycache__", "tests"} & set(names)
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() and os.readlink(path).startswith("/"):
                out.add(name)
        return out

    shutil.copytree(source, target, symlinks=True, ignore=unwanted, dirs_exist_ok=True)


def copy_programs(root: Path, prefix: Path) -> None:
    """Copy the programs, the standard library, the packages, and what plug-ins are found in."""
    (prefix / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(required(root, root / "usr/bin" / name), prefix / "bin" / name)
    for name, target in LINKS.items():
        (prefix / "bin" / name).symlink_to(target)
    copy_tree(root, root / "usr/lib/python3.9", prefix / STDLIB)
    shutil.rmtree(prefix / STDLIB / f"config-3.9-{TRIPLET}", ignore_errors=True)  # to embed it
    site = root / "usr" / SITE
    for name in PACKAGES:
        copies = [
            p for p in site.glob(f"{name}*") if re.fullmatch(rf"{name}(\.py|\..*\.so)?", p.name)
        ]
        if not copies:
            raise Failure(f"{site} has no package {name}: is debian-bullseye.txt whole?")
        for path in copies:
            put = copy_tree if path.is_dir() else copy_file
            put(root, path, prefix / SITE / path.name)
    for tree in TREES:
        copy_tree(root, root / f"usr/lib/{TRIPLET}" / tree, prefix / LIBRARIES / tree)
    copy_tree(root, root / "usr/share/openmpi", prefix / "share/openmpi")
    copy_tree(root, root / "etc/openmpi", prefix / "etc/openmpi")
    # Without a "home" this makes no virtual environment: it only keeps ~/.local out.
    (prefix / "pyvenv.cfg").write_text("include-system-site-packages = false\n")


def copy_file(root: Path, source: Path, target: Path) -> None:
    """Copy one file, its links followed inside the root."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(required(root, source), target)


def required(root: Path, path: Path) -> Path:
    """Return what ``path`` is; raise Failure where it is nothing."""
    found = real(root, path)
    if found is None:
        raise Failure(f"{path} is not there: is debian-bullseye.txt whole?")
    return found


def copy_libraries(root: Path, prefix: Path) -> None:
    """Copy every library that anything copied needs, and theirs, by the name it is asked for."""
    home = prefix / LIBRARIES
    known = {p.name for folder in RPATH for p in (prefix / folder).glob("*.so*")}
    waiting = [(f, n) for f in elves(prefix) for n in f.needed]
    while waiting:
        asking, name = waiting.pop()
        if name in known or name in GLIBC:
            continue
        source = find_library(root, name)
        if source is None:
            raise Failure(f"{name}, which {asking.path.name} needs, is in no package of the lock")
        shutil.copy(source, home / name)
        known.add(name)
        copied = elf(home / name)
        waiting += [(copied, n) for n in copied.needed] if copied else []


def find_library(root: Path, name: str) -> Optional[Path]:
    """Return the file of a library of the root: by its name, else by one that a link would have.

    A package may leave the link to its soname to the alternatives, which are made when installing.
    """
    for pattern in (name, f"{name}.*"):
        for folder in SEARCHED:
            for path in sorted((root / folder).glob(pattern)):
                found = real(root, path)
                if found is not None:
                    return found
    return None


# -- wheels, byte code, proof ----------------------------------------------------------------


def unpack_wheels(folder: Path, requirements: Path, site: Path) -> None:
    """Unpack the wheels that ``requirements`` names (``name==version`` lines) into ``site``."""
    at_hand = {_key(*p.name.split("-")[:2]): p for p in sorted(folder.glob("*.whl"))}
    for line in requirements.read_text().splitlines():
        pin = re.match(r"([A-Za-z0-9._-]+)==([^\s\\]+)", line)
        if not pin:
            continue
        wheel = at_hand.get(_key(pin[1], pin[2]))
        if wheel is None:
            raise Failure(f"{folder} has no wheel of {pin[1]} {pin[2]} for Python 3.9")
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                _unpack(archive, entry, site)
    for unneeded in ("nvidia/dali/include", "nvidia/dali/test", "h5py/tests", "bin"):
        shutil.rmtree(site / unneeded, ignore_errors=True)
    for static in site.rglob("*.a"):
        static.unlink()


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, site: Path) -> None:
    parts = Path(entry.filename).parts
    if parts and parts[0].endswith(".data"):
        if parts[1:2] not in (("purelib",), ("platlib",)):
            return  # scripts, headers
        parts = parts[2:]
    if entry.is_dir() or not parts:
        return
    target = site.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, open(target, "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    target.chmod(0o755 if entry.external_attr >> 16 & 0o100 else 0o644)


def _key(name: str, version: str) -> Tuple[str, str]:
    return re.sub(r"[-_.]+", "-", name).lower(), version


def compile_all(prefix: Path) -> None:
    """Write byte code that is never checked against a source's time: the same wherever it is made.

    Each process has its fixed share in a fixed order; what a compiler has seen before can show in
    its output.
    """
    shares = [
        [STDLIB],
        [f"{SITE}/scipy", f"{SITE}/skimage"],
        [p for p in _python_folders(prefix) if Path(p).name not in ("scipy", "skimage")],
    ]
    python = prefix / "bin/python3"
    # nothing of the caller's: a name that the compiler knows already is written differently; and no
    # byte code with a time in it of what it imports itself
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONHASHSEED": "0"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    words = ["-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    words += ["-s", str(prefix), "-p", HOME]
    started = [
        subprocess.Popen(
            [str(python), *words, *(str(prefix / f) for f in share)],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for share in shares
    ]  # fmt: skip
    for process in started:  # its status also tells of files that are for another Python
        if process.wait() < 0:
            raise Failure(f"{python} was killed while it compiled")


def _python_folders(prefix: Path) -> List[str]:
    return sorted(
        str(p.relative_to(prefix))
        for p in (prefix / SITE).iterdir()
        if p.is_dir() or p.suffix == ".py"
    )


def unresolved(prefix: Path) -> List[str]:
    """Return ``library (who needs it)`` of everything that would be looked for on the host."""
    names = {p.name for folder in RPATH for p in (prefix / folder).glob("*.so*")}
    loaded = _loaded_by(prefix, prefix / "bin/python3.9")
    missing: Dict[str, str] = {}
    for found in elves(prefix):
        origin = found.path.parent
        folders = [
            Path(f.replace("$ORIGIN", str(origin)).replace("${ORIGIN}", str(origin)))
            for f in found.search
        ]
        own = bool(found.search) and not found.program
        for name in found.needed:
            there = name in GLIBC or OF_DRIVER.match(name) or name in loaded
            # a wheel's bundled libraries inherit the DT_RPATH of the module that asks for them
            there = there or any((f / name).exists() for f in [*folders, origin])
            if not there and (own or name not in names):
                missing[name] = found.path.name
    return [f"{name} ({who})" for name, who in sorted(missing.items())]


def _loaded_by(prefix: Path, program: Path) -> Set[str]:
    """Return the libraries that are loaded before the first module: others find them by name."""
    loaded: Set[str] = set()
    waiting = [program]
    while waiting:
        found = elf(waiting.pop())
        for name in set(found.needed if found else ()) - loaded:
            path = prefix / LIBRARIES / name
            if path.exists():
                loaded.add(name)
                waiting.append(path)
    return loaded


def recipe(folder: Path) -> str:
    """Return 16 hex digits that change with anything that decides what a prefix holds."""
    sha = hashlib.sha256()
    for name in ("debian-bullseye.txt", "caffe.txt", "caffe_prefix.py", "elf.py"):
        sha.update(f"{name}\n".encode())
        sha.update((folder / name).read_bytes())
    return sha.hexdigest()[:16]


def check(prefix: Path) -> None:
    """Start what there is.  Raises Failure with what it said."""
    env = {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GLOG_minloglevel": "2",
        "OPAL_PREFIX": str(prefix),
    }
    imports = "import " + ", ".join(MODULES)
    for words in (["caffe", "--version"], ["mpirun", "--version"], ["python3", "-c", imports]):
        argv = [str(prefix / "bin" / words[0]), *words[1:]]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Failure(f"{argv[0]} does not start here: {said[-1] if said else done.returncode}")


def write_record(prefix: Path, here: Path, pins: str) -> None:
    """Write what is in the prefix: last, so that a prefix with a record is whole."""
    lock = dict(line.split()[0].split("=", 1) for line in lines(here / "debian-bullseye.txt"))
    moved = dict(line.split(" ")[0].split("=", 1) for line in pins.splitlines()[1:])
    versions = {**lock, **moved}
    share = prefix / "share"
    share.mkdir(exist_ok=True)
    (share / "debian-pins").write_text(pins)
    (share / "debian-packages").write_text(
        "".join(f"{n}={v}\n" for n, v in sorted(versions.items()))
    )
    facts = {"recipe": recipe(here), "pins": pins.split("\n")[0]}
    facts.update({what: versions[package] for what, package in RECORDED.items()})
    partial = prefix / f"{RECORD}.partial"
    partial.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    partial.rename(prefix / RECORD)


def lines(path: Path) -> List[str]:
    """Return the lines of a lock that are not comments."""
    return [s for s in path.read_text().splitlines() if s and not s.startswith("#")]


def make(root: Path, prefix: Path, wheels: Path, pins: str) -> None:
    """Make the prefix.  Raises Failure; what there is of the prefix is then to be thrown away."""
    here = Path(__file__).resolve().parent
    copy_programs(root, prefix)
    copy_libraries(root, prefix)
    for found in list(elves(prefix)):
        if found.program and found.path.parent.name == "bin":
            set_rpath(found.path, prefix, root)
        elif found.search:
            forget_path(found)
    unpack_wheels(wheels, here / "caffe.txt", prefix / SITE)
    for line in lines(here / "debian-bullseye.txt"):
        licence = f"share/doc/{line.split('=')[0]}/copyright"
        copy_file(root, root / "usr" / licence, prefix / licence)
    missing = unresolved(prefix)
    if missing:
        raise Failure(f"these would be the host's: {', '.join(missing[:10])}")
    compile_all(prefix)
    check(prefix)
    write_record(prefix, here, pins)


if __name__ == "__main__":
    try:
        make(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]).read_text())
    except (Failure, OSError) as error:
        sys.stderr.write(f"iobench: {error}\n")
        sys.exit(1)
