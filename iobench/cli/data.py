"""``iobench data``: make, convert, verify and describe datasets."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import click

from iobench.cli.console import JSON, PATH, err, out, print_json
from iobench.core import dataset as datasets
from iobench.core.cases import Dataset
from iobench.core.errors import SpecError
from iobench.data import accounting, describe, make
from iobench.data import convert as conversion
from iobench.plan import foresee
from iobench.report.progress import Reporter
from iobench.run import prepare
from iobench.spec import load


@click.group()
def data() -> None:
    """Make, convert, verify and describe datasets.

    \b
      iobench data prepare bench-io
      iobench data make imagenet-like /scratch/me/set --samples 5000
      iobench data convert /scratch/me/set lmdb hdf5 tar
      iobench data verify /scratch/me/set
    """


@data.command("prepare")
@click.argument("spec_name", metavar="[SPEC]", default="bench-io")
@click.option("--data", "tree", type=PATH, help="ImageFolder tree, or a dataset made by iobench.")
@click.option("--out", type=PATH, default=".", help="Folder for data: OUT/data.")
@click.option("--in-place", is_flag=True, help="Read the tree without a copy (EXPLORATORY).")
@JSON
def data_prepare(spec_name: str, tree: Path | None, as_json: bool, **place: Any) -> None:
    """Make what SPEC (a .toml file or a name; default bench-io) measures on, and run nothing.

    The dataset is made, or copied from a tree, under OUT/data, and converted to every form that
    the spec's cases read.  `iobench run` with the same options finds it there.
    """
    text, where = load.read(spec_name)
    spec = foresee.judged(text, where, data=tree).spec
    with Reporter(err) as reporter:
        root = prepare.place_of(spec.dataset, tree, place["out"])
        cases = prepare.spreadable(load.expand(spec), root, reporter.say)
        made = prepare.dataset_for(
            spec.dataset, data=tree, say=reporter.say, progress=reporter.step, **place
        )
        prepare.ready(cases, made, reporter.step)
    _describe(made, as_json)


@data.command("make")
@click.argument("recipe")
@click.argument("root", type=PATH)
@click.option("--samples", type=click.IntRange(min=1), help="Number of samples [the recipe's].")
@click.option("--seed", type=int, help="Equal seeds give equal bytes on any CPU [the recipe's].")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Number of processes [all usable cores]."
)
@JSON
def data_make(
    recipe: str, root: Path, as_json: bool,
    samples: int | None, seed: int | None, workers: int | None,
) -> None:  # fmt: skip
    """Make the samples of RECIPE (a name in datasets/, or a .toml file) as JPEGs under ROOT.

    An interrupted run continues where it stopped; a complete dataset is not changed.
    """
    with Reporter(err) as reporter:
        progress = functools.partial(reporter.step, "making samples")
        made = make.make(
            recipe, root, samples=samples, seed=seed, workers=workers, progress=progress
        )
    _describe(made, as_json)


@data.command("convert")
@click.argument("root", type=PATH)
@click.argument("forms", nargs=-1, required=True)
@click.option("--option", "-o", multiple=True, help="Option of a format, such as chunk=64.")
def data_convert(root: Path, forms: tuple[str, ...], option: tuple[str, ...]) -> None:
    """Convert the dataset at ROOT to FORMS: lmdb, leveldb, hdf5, tar; lmdb-raw, hdf5-float ..."""
    found = datasets.locate(root)
    options = dict(_option(text) for text in option)
    with Reporter(err) as reporter:
        for form in forms:
            name, _, content = form.partition("-")
            path = conversion.convert(
                found,
                name,
                content=content or "jpeg",
                options=options,
                progress=functools.partial(reporter.step, f"converting to {form}"),
            )
            reporter.say(f"{form}: {path}")


@data.command("verify")
@click.argument("root", type=PATH)
@click.argument("forms", nargs=-1)
@JSON
def data_verify(root: Path, forms: tuple[str, ...], as_json: bool) -> int:
    """Verify by digest that every form (or FORMS) of the dataset at ROOT holds the same samples."""
    found = datasets.locate(root)
    with Reporter(err) as reporter:
        progress = functools.partial(reporter.step, "verifying")
        rows = conversion.verify(found, list(forms) or None, progress=progress)
    if as_json:
        print_json([vars(row) for row in rows])
    else:
        for row in rows:
            out.print(f"{row.form}: {'same samples and labels' if row.ok else row.detail}")
    return 0 if all(row.ok for row in rows) else 1


@data.command("info")
@click.argument("root", type=PATH)
@JSON
def data_info(root: Path, as_json: bool) -> None:
    """Describe the dataset at ROOT: samples, sizes, forms, and what became of every file."""
    _describe(datasets.locate(root), as_json)


def _describe(found: Dataset, as_json: bool) -> None:
    facts = describe.info(found)
    if as_json:
        print_json(facts)
        return
    listed = {key: facts.pop(key, []) for key in ("left_out", "noted")}
    facts.pop(accounting.KEY, None)
    for key, value in facts.items():
        out.print(f"{key}: {value}", soft_wrap=True)
    counted = accounting.of(found)
    for line in accounting.table(counted) if counted else ():
        out.print(f"files {line.state}: {line.files:,}", soft_wrap=True)
        if line.remedy:
            out.print(f"    {line.remedy}", soft_wrap=True)
    for key, rows in listed.items():
        for row in rows:  # names as JSON has them: no byte of a name acts on the terminal
            name = json.dumps(row["file"])
            reason = json.dumps(row["reason"], ensure_ascii=False)[1:-1]
            out.print(f"{key}: {name}: {reason}", soft_wrap=True)


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f"option {text!r} is not key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
