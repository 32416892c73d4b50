"""Run a small suite from a benchmark and return what the product says of it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.core import units
from iobench.core.cases import Dataset, Trial
from iobench.core.records import Record
from iobench.data import make
from iobench.host import files
from iobench.plan.resolve import Here, resolve
from iobench.run import prepare, store, suite
from iobench.run.trial import TrialSettings
from iobench.spec import load


def dataset(root: Path, recipe: str, samples: int, forms: Sequence[str], seed: int = 1) -> Dataset:
    """Make (once) a dataset under ``root`` with the stored forms wanted."""
    from iobench.core import dataset as datasets
    from iobench.data.convert import convert

    made = make.make(recipe, root / f"{recipe}-{samples}", samples=samples, seed=seed)
    for form in forms:
        if not datasets.has_form(made, form):
            name, _, content = form.partition("-")
            convert(made, name, content=content or "jpeg")
    return made


def run(
    document: Mapping[str, Any],
    found: Dataset,
    *,
    results: Path | None = None,
    settings: TrialSettings | None = None,
    quiet: bool = False,
) -> tuple[dict[str, Any], list[Record]]:
    """Run the suite that ``document`` (a spec's content) asks for; return (analysis, records).

    ``results``: a folder of this suite alone; one that holds a suite already goes on with it.
    """
    wanted = load.parse(document, where="benchmark")
    folder = results or Path(tempfile.mkdtemp(prefix="iobench-benchmark-"))
    kept = store.find(folder) if (folder / "latest" / "plan.json").exists() else None
    if kept and _finished(kept):
        return to_json(analyse(kept.plan(), kept.records())), kept.records()
    if kept and kept.plan().dataset.root == found.root:
        suite_store = kept
    else:  # none yet, or half a suite on a mount that has gone
        suite_store = store.create(folder, wanted.name)
        plan = resolve(wanted, Here(found), units.seconds(wanted.budget), "benchmark")
        suite_store.save_plan(plan)
    prepare.forms(suite_store.plan().cases, found, lambda *_: None)

    def watch(done: int, total: int, left_s: float, trial: Trial | None) -> None:
        if trial is not None and not quiet:
            words = f"  {done + 1}/{total} {trial.stage} {trial.cache} {trial.case.label}"
            print(words, f"{left_s:.0f} s left", file=sys.stderr, flush=True)

    chosen = settings or TrialSettings(limit_s=wanted.limit_s, compute_s=wanted.compute_s)
    suite.Suite(suite_store, chosen, watch).run()
    records = suite_store.records()
    for record in records:
        for reason in record.reasons:
            print(f"  {record.trial.id}: {record.status}: {reason}", file=sys.stderr)
    return to_json(analyse(suite_store.plan(), records)), records


def _finished(kept: store.Store) -> bool:
    """Tell whether a suite has run whole and all of its contrasts are decided."""
    found = analyse(kept.plan(), kept.records())
    return found.complete and all(c.final for c in found.contrasts)


def arguments(about: str) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark takes: --data and --json.

    From here on SIGTERM ends the benchmark as Ctrl-C does, so that mounts are taken down.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--data", type=Path, default=Path("data/benchmarks"), help="datasets go here"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser


def studies(
    about: str, truths: Sequence[Any], study: Callable[..., Any], *, blocks: str, default: int = 4
) -> int:
    """Run ``study(truth, args)`` of every truth by name; return the exit status.

    ``blocks``: what a block is, for --help; ``default``: their number.  A study says whether
    it ``passed``.
    """
    parser = arguments(about)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=default, help=blocks)
    parser.add_argument("--only", default="", help="names that contain this")
    args = parser.parse_args()
    found = [study(truth, args) for truth in truths if args.only in truth.name]
    return finish(args, found, all(each["passed"] for each in found))


def keep(args: argparse.Namespace, figures: Any) -> None:
    """Write the figures where asked; those of before stay until all are written."""
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(args.json, json.dumps(figures, indent=1, default=str))


def finish(args: argparse.Namespace, figures: Any, passed: bool | None) -> int:
    """Write the figures where asked, say whether the targets were met, return the exit status.

    ``passed`` None: nothing that was run has a target.
    """
    keep(args, figures)
    words = {None: "nothing shown", True: "targets met", False: "TARGETS MISSED"}
    print(words[passed])
    return 1 if passed is False else 0
