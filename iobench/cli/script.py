"""``iobench watch``: a training script of the user's own, measured part by part."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from pathlib import Path

import click

from iobench.advise.explain import explain
from iobench.analysis.suite import analyse
from iobench.cli import start
from iobench.cli.advice import render
from iobench.cli.console import JSON, PATH, complain, err, out, print_json
from iobench.cli.run import RESULTS, Begun, ran
from iobench.core.cases import Case, Plan
from iobench.core.clock import utc
from iobench.core.errors import BackendUnavailable, TrialFailed
from iobench.host.agent import LOCAL
from iobench.report import publish
from iobench.report.progress import Reporter
from iobench.run import script, sessions, store
from iobench.worker.watch import script_plan

#: Seconds after which a script that does not end by itself is ended.
LIMIT_S = 600.0
SECONDS = click.option("--seconds", type=click.FloatRange(0, min_open=True), default=5,
                       show_default=True, help="Length of each measured loop.")  # fmt: skip


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@SECONDS
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@RESULTS
@click.option("--into", type=PATH, help="This suite's own folder.")
@JSON
def watch(
    command: tuple[str, ...], seconds: float, repeats: int, results: Path, into: Path | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Run COMMAND, a training script that loops over iobench.watch(loader), and explain it.

    \b
      for batch in iobench.watch(loader):       # the one line that changes in train.py
      iobench watch python train.py             # all of it, its steps alone, its loader alone
      iobench tune --script 'python train.py'

    Each run ends after --seconds of its loop: nothing after the loop is run, and a script's files
    are as they were. docs/tuning.md has an example.
    """
    with Reporter(err) as reporter, contextlib.ExitStack() as undo:
        undo.enter_context(LOCAL.announced())
        usual = first_run(command, seconds, reporter)
        begun = begin(usual, repeats, seconds, (results, into), undo)
        run = script.runner(command, usual, seconds)
        again = f"`iobench watch {shlex.join(command)}` anew"
        interrupted = ran(begun, [], reporter, again, run=run)
        publish.publish(begun.store)
    if interrupted:
        complain(f"interrupted; {start.goes_on()}")
        return start.INTERRUPTED
    suite = analyse(begun.store.plan(), begun.store.records())
    if as_json:
        print_json(publish.document(suite))
    else:
        render(explain(suite))
        out.print(f"\n{begun.store.folder / 'report.html'}", soft_wrap=True)
    return 1 if suite.missing else 0


def first_run(command: tuple[str, ...], seconds: float, reporter: Reporter) -> Case:
    """Return the settings that the script has; raises BackendUnavailable where it measures none."""
    reporter.say(f"starting `{shlex.join(command)}` to see its settings")
    try:
        usual = script.settings_of(command, seconds, LIMIT_S)
    except TrialFailed as error:
        raise BackendUnavailable(f"`{shlex.join(command)}`: {error}") from None
    reporter.say(f"its DataLoader: num_workers={usual.workers}, batch_size={usual.batch}")
    return usual


def begin(
    usual: Case, repeats: int, seconds: float, folder: tuple[Path, Path | None],
    undo: contextlib.ExitStack,
) -> Begun:  # fmt: skip
    """Make the folder of a suite of the script's parts, and hold it until ``undo`` ends."""
    plan, _ = script_plan(usual, seconds, usual.samples)
    plan = dataclasses.replace(
        plan, created=utc(), trials=script.ladder(usual, repeats), limit_s=LIMIT_S
    )
    return hold(sessions.entered(plan), folder, undo)


def hold(plan: Plan, folder: tuple[Path, Path | None], undo: contextlib.ExitStack) -> Begun:
    """Write the plan into a new folder, and hold that until ``undo`` ends."""
    results, into = folder
    found = store.at(into) if into else store.create(results, plan.name)
    undo.enter_context(found.lock())
    found.save_plan(plan)
    return Begun(found, plan, {})
