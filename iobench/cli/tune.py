"""``iobench tune``: from a slow training job to the settings that cure it, with proof."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Column, Table
from rich.text import Text

from iobench.analysis.results import to_json
from iobench.cli import start
from iobench.cli.console import JSON, PATH, complain, err, out, print_json
from iobench.cli.run import RESULTS, Begun, again, planned, ran, resumed, started
from iobench.cli.script import SECONDS, begin, first_run
from iobench.cli.tune_options import asked_of, check_script
from iobench.core.cases import Case, Plan
from iobench.host.agent import LOCAL
from iobench.images.model import DEFAULT_FOLDER
from iobench.plan import foresee
from iobench.plan.cost import OVERHEAD_S, guess_s
from iobench.report import numbers, publish, terminal, tune_plot, tune_words, words
from iobench.report.numbers import duration
from iobench.report.progress import Reporter
from iobench.run import availability, nodes, prepare, script, sessions, store
from iobench.spec import load
from iobench.spec.load import expand
from iobench.tune import settings as tune_settings
from iobench.tune.answer import UNFINISHED, TuneResult, answer
from iobench.tune.begin import REPEATS, ceiling_text, current_of, stored_forms, with_default
from iobench.tune.code import spec_text
from iobench.tune.settings import MARGIN, TuneSettings
from iobench.tune.space import Space, space
from iobench.tune.tried import case_of
from iobench.tune.tuning import Tuning
from iobench.worker.watch import script_plan

#: What is written beside the plan: the answer, the winner as a spec and as code, the plot.
ANSWER, WINNER, PLOT = "tune.json", "winner.toml", "tune.svg"
#: Rungs that show where a winner's time goes, when its spec is run again.
LADDER = {"caches": ["warm"], "repeats": 3}
#: More points than this are not counted.
MOST_COUNTED = 10_000


@click.command()
@click.argument("spec_name", metavar="[SPEC]", default="tune")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=15,
    show_default=True,
    help="Planned time, without making data; see --dry-run for what always runs.",
)
@click.option(
    "--core-hours",
    type=click.FloatRange(0, min_open=True),
    help="The same limit in hours x the job's cores; whichever ends first.",
)
@click.option("--script", default="", metavar="COMMAND", help="A script of your own, not a SPEC.")
@SECONDS
@click.option(
    "--case",
    "label",
    default="",
    metavar="LABEL",
    help="Which case to tune, where SPEC has several.",
)
@click.option("--data", type=PATH, help="ImageFolder tree, or a dataset made by iobench.")
@click.option("--out", "out_", type=PATH, default=".", help="Folder for data: OUT/data.")
@click.option("--in-place", is_flag=True, help="Read the tree without a copy (EXPLORATORY).")
@click.option(
    "--cache",
    type=click.Choice(["warm", "cold"]),
    default="warm",
    show_default=True,
    help="warm: data that fit into memory, from epoch 2 on; cold: larger data.",
)
@click.option(
    "--margin",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=MARGIN,
    show_default=True,
    help="Gains below this share count as none.",
)
@click.option("--cores", type=click.IntRange(1), help="Cores of the job; default: all it may use.")
@click.option("--memory", help="Most memory for queued batches, such as 2G.")
@click.option(
    "--shuffled/--any-order",
    default=True,
    show_default=True,
    help="Keep the spec's order of samples, or try others.",
)
@click.option("--formats", default="", help="Formats that may be made and tried, such as lmdb,tar.")
@click.option(
    "--only",
    multiple=True,
    metavar="KNOB=V,V",
    help="Change this alone, to these values; may be given several times.",
)
@click.option("--libraries", is_flag=True, help="Prove against every library's defaults too.")
@click.option("--batch", "batches", default="", help="Batch sizes to try, such as 32,64,128.")
@click.option("--images", type=PATH, default=DEFAULT_FOLDER, show_default=True)
@RESULTS
@click.option("--into", type=PATH, help="This search's own folder: begin it there, or go on.")
@click.option("--resume", is_flag=True, help="Continue RESULTS (or its latest suite).")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print what would be tried and its cost; run nothing, no script either.",
)
@JSON
def tune(
    spec_name: str, results: Path, into: Path | None, images: Path, resume: bool, dry_run: bool,
    as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Find the settings with which SPEC's case trains fastest, and prove it.

    \b
      iobench tune myjob.toml --minutes 20
      iobench tune --data /scratch/imagenet --out /scratch/me --formats lmdb,tar
      iobench tune myjob.toml --dry-run          what would be tried, and what is left out
      iobench tune --script 'python train.py'    your loop: for batch in iobench.watch(loader)
      iobench tune --resume                      after a kill or Ctrl-C

    First the ceiling: where training is within the margin of its compute alone the answer is
    "leave it". Else settings are searched, and the fastest is compared with the current settings
    and the library's defaults in fresh pairs. docs/tuning.md has the knobs and the method.
    """
    with Reporter(err) as reporter, contextlib.ExitStack() as undo:
        if not dry_run:
            undo.enter_context(LOCAL.announced())
        if resume or (into and (into / "plan.json").exists()):
            asked = tune_settings.load(store.find(into or results).folder)
            open_again = _resumed_script if asked.script else resumed
            begun = open_again(into or results, images, undo, reporter)
            return _tuned(begun, asked, reporter, as_json)
        check_script(options)
        asked = asked_of(options)
        if asked.script and dry_run:
            plan, asked = with_default(_unseen(asked), asked)
            _dry(plan, asked)
            return 0
        if asked.script:
            usual = first_run(asked.script, asked.seconds, reporter)
            begun = begin(usual, REPEATS, asked.seconds, (results, into), undo)
            plan, asked = with_default(begun.plan, asked)
            asked.save(begun.store.folder)
            begun.store.save_plan(plan)
            return _tuned(begun._replace(plan=plan), asked, reporter, as_json)
        place = {"data": options["data"], "out": options["out_"], "in_place": options["in_place"]}
        text, plan = _plan(spec_name, options, place, asked, into or results, images, undo,
                           reporter, dry_run=dry_run)  # fmt: skip
        plan, asked = with_default(plan, asked)
        if dry_run:
            _dry(plan, asked)
            return 0
        prepare.ready(stored_forms(plan, asked), plan.dataset, reporter.step)
        stage_to = load.parse_text(text, "tune").stage_to
        begun = started(plan, text, (results, into), stage_to, images, undo, reporter)
        asked.save(begun.store.folder)
        return _tuned(begun, asked, reporter, as_json)


def _resumed_script(
    results: Path, images: Path, undo: contextlib.ExitStack, reporter: Reporter
) -> Begun:  # fmt: skip
    """Return the search of a script at ``results``, held until ``undo`` ends, to go on with."""
    found = store.find(results)
    undo.enter_context(found.lock())
    return Begun(found, sessions.entered(found.resumable_plan()), {})


def _plan(
    spec_name: str, options: dict[str, Any], place: dict[str, Any], asked: TuneSettings,
    results: Path, images: Path, undo: contextlib.ExitStack, reporter: Reporter, *, dry_run: bool,
) -> tuple[str, Plan]:  # fmt: skip
    """Return the spec of the ceiling, as text, and its plan."""
    spec = load.parse_text(*load.read(spec_name))
    case = current_of(spec, options["label"])
    if options["cores"] and options["cores"] < len(os.sched_getaffinity(0)):
        case = dataclasses.replace(case, cpus=float(options["cores"]))
    text = ceiling_text(case, spec, asked.cache)
    budget = f"{asked.limit_s / 60:g}m"
    foreseen = foresee.judged(text, spec_name, data=place["data"], budget=budget)
    undo.enter_context(availability.services_of(expand(foreseen.spec), images, reporter.say))
    return text, planned(
        foreseen, results, images, reporter, budget=budget, dry_run=dry_run, **place
    )


def _tuned(begun: Begun, asked: TuneSettings, reporter: Reporter, as_json: bool) -> int:
    """Search to the end, write and show the answer; return the exit status."""
    folder = begun.store.folder
    words = shlex.join(["iobench", "tune", "--resume", "--results", str(folder), *again()])
    tuning = Tuning(folder, asked)
    run = None
    if asked.script:
        usual = case_of(begun.plan, asked.current)
        run = script.runner(asked.script, usual, asked.seconds)
    reporter.search(asked.limit_s)
    there = nodes.allocated()
    nodes.check(begun.plan.cases, there)
    interrupted = ran(begun, there, reporter, f"`{words}`", tuning.grow, run)
    plan, records = begun.store.plan(), begun.store.records()
    found = answer(plan, records, asked)
    publish.publish(begun.store, found)
    if found.code and not asked.script:
        spec = load.parse_text((folder / "spec.toml").read_text(), "spec.toml")
        best = case_of(plan, found.winner)
        about = f"found by iobench tune: {best.label}"
        store.write_atomic(folder / WINNER, spec_text(best, spec, "tuned", about, LADDER))
    if plot := tune_plot.tried(found):
        store.write_atomic(folder / PLOT, plot)
    document = to_json(found)
    store.write_atomic(folder / ANSWER, json.dumps(document, indent=1))
    if as_json:
        print_json(document)
    else:
        _render(found, folder)
    if interrupted:
        complain(f"interrupted; {start.goes_on()}")
        return start.INTERRUPTED
    return 1 if found.verdict == UNFINISHED else 0


def _unseen(asked: TuneSettings) -> Plan:
    """Return the plan of a script that has not run: its own settings are not known."""
    case = Case(label="the script", trainer="torch", workers=0)
    plan, _ = script_plan(case, asked.seconds)
    return dataclasses.replace(plan, trials=script.ladder(case, REPEATS))


def _dry(plan: Plan, asked: TuneSettings) -> None:
    """Print the space, what is left out of it, and what it would cost."""
    found = space(plan.cases[0], asked, None)
    out.print(_space_table(found))
    for line in tune_words.left_out(found.left_out):
        out.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    count = len(list(itertools.islice(found.points(), MOST_COUNTED)))
    costs = [
        asked.seconds + OVERHEAD_S if asked.script
        else guess_s(t, plan.compute_s, plan.dataset.samples)
        for t in plan.trials
    ]  # fmt: skip
    ceiling = sum(costs)
    each = [cost for cost, t in zip(costs, plan.trials, strict=True) if t.stage == "train"]
    most = f"{count:,}" if count < MOST_COUNTED else f"more than {count:,}"
    out.print(
        f"{most} settings; about {duration(sum(each) / len(each))} each, at most "
        f"{duration(asked.limit_s)} in all. About {duration(ceiling)} come first to find what "
        "limits training: knobs that cannot are then left out. They, the first settings and the "
        "proof (some 30 trials) run however long they take",
        soft_wrap=True,
    )


def _space_table(found: Space) -> Table:
    table = terminal.plain_table("knob", Column("values", overflow="fold"), "")
    table.add_row("pipeline", ", ".join(found.pipelines), "loader and format")
    for knob in found.knobs:
        values = knob.values(_first_with(found, knob.field), found.asked)
        if values:
            table.add_row(knob.field, ", ".join(map(numbers.plain, values)), knob.about)
    return table


def _first_with(found: Space, field: str) -> Case:
    knob = next(k for k in found.knobs if k.field == field)
    cases: Sequence[Case] = list(found.pipelines.values())
    return next((c for c in cases if knob.values(c, found.asked)), cases[0])


def _render(found: TuneResult, folder: Path) -> None:
    out.print(Text(tune_words.title(found), style="bold"), soft_wrap=True)
    if found.limits:
        out.print(_table(found))
    for gain in found.gains:
        out.print(Text(tune_words.gain(gain)), soft_wrap=True)
    rows = [
        ("binds now", found.binds),
        *[("would help next", f"{f.cause}: {f.remedy} ({words.gain(f.gain)})") for f in found.next],
        *[("what if", f"{p.what}: {p.gain.value:.2f} x {numbers.bracketed(p.gain)}")
          for p in found.what_ifs],
        ("queued batches", f"{found.queue_bytes / 2**20:,.0f} MiB"),
        ("time", f"{duration(found.search_s)} of search, {duration(found.wall_s)} in all, "
                 f"{found.core_hours:.2f} core-hours"),
    ]  # fmt: skip
    for name, text in rows:
        if text:
            out.print(Text(f"  {name:16}", style="dim") + Text(text), soft_wrap=True)
    for line in tune_words.left_out(found.left_out):
        out.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    if found.code:
        out.print(Text("\npaste this", style="bold"))
        out.print(Text(found.code), soft_wrap=True)
    written = [name for name in (WINNER, PLOT, "report.html") if (folder / name).exists()]
    out.print(f"\n{', '.join([str(folder / ANSWER), *written])}", soft_wrap=True)


def _table(found: TuneResult) -> Table:
    right = [Column(head, justify="right") for head in ("samples/s", "runs")]
    table = terminal.plain_table(Column("setting", overflow="fold"), *right, "")
    limits = found.limits
    assert limits is not None
    table.add_row("compute alone", numbers.number(limits.compute), "", "the ceiling")
    ranked = sorted(found.tried, key=lambda t: -(t.samples_per_s or 0.0))
    for row in ranked:
        notes = ["winner"] * (row.label == found.winner) + ["current"] * (
            row.label == found.current
        )
        notes += ["library's defaults"] * (row.label == found.default)
        notes += ["ended early"] * row.early + [row.reason] * bool(row.reason)
        table.add_row(row.label, numbers.number(row.samples_per_s), str(row.runs), ", ".join(notes))
    return table
