"""The analysis on one screen: what limits, who is fastest and by how much, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from iobench.report import words

STYLES = {
    "fetch-bound": "yellow",
    "prep-bound": "magenta",
    "compute-bound": "green",
    "FASTER": "green",
    "SLOWER": "red",
    "EQUIVALENT": "cyan",
}
#: Advice lines shown; the report has them all.
ADVICE = 8


def render(analysis: Mapping[str, Any], console: Console) -> None:
    """Print ``analysis`` (of :func:`iobench.analysis.analyse`) to ``console``."""
    console.print(Text(f"{analysis['name']} · {words.data(analysis)}", style="bold"))
    measured = [p for p in analysis["pipelines"] if _has_train(p)]
    measured = [p for p in measured if words.rungs(p) > 1] or measured  # others: contrasts alone
    if measured:
        console.print(_limits(measured))
        why = [p for p in measured if p["limits"]["cold"]["words"] or p["limits"]["warm"]["words"]]
        for line in _reasons(why):
            console.print(line, soft_wrap=True)
    for line in _beside(analysis["pipelines"]):
        console.print(line, soft_wrap=True)
    _fastest(analysis, console)
    if analysis["contrasts"]:
        across = [c for c in analysis["contrasts"] if {"runtime", "placement"} & {*c["over"]}]
        others = [c for c in analysis["contrasts"] if c not in across]
        if others:
            console.print(_contrasts(others))
            for line in (*_explained(others), *_confounded(others)):
                console.print(line, soft_wrap=True)
        _runtimes(across, console)
    _advice(analysis["advice"], console)
    console.print()
    for note in [*analysis["notes"], *words.remarks(analysis["pipelines"])]:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    bad = analysis["validity"]["INVALID"] + analysis["validity"]["FAILED"]
    console.print(Text(words.validity(analysis), style="yellow" if bad else "green"))
    for reason, count in list(analysis["validity"]["reasons"].items())[:3]:
        console.print(Text(f"  {count} x {reason}", style="dim"), soft_wrap=True)
    console.print(
        Text(
            "Stalls and rates of fewer than ten repeats are EXPLORATORY; intervals are 95 %, those "
            "of contrasts simultaneous.",
            style="dim",
        )
    )


def _has_train(case: Mapping[str, Any]) -> bool:
    return any(
        words.rate(case, stage, cache)
        for stage in ("train", "load", "read")
        for cache in ("cold", "warm")
    )


def _limits(cases: Sequence[Mapping[str, Any]]) -> Table:
    """Return two rows a pipeline: cold with its fetch stall, warm with its prep stall."""
    table = _table()
    table.add_column("pipeline", overflow="fold")
    table.add_column("")
    for head in ("load/s", "train/s", "AU"):
        table.add_column(head, justify="right")
    table.add_column("stall, share of time")
    table.add_column("limit")
    for case in cases:
        name = case["case"]
        for cache, kind in (("cold", "fetch"), ("warm", "prep")):
            if not any(words.rate(case, s, cache) for s in ("read", "load", "train")):
                continue
            table.add_row(
                name,
                cache,
                words.value(words.rate(case, "load", cache)),
                words.value(words.rate(case, "train", cache)),
                words.au(case, cache),
                _stall(case, kind),
                _regime(case["limits"][cache]),
            )
            name = ""
    return table


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))


def _stall(case: Mapping[str, Any], kind: str) -> Text:
    entry = case[f"{kind}_stall_s"]
    none = entry.get("value") is None or words.no_stall(entry)
    return Text(f"{kind} {words.stall(case, kind)}", style="dim" if none else "")


def _regime(limit: Mapping[str, Any]) -> Text:
    if not limit["regime"]:
        return Text(words.NONE, style="dim")
    return Text(limit["regime"], style=STYLES[limit["regime"]])


def _reasons(cases: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield one line for each different reason, with the pipelines it holds for."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for case in cases:
        for cache in ("cold", "warm"):
            text = case["limits"][cache]["words"]
            if text:
                grouped.setdefault(text, {}).setdefault(case["case"], []).append(cache)
    for text, who in grouped.items():
        yield Text(f"  {words.who(who)}: {text}", style="dim")


def _beside(cases: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield what no column holds: a rate without data, what ranks and a hand-over cost."""
    for case in cases:
        alone = words.rate(case, "compute", "-")
        if not _has_train(case) and alone:
            yield Text(f"{case['case']}: computes {words.number(alone['value'])} samples/s alone")
        for said in (words.communication(case), words.handover(case)):
            if said:
                yield Text(f"  {case['case']}: {said}", style="dim")


def _fastest(analysis: Mapping[str, Any], console: Console) -> None:
    parts = []
    for key, found in analysis["fastest"].items():
        if key.split()[0] in ("load", "train") and len(found["ranked"]) > 1:
            parts.append(f"{key}: {found['case']} {words.number(found['samples_per_s'])}/s")
    if parts:
        console.print()
        console.print(Text("Fastest (means)  ", style="bold") + Text(" · ".join(parts)))


def _contrasts(contrasts: Sequence[Mapping[str, Any]]) -> Table:
    """Return the contrasts, those with one base, stage and cache state together."""
    table = _table()
    for head in ("time a sample, against", "ratio", "verdict", "pairs", "could see"):
        table.add_column(head, overflow="fold")
    last = ""
    for c in contrasts:
        group = f"{c['stage']} {c['cache']}, {c['base']}"
        if group != last:
            table.add_row(Text(group, style="italic"))
            last = group
        few = c["pairs"] < c["pairs_planned"]
        table.add_row(
            f"  {c['arm']}",
            words.ratio(c),
            _verdict(c),
            f"{c['pairs']} of {c['pairs_planned']}" if few else f"{c['pairs']}",
            words.resolved(c),
        )
    return table


def _runtimes(contrasts: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a row a contrast of runtimes or placements, and what holds for many of them once."""
    if not contrasts:
        return
    table = _table()
    for head in ("time a sample", "ratio", "verdict", "pairs", "could see", "start-up"):
        table.add_column(head, overflow="fold")
    last = ""
    for c in contrasts:
        group = f"{c['case']} {c['stage']} {c['cache'].strip('-')}".strip()
        if group != last:
            table.add_row(Text(group, style="italic"))
            last = group
        table.add_row(
            f"  {c['arm_name']} / {c['base_name']}",
            words.ratio(c, digits=4),
            _verdict(c),
            f"{c['pairs']}",
            words.resolved(c),
            words.startup(c).removeprefix("start-up "),
        )
    console.print()
    console.print(table)
    for line in (*_staged(contrasts), *_explained(contrasts), *_confounded(contrasts)):
        console.print(line, soft_wrap=True)
    for line in _mixed(contrasts):
        console.print(line, soft_wrap=True)


def _staged(contrasts: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    for c in contrasts:
        if words.staging(c):
            what = f"{c['case']} {c['stage']} {c['cache']}: {c['arm_name']}"
            yield Text(f"  {what} {words.staging(c)}")


def _mixed(contrasts: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield which contrasts do not tell the container from the software in it, by reason."""
    mixed: dict[str, dict[str, None]] = {}
    for c in contrasts:
        if c["not_separated"]:
            mixed.setdefault(c["not_separated"], {})[f"{c['case']} {c['cache']}"] = None
    for text, which in mixed.items():
        yield Text(f"  {', '.join(which)}: {text}", style="yellow")


def _explained(contrasts: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    for c in contrasts:
        said = words.explained(c)
        if said:
            text = f"  {c['arm']} against {c['base']}, {c['stage']} {c['cache']}: "
            yield Text(text + "; ".join(said), style="dim")


def _verdict(contrast: Mapping[str, Any]) -> Text:
    text = Text(contrast["verdict"], style=STYLES.get(contrast["verdict"], "dim"))
    if contrast["verdict"] == "INCONCLUSIVE":
        text.append(f", {contrast['pairs_needed']} more pairs needed")
    elif contrast["note"]:
        text.append(f" ({contrast['note']})")
    return text


def _confounded(contrasts: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Yield one line for each different confounder, with the arms it touches."""
    grouped: dict[str, dict[str, None]] = {}
    for c in contrasts:
        if c["ratio"] is not None:
            grouped.setdefault(words.confounders(c), {})[c["arm"]] = None
    for text, arms in grouped.items():
        passed = text == "PASS"
        who = "all arms" if len(grouped) == 1 else ", ".join(arms)
        yield Text(f"  confounders of {who}: {text}", style="dim" if passed else "yellow")


def _advice(advice: Sequence[Mapping[str, Any]], console: Console) -> None:
    lines = words.grouped_advice(advice)
    if not lines:
        return
    console.print()
    console.print(Text("What to do next", style="bold"))
    for who, text in lines[:ADVICE]:
        console.print(Text(f"  {who}: ", style="bold") + Text(text, style="not bold"))
    if len(lines) > ADVICE:
        console.print(Text(f"  ... {len(lines) - ADVICE} more in report.html", style="dim"))
