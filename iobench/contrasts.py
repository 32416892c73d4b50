"""One contrast's paired blocks -> ratio, interval, verdict, and what else differs between arms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from iobench import looks as looking
from iobench import stats
from iobench.figures import Evidence, trial_window, usable
from iobench.fingerprint import differences
from iobench.model import EXPLORATORY, Case, Contrast, RankResult, Record, Trial
from iobench.order import add_sums
from iobench.pairing import FOLLOWING
from iobench.spec import PIPELINE_FIELDS
from iobench.work import per_sample

PASS, CONFOUNDED, UNKNOWN = "PASS", "CONFOUNDED", "UNKNOWN"
_OPTIONS = ("loader_options", "format_options", "trainer_options")
#: Keys whose every value brings libraries of its own.
BRINGING = frozenset({*PIPELINE_FIELDS, "trainer", "transform", *_OPTIONS})
#: A key -> the facts of a fingerprint that it sets: libraries take as many threads as cores.
STUDIED = {
    "placement": ("mount.",),
    "memory_bytes": ("limits.memory_bytes",),
    "cpus": ("limits.cpus", "threads."),
}


class Pair(NamedTuple):
    """Both arms of one block; ``repeat_of`` is the block this one repeats (0: none)."""

    block: int
    repeat_of: int
    arm: Record
    base: Record

    @property
    def seconds_per_sample(self) -> tuple[float, float]:
        """Return (arm, base)."""
        return _seconds(self.arm), _seconds(self.base)


def judge(evidence: Evidence, contrast: Contrast, family: int) -> dict[str, Any]:
    """Return one contrast's result as JSON types.

    The result counts a repeated block in place of the one it repeats; ``without_repeats`` is what
    the first blocks alone say.  No verdict without equal order, on EXPLORATORY trials, or below
    six pairs, and none at a look before all of its planned pairs have been tried: who stops a suite
    to see it has not looked.  Where the plan may look several times the first look that decides is
    the verdict, and pairs that came later are not used: the answer depends on the records alone, so
    the scheduler and the report agree.  ``final``: nothing still to come can change it.
    """
    pairs = complete_pairs(evidence, contrast)
    replaced = {p.repeat_of for p in pairs if p.repeat_of}
    kept = [p for p in pairs if p.block not in replaced]
    planned = _planned(evidence, contrast)
    entry: dict[str, Any] = {
        "id": contrast.id,
        "group": contrast.group,
        "arm": contrast.arm,
        "base": contrast.base,
        **names(evidence, contrast),
        "stage": contrast.stage,
        "cache": contrast.cache,
        "primary": contrast.primary,
        "margin": contrast.margin,
        "family": family,
        "pairs_run": len(kept),
    }
    looks = contrast.looks or (contrast.pairs,)
    reached = _reached(evidence, contrast, planned)
    outcome = None
    if kept and reached:
        outcome = _judged(kept, reached, contrast, family)
    used = reached[: outcome.number][-1] if outcome else looks[0]
    entry["look"] = _look(looks, used, outcome, family)
    kept = _upto(kept, used)
    entry |= {
        "pairs": len(kept),
        "pairs_planned": sum(block <= used for block in planned),
        "repeated_blocks": sorted(b for b in replaced if b <= used),
        "final": outcome is not None and outcome.final,
    }
    if not kept:
        return {**entry, **_nothing("no complete pair yet")}
    found = outcome.verdict if outcome else _so_far(kept, looks, contrast, family)
    entry |= _outcome(found, kept)
    entry["startup_s"] = startup(kept)
    entry["work"] = {side: per_sample([getattr(p, side) for p in kept]) for side in ("arm", "base")}
    entry["confounders"] = confounders(kept)
    entry["runtimes"] = {"arm": dict(kept[-1].arm.runtime), "base": dict(kept[-1].base.runtime)}
    entry["equal_order"], why = equal_order(kept)
    entry["without_repeats"] = None
    if entry["repeated_blocks"]:
        first = [p for p in pairs if not p.repeat_of and p.block <= used]
        level = _level(looks, used, family)
        entry["without_repeats"] = (
            _outcome(_verdict(first, contrast, family, level), first) if first else None
        )
    if not entry["equal_order"]:
        entry |= {"verdict": stats.NO_VERDICT, "note": why, "pairs_needed": None, "final": True}
    elif any(EXPLORATORY in (p.arm.status, p.base.status) for p in kept):
        status = next(r for p in kept for r in (p.arm, p.base) if r.status == EXPLORATORY)
        note = f"trials are EXPLORATORY: {'; '.join(status.reasons) or 'no reason given'}"
        entry |= {"verdict": stats.NO_VERDICT, "note": note, "final": True}
    elif outcome is None:
        note = f"{len(kept)} of {looks[0]} pairs so far, judged when all and their repeats have run"
        if contrast.looks:
            note = f"{len(kept)} pairs so far, the first look comes at {looks[0]}"
        entry |= {"verdict": stats.NO_VERDICT, "note": note}
    return entry


def family_of(contrasts: Sequence[Contrast], contrast: Contrast) -> int:
    """Return how many contrasts are judged together with this one.

    Primary ones are one family, the others another; one of too few pairs for any verdict cannot
    be wrong, and costs the others nothing.
    """
    alike = [c for c in contrasts if c.primary == contrast.primary]
    return max(1, sum(c.pairs >= stats.FLOOR_PAIRS for c in alike))


def names(evidence: Evidence, contrast: Contrast) -> dict[str, Any]:
    """Return what a contrast is over, in words: the keys, what both share, and each arm's value."""
    cases = {c.label: c for c in evidence.plan.cases}
    arm, base = cases.get(contrast.arm), cases.get(contrast.base)
    over = factors(arm, base) if arm and base else []
    if arm is None or base is None or len(over) != 1 or over[0] in PIPELINE_FIELDS:
        return {"over": over, "case": "", "arm_name": contrast.arm, "base_name": contrast.base}
    common = [w for w in contrast.arm.split(" ") if not w.startswith(f"{over[0]}=")]
    return {
        "over": over,
        "case": " ".join(common),
        "arm_name": str(getattr(arm, over[0])),
        "base_name": str(getattr(base, over[0])),
    }


def factors(arm: Case, base: Case) -> list[str]:
    """Return the keys in which two cases differ: what is under study."""
    fields = [f.name for f in dataclasses.fields(Case) if f.name not in FOLLOWING]
    return [n for n in fields if getattr(arm, n) != getattr(base, n)]


def startup(pairs: Sequence[Pair]) -> dict[str, Any] | None:
    """Return the paired difference of the start-up, arm - base, in seconds; None if not recorded.

    From the launch until every rank had its libraries (runtime, interpreter and imports), and a
    walk through the whole dataset where the loader was asked for one.
    """
    known = [
        _started_s(p.arm) - _started_s(p.base) for p in pairs if p.arm.ready_s and p.base.ready_s
    ]
    return estimate(stats.hodges_lehmann(known)) if known else None


def _started_s(record: Record) -> float:
    return record.ready_s + max((rank.startup.walk_s for rank in record.ranks), default=0.0)


def complete_pairs(evidence: Evidence, contrast: Contrast) -> list[Pair]:
    """Return the blocks whose two arms both have a usable record, by block."""
    blocks: dict[int, dict[str, Record]] = {}
    for record in usable(evidence.last.values()):
        trial = record.trial
        if _is_of(trial, contrast) and trial_window(record) is not None:
            blocks.setdefault(trial.block, {})[trial.arm] = record
    return [
        Pair(block, int(arms[contrast.arm].trial.repeat_of or 0), arms[contrast.arm],
             arms[contrast.base])
        for block, arms in sorted(blocks.items())
        if contrast.arm in arms and contrast.base in arms
    ]  # fmt: skip


def equal_order(pairs: Sequence[Pair]) -> tuple[bool, str]:
    """Return (whether both arms of every pair saw the same samples in the same order, why not).

    Where the order itself is the factor, or how ranks share the data, the same samples in any
    order are asked, of all ranks together.
    """
    for pair in pairs:
        arm, base = pair.arm.trial.case, pair.base.trial.case
        shared = (arm.world_size, arm.sharing) == (base.world_size, base.sharing) and (
            arm.order == base.order or arm.world_size == 1
        )  # which samples a rank of several gets depends on the order
        name = "ids_digest" if arm.order != base.order else "order_digest"
        one, other = (
            [getattr(r, name) for r in x.ranks]
            if shared
            else [add_sums([r.ids_sum for r in x.ranks])]
            for x in (pair.arm, pair.base)
        )
        if not all(one) or not all(other):
            return False, f"block {pair.block}: the order of the samples was not recorded"
        if one != other:
            same = shared and name == "order_digest"
            what = "order of the samples differs" if same else "samples differ"
            more = "" if shared else f"; {_WHOLE}"
            return False, f"block {pair.block}: the {what} between the arms{more}"
    return True, ""


#: Why arms of different ranks may not see the same samples.
_WHOLE = "take a number of samples that batch x ranks of every arm divides"


def confounders(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return what differs between the arms' fingerprints beside the factor under study."""
    found: dict[str, None] = {}
    seen: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for pair in pairs:
        factor = factors(pair.arm.trial.case, pair.base.trial.case)
        for arm, base in _side_by_side(pair.arm.ranks, pair.base.ranks):
            both = arm.fingerprint, base.fingerprint
            if not all(both):
                return {"status": UNKNOWN, "differences": ["an arm has no fingerprint"]}
            if both not in seen:
                seen.append(both)
                found |= dict.fromkeys(
                    differences(
                        *both,
                        across_runtimes="runtime" in factor,
                        across_libraries=not BRINGING.isdisjoint(factor),
                        studied=tuple(fact for key in factor for fact in STUDIED.get(key, ())),
                    )
                )
    return {"status": CONFOUNDED if found else PASS, "differences": list(found)}


def _side_by_side(
    arm: Sequence[RankResult], base: Sequence[RankResult]
) -> list[tuple[RankResult, RankResult]]:
    """Return every rank with one of the other side; the side with fewer of them takes turns."""
    if not arm or not base:
        return []
    return [(arm[i % len(arm)], base[i % len(base)]) for i in range(max(len(arm), len(base)))]


def estimate(interval: stats.Interval) -> dict[str, Any]:
    """Return an interval as JSON types; an infinite limit is None."""
    return {
        "value": finite(interval.value),
        "low": finite(interval.low),
        "high": finite(interval.high),
        "level": round(interval.level, 6),
        "n": interval.n,
        "method": interval.method,
    }


def finite(x: float) -> float | None:
    """Return ``x``, or None where it is infinite or not a number."""
    return float(x) if math.isfinite(x) else None


# -- looks -----------------------------------------------------------------------------------


class _Outcome(NamedTuple):
    verdict: stats.Verdict
    number: int  # looks taken
    final: bool


def _is_of(trial: Trial, contrast: Contrast) -> bool:
    """Tell whether a trial is of the contrast's blocks; its serial probes are not."""
    return trial.contrast == (contrast.group or contrast.id) and trial.stage == contrast.stage


def _planned(evidence: Evidence, contrast: Contrast) -> set[int]:
    return {t.block for t in evidence.plan.trials if _is_of(t, contrast) and not t.repeat_of}


def _upto(pairs: Sequence[Pair], blocks: int) -> list[Pair]:
    return [p for p in pairs if (p.repeat_of or p.block) <= blocks]


def _reached(evidence: Evidence, contrast: Contrast, planned: set[int]) -> list[int]:
    """Return the looks whose blocks have all been tried, repeats included.

    A trial that failed was tried.  One look is at the last planned block, whatever the budget left.
    """
    arms = {contrast.arm, contrast.base}
    waiting = [
        int(t.repeat_of or t.block)
        for t in evidence.plan.trials
        if _is_of(t, contrast) and t.arm in arms and t.id not in evidence.last
    ]
    first_open = min(waiting, default=math.inf)
    last = max(planned, default=0)
    return [n for n in contrast.looks or (last,) if n <= last and n < first_open]


def _judged(
    pairs: Sequence[Pair], reached: Sequence[int], contrast: Contrast, family: int
) -> _Outcome | None:
    if not contrast.looks:
        level = _level((contrast.pairs,), contrast.pairs, family)
        return _Outcome(_verdict(pairs, contrast, family, level), 1, True)
    tables = [_sides(_upto(pairs, n)) for n in reached]
    if not tables[0][0]:
        return None
    found = looking.judge(tables, contrast.looks, margin=contrast.margin, family=family)
    return _Outcome(found.verdict, contrast.looks.index(found.level.pairs) + 1, found.final)


def _level(looks: tuple[int, ...], used: int, family: int) -> looking.Level:
    levels = looking.levels(looks, stats.ALPHA / family)
    return next((at for at in levels if at.pairs == used), levels[0])


def _so_far(
    pairs: Sequence[Pair], looks: tuple[int, ...], contrast: Contrast, family: int
) -> stats.Verdict:
    return _verdict(pairs, contrast, family, _level(looks, looks[0], family))


def _verdict(
    pairs: Sequence[Pair], contrast: Contrast, family: int, level: looking.Level
) -> stats.Verdict:
    arm, base = _sides(pairs)
    return stats.verdict(
        arm, base, margin=contrast.margin, family=family, differ=level.differ, equal=level.equal
    )


def _sides(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    values = [p.seconds_per_sample for p in pairs]
    return [a for a, _ in values], [b for _, b in values]


def _look(
    looks: tuple[int, ...], used: int, outcome: _Outcome | None, family: int
) -> dict[str, Any]:
    """Return which look gave the verdict and what all looks until then have spent."""
    if len(looks) == 1:
        used = looks[0]
    level = _level(looks, used, family)
    return {
        "planned": list(looks),
        "taken": outcome.number if outcome else 0,
        "alpha": stats.ALPHA / family,
        "spent": looking.spent(used / looks[-1], stats.ALPHA / family) if outcome else 0.0,
        "level": level.differ,
        "level_equal": level.equal,
    }


def _outcome(found: stats.Verdict, pairs: Sequence[Pair]) -> dict[str, Any]:
    arm, base = _sides(pairs)
    ratios = [a / b for a, b in zip(arm, base, strict=True)]
    outlying = stats.outliers([math.log(r) for r in ratios])
    return {
        "ratio": found.ratio,
        "interval": estimate(found.interval),
        "interval90": estimate(found.interval90),
        "simultaneous": estimate(found.simultaneous),
        "simultaneous90": estimate(found.simultaneous90),
        "verdict": found.verdict,
        "pairs_needed": found.pairs_needed,
        "smallest_effect": finite(found.smallest_effect),
        "outlier_blocks": [pairs[i].block for i in outlying],
        "ratios": ratios,
        "note": found.note,
    }


def _nothing(reason: str) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("ratio", "interval", "interval90", "simultaneous", "simultaneous90", "pairs_needed",
         "smallest_effect", "equal_order", "without_repeats", "startup_s", "work")
    )  # fmt: skip
    return {
        **empty,
        "verdict": stats.NO_VERDICT,
        "outlier_blocks": [],
        "ratios": [],
        "note": reason,
        "runtimes": {"arm": {}, "base": {}},
        "confounders": {"status": UNKNOWN, "differences": []},
    }


def _seconds(record: Record) -> float:
    found = trial_window(record)
    if found is None:
        raise ValueError(f"trial {record.trial.id} has no measured window")
    return found.seconds_per_sample
