"""Every code block of README.md and docs/ is executed, or checked as far as hours allow.

The words after the fence say how:

``console``      its ``$ `` lines run, in order, in a copy of this tree (``# exit 2``: the exit
                 status expected); ``console slow``: only by `make test`
``sh``           commands of hours, or for another machine: parsed; make's targets and iobench's
                 options are checked
``toml NAME``    a spec or a dataset recipe: validated, and written to NAME for later commands
``python NAME``  written to NAME for later commands; without a name: run
``text``         shown, never a command
"""

from __future__ import annotations

import dataclasses
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

from iobench import codec, contrast_spec, options, registry, spec
from iobench.model import Case
from tests.report_fixture import suite

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "datasets/README.md", *sorted((ROOT / "docs").glob("*.md"))]
KINDS = {"console", "sh", "toml", "python", "text"}
#: First words of ``sh`` lines that are not ours to check.
FOREIGN = {"git", "cd", "tar", "scp", "rsync", "sbatch", "srun", "module", "sudo", "apt-get", "du"}


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
    subprocess.run([ROOT / "requirements/install.sh", "run"], check=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of this tree, with its .venv."""
    tree = tmp_path / "iobench"
    unwanted = (".git", ".venv", "data", "results", "dist", "wheels", "__pycache__", ".*_cache")
    matching = shutil.ignore_patterns(*unwanted)

    def ignore(folder: str, names: List[str]) -> Set[str]:  # iobench/images is wanted
        built = {"images", ".tools"} if folder == str(ROOT) else set()
        return {*matching(folder, names), *built}

    shutil.copytree(ROOT, tree, ignore=ignore, symlinks=True)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def run_document(document: Path, tree: Path, *, slow: bool) -> None:
    for block in blocks(document):
        if block.file:
            write(tree / block.file, block.text)
        elif block.kind == "python":
            done = subprocess.run(
                [sys.executable, "-c", block.text], cwd=tree, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{block.where}\n{done.stderr}"
        if block.kind == "console" and (slow or "slow" not in block.words):
            for line in command_lines(block.text):
                run_line(line, tree, block.where)


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_quick_blocks_run(document: Path, copy: Path) -> None:
    run_document(document, copy, slow=False)


SLOW = [d for d in DOCUMENTS if any("slow" in b.words for b in blocks(d))]


@pytest.mark.system
@pytest.mark.parametrize("document", SLOW, ids=ids)
def test_slow_blocks_run(document: Path, copy: Path) -> None:
    run_document(document, copy, slow=True)


@pytest.mark.parametrize("block", every("toml"), ids=lambda b: b.where)
def test_toml_blocks_are_valid(block: Block, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir(exist_ok=True)
    document = ROOT / block.where.rpartition(":")[0]
    for other in blocks(document):  # a spec may name the members that its document makes
        if other.file:
            write(tmp_path / other.file, other.text)
    write(tmp_path / "block.toml", block.text)
    recipe = "mean_bytes" in tomllib.loads(block.text)
    module = "recipes" if recipe else "spec"
    check = f"from iobench import {module}; {module}.load('block.toml')"
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
            from iobench.cli import cli

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


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    assert not [t for t in targets if "://" not in t and not (document.parent / t).exists()]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_results_md_names_every_column_and_key() -> None:
    from iobench.analysis import analyse
    from iobench.report.csv import COLUMNS, EXTRA

    plan, records = suite()
    analysis = analyse(plan, records)
    text = (ROOT / "docs/results.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    assert not set(COLUMNS) - named
    assert not set(EXTRA) - named
    assert not set(analysis) - named
    assert not set(analysis["pipelines"][0]) - named - set(CASE_FIELDS)
    assert not set(analysis["contrasts"][0]) - named


# -- docs/spec.md against the code ---------------------------------------------------------------

SPEC_PAGE = ROOT / "docs/spec.md"
#: Heading -> the model whose fields its table names, and those that another table names already.
SECTIONS = {
    "Top level": (spec.Spec, ()),
    "[dataset]": (spec.DatasetSpec, ()),
    "[case]": (spec.CaseSpec, ()),
    "[[cases]]": (spec.ExtraCase, tuple(spec.CaseSpec.model_fields)),
    "[ladder]": (spec.LadderSpec, ()),
    "[[contrasts]]": (spec.ContrastSpec, ()),
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
    if model is spec.CaseSpec and field.default is None:
        return getattr(Case(), key, None)
    return field.default


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
        if not isinstance(field.default, pydantic.BaseModel):
            check_default(default, default_of(key, field, model), key)


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
        hint = spec.CaseSpec.model_fields[key].annotation
        return {a for part in typing.get_args(hint) for a in typing.get_args(part)}

    assert named == {
        "placement": literals("placement"),
        "content": literals("content"),
        "sharing": literals("sharing"),
        "order": {"stored", "shuffled", "window:N"},
        "transform": set(codec.TRANSFORMS),
    }


def test_spec_md_says_which_stages_and_contents_there_are() -> None:
    rows = {plain(row[0]): row for row in table("`[[contrasts]]`")}
    stages = typing.get_args(contrast_spec.ContrastSpec.model_fields["stage"].annotation)
    assert set(re.findall(r"`(\w+)`", rows["stage"][3])) == set(stages)
    contents = {row[1]: row[2] for row in table("Values") if plain(row[0]) == "content"}
    for content in ("raw", "float"):
        able = {
            n for n in registry.names("formats") if content in registry.load("formats", n).contents
        }
        assert set(re.findall(r"`(\w+)`", contents[f"`{content}`"])) == able
