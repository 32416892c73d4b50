"""The shape of the code, held by reading it: who may import whom, print, exit and read a clock."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Iterator, List, NamedTuple, Set

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "iobench"
AXES = ("formats", "loaders", "trainers", "runtimes", "launchers", "filesystems")
#: Each may import those before it, never one after it.
CHAIN = ("errors", "model", "protocols", "registry", "spec", "scheduler", "cli")
#: What plans, keeps, judges and shows results: nothing of the worker side may reach it.
DRIVER = {
    "images",
    "services",
    "cli_image",
    "spec",
    "stacks",
    "plan",
    "scheduler",
    "store",
    "stats",
    "stalls",
    "analysis",
    "report",
    "cli",
}
DRIVER_LIBRARIES = {"pydantic", "rich", "click", "jinja2", "matplotlib", "pandas", "scipy"}
DRIVER_LIBRARIES |= {"tomllib", "docker", "spython"}
CLOCKS = {"time", "perf_counter", "monotonic", "process_time", "thread_time", "clock_gettime"}
MAX_LINES = 400


class Import(NamedTuple):
    """One imported name: ``iobench.model.Case`` is module ``iobench.model``."""

    module: str
    names: List[str]
    line: int
    top_level: bool

    @property
    def library(self) -> str:
        return self.module.split(".")[0]


def modules() -> List[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return the dotted name below iobench: ``loaders.torch``; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> Iterator[Import]:
    """Yield the imports of a module, those for the type checker only left out."""
    yield from _imports(tree_of(path), top_level=True)


def _imports(node: ast.AST, *, top_level: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, [], child.lineno, top_level)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: relative import"
            names = [alias.name for alias in child.names]
            yield Import(child.module or "", names, child.lineno, top_level)
        inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _imports(child, top_level=top_level and not inner)


def imported_modules(path: Path, *, lazy: bool = True) -> Set[str]:
    """Return the iobench modules a file imports, as names below iobench.

    ``lazy``: those imported inside functions too.
    """
    found = set()
    for item in imports(path):
        if item.library != "iobench" or not (lazy or item.top_level):
            continue
        below = item.module.partition(".")[2]
        as_modules = {f"{below}.{name}".lstrip(".") for name in item.names}
        known = {name_of(p) for p in modules()}
        found |= (as_modules & known) | ({below} & known - {""})
    return found


def is_backend(path: Path) -> bool:
    return path.parent.name in AXES and path.name != "__init__.py"


def worker_side() -> List[Path]:
    """Return what runs in a worker: worker.py, every backend, and all that importing them imports.

    An import inside a function counts in these themselves; further down it is a part that the
    driver alone calls (making a dataset, say).
    """
    paths = {name_of(path): path for path in modules()}
    first = [p for p in modules() if is_backend(p) or p.name == "worker.py"]
    wanted = list(first)
    reached: Set[Path] = set()
    while wanted:
        path = wanted.pop()
        if path not in reached:
            reached.add(path)
            wanted += [paths[name] for name in imported_modules(path, lazy=path in first)]
    return sorted(reached)


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))


def called_name(call: ast.Call) -> str:
    """Return ``sys.exit`` for a call of that; "" for calls of anything unnamed."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return ""


every_module = pytest.mark.parametrize("path", modules(), ids=lambda p: name_of(p) or "iobench")


@pytest.mark.parametrize("path", [p for p in modules() if name_of(p) in CHAIN], ids=name_of)
def test_the_chain_points_one_way(path: Path) -> None:
    later = set(CHAIN[CHAIN.index(name_of(path)) + 1 :])
    assert not imported_modules(path) & later


@every_module
def test_nothing_imports_the_command_line(path: Path) -> None:
    commands = {name for name in imported_modules(path) if name.startswith("cli")}
    assert name_of(path).startswith("cli") or name_of(path) == "__main__" or not commands


def test_no_import_cycles() -> None:
    graph = {name_of(path): imported_modules(path, lazy=False) for path in modules()}
    done: Set[str] = set()
    while len(done) < len(graph):
        free = {name for name, needs in graph.items() if needs - {name} <= done} - done
        assert free, f"these import each other: {sorted(set(graph) - done)}"
        done |= free


@pytest.mark.parametrize("path", [p for p in modules() if is_backend(p)], ids=name_of)
def test_backends_import_neither_each_other_nor_the_driver(path: Path) -> None:
    heads = {name.split(".")[0] for name in imported_modules(path)}
    assert not heads & set(AXES)
    assert not heads & (DRIVER | {"worker"})


@pytest.mark.parametrize("path", worker_side(), ids=lambda p: name_of(p) or "iobench")
def test_worker_side_is_free_of_the_driver(path: Path) -> None:
    assert name_of(path).split(".")[0] not in DRIVER
    assert not {item.library for item in imports(path)} & DRIVER_LIBRARIES, path


@pytest.mark.parametrize("path", worker_side(), ids=lambda p: name_of(p) or "iobench")
def test_worker_side_imports_frameworks_inside_functions(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"iobench", "numpy"}
    assert not {i.library for i in imports(path) if i.top_level} - allowed


@pytest.mark.parametrize("path", worker_side(), ids=lambda p: name_of(p) or "iobench")
def test_worker_side_parses_as_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), filename=str(path), feature_version=(3, 9))


def test_worker_side_uses_nothing_newer_than_python_3_9() -> None:
    vermin = [str(Path(sys.executable).with_name("vermin")), "-t=3.9-", "--violations", "--no-tips"]
    done = subprocess.run(
        [*vermin, *map(str, worker_side())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@every_module
def test_only_the_command_line_prints_and_exits(path: Path) -> None:
    if name_of(path).startswith("cli"):
        return
    banned = {"print", "sys.exit", "os._exit", "exit", "quit", "click.echo", "sys.stdout.write"}
    if name_of(path) in (
        "worker",
        "bridge_far",
        "lifetime",
        "readonly",
    ):  # a process of its own: it ends with its exit code
        banned -= {"sys.exit", "os._exit"}  # the latter when its driver has gone
    assert not {called_name(call) for call in calls(path)} & banned


@every_module
def test_only_timing_reads_a_clock(path: Path) -> None:
    if name_of(path) == "timing":
        return
    imported = {name for i in imports(path) if i.module == "time" for name in i.names}
    called = {name[5:] for call in calls(path) if (name := called_name(call)).startswith("time.")}
    assert not {name.replace("_ns", "") for name in imported | called} & CLOCKS


@every_module
def test_no_module_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@every_module
def test_no_shell_strings(path: Path) -> None:
    shell = [k for call in calls(path) for k in call.keywords if k.arg == "shell"]
    assert not shell
    assert "os.system" not in {called_name(call) for call in calls(path)}


@pytest.mark.parametrize("axis", AXES)
def test_a_backend_file_ends_in_its_value(axis: str) -> None:
    for path in sorted((PACKAGE / axis).glob("[!_]*.py")):
        last = tree_of(path).body[-1]
        targets = last.targets if isinstance(last, ast.Assign) else [getattr(last, "target", None)]
        assert [getattr(t, "id", "") for t in targets] == ["BACKEND"], path
