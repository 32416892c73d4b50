"""`tests/run.sh`: few tests that fail run once more, alone, if their run came to its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
#: In place of `.venv/bin/python`: pytest notes what it was called for, fails as many tests of the
#: first phase as FEW says, and ends with FIRST, or with AGAIN where it runs the last failed ones.
PYTHON = f"""#!/bin/sh
case "$1 $2" in
-c\\ *) exec {sys.executable} "$@" ;;
'-m tests.outside') exit 0 ;;
'-m tests.build.containers') shift 2; exec "$@" ;;
esac
for word; do case $word in cache_dir=*) cache=${{word#cache_dir=}} ;; esac; done
case " $* " in
*' --collect-only '*) exit 0 ;;
*' --last-failed '*) echo "again: $cache" >>calls; exit $AGAIN ;;
*'-m system and '*) echo "all: $cache" >>calls; exit 0 ;;
esac
echo "all: $cache" >>calls
mkdir -p "$cache/v/cache"
{sys.executable} -c 'import json; print(json.dumps({{str(n): True for n in range('$FEW')}}))' \\
    >"$cache/v/cache/lastfailed"
exit $FIRST
"""
#: In place of podman, whose store this run's images are in: it has those of the file `stored`.
PODMAN = """#!/bin/sh
case $1 in
images) cat stored ;;
rmi) shift; echo "$@" >removed; : >stored ;;
esac
"""
NOT_SYSTEM = ".pytest_cache/not system and not breadth"
SYSTEM = ".pytest_cache/system and not breadth"


class Ran(NamedTuple):
    status: int
    calls: list[str]
    errors: str


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests/run.sh", tmp_path / "tests")
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(PYTHON)
    (programs / "iobench").write_text("#!/bin/sh\n")
    (programs / "make").write_text("#!/bin/sh\nsleep 0.1\nexit $LINT\n")
    (programs / "podman").write_text(PODMAN)
    (tmp_path / "stored").write_text("")
    for program in programs.iterdir():
        program.chmod(0o755)
    return tmp_path


def run(
    clone: Path, *words: str, first: int = 0, few: int = 2, again: int = 0, lint: int = 0
) -> Ran:
    counts = {"FIRST": first, "FEW": few, "AGAIN": again, "LINT": lint}
    (clone / "calls").touch()
    done = subprocess.run(
        ["sh", "tests/run.sh", *words],
        cwd=clone,
        env={"PATH": f"{clone}/.venv/bin:/usr/bin:/bin", **{k: str(v) for k, v in counts.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, (clone / "calls").read_text().splitlines(), done.stderr)


def test_all_pass(clone: Path) -> None:
    assert run(clone) == (0, [f"all: {NOT_SYSTEM}", f"all: {SYSTEM}"], "")


def test_breadth_is_the_rest_and_needs_no_lint(clone: Path) -> None:
    calls = [name.replace("not breadth", "breadth") for name in (NOT_SYSTEM, SYSTEM)]
    assert run(clone, "breadth", lint=2) == (0, [f"all: {name}" for name in calls], "")


def test_lint_that_fails_ends_the_run_before_any_test_and_the_images_making(clone: Path) -> None:
    builder = clone / ".venv/bin/iobench"
    builder.write_text("#!/bin/sh\necho $$ >builder\nexec sleep 60\n")
    assert run(clone, lint=2) == (2, [], "")
    assert not Path("/proc", (clone / "builder").read_text().strip()).exists()


def test_images_that_came_with_the_run_leave_podman(clone: Path) -> None:
    (clone / "stored").write_text("sha256:before\n")
    builder = clone / ".venv/bin/iobench"
    builder.write_text("#!/bin/sh\nprintf 'sha256:before\nsha256:new\n' >stored\n")
    assert run(clone).status == 0
    assert (clone / "removed").read_text() == "sha256:new\n"


@pytest.mark.parametrize("again", [0, 1])
def test_few_that_fail_run_once_more_and_are_named(clone: Path, again: int) -> None:
    ran = run(clone, first=1, again=again)
    assert ran.status == again
    assert ran.calls == [f"all: {NOT_SYSTEM}", f"again: {NOT_SYSTEM}", f"all: {SYSTEM}"]
    assert (
        "iobench: 2 of the tests 'not system and not breadth' failed, and run once more"
        in ran.errors
    )


@pytest.mark.parametrize(
    ("first", "few", "why"),
    [
        (1, 6, "many failed"),
        (2, 2, "the run was interrupted: tests that never ran would pass"),
        (3, 2, "pytest broke"),
        (5, 0, "no test was found"),
    ],
)
def test_other_runs_fail_at_once(clone: Path, first: int, few: int, why: str) -> None:
    ran = run(clone, first=first, few=few)
    assert (ran.status, ran.calls) == (1, [f"all: {NOT_SYSTEM}", f"all: {SYSTEM}"]), why
