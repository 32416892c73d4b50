"""One contrast's paired blocks -> ratio, interval, verdict, and what else differs between arms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from iobench import stats
from iobench.figures import Evidence, trial_window, usable
from iobench.fingerprint import differences
from iobench.model import EXPLORATORY, Contrast, Record

PASS, CONFOUNDED, UNKNOWN = "PASS", "CONFOUNDED", "UNKNOWN"


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
    six pairs.
    """
    pairs = complete_pairs(evidence, contrast)
    replaced = {p.repeat_of for p in pairs if p.repeat_of}
    kept = [p for p in pairs if p.block not in replaced]
    planned = {
        t.block for t in evidence.plan.trials if t.contrast == contrast.id and not t.repeat_of
    }
    entry: dict[str, Any] = {
        "id": contrast.id,
        "arm": contrast.arm,
        "base": contrast.base,
        "stage": contrast.stage,
        "cache": contrast.cache,
        "primary": contrast.primary,
        "margin": contrast.margin,
        "family": family,
        "pairs": len(kept),
        "pairs_planned": len(planned),
        "repeated_blocks": sorted(replaced),
    }
    if not kept:
        return {**entry, **_nothing("no complete pair yet")}
    entry |= _outcome(kept, contrast, family)
    entry["confounders"] = confounders(kept)
    entry["equal_order"], why = equal_order(kept)
    entry["without_repeats"] = None
    if replaced:
        first = [p for p in pairs if not p.repeat_of]
        entry["without_repeats"] = _outcome(first, contrast, family) if first else None
    if not entry["equal_order"]:
        entry |= {"verdict": stats.NO_VERDICT, "note": why, "pairs_needed": None}
    elif any(EXPLORATORY in (p.arm.status, p.base.status) for p in kept):
        found = next(r for p in kept for r in (p.arm, p.base) if r.status == EXPLORATORY)
        note = f"trials are EXPLORATORY: {'; '.join(found.reasons) or 'no reason given'}"
        entry |= {"verdict": stats.NO_VERDICT, "note": note}
    return entry


def complete_pairs(evidence: Evidence, contrast: Contrast) -> list[Pair]:
    """Return the blocks whose two arms both have a usable record, by block."""
    blocks: dict[int, dict[str, Record]] = {}
    for record in usable(evidence.last.values()):
        trial = record.trial
        if trial.contrast == contrast.id and trial_window(record) is not None:
            blocks.setdefault(trial.block, {})[trial.arm] = record
    return [
        Pair(block, int(arms[contrast.arm].trial.repeat_of or 0), arms[contrast.arm],
             arms[contrast.base])
        for block, arms in sorted(blocks.items())
        if contrast.arm in arms and contrast.base in arms
    ]  # fmt: skip


def equal_order(pairs: Sequence[Pair]) -> tuple[bool, str]:
    """Return (whether both arms of every pair saw the same samples in the same order, why not).

    Where the order itself is the factor, the same samples in any order are asked.
    """
    for pair in pairs:
        arm, base = pair.arm.trial.case, pair.base.trial.case
        name = "ids_digest" if arm.order != base.order else "order_digest"
        one, other = ([getattr(r, name) for r in x.ranks] for x in (pair.arm, pair.base))
        if not all(one) or not all(other):
            return False, f"block {pair.block}: the order of the samples was not recorded"
        if one != other:
            what = "samples" if name == "ids_digest" else "order of the samples"
            return False, f"block {pair.block}: the {what} differs between the arms"
    return True, ""


def confounders(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return what differs between the arms' fingerprints beside the factor under study."""
    found: dict[str, None] = {}
    seen: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for pair in pairs:
        for arm, base in zip(pair.arm.ranks, pair.base.ranks, strict=False):
            both = arm.fingerprint, base.fingerprint
            if not all(both):
                return {"status": UNKNOWN, "differences": ["an arm has no fingerprint"]}
            if both not in seen:
                seen.append(both)
                found |= dict.fromkeys(differences(*both))
    return {"status": CONFOUNDED if found else PASS, "differences": list(found)}


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


def _outcome(pairs: Sequence[Pair], contrast: Contrast, family: int) -> dict[str, Any]:
    values = [p.seconds_per_sample for p in pairs]
    found = stats.verdict(
        [a for a, _ in values], [b for _, b in values], margin=contrast.margin, family=family
    )
    logs = [math.log(a / b) for a, b in values]
    return {
        "ratio": found.ratio,
        "interval": estimate(found.interval),
        "interval90": estimate(found.interval90),
        "simultaneous": estimate(found.simultaneous),
        "simultaneous90": estimate(found.simultaneous90),
        "verdict": found.verdict,
        "pairs_needed": found.pairs_needed,
        "smallest_effect": finite(found.smallest_effect),
        "outlier_blocks": [pairs[i].block for i in stats.outliers(logs)],
        "ratios": [a / b for a, b in values],
        "note": found.note,
    }


def _nothing(reason: str) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("ratio", "interval", "interval90", "simultaneous", "simultaneous90", "pairs_needed",
         "smallest_effect", "equal_order", "without_repeats")
    )  # fmt: skip
    return {
        **empty,
        "verdict": stats.NO_VERDICT,
        "outlier_blocks": [],
        "ratios": [],
        "note": reason,
        "confounders": {"status": UNKNOWN, "differences": []},
    }


def _seconds(record: Record) -> float:
    found = trial_window(record)
    if found is None:
        raise ValueError(f"trial {record.trial.id} has no measured window")
    return found.seconds_per_sample
