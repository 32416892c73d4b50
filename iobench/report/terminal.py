"""The analysis on one screen: the limits, the fastest and by how much, what to do next."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from iobench.advise.explain import advise
from iobench.advise.findings import Finding
from iobench.analysis.case_results import CaseResult, LimitResult
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.rates import PipelineRate, RateTable
from iobench.analysis.results import SuiteResult
from iobench.analysis.scale_results import ScaleModel
from iobench.core.records import FAILED, INVALID
from iobench.report import (
    answer,
    contrast_words,
    numbers,
    scale_words,
    start_words,
    storage_words,
    trainer_words,
    words,
)

STYLES = {
    "fetch-bound": "yellow",
    "prep-bound": "magenta",
    "compute-bound": "green",
    "FASTER": "green",
    "SLOWER": "red",
    "EQUIVALENT": "cyan",
}
#: Advice lines shown; the report has them all.
ADVICE = 5
FOOTNOTE = (
    "Stalls and rates of fewer than ten repeats are EXPLORATORY; intervals are 95 %, those of "
    "contrasts simultaneous."
)


def render(suite: SuiteResult, console: Console, said: Sequence[str] = ()) -> None:
    """Print the analysis of a suite to ``console``; ``said``: its answer, if not the contrasts'."""
    console.print(Text(f"{suite.name} · {words.data(suite)}", style="bold"))
    _print(console, *(Text(s, "bold cyan") for s in said or answer.sentences(suite.contrasts)))
    measured = [p for p in suite.pipelines if _has_rate(p, "cold", "warm")]
    measured = [p for p in measured if words.rungs(p) > 1] or measured  # others: contrasts alone
    if measured:
        console.print(_limits(measured))
        why = [p for p in measured if p.limits["cold"].words or p.limits["warm"].words]
        _print(console, *_reasons(why))
    _print(console, *_beside(suite.pipelines))
    _fastest(suite, console)
    across = [c for c in suite.contrasts if {"runtime", "placement"} & {*c.over}]
    others = [c for c in suite.contrasts if c not in across]
    if others:
        console.print(_contrasts(others))
        _print(console, *_explained(others), *_confounded(others), *_unequal(others))
    _runtimes(across, console)
    scoped = contrast_words.scoped(suite.contrasts)
    _print(console, *(Text(f"  {line}", style="dim") for line in scoped))
    _scaling(suite, console)
    _starts(suite, console)
    _advice(advise(suite), console)
    console.print()
    if listed := words.files_line(suite):
        _print(console, Text(listed))
    notes = [*suite.notes, *words.remarks(suite.pipelines)]
    _print(console, *(Text(f"note: {note}") for note in notes))
    bad = suite.validity.statuses[INVALID] + suite.validity.statuses[FAILED]
    console.print(Text(words.validity(suite), style="yellow" if bad else "green"))
    _print(console, *(Text(f"  {line}", style="dim") for line in words.reasons(suite, 3)))
    console.print(Text(FOOTNOTE, style="dim"))


def _scaling(suite: SuiteResult, console: Console) -> None:
    for title, study in scale_words.titles(suite.studies):
        console.print()
        _print(console, Text(title, style="bold"))
        figures = [Column(head, justify="right") for head in scale_words.HEADS[2:]]
        table = plain_table(Column("case", overflow="fold"), "rung", *figures)
        for cells in scale_words.rows(study):
            table.add_row(*cells)
        console.print(table)
        for model in study.models:
            _print(console, Text(f"  model, {scale_words.parts(model)}", style="dim"))
            _print(console, *(Text(f"  {line}") for line in _errors(model)))
    _print(console, *(Text(line, style="yellow") for line in scale_words.stragglers(suite)))


def _starts(suite: SuiteResult, console: Console) -> None:
    if not suite.starts:
        return
    console.print()
    _print(console, Text("start-up", style="bold"))
    figures = [Column(head, justify="right") for head in start_words.HEADS[2:]]
    table = plain_table(Column("case", overflow="fold"), "software", *figures)
    for cells in start_words.rows(suite.starts):
        table.add_row(*cells)
    console.print(table)
    console.print(Text(start_words.footnote(suite.starts), style="dim"))


def _errors(model: ScaleModel) -> Iterator[str]:
    """Yield what the model says of the most ranks, and how far it was off where measured."""
    off = [f"{100 * p.error:+.0f} % on {p.ranks}" for p in model.predictions if p.error is not None]
    if off:
        yield f"train {model.cache}, model against measurement: {', '.join(off)} ranks"
    last = model.predictions[-1]
    yield (
        f"train {model.cache} on {last.ranks:,} ranks, by the model: "
        f"{numbers.number(last.samples_per_s)} samples/s, at worst {numbers.number(last.worst)}"
        f"{scale_words.doubt(model)}"
    )


def _print(console: Console, *lines: Text) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _has_rate(case: CaseResult, *caches: str) -> bool:
    rungs = itertools.product((*words.OF_JOBS, *words.BELOW), caches)
    return any(words.rate(case, *rung) for rung in rungs)


def _limits(cases: Sequence[CaseResult]) -> Table:
    """Return two rows a pipeline: cold with its fetch stall, warm with its prep stall.

    Where nothing was loaded or trained, they have the rates of the rungs below.
    """
    rungs = tuple(dict.fromkeys(rung for rung, _ in words.below(cases))) or words.OF_JOBS
    jobs = rungs == words.OF_JOBS
    rates = [Column(f"{rung}/s", justify="right") for rung in rungs]
    named = Column("pipeline", overflow="fold")
    table = plain_table(named, "", *rates, *(("AU", "stall, share of time", "limit") * jobs))
    for case in cases:
        name = case.case
        for cache, kind in (("cold", "fetch"), ("warm", "prep")):
            if not _has_rate(case, cache):
                continue
            table.add_row(
                name,
                cache,
                *(numbers.value(words.rate(case, rung, cache)) for rung in rungs),
                *((words.au(case, cache), _stall(case, kind), _regime(case.limits[cache])) * jobs),
            )
            name = ""
    return table


def plain_table(*columns: Column | str) -> Table:
    """Return an empty table without lines, its heads in bold."""
    return Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 1))


def rates(table: RateTable) -> Table:
    """Return a table of the rates of a suite's pipelines, with their intervals and limits."""
    rate = Column("samples/s", justify="right")
    groups = {tuple(row.by.items()) for row in table.rows}
    named = len(groups) < len({row.case for row in table.rows})
    keys = [Column(key, overflow="fold") for key in (*table.by, *["case"] * named)]
    made = plain_table(*keys, "", "stage", rate, "95 % interval", "trials", "limit")
    for row in table.rows:
        made.add_row(
            *(numbers.plain(value) for value in row.by.values()),
            *[row.case] * named,
            row.cache.strip("-"),
            row.stage,
            numbers.value(row.samples_per_s),
            numbers.limits(row.samples_per_s) or numbers.NONE,
            str(row.trials),
            _limit(row),
        )
    return made


def _limit(row: PipelineRate) -> Text:
    if not row.regime:
        return Text(row.reason or numbers.NONE, style="dim")
    return Text(f"{row.regime} ({row.binding})".replace("_", " "), style=STYLES[row.regime])


def _grouped(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str | Text]]]) -> Table:
    """Return a table of cells, each run of equal groups under the group's name."""
    table = plain_table(*(Column(head, overflow="fold") for head in heads))
    for group, together in itertools.groupby(rows, key=lambda row: row[0]):
        table.add_row(Text(group, style="italic"))
        for _, cells in together:
            table.add_row(*cells)
    return table


def _stall(case: CaseResult, kind: str) -> Text:
    entry = words.stall_of(case, kind)
    none = entry is None or words.no_stall(entry)
    return Text(f"{kind} {words.stall(case, kind)}", style="dim" if none else "")


def _regime(limit: LimitResult) -> Text:
    if not limit.regime:
        return Text(numbers.NONE, style="dim")
    return Text(limit.regime, style=STYLES[limit.regime])


def _reasons(cases: Sequence[CaseResult]) -> Iterator[Text]:
    """Yield one line for each different reason, with the pipelines it holds for."""
    found = words.grouped(
        (text, (case.case, cache))
        for case in cases
        for cache in ("cold", "warm")
        if (text := case.limits[cache].words)
    )
    for text, who in found.items():
        yield Text(f"  {words.who(who)}: {text}", style="dim")


def _beside(cases: Sequence[CaseResult]) -> Iterator[Text]:
    """Yield what no column shows: a rate without data, the cost of ranks and of hand-overs."""
    for case in cases:
        alone = words.rate(case, "compute", "-")
        if alone and not _has_rate(case, "cold", "warm"):
            yield Text(f"{case.case}: computes {numbers.number(alone.value)} samples/s alone")
        beside = (words.communication, words.handover, storage_words.storage, storage_words.steady,
                  storage_words.servers_cache,
                  trainer_words.compute_roof, trainer_words.copies,
                  trainer_words.mlperf)  # fmt: skip
        for words_of in beside:
            if text := words_of(case):
                yield Text(f"  {case.case}: {text}", style="dim")
    for case in storage_words.many_files(cases):
        yield Text(f"  {case.case}: {storage_words.metadata(case)}", style="dim")


def _fastest(suite: SuiteResult, console: Console) -> None:
    parts = [
        f"{key}: {found.case} {numbers.number(found.samples_per_s)}/s"
        for key, found in suite.fastest.items()
        if key.startswith(("load ", "train ")) and len(found.ranked) > 1
    ]
    if parts:
        console.print()
        console.print(Text("Fastest (means)  ", style="bold") + Text(" · ".join(parts)))


def _contrasts(contrasts: Sequence[ContrastResult]) -> Table:
    """Return the contrasts, those with one base, stage and cache state together."""
    rows = []
    for c in contrasts:
        few = c.pairs < c.pairs_planned
        cells = (
            f"  {c.arm}",
            contrast_words.ratio(c.outcome),
            _verdict(c),
            f"{c.pairs} of {c.pairs_planned}" if few else f"{c.pairs}",
            contrast_words.resolved(c),
        )
        rows.append((f"{c.stage} {c.cache}, {c.base}", cells))
    return _grouped(("time a sample, against", "ratio", "verdict", "pairs", "could see"), rows)


def _runtimes(contrasts: Sequence[ContrastResult], console: Console) -> None:
    """Print a row for each contrast of runtimes or placements, then shared remarks once."""
    if not contrasts:
        return
    rows = []
    for c in contrasts:
        cells = (
            f"  {c.arm_name} / {c.base_name}",
            contrast_words.ratio(c.outcome, digits=4),
            _verdict(c),
            f"{c.pairs}",
            contrast_words.resolved(c),
            contrast_words.startup(c).removeprefix("start-up "),
        )
        rows.append((f"{c.case} {c.stage} {c.cache.strip('-')}".strip(), cells))
    heads = ("time a sample", "ratio", "verdict", "pairs", "could see", "start-up")
    console.print()
    console.print(_grouped(heads, rows))
    _print(console, *_staged(contrasts), *_explained(contrasts))
    _print(console, *_confounded(contrasts), *_unequal(contrasts), *_mixed(contrasts))


def _staged(contrasts: Sequence[ContrastResult]) -> Iterator[Text]:
    for c in contrasts:
        if cost := contrast_words.staging(c):
            yield Text(f"  {c.case} {c.stage} {c.cache}: {c.arm_name} {cost}")


def _mixed(contrasts: Sequence[ContrastResult]) -> Iterator[Text]:
    """Yield which contrasts do not separate the container from its software, by reason."""
    mixed = words.grouped(
        (c.not_separated, f"{c.case} {c.cache}") for c in contrasts if c.not_separated
    )
    for text, which in mixed.items():
        yield Text(f"  {', '.join(which)}: {text}", style="yellow")


def _explained(contrasts: Sequence[ContrastResult]) -> Iterator[Text]:
    for c in contrasts:
        if explained := "; ".join(contrast_words.explained(c)):
            text = f"  {c.arm} against {c.base}, {c.stage} {c.cache}: {explained}"
            yield Text(text, style="dim")


def _verdict(contrast: ContrastResult) -> Text:
    text = Text(contrast.outcome.verdict, style=STYLES.get(contrast.outcome.verdict, "dim"))
    if contrast.outcome.verdict == "INCONCLUSIVE":
        text.append(f", {contrast_words.needed(contrast, brief=True)}")
    elif aside := "; ".join(filter(None, [contrast.outcome.note, contrast_words.at_90(contrast)])):
        text.append(f" ({aside})")
    return text


def _confounded(contrasts: Sequence[ContrastResult]) -> Iterator[Text]:
    """Yield one line for each different confounder, with the arms it touches."""
    judged = [c for c in contrasts if c.outcome.ratio is not None]
    grouped = words.grouped((contrast_words.confounders(c), c.arm) for c in judged)
    for text, arms in grouped.items():
        who = "all arms" if len(grouped) == 1 else ", ".join(arms)
        style = "dim" if text == "PASS" else "yellow"
        yield Text(f"  confounders of {who}: {text}", style=style)


def _unequal(contrasts: Sequence[ContrastResult]) -> Iterator[Text]:
    """Yield which arms read and decode with another number of threads than their base."""
    found = words.grouped(
        (text, f"{c.arm} against {c.base}")
        for c in contrasts
        if (text := contrast_words.unequal_threads(c))
    )
    for text, which in found.items():
        yield Text(f"  {', '.join(which)}: {text}", style="yellow")


def _advice(advice: Sequence[Finding], console: Console) -> None:
    lines = words.grouped_advice(advice)
    if not lines:
        return
    console.print()
    console.print(Text("What to do next", style="bold"))
    for who, text in lines[:ADVICE]:
        console.print(Text(f"  {who}: ", style="bold") + Text(text, style="not bold"))
    if len(lines) > ADVICE:
        console.print(Text(f"  ... {len(lines) - ADVICE} more: `iobench explain`", style="dim"))
