"""What a search has found: the answer, what it rests on, and what the user does with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from iobench.advise.explain import explain
from iobench.advise.findings import NOTHING, Finding
from iobench.advise.predict import Prediction, predict
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.results import SuiteResult
from iobench.analysis.suite import analyse
from iobench.core.cases import Case, Plan
from iobench.core.records import Record
from iobench.equations.stats import Interval
from iobench.tune.bounds import Bounds
from iobench.tune.code import code, script_code
from iobench.tune.settings import TuneSettings
from iobench.tune.space import queue_bytes, space
from iobench.tune.tried import (
    Tried,
    at_ceiling,
    case_of,
    limits_of,
    measured,
    stale,
    winner_of,
)
from iobench.tune.tuning import PATIENCE

#: Verdicts: nothing to gain; a setting that is faster; one that was not shown to be; not finished.
LEAVE_IT, CHANGE, NOT_SHOWN, UNFINISHED = "leave it", "change", "not shown", "unfinished"
#: What-ifs of the winner that are shown.
WHAT_IFS = 3


@dataclasses.dataclass(frozen=True)
class Gain:
    """How many times faster the winner trains than ``than``, by fresh pairs; None: no pair yet."""

    than: str
    times: Interval | None
    pairs: int
    note: str = ""

    @property
    def shown(self) -> bool:
        """Whether the interval, of all gains together, lies above 1."""
        return self.times is not None and self.times.limited and self.times.low > 1


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """One search; rates in samples/s.

    ``headroom``: how many times faster the current settings train where the loader costs nothing.
    ``left_out``: knob or pipeline -> why it was not tried.  ``search_s``, ``wall_s``: seconds of
    the search's own trials, and of all; ``core_hours``: of all, on the job's cores.  ``binds``,
    ``next``, ``what_ifs``: of the winner where it was shown to be faster, else of the current
    settings; only then there is ``code``.
    """

    verdict: str
    words: str
    current: str
    default: str
    winner: str
    cache: str
    limits: Bounds | None
    gains: Sequence[Gain]
    binds: str
    next: Sequence[Finding]
    what_ifs: Sequence[Prediction]
    queue_bytes: int
    code: str
    tried: Sequence[Tried]
    left_out: Mapping[str, str]
    search_s: float
    wall_s: float
    core_hours: float
    schema: int = 1


def answer(plan: Plan, records: Sequence[Record], asked: TuneSettings) -> TuneResult:
    """Return what the records of a search say; one under way is ``unfinished``."""
    suite = analyse(plan, records)
    limits = limits_of(plan, records, asked)
    tried = measured(plan, records, asked)
    gains = [_gain(c) for c in suite.contrasts]
    won = plan.contrasts[0].arm if plan.contrasts else ""
    winner = won or winner_of(tried, asked)
    verdict, words = _verdict(limits, tried, gains, won, asked)
    best = case_of(plan, winner if verdict == CHANGE else asked.current)
    searched = {t.label for t in tried} - {asked.current, asked.default}
    here = next(c for c in suite.pipelines if c.case == best.label)
    limit = here.limits["cold" if asked.cache == "cold" else "warm"]
    return TuneResult(
        verdict=verdict,
        words=words,
        current=asked.current,
        default=asked.default,
        winner=winner,
        cache=asked.cache,
        limits=limits,
        gains=gains,
        binds=limit.words or limit.reason,
        next=[f for f in explain(suite).findings if f.gain and _of(f, best.label, asked)],
        what_ifs=_what_ifs(suite, best.label, asked),
        queue_bytes=queue_bytes(best),
        code=_code(best, plan, asked) if verdict == CHANGE else "",
        tried=tried,
        left_out=space(case_of(plan, asked.current), asked, limits).left_out,
        search_s=sum(t.wall_s for t in tried if t.label in searched),
        wall_s=sum(r.wall_s for r in records),
        core_hours=sum(r.wall_s for r in records) * asked.cores / 3600,
    )  # fmt: skip


def _code(best: Case, plan: Plan, asked: TuneSettings) -> str:
    return script_code(best, case_of(plan, asked.current)) if asked.script else code(best)


def _gain(found: ContrastResult) -> Gain:
    times = found.outcome.simultaneous or found.outcome.interval
    return Gain(found.base, times and times.inverse(), found.pairs, found.outcome.note)


def _verdict(
    limits: Bounds | None, tried: Sequence[Tried], gains: Sequence[Gain], won: str,
    asked: TuneSettings,
) -> tuple[str, str]:  # fmt: skip
    if limits is None:
        return UNFINISHED, "the current settings have not been measured yet"
    share = limits.train / limits.compute
    if at_ceiling(limits, asked):
        return LEAVE_IT, (
            f"training runs at {share:.1%} of what its compute alone takes: no setting of the "
            f"loader can gain more than {limits.headroom - 1:.1%}"
        )
    if not won:
        others = sum(t.label != asked.current for t in tried)
        if winner_of(tried, asked):
            return UNFINISHED, f"{others} settings were tried; the proof has not begun"
        words = f"none of {others} settings was faster than the current ones"
        if stale(tried) >= PATIENCE:
            return LEAVE_IT, words
        return NOT_SHOWN, f"{words}; more --minutes try more"
    mine = next((g for g in gains if g.than == asked.current), None)
    if mine is None or mine.times is None:
        return UNFINISHED, "the pairs of the winner and the current settings have not run yet"
    if mine.shown:
        return CHANGE, f"{mine.times.value:.2f} times as fast as the current settings"
    return NOT_SHOWN, (
        "the fastest setting of the search was not shown to be faster in fresh pairs: keep the "
        "current ones, or search again with more minutes"
    )


def _of(found: Finding, label: str, asked: TuneSettings) -> bool:
    return found.case == label and found.cache == asked.cache and found.cause != NOTHING


def _what_ifs(suite: SuiteResult, label: str, asked: TuneSettings) -> list[Prediction]:
    """Return the usual what-ifs that would make the winner faster still, most to gain first."""
    found = [p for p in predict(suite, label=label) if p.cache == asked.cache]
    worth = [p for p in found if p.gain.value > 1 + asked.margin]
    return sorted(worth, key=lambda p: -p.gain.value)[:WHAT_IFS]
