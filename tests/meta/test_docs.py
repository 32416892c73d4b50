"""Every code block of README.md and docs/ is executed, or checked as far as hours allow.

The words after the fence say how:

``console``      its ``$ `` lines run, in order, in a copy of this tree (``# exit 2``: the exit
                 status expected); ``console needs:X``: a test of its own, where this machine has
                 the capability X
``sh``           commands of hours, or for another machine: parsed; make's targets and iobench's
                 options are checked
``toml NAME``    a spec or a dataset recipe: validated, and written to NAME for later commands
``yaml NAME``    a workload file: written to NAME for later commands
``python NAME``  written to NAME for later commands; without a name: run
``text``         shown, never a command
"""

from __future__ import annotations

import ast
import dataclasses
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Set, Tuple, Union

import click
import pydantic
import pytest
import tomllib
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from iobench.cli import listing
from iobench.core import channel, options, registry, stages, transforms
from iobench.core.cases import Case
from iobench.run import worker_process
from iobench.spec import schema
from tests import capabilities
from tests.build.report import suite
from tests.build.rows import first
from tests.meta.test_layering import ROOMS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "datasets/README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: What a newcomer types; the other documents' commands run in `make test-breadth`.
FIRST_READ = ("README.md", "getting-started.md")
SMOKE = "make smoke"
KINDS = {"console", "sh", "toml", "yaml", "python", "text"}
#: First words of ``sh`` lines that are not ours to check.
FOREIGN = {
    "git",
    "cd",
    "pip",
    "tar",
    "scp",
    "rsync",
    "sbatch",
    "srun",
    "module",
    "sudo",
    "apt-get",
    "du",
}


#: What an entry of ``pipelines`` repeats of its case (docs: "which case").
CASE_FIELDS = [f.name for f in dataclasses.fields(Case)]


class Block(NamedTuple):
    """One fenced block: ``kind`` and ``words`` stand after the fence."""

    kind: str
    words: Tuple[str, ...]
    text: str
    where: str

    @property
    def file(self) -> str:
        return next((word for word in self.words if "." in word), "")

    @property
    def needs(self) -> str:
        return next((word.partition(":")[2] for word in self.words if ":" in word), "")


def blocks(document: Path) -> Iterator[Block]:
    fence = re.compile(r"^```(\S*) *(.*?)\n(.*?)^```$", re.M | re.S)
    text = document.read_text()
    for match in fence.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        where = f"{document.relative_to(ROOT)}:{line}"
        yield Block(match[1], tuple(match[2].split()), match[3], where)


def every(*kinds: str) -> List[Block]:
    return [b for document in DOCUMENTS for b in blocks(document) if b.kind in kinds]


def command_lines(text: str) -> List[str]:
    """Return a block's commands, lines that end in a backslash joined."""
    joined = text.replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    """The copies share this tree's .venv: bring it up to date here, so that no copy does."""
    if (ROOT / ".venv").is_symlink():  # another tree's, whose own code it runs
        return
    subprocess.run([ROOT / "requirements/install.sh", "run"], check=True)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what SMOKE leaves is kept, for the next copy in which it would do the same again.

    One folder for all processes of the tests.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kept"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of this tree, with its .venv."""
    tree = tmp_path / "iobench"
    made = {".git", ".venv", ".tools", "data", "results", "images", "dist", "wheels"}
    anywhere = shutil.ignore_patterns("__pycache__", ".*_cache", "tmp*")  # other tests' own

    def ignore(folder: str, names: List[str]) -> Set[str]:
        return {*anywhere(folder, names), *(made if folder == str(ROOT) else set())}

    shutil.copytree(ROOT, tree, ignore=ignore, symlinks=True)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def run_document(document: Path, tree: Path, kept: Path) -> None:
    for block in blocks(document):
        if block.file:
            write(tree / block.file, block.text)
        elif block.kind == "python":
            done = subprocess.run(
                [sys.executable, "-c", block.text], cwd=tree, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{block.where}\n{done.stderr}"
        if block.kind == "console" and not block.needs:
            run_block(block, tree, kept)


def run_block(block: Block, tree: Path, kept: Path) -> None:
    for line in command_lines(block.text):
        if line == SMOKE:
            smoke(tree, kept, block.where)
        else:
            run_line(line, tree, block.where)


def smoke(tree: Path, kept: Path, where: str) -> None:
    """Run SMOKE, or lay down what it left in the first copy."""
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / "left").exists():
            run_line(SMOKE, tree, where)
            for name in ("data", "results"):
                shutil.copytree(tree / name, kept / "copying" / name, symlinks=True)
            (kept / "copying").rename(kept / "left")
            return
    shutil.copytree(kept / "left", tree, symlinks=True, dirs_exist_ok=True)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run_line(line: str, tree: Path, where: str) -> None:
    expected = re.search(r"# exit (\d+)$", line)
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tree,
        env={**os.environ, "PATH": f"{tree / '.venv/bin'}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = int(expected[1]) if expected else 0
    assert done.returncode == wanted, f"{where}: {line}\n{done.stdout}\n{done.stderr}"


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_blocks_have_a_known_kind(document: Path) -> None:
    found = list(blocks(document))
    assert document.read_text().count("```") == 2 * len(found)
    assert not [b.where for b in found if b.kind not in KINDS]


@pytest.mark.parametrize("block", every("console"), ids=lambda b: b.where)
def test_console_blocks_hold_commands_only(block: Block) -> None:
    lines = block.text.replace("\\\n", " ").splitlines()
    assert not [line for line in lines if not line.startswith("$ ")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    first(DOCUMENTS, [path for path in DOCUMENTS if path.name in FIRST_READ]),
    ids=ids,
)
def test_blocks_run(document: Path, copy: Path, kept: Path) -> None:
    run_document(document, copy, kept)


@pytest.mark.system
@pytest.mark.breadth
@pytest.mark.parametrize("block", [b for b in every("console") if b.needs], ids=lambda b: b.where)
def test_blocks_that_need_something_run(block: Block, copy: Path, kept: Path) -> None:
    capabilities.need(block.needs)
    for other in blocks(ROOT / block.where.rpartition(":")[0]):
        if other.file:
            write(copy / other.file, other.text)
    run_block(block, copy, kept)


@pytest.mark.parametrize("block", every("toml"), ids=lambda b: b.where)
def test_toml_blocks_are_valid(block: Block, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir(exist_ok=True)
    document = ROOT / block.where.rpartition(":")[0]
    for other in blocks(document):  # a spec may name the members that its document makes
        if other.file:
            write(tmp_path / other.file, other.text)
    write(tmp_path / "block.toml", block.text)
    recipe = "mean_bytes" in tomllib.loads(block.text)
    module = "iobench.data.recipes" if recipe else "iobench.spec.load"
    check = f"import {module} as read; read.load('block.toml')"
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tmp_path,
        env={**os.environ, "IOBENCH_PLUGINS": str(tmp_path / "plugins")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block.where}\n{done.stderr}"


@pytest.mark.parametrize("block", every("sh"), ids=lambda b: b.where)
def test_long_commands_are_possible(block: Block) -> None:
    subprocess.run(["bash", "-n", "-c", block.text], check=True)
    for line in command_lines(block.text):
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if not words or words[0] in FOREIGN:
            continue
        program = Path(words[0]).name
        assert program in ("make", "iobench"), f"{block.where}: {line}"
        if program == "make":
            subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
        else:
            from iobench.cli.main import cli

            parse_options(cli, words)


def parse_options(command: click.Command, words: List[str]) -> None:
    """Let click parse a command line, down to its subcommand, and run nothing."""
    name, *rest = words
    context = click.Context(command, info_name=name)
    while isinstance(command, click.Group):
        name, *rest = rest
        found = command.get_command(context, name)
        assert found, f"no command {name}"
        command = found
    command.make_context(name, rest, parent=context)


def anchors(document: Path) -> Set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text()):
        if "://" in target:
            continue
        page = document.parent / target if target else document
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 60


def test_results_md_names_every_column_and_key() -> None:
    from iobench.analysis.suite import analyse
    from iobench.report import publish
    from iobench.report.csv import COLUMNS, EXTRA

    plan, records = suite()
    analysis = publish.document(analyse(plan, records))
    text = (ROOT / "docs/results.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    assert not set(COLUMNS) - named
    assert not set(EXTRA) - named
    assert not set(analysis) - named
    assert not set(analysis["pipelines"][0]) - named - set(CASE_FIELDS)
    assert not set(analysis["contrasts"][0]) - named


def test_results_md_names_every_table_of_list() -> None:
    _, found, stable = (ROOT / "docs/results.md").read_text().partition("## Stable names\n")
    assert found
    assert not set(listing.tables()) - set(re.findall(r"`(\w+)`", stable))


# -- docs/architecture.md against the tree --------------------------------------------------------

ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
PACKAGE = ROOT / "iobench"


def rooms() -> Dict[str, str]:
    """Return room -> its sentence, as the page's table has them, in its order."""
    _, _, section = ARCHITECTURE.partition("## Rooms\n")
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section.partition("\n## ")[0], re.M))


def test_architecture_md_lists_the_rooms_in_the_order_of_imports() -> None:
    assert list(rooms()) == [room for row in ROOMS for room in row]


@pytest.mark.parametrize("room", [room for row in ROOMS for room in row])
def test_architecture_md_has_the_sentence_of_each_room(room: str) -> None:
    sentence = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))
    assert rooms()[room] == str(sentence).removesuffix(".")


def test_architecture_md_names_every_folder() -> None:
    named = set(re.findall(r"`([\w/]+)`", ARCHITECTURE))
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml")]
    folders = {str(path.parent.relative_to(PACKAGE)) for path in files} - {"."}
    assert not folders - named


def test_architecture_md_has_every_message_of_the_channel() -> None:
    _, _, section = ARCHITECTURE.partition("## The control channel\n")
    rows = re.findall(r"^\| `(\w+)` \|", section.partition("\n## ")[0], re.M)
    assert sorted(rows) == sorted(kind.__name__ for kind in channel.ControlMessage.__subclasses__())


def test_architecture_md_has_the_time_limits_of_the_channel() -> None:
    limits = (worker_process.HELLO_S, channel.MESSAGE_S, worker_process.GRACE_S)
    assert [f"{limit:g} s" in ARCHITECTURE for limit in limits] == [True] * 3


def test_architecture_md_names_modules_that_exist() -> None:
    below = {room for row in ROOMS for room in row}
    paths = re.findall(r"`(\w+(?:/\w+)+)/?`", ARCHITECTURE)
    named = [path for path in paths if path.split("/")[0] in below]
    assert named
    here = [PACKAGE / path for path in named]
    assert not [str(p) for p in here if not p.is_dir() and not p.with_suffix(".py").exists()]


# -- docs/spec.md against the code ---------------------------------------------------------------

SPEC_PAGE = ROOT / "docs/spec.md"
#: Heading -> the model whose fields its table names, and those that another table names already.
SECTIONS = {
    "Top level": (schema.Spec, ()),
    "[dataset]": (schema.DatasetSpec, ()),
    "[case]": (schema.CaseSpec, ()),
    "[[cases]]": (schema.ExtraCase, tuple(schema.CaseSpec.model_fields)),
    "[ladder]": (schema.LadderSpec, ()),
    "[[contrasts]]": (schema.ContrastSpec, ()),
}
WORDS = {
    bool: "truth",
    int: "whole number",
    float: "number",
    str: "text",
    tuple: "list",
    dict: "table",
}


def table(heading: str) -> List[List[str]]:
    """Return the rows of the first table below a heading, as cells; not its head."""
    _, found, text = SPEC_PAGE.read_text().partition(f"# {heading}\n")
    assert found, heading
    lines = text.partition("\n#")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return rows[2:]


def plain(cell: str) -> str:
    return cell.strip("`")


def kind(hint: Any) -> str:
    """Return the page's word for a type."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return kind(typing.get_args(hint)[0])
    if origin is typing.Literal:
        return "text"
    if origin is Union or type(hint).__name__ == "UnionType":
        members = [a for a in typing.get_args(hint) if a is not type(None)]
        return kind(members[0]) if len(members) == 1 else "any"
    if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        return "table"
    return WORDS[origin or hint]


def check_default(cell: str, default: Any, where: str) -> None:
    """A cell in quotes is the code's default as TOML; words are for one that depends on others."""
    if re.fullmatch(r"`[^`]*`", cell) and cell != "`torch`":
        value = list(default) if isinstance(default, tuple) else default
        assert tomllib.loads(f"v = {plain(cell)}")["v"] == value, where
    else:
        assert default in (None, 0, 0.0, PydanticUndefined) or default == Case().image, where
        assert cell, where


def default_of(key: str, field: FieldInfo, model: Any) -> Any:
    """Return what holds where a spec is silent; for a case what its data type says."""
    if model is schema.CaseSpec and field.default is None:
        return getattr(Case(), key, None)
    return field.get_default(call_default_factory=True)


@pytest.mark.parametrize("heading", SECTIONS)
def test_spec_md_names_every_key(heading: str) -> None:
    model, elsewhere = SECTIONS[heading]
    title = heading if heading == "Top level" else f"`{heading}`"
    rows = {plain(row[0]): row for row in table(title)}
    assert set(rows) == set(model.model_fields) - set(elsewhere)
    for key, (_, word, default, meaning) in rows.items():
        field = model.model_fields[key]
        assert word == kind(field.annotation), key
        assert meaning, key
        value = default_of(key, field, model)
        if not isinstance(value, pydantic.BaseModel):
            check_default(default, value, key)


@pytest.mark.parametrize("axis", ["formats", "loaders", "trainers", "runtimes", "launchers"])
def test_spec_md_names_every_option(axis: str) -> None:
    page: Dict[str, Dict[str, List[str]]] = {}
    for member, option, *rest in table(axis.capitalize()):
        of_member = page.setdefault(plain(member), {})
        if option != "none":
            of_member[plain(option)] = rest
    takes = {n: options.accepted(registry.load(axis, n).make) for n in registry.names(axis)}
    assert {n: set(found) for n, found in page.items()} == {n: set(p) for n, p in takes.items()}
    for name, found in page.items():
        for option, (word, default, _) in found.items():
            parameter = takes[name][option]
            assert word == kind(parameter.annotation), (name, option)
            check_default(default, parameter.default, f"{name} {option}")


def test_spec_md_names_every_value() -> None:
    named: Dict[str, Set[str]] = {}
    for key, value, _ in table("Values"):
        named.setdefault(plain(key), set()).add(plain(value))

    def literals(key: str) -> Set[str]:
        hint = schema.CaseSpec.model_fields[key].annotation
        return {a for part in typing.get_args(hint) for a in typing.get_args(part)}

    assert named == {
        "placement": set(registry.names("placements")),
        "content": literals("content"),
        "sharing": literals("sharing"),
        "scope": literals("scope"),
        "order": {"stored", "shuffled", "window:N", "shards:N"},
        "transform": set(transforms.TRANSFORMS),
        "decoder": set(registry.names("decoders")),
    }


def test_spec_md_says_which_stages_and_contents_there_are() -> None:
    rows = {plain(row[0]): row for row in table("`[[contrasts]]`")}
    assert set(re.findall(r"`(\w+)`", rows["stage"][3])) == set(stages.contrasted())
    contents = {row[1]: row[2] for row in table("Values") if plain(row[0]) == "content"}
    for content in ("raw", "float"):
        able = {
            n for n in registry.names("formats") if content in registry.load("formats", n).contents
        }
        assert set(re.findall(r"`(\w+)`", contents[f"`{content}`"])) == able
