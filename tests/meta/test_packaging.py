"""Pins, make's promises, the installer and the bundle."""

from __future__ import annotations

import ast
import email
import email.message
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Dict, List, Set, Tuple

import pytest
from packaging.requirements import Requirement

import iobench
from iobench.core import registry
from tests.capabilities import need

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
TOP_LEVEL = {"Dockerfile", "singularity", "README.md", "iobench", "datasets", "tests", "Makefile"}
TOP_LEVEL |= {"pyproject.toml", "CHANGELOG.md", "docs", ".ci", "benchmarks", "requirements"}
TOP_LEVEL |= {"LICENSE", ".gitignore", ".dockerignore"}
TARGETS = ["help", "setup", "data", "bench-io", "report", "test", "check", "smoke", "clean"]
TARGETS += ["bundle", "images", "caffe", "test-breadth"]


def pins(name: str) -> Dict[str, str]:
    lines = (REQUIREMENTS / name).read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith(("#", "-r "))]
    included = [line[3:] for line in lines if line.startswith("-r ")]
    found = dict(line.split("==") for line in wanted)
    return {k: v for part in [*map(pins, included), found] for k, v in part.items()}


def run(argv: List[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def tracked() -> List[str]:
    need("git")
    done = run(["git", "ls-files"], ROOT)
    if done.returncode:
        pytest.skip("not a git clone (an unpacked bundle)")
    return done.stdout.splitlines()


def copy_tracked(folder: Path) -> None:
    for name in tracked():
        if (ROOT / name).is_symlink() or (ROOT / name).exists():  # one may be deleted, uncommitted
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_every_pin_is_exact_and_agrees_with_the_constraints(name: str) -> None:
    fixed = pins("constraints.txt")
    assert {k: fixed[k] for k in pins(name)} == pins(name)


def test_no_pin_names_a_build() -> None:
    assert not [v for v in pins("constraints.txt").values() if "+" in v]


@pytest.mark.parametrize("name", sorted({**pins("run.txt"), **pins("dev.txt")}))
def test_what_runs_the_tests_is_what_is_pinned(name: str) -> None:
    installed = importlib.metadata.version(name).partition("+")[0]
    assert installed == pins("constraints.txt")[name]


def test_every_library_that_the_code_imports_is_pinned() -> None:
    imported = set()
    for path in (ROOT / "iobench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
    fixed = {name.lower() for name in {**pins("run.txt"), **pins("extra.txt")}}
    fixed |= {"yaml"} & {name.removeprefix("py") for name in fixed}
    members = [registry.load(a, n) for a in registry.AXES for n in registry.names(a)]
    known = {m: d for member in members for m, d in getattr(member, "libraries", {}).items()}
    pinned = fixed | {m.split(".")[0] for m, d in known.items() if d.lower() in fixed}
    debian = (REQUIREMENTS / "debian-bullseye.txt").read_text()
    pinned |= set(re.findall(r"^python3-(\w+)=", debian, re.M))  # Caffe's stack
    assert imported - sys.stdlib_module_names - {"iobench", "__main__"} <= pinned


def test_the_top_level_is_the_fixed_one() -> None:
    assert {Path(name).parts[0] for name in tracked()} <= TOP_LEVEL


def test_the_clone_is_small_and_names_no_machine() -> None:
    ours = "/" + "work/"
    for name in tracked():
        path = ROOT / name
        if path.is_file():  # a file may be deleted and not committed yet
            data = path.read_bytes()
            assert len(data) <= 1 << 20, name
            assert ours.encode() not in data.replace(b"/iobench/work/", b""), name


def test_no_package_registrys_address_is_known() -> None:
    """Images are built from the host's own sources, or DEBIAN_MIRROR, and nowhere else."""
    hosts = ["registry-1", "deb.debian", "archive.debian", "snapshot.debian", "security.debian"]
    hosts += ["pypi" + ".org", "pythonhosted", "ghcr.io", "docker.io/", "quay.io", "nvcr.io"]
    own = Path(__file__).relative_to(ROOT)
    for name in tracked():
        path = ROOT / name
        if path.is_file() and Path(name) != own and Path(name).suffix != ".png":
            text = path.read_text()
            assert [host for host in hosts if host in text] == [], name


def test_changelog_has_this_version_and_results_affected() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[(.+?)\].*?(?=^## \[|\Z)", text, re.M | re.S)
    assert newest
    assert newest[1] in (iobench.__version__, "Unreleased")
    assert "### Results affected" in newest[0]
    assert iobench.__version__ in text


def test_make_alone_prints_help_that_names_every_target() -> None:
    need("make")
    done = run(["make"], ROOT)
    assert done.returncode == 0
    assert [t for t in TARGETS if f"make {t} " not in done.stdout] == []


@pytest.mark.parametrize("target", TARGETS)
def test_make_targets_exist(target: str) -> None:
    need("make")
    assert run(["make", "-n", target], ROOT).returncode == 0


def test_make_passes_its_variables_on() -> None:
    need("make")
    words = [
        "DATA=/a b",
        "SPEC=x.toml",
        "OUT=/o",
        "BUDGET=4h",
        "RESULTS=r",
        "IMAGES=i",
        "IN_PLACE=1",
    ]
    shown = run(["make", "-n", "bench-io", *words], ROOT).stdout
    wanted = "run 'x.toml' --results 'r' --images 'i' --data '/a b' --out '/o' --in-place"
    assert f"{wanted} --budget '4h'" in re.sub(r"\s+", " ", shown)


def test_every_benchmark_that_make_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    line = re.search(r"^BENCHMARKS := (.*)$", makefile.replace("\\\n", ""), re.M)
    assert line
    named = {name.replace("-", "_") for name in line[1].split()}
    assert named <= {path.stem for path in (ROOT / "benchmarks").glob("*.py")}


# -- a wheel -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tracked files, built in a copy of them."""
    tree = tmp_path_factory.mktemp("tree")
    copy_tracked(tree)
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tree / "dist"), "."]
    done = run([sys.executable, "-m", "pip", *words], tree)
    assert done.returncode == 0, done.stderr
    (built,) = (tree / "dist").glob("*.whl")
    return built


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return email.message_from_bytes(archive.read(path))


def test_the_wheel_holds_what_it_reads_and_says_what_it_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("iobench/spec/shipped/*.toml", "datasets/*.toml", "iobench/report/*.j2"):
        there = {path.name for path in ROOT.glob(folder)}
        assert there
        assert there <= {Path(name).name for name in names}, folder
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("iobench/**/*.py")}
    assert modules <= names  # a new folder is to be listed in pyproject.toml
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "datasets/"))]
    needs = metadata_of(wheel).get_all("Requires-Dist")
    assert needs.count("numpy") == 1  # the worker side
    for extra, files in (
        ("driver", ["driver.txt", "worker.txt"]),
        ("torch", ["torch.txt"]),
        ("dali", ["dali.txt"]),
        ("extra", ["extra.txt"]),
    ):
        wanted = {f"{k}=={v}".lower() for file in files for k, v in pins(file).items()}
        marker = f'; extra == "{extra}"'
        found = {n.removesuffix(marker).lower() for n in needs if n.endswith(marker)}
        assert found == wanted


OWN = """
name = "own"
[dataset]
recipe = "smoke"
samples = 64
[case]
trainer = "null"
batch = 16
workers = 1
[matrix]
pipeline = ["torch:jpeg", "dali:jpeg"]
[ladder]
stages = ["load"]
caches = ["cold"]
repeats = 1
"""


def closure(needs: List[str], extra: str) -> Set[str]:
    """Return the names of what is installed here that these requirements come to, with an extra."""
    seen: Set[Tuple[str, str]] = set()
    todo = [(Requirement(line), extra) for line in needs]
    while todo:
        wanted, asked = todo.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": asked}):
            continue
        for each in {(wanted.name, named) for named in ("", *wanted.extras)} - seen:
            seen.add(each)
            theirs = importlib.metadata.requires(wanted.name) or []
            todo += [(Requirement(line), each[1]) for line in theirs]
    return {name for name, _ in seen}


def lend(names: Set[str], environment: Path) -> None:
    """Link the packages of these names, as they are installed here, into another environment."""
    (there,) = environment.glob("lib/python*/site-packages")
    for name in names:
        found = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (there / top).exists():
                (there / top).symlink_to(str(found.locate_file(top)))


@pytest.mark.breadth
@pytest.mark.timeout(900)
def test_a_wheel_in_a_clean_environment_runs_smoke(wheel: Path, tmp_path: Path) -> None:
    """The worker side is installed; the libraries that the extras name are lent: two gigabytes."""
    need("package-index")
    assert run([sys.executable, "-m", "venv", "env"], tmp_path).returncode == 0
    python, program = str(tmp_path / "env/bin/python"), str(tmp_path / "env/bin/iobench")
    (tmp_path / "own.toml").write_text(OWN)
    words = ["-q", "install", "--no-compile", str(wheel)]
    done = run([python, "-m", "pip", *words], tmp_path)
    assert done.returncode == 0, done.stderr
    needs = metadata_of(wheel).get_all("Requires-Dist")
    done = run([program, "run", "smoke"], tmp_path)
    assert done.returncode == 2
    assert "pip install 'iobench[driver]'" in done.stderr
    code = "import iobench.worker.__main__, iobench.worker.self_check"
    assert run([python, "-c", code], tmp_path).returncode == 0
    lend(closure(needs, "driver"), tmp_path / "env")
    done = run([program, "run", "smoke"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "results").glob("*/report.html"))
    lend(closure(needs, "torch") | closure(needs, "dali"), tmp_path / "env")
    done = run([program, "run", "own.toml"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the installer ---------------------------------------------------------------------------

#: A build backend in the tree itself, so that the installer is tested whole in seconds, offline.
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "iobench-0.0-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr("iobench_marker.py", "")
        info = "iobench-0.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: iobench\\nVersion: 0.0\\n")
        tag = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(info + "WHEEL", tag)
        wheel.writestr(info + "RECORD", "")
    return name
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of the same shape with no packages to install, and a folder of wheels."""
    (tmp_path / "requirements").mkdir()
    shutil.copy(REQUIREMENTS / "install.sh", tmp_path / "requirements")
    for name in ("run.txt", "extra.txt", "dev.txt", "constraints.txt"):
        (tmp_path / "requirements" / name).write_text("# no==pins\n")
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (tmp_path / "wheels").mkdir()
    return tmp_path


def test_debians_python_is_taken_before_another_of_the_same_minor_version(tree: Path) -> None:
    own = Path("/usr/bin/python3.11")
    if not own.exists():
        pytest.skip("no /usr/bin/python3.11")
    bare = tree / "bin"
    bare.mkdir()
    (bare / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bare / "python3").chmod(0o755)
    path = f"{bare}:{os.environ['PATH']}"
    code = (tree / "requirements/install.sh").read_text().partition("case ${1:-} in")[0]
    asked = [("", own if sys.version_info[:2] == (3, 11) else bare / "python3")]
    asked.append((sys.executable, Path(sys.executable)))
    for wanted, expected in asked:
        found = run(
            ["sh", "-c", f"{code}\nfind_python", str(tree / "requirements/x")],
            tree,
            PATH=path,
            PYTHON=wanted,
        )
        assert found.stdout.strip() == str(expected), found.stderr


def install(tree: Path, what: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run([str(tree / "requirements/install.sh"), what], tree, PYTHON=sys.executable, **env)


@pytest.mark.slow
def test_installer_says_what_it_does_and_does_it_once(tree: Path) -> None:
    first = install(tree, "run")
    assert first.returncode == 0, first.stderr
    assert "pinned packages" in first.stderr
    assert "no network" in first.stderr
    assert run([".venv/bin/python", "-c", "import iobench_marker"], tree).returncode == 0
    again = install(tree, "run")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


@pytest.mark.breadth
def test_installer_goes_on_after_a_change_or_a_broken_environment(tree: Path) -> None:
    assert install(tree, "dev").returncode == 0
    assert install(tree, "dev").stderr == ""
    assert install(tree, "run").stderr == ""
    (tree / "requirements" / "run.txt").write_text("# other==pins\n")
    assert "pinned packages" in install(tree, "run").stderr
    (tree / ".venv/bin/python").unlink()
    mended = install(tree, "run")
    assert mended.returncode == 0, mended.stderr
    assert run([".venv/bin/python", "-c", "import iobench_marker"], tree).returncode == 0


@pytest.mark.slow
def test_installer_names_the_remedy_when_pip_fails(tree: Path) -> None:
    (tree / "requirements/run.txt").write_text("not-there==1\n")
    done = install(tree, "run")
    assert done.returncode == 2
    assert "docs/hpc.md" in done.stderr.splitlines()[-1]
    assert not (tree / ".venv/iobench-run").exists()


def test_installer_refuses_an_old_python(tree: Path) -> None:
    old = tree / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = run([str(tree / "requirements/install.sh"), "run"], tree, PYTHON=str(old))
    assert done.returncode == 2
    assert "3.11" in done.stderr
    assert "make setup PYTHON=" in done.stderr


def test_missing_fio_is_said_and_not_fatal(tree: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"  # a PATH with neither fio nor apt-get
    bare.mkdir()
    for name in ("sh", "dirname", "id"):
        (bare / name).symlink_to(str(shutil.which(name)))
    done = install(tree, "fio", PATH=str(bare))
    assert done.returncode == 0
    assert "apt-get install fio" in done.stderr
    assert "module load fio" in done.stderr


def test_without_root_the_tests_say_what_to_ask_for(tree: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"  # neither apt-get nor sudo, and no program of those that tests drive
    bare.mkdir()
    for name in ("sh", "dirname", "id", "find"):
        (bare / name).symlink_to(str(shutil.which(name)))
    done = install(tree, "test-tools", PATH=str(bare))
    assert done.returncode == 0
    asked = done.stderr.splitlines()[-1]
    assert "Ask for `apt-get install make git patchelf mmdebstrap fio chromium " in asked
    assert "podman runc uidmap fuse-overlayfs charliecloud squashfs-tools " in asked
    assert " glusterfs-server glusterfs-client moosefs-master moosefs-chunkserver " in asked
    assert " moosefs-client sshfs iproute2 openmpi-bin mpich openssh-client" in asked
    assert asked.endswith(" gcc libc6-dev`")


@pytest.mark.breadth
def test_bundle_sets_up_without_a_network(tmp_path: Path) -> None:
    """A real bundle of a commit, with two small packages in place of the two gigabytes."""
    for name in ("root", "git", "make", "package-index"):
        need(name)
    clone = tmp_path / "clone"
    copy_tracked(clone)
    kept = [p for p in pins("run.txt").items() if p[0] in ("setuptools", "click")]
    (clone / "requirements/run.txt").write_text("".join(f"{k}=={v}\n" for k, v in kept))
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for argv in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "clone"]):
        assert run(["git", *argv], clone).returncode == 0
    made = run(["make", "bundle"], clone, PYTHON=sys.executable)
    assert made.returncode == 0, made.stderr
    (bundle,) = (clone / "dist").glob("*.tar")
    assert run(["tar", "-xf", str(bundle), "-C", str(tmp_path)], tmp_path).returncode == 0
    (unpacked,) = tmp_path.glob("iobench-*")
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_NO_CACHE_DIR": "1"}
    setup = run(["unshare", "--net", "make", "setup"], unpacked, PYTHON=sys.executable, **offline)
    assert setup.returncode == 0, setup.stderr
    where = run(
        [str(unpacked / ".venv/bin/python"), "-c", "import iobench; print(iobench.__file__)"],
        tmp_path,
    )
    assert where.stdout.strip() == str(unpacked / "iobench/__init__.py")
