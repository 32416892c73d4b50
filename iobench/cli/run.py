"""``iobench run``: from a spec to a report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from iobench.advise import case_checks
from iobench.cli import start
from iobench.cli.console import JSON, PATH, complain, err, out, print_json
from iobench.core import units
from iobench.core.cases import Plan, alike
from iobench.core.clock import utc
from iobench.core.errors import SpecError
from iobench.core.protocols import ImageUse
from iobench.host.agent import LOCAL
from iobench.images.model import DEFAULT_FOLDER
from iobench.plan import foresee
from iobench.plan.contrasts import contrasts, without_turns
from iobench.plan.outlook import in_turns, outlook
from iobench.plan.resolve import Here, estimate_s, fit, resolve
from iobench.report import plan_words, publish, terminal
from iobench.report.numbers import duration
from iobench.report.progress import Reporter
from iobench.run import (
    availability,
    copies,
    nodes,
    own_images,
    placing,
    prepare,
    sessions,
    store,
)
from iobench.run.command import images_for
from iobench.run.suite import Grow, RunTrial, Suite
from iobench.run.trial import TrialSettings
from iobench.spec import load
from iobench.spec.load import expand


class Begun(NamedTuple):
    """A suite whose folder is held: its plan, and name -> image for the runtimes that need one."""

    store: store.Store
    plan: Plan
    images: Mapping[str, ImageUse]


#: Parameters that count when a suite is resumed.
_RESUMING = ("resume", "results", "into", "images", "hosts", "as_json")
#: How long the cores' speed is watched at a suite's start: at most, and of the budget.
PROBE_S, PROBE_SHARE = 10.0, 0.01


#: What `iobench submit` passes on to the `iobench run` of its job.
PLACES = (
    click.option("--data", type=PATH, help="ImageFolder tree, or a dataset made by iobench."),
    click.option("--out", type=PATH, default=".", help="Folder for data: OUT/data."),
    click.option(
        "--images",
        type=PATH,
        default=DEFAULT_FOLDER,
        show_default=True,
        help="Folder of the container images (`iobench image build`).",
    ),
    click.option(
        "--image",
        help="Your own image for the containers: docker://NAME, a .sif file or a folder.",
    ),
    click.option("--budget", help="Planned time, such as 15m or 4h; more time runs more pairs."),
    click.option("--in-place", is_flag=True, help="Read the tree without a copy (EXPLORATORY)."),
)
RESULTS = click.option("--results", type=PATH, default="results", show_default=True)


def with_places(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say what a suite is run with."""
    for option in reversed(PLACES):
        command = option(command)
    return command


@click.command()
@click.argument("spec_name", metavar="[SPEC]", default="bench-io")
@with_places
@RESULTS
@click.option("--into", type=PATH, help="This suite's own folder: begin it there, or go on.")
@click.option(
    "--hosts", default="", help="Nodes of trials on several, h1,h2,...; else the batch job's."
)
@click.option("--resume", is_flag=True, help="Continue RESULTS (or its latest suite).")
@click.option(
    "--dry-run", is_flag=True, help="Validate, print plan and estimated time; make and run nothing."
)
@JSON
def run(
    spec_name: str, results: Path, into: Path | None, images: Path, image: str | None,
    resume: bool, dry_run: bool, hosts: str, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Run SPEC (a .toml file, or a name from `iobench list`; default bench-io).

    \b
      iobench run                                        bare metal and the containers found here
      iobench run pipelines                              four pipelines, bare metal only
      iobench run --budget 4h                            more pairs, narrower intervals
      iobench run --data /scratch/imagenet --out /scratch/me
      iobench run --image my.sif                         your container against bare metal
      iobench run --resume                               after a kill or Ctrl-C
    """
    if options["in_place"] and options["data"] is None and not resume:
        raise SpecError("--in-place is of a tree of your own; name it by --data")
    with Reporter(err) as reporter, contextlib.ExitStack() as undo:
        if not dry_run:
            undo.enter_context(LOCAL.announced())
        if resume:
            for name in (words[0] for key, words in typed().items() if key not in _RESUMING):
                reporter.say(f"note: {name} has no effect: a resumed suite goes on as planned")
        there = nodes.allocated(hosts)
        if resume or (into and (into / "plan.json").exists()):
            begun = resumed(into or results, images, undo, reporter)
            return _run(begun, there, reporter, as_json)
        text, where = load.read(spec_name)
        foreseen = foresee.judged(
            text, where, image=image, data=options["data"], budget=options["budget"]
        )
        spec = foreseen.spec
        undo.enter_context(availability.services_of(expand(spec), images, reporter.say))
        plan = planned(foreseen, into or results, images, reporter, dry_run=dry_run, **options)
        if not dry_run:  # a plan can be looked at before there are nodes for it
            nodes.check(plan.cases, there)
        for note in nodes.unused(plan.cases, there):
            reporter.say(f"note: {note}")
        if dry_run:
            return _listed(plan, reporter)
        folder = results, into
        begun = started(plan, text, folder, spec.stage_to, images, undo, reporter)
        return _run(begun, there, reporter, as_json)


def _listed(plan: Plan, reporter: Reporter) -> int:
    """Print the trials of the ladder, and say which comparisons follow them."""
    for trial in plan.trials:
        out.print(trial.id)
    if compared := contrasts(plan.rules, {}):
        told = plan_words.comparisons(compared, counted=False)
        reporter.say(f"comparisons, after these trials: {told}")
    return 0


def started(
    plan: Plan, text: str, folder: tuple[Path, Path | None], stage_to: str, images: Path,
    undo: contextlib.ExitStack, reporter: Reporter,
) -> Begun:  # fmt: skip
    """Make the folder of a new suite, of the spec ``text``, and hold it until ``undo`` ends.

    ``folder``: the folder of all results, and this suite's own where one was named.
    """
    results, into = folder
    plan = _claimed(sessions.entered(plan), into or results, undo, reporter)
    plan = _with_outlook(plan, reporter)
    used = images_for(plan.cases, images)
    plan = dataclasses.replace(plan, images={name: u.digest for name, u in used.items()})
    plan = placing.placed(plan, stage_to, used, reporter.say)
    found = store.at(into) if into else store.create(results, plan.name)
    undo.enter_context(found.lock())
    found.save_spec(text)
    found.save_plan(plan)
    return Begun(found, plan, used)


def resumed(
    results: Path, images: Path, undo: contextlib.ExitStack, reporter: Reporter
) -> Begun:  # fmt: skip
    """Return the suite at ``results``, held until ``undo`` ends, to go on with."""
    found = store.find(results)
    undo.enter_context(found.lock())
    plan = sessions.entered(found.resumable_plan())
    plan = _claimed(plan, found.folder, undo, reporter)
    undo.enter_context(availability.services_of(plan.cases, images, reporter.say))
    availability.same_images(plan, images, reporter.say)
    return Begun(found, plan, images_for(plan.cases, images))


def _claimed(
    plan: Plan, results: Path, undo: contextlib.ExitStack, reporter: Reporter
) -> Plan:  # fmt: skip
    """Hold the data until ``undo`` ends; say who else is there, and keep what a reader should know.

    Raises DatasetError where another driver measures them on this node.
    """
    found = undo.enter_context(sessions.measuring(plan.dataset))
    found += sessions.notices(plan.dataset, results)
    for note in found:
        reporter.say(f"note: {note}")
    for rival in LOCAL.rivals():
        reporter.say(
            f"note: {rival} runs on this node as well, and both disturb each other: trials beside "
            "it are named, pairs repeated where the spec allows it"
        )
    return dataclasses.replace(plan, notes=tuple(dict.fromkeys([*plan.notes, *found])))


def again() -> list[str]:
    """Return the options on this command line that a resumed run needs as well."""
    return [word for key in ("images", "hosts") for word in typed().get(key, [])]


def typed() -> dict[str, list[str]]:
    """Return option name -> its words, for the options that stand on this command line."""
    context = click.get_current_context()
    words = {}
    for parameter in context.command.params:
        name = str(parameter.name)
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = context.params[name]
            words[name] = [parameter.opts[-1], *([] if value is True else [str(value)])]
    return words


def planned(
    foreseen: foresee.Foreseen, results: Path, images: Path, reporter: Reporter, *,
    budget: str | None, dry_run: bool, **place: Any,
) -> Plan:  # fmt: skip
    """Resolve the spec with what is here; the dataset is made and converted for it.

    ``place``: the options that say where the dataset is, of :func:`prepare.dataset_for`.
    ``dry_run``: nothing is made; of a dataset that is not there yet the spec says enough.
    """
    say, spec = reporter.say, foreseen.spec
    seconds = units.seconds(budget or spec.budget)
    missing = availability.missing_runtimes(spec, images, say, making=not dry_run)
    spec, own_notes = own_images.fitted(spec, missing, images, say, making=not dry_run)
    root = prepare.place_of(spec.dataset, place["data"], place["out"])
    spec, lacking = availability.fitted(spec, missing, None if dry_run else root)
    left, notes = fit(spec, missing)
    own_notes = [*foreseen.notes, *own_notes, *lacking]
    for note in [*own_notes, *notes]:
        say(f"note: {note}")
    cases = expand(left)
    LOCAL.check_limits(cases)
    if dry_run:
        dataset = prepare.foreseen(foreseen.plan.dataset, root, say)
    else:
        dataset = prepare.dataset_for(spec.dataset, say=say, progress=reporter.step, **place)
    no_cold = prepare.never_cold(cases, dataset)
    for note in fit(spec, missing, no_cold)[1][len(notes) :]:
        say(f"note: {note}")
    if not dry_run:
        prepare.ready(cases, dataset, reporter.step)
        if spec.first_touch:
            copies.check(cases, dataset)
    here = Here(dataset, missing, no_cold, [*own_notes, *prepare.notes(cases, dataset, results)])
    plan = resolve(spec, here, seconds, utc())
    for line in case_checks.before(plan.cases, dataset, images):
        say(f"warning: {line}")
    if reason := case_checks.no_turns(plan):
        plan = without_turns(plan, reason)
        say(f"note: {plan.notes[-1]}")
    say(
        f"suite {plan.name}: {len(plan.cases)} cases, estimated time "
        f"{duration(estimate_s(plan))} (budget {duration(seconds)})"
    )
    return plan


def _with_outlook(plan: Plan, reporter: Reporter) -> Plan:
    """Measure how evenly the cores run, where arms take turns; say and keep what follows."""
    taking = in_turns(plan)
    if not taking:
        return plan
    seconds = min(PROBE_S, PROBE_SHARE * plan.budget_s)
    reporter.say(f"measuring for {duration(seconds)} how evenly this machine's cores run")
    slice_s, cores = min(c.slice_s for c in taking), len(os.sched_getaffinity(0))
    plan = dataclasses.replace(plan, slice_sd=LOCAL.speed_noise(seconds, slice_s, cores).sd)
    if found := outlook(plan):
        note = plan_words.outlook(found, plan.slice_sd)
        reporter.say(f"note: {note}")
        plan = dataclasses.replace(plan, notes=(*plan.notes, note))
    return plan


def _run(begun: Begun, hosts: Sequence[str], reporter: Reporter, as_json: bool) -> int:
    """Run a plan to its end in its folder, write the report; return the exit status."""
    suite_store, resume = begun.store, store.resume_command(begun.store.folder, again())
    interrupted = ran(begun, hosts, reporter, resume)
    analysis = publish.publish(suite_store)
    if as_json:
        print_json(publish.document(analysis))
    else:
        terminal.render(analysis, out)
        out.print(f"\nreport: {suite_store.folder / 'report.html'}", soft_wrap=True)
    if interrupted:
        complain(f"interrupted; {start.goes_on()}")
        return start.INTERRUPTED
    if analysis.missing:
        complain(
            f"{len(analysis.missing)} answers are missing: {'; '.join(analysis.missing[:3])}"
            f"{' ...' * (len(analysis.missing) > 3)}; all records are kept: fix that, then {resume}"
        )
    return 1 if analysis.missing else 0


def ran(
    begun: Begun, hosts: Sequence[str], reporter: Reporter, resume: str,
    grow: Grow = lambda *_: None, run: RunTrial | None = None,
) -> bool:  # fmt: skip
    """Run a plan, and what it grows by, to its end; return whether that was interrupted.

    ``resume``: the command, in words, that goes on with it.
    """
    start.goes_on_by(f"go on with {resume}")
    used, say = begun.images, reporter.say
    with (
        placing.present(begun.plan, used, say) as plan,
        nodes.present(plan.cases, hosts, plan.limit_s, spare=plan.first_touch) as several,
    ):
        begun.store.save_plan(plan)
        availability.on_nodes(several, plan.cases, used, begun.store.folder)
        settings = alike(
            TrialSettings,
            plan,
            images=used,
            placements=placing.by_location(plan),
            lock_pages=not any(case.memory_bytes for case in plan.cases),
            nodes=several,
        )
        suite = Suite(
            begun.store, settings, reporter.trial, grow, run, reporter.ended,
            lambda plan: say(f"comparisons: {plan_words.comparisons(plan.contrasts)}"),
        )  # fmt: skip
        if strays := suite.ledger.strays:
            say(
                f"note: {len(strays)} trials of the ladder ran on another host and run again: its "
                "figures are of one host"
            )
        try:
            suite.run()
        except KeyboardInterrupt:
            return True
    return False
