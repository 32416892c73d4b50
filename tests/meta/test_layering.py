"""The shape of the code, held by reading it: who may import whom, print, exit, read a clock."""

from __future__ import annotations

import ast
import collections
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Set, Tuple

from iobench.core.registry import AXES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "iobench"
#: The rooms, in the order in which they may import one another: a room imports itself and what
#: stands in earlier rows; those of one row do not see each other.
ROOMS: Tuple[Tuple[str, ...], ...] = (
    ("core", "equations"),
    ("host",),
    ("backends",),
    ("worker", "data"),
    ("spec",),
    ("plan",),
    ("analysis",),
    ("images",),
    ("run",),
    ("advise",),
    ("tune",),
    ("report",),
    ("cli",),
)
#: Rooms that run under Caffe's Python 3.9 too: standard library and NumPy at import time.
PYTHON39 = ("core", "host", "backends", "worker")
DRIVER_LIBRARIES = {
    "pydantic",
    "rich",
    "click",
    "jinja2",
    "matplotlib",
    "pandas",
    "scipy",
    "optuna",
}
DRIVER_LIBRARIES |= {"tomllib", "docker", "spython"}
CLOCKS = {"time", "perf_counter", "monotonic", "process_time", "thread_time", "clock_gettime"}
#: Processes of their own, which end with their exit code or answer on standard output.
PROGRAMS = {
    "backends.runtimes._readonly",
    "worker.__main__",
    "worker.audit",
    "worker.library_defaults",
    "worker.remote_loader_server",
    "host.agent_process",
    "host.parent_watch",
    "worker.self_check",
}
#: What the driver reaches on a node through the node's agent alone.
OF_A_NODE = {
    "page_cache",
    "residency",
    "io_counters",
    "cgroups",
    "limits",
    "mounts",
    "stacked",
    "filesystems",
    "fio",
    "strace",
}
MAX_MODULE, MAX_FUNCTION = 350, 60

# What does not satisfy a rule yet: each list only gets shorter.
LONG_MODULES: Set[str] = set()
LONG_FUNCTIONS: Set[str] = set()
TWO_CLASSES: Set[str] = set()


class Import(NamedTuple):
    """One imported module or name: the longest part of ``a.b.name`` that is a module's."""

    module: str
    line: int
    top_level: bool

    @property
    def library(self) -> str:
        return self.module.split(".")[0]


@cache
def modules() -> Mapping[str, Path]:
    """Return dotted name below iobench -> file; a package has its folder's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


@cache
def tree_of(name: str) -> ast.Module:
    path = modules()[name]
    return ast.parse(path.read_text(), filename=str(path))


@cache
def imports(name: str) -> Tuple[Import, ...]:
    """Return the imports of a module, in functions too; those for the type checker left out."""
    return tuple(_imports(tree_of(name), top_level=True))


def _imports(node: ast.AST, *, top_level: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, top_level)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: relative import"
            for alias in child.names:
                below = f"{child.module}.{alias.name}".partition(".")[2]
                full = below in modules() and str(child.module).startswith("iobench")
                found = f"iobench.{below}" if full else str(child.module)
                yield Import(found, child.lineno, top_level)
        inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _imports(child, top_level=top_level and not inner)


def imported(name: str) -> Dict[str, int]:
    """Return the modules of iobench that a module imports, as names below iobench -> line."""
    ours = {i.module.partition(".")[2]: i.line for i in imports(name) if i.library == "iobench"}
    return {module: line for module, line in ours.items() if module}


def room(name: str) -> str:
    return name.split(".")[0]


def side39() -> List[str]:
    return [name for name in modules() if room(name) in PYTHON39]


def calls(name: str) -> Iterator[Tuple[ast.Call, str]]:
    """Yield each call, and ``sys.exit`` for one of that; "" for calls of anything unnamed."""
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                yield node, f"{function.value.id}.{function.attr}"
            else:
                yield node, function.id if isinstance(function, ast.Name) else ""


def functions(node: ast.AST, inside: str) -> Iterator[Tuple[str, int]]:
    """Yield dotted name and number of lines of every function, methods and inner ones too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            named = f"{inside}.{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield named, (child.end_lineno or 0) - child.lineno + 1
            yield from functions(child, named)
        else:
            yield from functions(child, inside)


# -- rooms -------------------------------------------------------------------------------------


def test_every_module_has_a_room() -> None:
    rooms = {name for row in ROOMS for name in row}
    assert {room(name) for name in modules()} == rooms | {""}
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == rooms
    loose = [p for p in PACKAGE.glob("*.py") if p.name != "__init__.py"]
    assert not loose, "modules stand in rooms"


def test_imports_run_one_way() -> None:
    row = {name: i for i, names in enumerate(ROOMS) for name in names}
    wrong = [
        f"{name}:{line} imports {other}"
        for name in modules()
        for other, line in imported(name).items()
        if name and room(name) != room(other) and row[room(other)] >= row[room(name)]
    ]  # fmt: skip
    assert not wrong


def test_no_circle() -> None:
    """Lazy imports counted: what is needed inside a function is needed all the same."""
    graph = {name: set(imported(name)) - {name} for name in modules()}
    done: Set[str] = set()
    while len(done) < len(graph):
        free = {name for name, needs in graph.items() if needs <= done} - done
        assert free, f"these import each other: {sorted(set(graph) - done)}"
        done |= free


def axis_of(name: str) -> str:
    """Return the axis in whose folder a module lies; "" for none, and for the folder itself."""
    folder = name.rpartition(".")[0].rpartition(".")[2]
    return folder if folder in AXES else ""


def is_helper(name: str) -> bool:
    return name.rpartition(".")[2].startswith("_")


def test_a_member_imports_no_other_member() -> None:
    """Only helpers: files of its own axis that begin with ``_``, and what Caffe's members share."""
    wrong = [
        f"{name}:{line} imports {other}"
        for name in modules() if axis_of(name)
        for other, line in imported(name).items()
        if axis_of(other) and not (axis_of(other) == axis_of(name) and is_helper(other))
    ]  # fmt: skip
    assert not wrong


def test_a_member_s_file_ends_in_its_value() -> None:
    for axis in AXES:
        members = [n for n in modules() if axis_of(n) == axis and not is_helper(n)]
        assert members, axis
        for name in members:
            last = tree_of(name).body[-1]
            targets = last.targets if isinstance(last, ast.Assign) else []
            targets = [last.target] if isinstance(last, ast.AnnAssign) else targets
            assert [getattr(t, "id", "") for t in targets] == ["BACKEND"], name


def test_each_folder_says_in_one_sentence_what_it_holds() -> None:
    wrong = []
    for name, path in modules().items():
        if path.name != "__init__.py" or not name:
            continue
        tree = tree_of(name)
        sentence = ast.get_docstring(tree) or ""
        if len(tree.body) != 1 or not sentence.endswith(".") or ". " in sentence[:-1]:
            wrong.append(name)
    assert not wrong
    bare = [p for p in PACKAGE.rglob("*.py") if not p.with_name("__init__.py").exists()]
    assert not bare


def test_the_driver_reaches_a_node_through_its_agent() -> None:
    wrong = [
        f"{name}:{line} imports {other}"
        for name in modules()
        for other, line in imported(name).items()
        if room(name) == "run"
        and other.split(".")[0] == "host" and other.split(".")[-1] in OF_A_NODE
    ]  # fmt: skip
    assert not wrong


# -- the Python 3.9 side -------------------------------------------------------------------------


def test_the_python39_side_imports_no_library_of_the_driver() -> None:
    wrong = [
        f"{name}:{i.line} imports {i.module}"
        for name in side39() for i in imports(name)
        if i.library in DRIVER_LIBRARIES
    ]  # fmt: skip
    assert not wrong


def test_the_python39_side_imports_frameworks_inside_functions() -> None:
    allowed = sys.stdlib_module_names | {"iobench", "numpy"}
    wrong = [
        f"{name}:{i.line} imports {i.module}"
        for name in side39() for i in imports(name) if i.top_level and i.library not in allowed
    ]  # fmt: skip
    assert not wrong


def test_the_python39_side_parses_as_python_3_9() -> None:
    for name in side39():
        ast.parse(modules()[name].read_text(), filename=name, feature_version=(3, 9))


def test_the_python39_side_uses_nothing_newer() -> None:
    vermin = [str(Path(sys.executable).with_name("vermin")), "-t=3.9-", "--violations", "--no-tips"]
    paths = [str(modules()[name]) for name in side39()]
    done = subprocess.run([*vermin, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# -- what a module may do ------------------------------------------------------------------------


def test_only_the_command_line_prints_and_exits() -> None:
    banned = {"print", "sys.exit", "os._exit", "exit", "quit", "click.echo", "sys.stdout.write"}
    wrong = [
        f"{name}:{call.lineno} calls {called}"
        for name in modules() if room(name) != "cli" and name not in PROGRAMS
        for call, called in calls(name) if called in banned and not (
            called == "os._exit" and "os.fork" in {other for _, other in calls(name)}
        )
    ]  # fmt: skip
    assert not wrong  # a forked child has no other way to end


def test_only_one_module_reads_a_clock() -> None:
    wrong = []
    for name in set(modules()) - {"core.clock"}:
        named = {a.name for node in ast.walk(tree_of(name))
                 if isinstance(node, ast.ImportFrom) and node.module == "time"
                 for a in node.names}  # fmt: skip
        named |= {called[5:] for _, called in calls(name) if called.startswith("time.")}
        if {clock.replace("_ns", "") for clock in named} & CLOCKS:
            wrong.append(name)
    assert not wrong


def test_no_shell_strings() -> None:
    wrong = [
        f"{name}:{call.lineno}"
        for name in modules() for call, called in calls(name)
        if called == "os.system" or any(k.arg == "shell" for k in call.keywords)
    ]  # fmt: skip
    assert not wrong


def test_no_module_is_too_long() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert not {n: k for n, k in lengths.items() if k > MAX_MODULE and n not in LONG_MODULES}


def test_no_function_is_too_long() -> None:
    lengths = dict(found for name in modules() for found in functions(tree_of(name), name))
    assert not {n: k for n, k in lengths.items() if k > MAX_FUNCTION and n not in LONG_FUNCTIONS}


def test_no_two_classes_have_one_name() -> None:
    homes: Dict[str, List[str]] = collections.defaultdict(list)
    for name in modules():
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    assert not {c: at for c, at in homes.items() if len(at) > 1 and c not in TWO_CLASSES}
