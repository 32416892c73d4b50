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
    if measured:
        console.print(_limits(measured))
        why = [p for p in measured if p["limits"]["cold"]["words"] or p["limits"]["warm"]["words"]]
        for line in _reasons(why):
            console.print(line, soft_wrap=True)
    for case in analysis["pipelines"]:
        alone = words.rate(case, "compute", "-")
        if not _has_train(case) and alone:
            console.print(
                f"{case['case']}: computes {words.number(alone['value'])} samples/s alone"
            )
    _fastest(analysis, console)
    if analysis["contrasts"]:
        console.print(_contrasts(analysis["contrasts"]))
    _advice(analysis["advice"], console)
    console.print()
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
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("pipeline")
    for head in ("load/s warm", "train/s cold", "warm", "AU cold", "warm"):
        table.add_column(head, justify="right")
    for head in ("fetch stall (cold)", "prep stall (warm)", "limit cold", "limit warm"):
        table.add_column(head)
    for case in cases:
        table.add_row(
            case["case"],
            words.value(words.rate(case, "load", "warm")),
            words.value(words.rate(case, "train", "cold")),
            words.value(words.rate(case, "train", "warm")),
            words.au(case, "cold"),
            words.au(case, "warm"),
            _stall(case, "fetch"),
            _stall(case, "prep"),
            _regime(case["limits"]["cold"]),
            _regime(case["limits"]["warm"]),
        )
    return table


def _stall(case: Mapping[str, Any], kind: str) -> Text:
    entry = case[f"{kind}_stall_s"]
    share = words.stall_share(case, kind)
    if entry.get("value") is None:
        return Text(words.NONE, style="dim")
    if words.no_stall(entry):
        return Text("none seen", style="dim")
    spread = words.limits(entry, words.milliseconds)
    return Text(f"{words.percent(share)} " + (f"({spread} ms)" if spread else ""))


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


def _fastest(analysis: Mapping[str, Any], console: Console) -> None:
    parts = []
    for key, found in analysis["fastest"].items():
        if key.split()[0] in ("load", "train") and len(found["ranked"]) > 1:
            parts.append(f"{key}: {found['case']} {words.number(found['samples_per_s'])}/s")
    if parts:
        console.print()
        console.print(Text("Fastest (means)  ", style="bold") + Text(" · ".join(parts)))


def _contrasts(contrasts: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for head in ("compared", "stage", "time ratio", "interval", "verdict", "pairs", "could see"):
        table.add_column(head)
    table.add_column("confounders", overflow="fold")
    for c in contrasts:
        verdict = Text(c["verdict"], style=STYLES.get(c["verdict"], "dim"))
        if c["verdict"] == "INCONCLUSIVE":
            verdict.append(f", needs {c['pairs_needed']} more pairs")
        elif c["note"]:
            verdict.append(f" ({c['note']})")
        table.add_row(
            f"{c['arm']} / {c['base']}",
            f"{c['stage']} {c['cache']}",
            words.number(c["ratio"]),
            words.limits(c["simultaneous"]),
            verdict,
            f"{c['pairs']}"
            + (f" of {c['pairs_planned']}" if c["pairs"] < c["pairs_planned"] else ""),
            words.resolved(c),
            words.confounders(c),
        )
    return table


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
