"""``iobench run``: from a spec to a report."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path

import click

from iobench import (
    limits,
    pairing,
    placements,
    preflight,
    prepare,
    publish,
    reachable,
    scheduler,
    spec,
    store,
    units,
)
from iobench.cli_console import INTERRUPTED, JSON, complain, err, out, print_json
from iobench.images import DEFAULT_FOLDER
from iobench.launch import Settings
from iobench.report import terminal
from iobench.report.progress import Reporter, duration
from iobench.starting import ImageUse


@click.command()
@click.argument("spec_name", metavar="[SPEC]", default="bench-io")
@click.option("--data", type=click.Path(path_type=Path), help="ImageFolder tree, or a dataset.")
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    default=".",
    help="Where data goes: OUT/data.",
)
@click.option("--results", type=click.Path(path_type=Path), default="results", show_default=True)
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Where the container images lie (`iobench image build`).",
)
@click.option("--budget", help="Time for the suite: 15m, 4h. More time buys more pairs.")
@click.option("--in-place", is_flag=True, help="Read the tree where it is (EXPLORATORY).")
@click.option("--resume", is_flag=True, help="Go on with RESULTS (or its latest suite).")
@click.option("--dry-run", is_flag=True, help="Validate, print the plan and its time, run nothing.")
@JSON
def run(
    spec_name: str,
    data: Path | None,
    folder: Path,
    results: Path,
    images: Path,
    budget: str | None,
    in_place: bool,
    resume: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run SPEC (a .toml file, or a name from `iobench list`; default bench-io).

    \b
      iobench run                                        bare metal against the containers here
      iobench run pipelines                              four pipelines, bare metal alone
      iobench run --budget 4h                            more pairs, narrower intervals
      iobench run --data /scratch/imagenet --out /scratch/me
      iobench run --resume                               after a kill or Ctrl-C
    """
    with Reporter(err) as reporter, contextlib.ExitStack() as undo:
        if resume:
            suite_store = store.find(results)
            wanted = spec.parse(suite_store.plan().spec, where=str(suite_store.folder))
            undo.enter_context(reachable.services_of(wanted, images, reporter.say))
            plan = suite_store.plan()
            reachable.same_images(plan, images, reporter.say)
            used = reachable.images_of(plan.cases, images)
            return _run(suite_store, wanted, used, reporter, as_json)
        wanted = spec.load(spec_name)
        pairing.check(wanted)
        seconds = units.seconds(budget or wanted.budget)
        undo.enter_context(reachable.services_of(wanted, images, reporter.say))
        wanted, missing = reachable.without_missing(
            wanted, images, reporter.say, making=not dry_run
        )
        limits.check(spec.expand(wanted))
        found = prepare.dataset_for(
            wanted,
            data=data,
            out=folder,
            in_place=in_place,
            say=reporter.say,
            progress=reporter.step,
        )
        wanted, notes = prepare.ready(wanted, found, results, reporter.say, reporter.step)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        plan = scheduler.make_plan(wanted, found, seconds, now, [*missing, *notes])
        for line in preflight.before(plan.cases, found):
            reporter.say(f"warning: {line}")
        reporter.say(
            f"suite {wanted.name}: {len(plan.cases)} cases, estimated time "
            f"{duration(scheduler.estimate_s(wanted, plan))} (budget {duration(seconds)})"
        )
        if dry_run:
            for trial in plan.trials:
                out.print(trial.id)
            return 0
        suite_store = store.create(results, wanted.name)
        used = reachable.images_of(plan.cases, images)
        plan = dataclasses.replace(plan, images={name: u.digest for name, u in used.items()})
        suite_store.save_plan(placements.placed(plan, wanted.stage_to, used, reporter.say))
        return _run(suite_store, wanted, used, reporter, as_json)


def _run(
    suite_store: store.Store,
    wanted: spec.Spec,
    used: Mapping[str, ImageUse],
    reporter: Reporter,
    as_json: bool,
) -> int:
    plan = suite_store.plan()
    interrupted = False
    with suite_store.lock(), placements.present(plan, used, reporter.say) as plan:
        suite_store.save_plan(plan)
        settings = Settings(
            limit_s=wanted.limit_s,
            compute_s=wanted.compute_s,
            allow_drop_caches=wanted.allow_drop_caches,
            images=used,
            placements=placements.by_location(plan),
        )
        suite = scheduler.Suite(suite_store, wanted, settings, reporter.trial)
        try:
            suite.run()
        except KeyboardInterrupt:
            interrupted = True
        analysis = publish.publish(suite_store)
    if as_json:
        print_json(analysis)
    else:
        terminal.render(analysis, out)
        out.print(f"\nreport: {suite_store.folder / 'report.html'}", soft_wrap=True)
    if interrupted:
        complain(f"interrupted; go on with `iobench run --resume --results {suite_store.folder}`")
        return INTERRUPTED
    if analysis["complete"]:
        return 0
    unusable = suite_store.unusable()
    if unusable:
        complain(
            f"{len(unusable)} trials gave no usable result, the first {unusable[0].trial.id}: "
            f"{unusable[0].status}, {'; '.join(unusable[0].reasons)}; all records are kept: mend "
            f"that, then `iobench run --resume --results {suite_store.folder}`"
        )
    return 1
