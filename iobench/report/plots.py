"""Charts as inline SVG: no external reference, no font, text drawn as paths.

Every function returns one ``<svg>`` element or "" when there is nothing to draw.  Charts are drawn
at about 480 px, so that they stay readable on a narrow screen; the page lays them side by side.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from iobench.analysis.case_results import CaseResult, FetchStall, PrepStall
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.results import SuiteResult
from iobench.core.errors import printable
from iobench.equations.stats import Interval
from iobench.report import contrast_words, numbers, words

#: Okabe and Ito's palette, safe for colour-blind readers.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#8A6D00")
INK, GRID, COLD, WARM = "#1f2933", "#e4e7eb", "#0072B2", "#E69F00"
PARTS = (
    ("compute", "#9aa5b1"),
    ("contention", "#CC79A7"),
    ("prep wait", "#E69F00"),
    ("fetch", "#0072B2"),
)
_LABEL = 26  # characters of a label's line
VERDICTS = {"FASTER": "#009E73", "SLOWER": "#D55E00", "EQUIVALENT": "#0072B2"}
RUNGS = (
    ("ceiling", "cold"),
    ("read", "cold"),
    ("read", "warm"),
    ("decode", "warm"),
    ("load", "cold"),
    ("load", "warm"),
    ("train", "cold"),
    ("train", "warm"),
    ("compute", "-"),
)
ROOFS = {
    "storage": ("s", "storage (fio)"),
    "read": ("v", "read"),
    "decode": ("^", "decode"),
    "load": ("D", "load"),
    "load_cold": ("d", "load cold"),
    "compute": ("|", "compute"),
}
#: A line of more than twice as many is drawn through so many, and its last ones.
POINTS = 1000
#: A wait shorter than this is none: the floor of the logarithmic axis, in ms.
FLOOR_MS = 0.01
#: Inches; one is 72 CSS px here.
WIDTH = 5.4


def ladder(case: CaseResult, suite: SuiteResult) -> str:
    """Return the rates of one pipeline's rungs with their intervals, samples/s."""
    rows = []
    plugged = ((s, stage) for s, stage in case.stages.items() if s not in dict(RUNGS))
    added = [(s, cache) for s, stage in plugged for cache in stage.caches]
    for stage, cache in (*RUNGS, *added):
        found = _compute(case, suite) if stage == "compute" else words.rate(case, stage, cache)
        if found:
            rows.append((f"{stage} {cache}".removesuffix(" -"), cache, found))
    if len(rows) < 2:
        return ""

    def draw(axes: Any) -> None:
        for y, (_, cache, rate) in enumerate(rows):
            colour = {"cold": COLD, "warm": WARM}.get(cache, "#9aa5b1")
            axes.barh(y, rate.value, color=colour, height=0.62)
            if rate.limited:
                low = max(rate.low, rate.value / 100)
                axes.plot([low, rate.high], [y, y], color=INK, lw=1.2)
            axes.annotate(
                numbers.number(rate.value), (_top(rate), y),
                xytext=(5, 0), textcoords="offset points", va="center", fontsize=9, color=INK,
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), [wrap(name) for name, _, _ in rows])
        axes.invert_yaxis()
        lowest, highest = min(r.value for _, _, r in rows), max(_top(r) for _, _, r in rows)
        log_ticks(axes, lowest / 2, highest * 4)
        axes.set_xlabel("samples/s (log), 95 % interval")

    said = ", ".join(f"{name} {numbers.number(rate.value)}" for name, _, rate in rows)
    return svg(draw, 0.9 + 0.3 * len(rows), f"Ladder of {case.case}: {said} samples/s")


def stall_breakdown(cases: Sequence[CaseResult], suite: SuiteResult) -> str:
    """Return where a cold sample's time goes: compute, contention, wait to prepare, fetch."""
    rows = []
    for case in cases:
        prep, fetch = case.prep_stall_s, case.fetch_stall_s
        compute = _compute(case, suite)
        if not compute or not isinstance(prep, PrepStall) or not isinstance(fetch, FetchStall):
            continue
        values = 1 / compute.value, prep.contention_s.value, prep.wait_s.value, fetch.value
        rows.append((case.case, [1e3 * v for v in values]))
    if not rows:
        return ""

    def draw(axes: Any) -> None:
        for y, (_, values) in enumerate(rows):
            left = 0.0
            for (name, colour), value in zip(PARTS, values, strict=True):
                label = None if y else name
                axes.barh(y, max(value, 0.0), left=left, color=colour, height=0.55, label=label)
                left += max(value, 0.0)
        axes.set_yticks(range(len(rows)), [wrap(name) for name, _ in rows])
        axes.invert_yaxis()
        axes.set_xlabel("ms a sample, cold run (parts below 0 are not drawn)", loc="right")
        legend(axes, 4)

    said = "; ".join(
        f"{name}: " + ", ".join(f"{p} {v:.2f}" for (p, _), v in zip(PARTS, values, strict=True))
        for name, values in rows
    )
    return svg(draw, 1.2 + 0.4 * len(rows), f"Milliseconds a sample: {said}")


def roofline(cases: Sequence[CaseResult], cache: str) -> str:
    """Return each pipeline's roofs, the binding one marked, and what ``train`` reached."""
    rows = [c for c in cases if c.limits[cache].regime]
    if not rows:
        return ""

    def draw(axes: Any) -> None:
        for y, case in enumerate(rows):
            limit, roofs = case.limits[cache], case.limits[cache].roofs
            axes.plot([min(roofs.values()), max(roofs.values())], [y, y], color=GRID, lw=5,
                      solid_capstyle="round", zorder=1)  # fmt: skip
            for name, rate in roofs.items():
                marker, binding = ROOFS[name][0], name == limit.binding
                axes.plot(rate, y, marker, ms=14 if marker == "|" else 8, mew=2, zorder=3 + binding,
                          color="#D55E00" if binding else "#7b8794")  # fmt: skip
            if reached := limit.measured_samples_per_s:
                axes.plot(reached.value, y + 0.28, "o", ms=6, color=INK, zorder=4)
        axes.set_yticks(range(len(rows)), [wrap(c.case) for c in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        rates = [r for c in rows for r in c.limits[cache].roofs.values()]
        every = [m.value for c in rows if (m := c.limits[cache].measured_samples_per_s)] + rates
        log_ticks(axes, min(every) / 1.3, max(rates) * 1.3)
        axes.set_xlabel(f"samples/s (log), {cache}")
        used = {name for c in rows for name in c.limits[cache].roofs}
        for name, (marker, text) in ROOFS.items():
            if name in used:
                axes.plot([], [], marker, ms=8, mew=2, color="#7b8794", label=text)
        axes.plot([], [], "s", ms=8, color="#D55E00", label="binding")
        axes.plot([], [], "o", ms=6, color=INK, label="train reached")
        legend(axes, 4)

    said = "; ".join(f"{c.case} is {c.limits[cache].regime}" for c in rows)
    return svg(draw, 1.4 + 0.46 * len(rows), f"Input-pipeline roofline, {cache}: {said}")


def forest(contrasts: Sequence[ContrastResult]) -> str:
    """Return every contrast's time ratio with its simultaneous interval and margin."""
    rows = [(c, s) for c in contrasts if (s := c.outcome.simultaneous)]
    if not rows:
        return ""
    labels = [_arms(c) for c, _ in rows]

    def draw(axes: Any) -> None:
        margin = max(c.margin for c, _ in rows)
        axes.axvspan(1 / (1 + margin), 1 + margin, color="#0072B2", alpha=0.12, lw=0)
        axes.axvline(1, color=INK, lw=0.8)
        ends = [1 / (1 + margin), 1 + margin]
        for y, (c, s) in enumerate(rows):
            colour = VERDICTS.get(c.outcome.verdict, "#7b8794")
            low, high = (s.low, s.high) if s.limited else (s.value, s.value)
            axes.plot([low, high], [y, y], color=colour, lw=2.5, solid_capstyle="butt")
            axes.plot(s.value, y, "o", color=colour, ms=6)
            ends += [low, high, s.value]
        axes.set_yticks(range(len(rows)), labels)
        axes.invert_yaxis()
        _ratio_ticks(axes, min(ends) / 1.08, max(ends) * 1.08)
        axes.set_xlabel("time a sample, arm / base (below 1: faster)")

    lines = max(label.count("\n") for label in labels) + 1
    height = 0.9 + (0.16 + 0.15 * lines) * len(rows)
    return svg(draw, height, "Contrasts: " + "; ".join(contrast_words.outcome(c) for c, _ in rows))


def _arms(c: ContrastResult) -> str:
    """Return a contrast's two arms: in short where they differ in one key, the key before them."""
    what = f"{c.stage} {c.cache}".removesuffix(" -")
    over, arms = c.over, f"{c.arm_name} / {c.base_name}"
    if not c.case:
        return f"{wrap(arms)}\n{what}"
    key = "" if over == ["runtime"] else f"{over[0]} "
    return f"{wrap(key + arms)}\n{wrap(c.case + ' ' + what)}"


def waits(by_case: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return, cold and warm, the share of steps that wait longer than so many ms for a batch.

    ``by_case``: case -> cache -> seconds of every step after the warm-up.
    """
    caches = [c for c in ("cold", "warm", "-") if any(v.get(c) for v in by_case.values())]
    if not caches:
        return ""

    def draw(axes: Any) -> None:
        for i, (name, found) in enumerate(by_case.items()):
            for cache, style in zip(caches, ("-", ":", ":"), strict=False):
                values = sorted(max(1e3 * w, FLOOR_MS) for w in found.get(cache, ()))
                if values:
                    places = _places(len(values))
                    share = [100 * (1 - k / len(values)) for k in places]
                    values = [values[k] for k in places]
                    axes.step(values, share, style, where="pre", lw=1.8,
                              color=PALETTE[i % len(PALETTE)],
                              label=wrap(f"{name} {cache}".removesuffix(" -")))  # fmt: skip
        every = [found for v in by_case.values() for found in v.values() if found]
        shortest, longest = 1e3 * min(map(min, every)), 1e3 * max(map(max, every))
        log_ticks(axes, max(shortest, FLOOR_MS) / 1.5, max(longest, 1.0) * 1.5)
        axes.set_ylim(0, 102)
        axes.set_xlabel("wait of a step, ms (log)")
        axes.set_ylabel("% of steps that wait longer")
        legend(axes, 2)

    return svg(draw, 2.9 + 0.2 * len(by_case), "Wait of every step, as shares of steps")


def _places(count: int) -> list[int]:
    """Return the places of sorted values that a line goes through: all, or so many and the tail."""
    if count <= 2 * POINTS:
        return list(range(count))
    return [*(k * (count - POINTS) // POINTS for k in range(POINTS)), *range(count - POINTS, count)]


def _compute(case: CaseResult, suite: SuiteResult) -> Interval | None:
    """Return the rate of the compute rung that serves this case, its own or another's."""
    whose = (case, *(c for c in suite.pipelines if c.case == case.compute_from))
    return next((rate for c in whose if (rate := words.rate(c, "compute", "-"))), None)


def _top(rate: Interval) -> float:
    return rate.high if rate.limited else rate.value


def _ratio_ticks(axes: Any, low: float, high: float) -> None:
    from matplotlib.ticker import MaxNLocator

    if high / low > 4:
        log_ticks(axes, low, high)
    else:
        ticks = MaxNLocator(6).tick_values(low, high)
        _ticks(axes, low, high, [x for x in ticks if low <= x <= high])


def log_ticks(axes: Any, low: float, high: float) -> None:
    """Set a logarithmic axis with at most six plain numbers on it."""
    ticks = [m * 10.0**e for e in range(-5, 9) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    if len(ticks) > 6:
        ticks = [10.0**e for e in range(-5, 9) if low <= 10.0**e <= high]
    _ticks(axes, low, high, ticks)


def _ticks(axes: Any, low: float, high: float, ticks: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{x:,.0f}" if x >= 10 else f"{x:g}" for x in ticks])
    axes.minorticks_off()


def legend(axes: Any, columns: int) -> None:
    """Name what is drawn above the axes, as wide as the figure."""
    axes.figure.legend(ncols=columns, loc="outside upper left", frameon=False, fontsize=9,
                       handlelength=1.4, columnspacing=1)  # fmt: skip


def wrap(label: str) -> str:
    """Break a long label, so that it leaves room for what is drawn; long settings after "="."""
    words = (word.replace("=", "= ") if len(word) > _LABEL else word for word in label.split())
    lines = textwrap.wrap(
        " ".join(words), _LABEL, break_on_hyphens=False, max_lines=4, placeholder=" ..."
    )
    return printable("\n".join(lines), "\n")


def svg(draw: Callable[[Any], None], height: float, title: str) -> str:
    """Return what ``draw`` draws on axes of this height (inches) as one element with a title."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "font.family": "DejaVu Sans",  # ships with matplotlib, so charts are equal everywhere
        "font.size": 10,
        "svg.fonttype": "path",
        "text.parse_math": False,  # a "$" in a name is a "$"
        "svg.hashsalt": title,
        "axes.edgecolor": "#9aa5b1",
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "x",
        "axes.axisbelow": True,
        "grid.color": GRID,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name has letters that the font has not
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), title)


def _inline(text: str, title: str) -> str:
    """Strip prologue, metadata and fixed size; add what a screen reader says."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[^"]*"', "", text, count=2)
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(title, quote=True)}"', 1)
    end = text.index(">") + 1
    return f"{text[:end]}<title>{escape(title)}</title>{text[end:]}"
