"""Looking more than once, and what it costs: alpha spent look by look (Lan and DeMets 1983).

The spending function, of Pocock's shape, says how much of alpha is gone when a share t of the pairs
is in; the nominal levels follow from it exactly, because the statistics of nested looks correlate
as sqrt(n_i / n_j).  docs/method.md, "Several looks", says why this shape.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from iobench.equations import stats
from iobench.equations.signed_rank import Floats

#: Points of the Gauss-Legendre rule between two boundaries; 64 are good for 1e-9.
_POINTS = 64
#: A one-sided boundary has no other side: this far down nothing is left.
_FAR = 9.0


class Level(NamedTuple):
    """Nominal levels at one look: of the two-sided test and of each of the two one-sided ones.

    At one look both are alpha: the 95 % interval, and the 90 % one of EQUIVALENT.
    """

    pairs: int
    differ: float
    equal: float


class LookVerdict(NamedTuple):
    """A verdict, and the look that gave it (its level; None where there was but one look).

    ``final``: nothing that is still to come can change it.
    """

    verdict: stats.Verdict
    level: Level
    final: bool


def spent(share: float, alpha: float) -> float:
    """Return the alpha that is gone when ``share`` (0..1) of the pairs is in."""
    return alpha * math.log1p((math.e - 1) * min(max(share, 0.0), 1.0))


def spending(looks: Sequence[int], alpha: float, most: int = 0) -> list[float]:
    """Return the alpha that is gone after each look; the last one spends whatever is left.

    ``most``: as of :func:`levels`.
    """
    return [*(spent(n / max(most, looks[-1]), alpha) for n in looks[:-1]), alpha]


@functools.lru_cache(maxsize=256)
def levels(looks: tuple[int, ...], alpha: float = 0.05, most: int = 0) -> tuple[Level, ...]:
    """Return the nominal levels of each look (numbers of pairs, ascending), ``alpha`` in all.

    ``most``: the pairs that were planned at first, where the time allowed fewer at the last look,
    which spends whatever is left.  Raises ValueError for looks that do not ascend.
    """
    if not looks or looks[0] < 1 or any(b <= a for a, b in zip(looks, looks[1:], strict=False)):
        raise ValueError(f"looks {looks} do not ascend")
    if len(looks) == 1:
        return (Level(looks[0], alpha, alpha),)
    gone = spending(looks, alpha, most)
    differ, equal = (_nominal(looks, gone, two_sided=both) for both in (True, False))
    return tuple(Level(n, d, e) for n, d, e in zip(looks, differ, equal, strict=True))


class Look(NamedTuple):
    """What a look saw: seconds a sample of arm and base, pair by pair, and ``when`` it was reached.

    ``proven``: it may be EQUIVALENT; else whatever it says is withheld.
    """

    when: int
    arm: Sequence[float]
    base: Sequence[float]
    proven: bool = True


class Looks(NamedTuple):
    """One comparison: the looks that are planned (pairs) and those reached, in this order.

    ``most``: as of :func:`levels`.
    """

    planned: tuple[int, ...]
    reached: Sequence[Look]
    margin: float
    most: int = 0


def decide(family: int, found: Sequence[Looks]) -> list[LookVerdict | None]:
    """Judge comparisons of one family, each by the first look that decides it; None: none reached.

    ``family``: how many are judged together.  A difference is tested at 0.05 / family.  EQUIVALENT
    steps down (Holm 1979): at 0.05 / family as long as none is, then at 0.05 / (family - 1), and so
    on; what frees its share frees it for the looks that others have reached last (Maurer and Bretz
    2013).  Looks are taken in the order in which they were reached, and no decision is taken back.
    """
    out: list[LookVerdict | None] = [None] * len(found)
    now: dict[int, int] = {}  # comparison -> its latest look
    equal = 0
    events = sorted((look.when, i, n) for i, of in enumerate(found) for n, look in
                    enumerate(of.reached) if look.arm)  # fmt: skip
    for _, i, n in events:
        if _decided(out[i]):
            continue
        now[i] = n
        due = [i]
        while due:
            i = due.pop(0)
            out[i] = at = _at(found[i], now[i], family, equal)
            if at.verdict.verdict == stats.EQUIVALENT and found[i].reached[now[i]].proven:
                equal += 1
                due = [other for other in now if not _decided(out[other])]
    return out


def _decided(found: LookVerdict | None) -> bool:
    open_ = (stats.INCONCLUSIVE, stats.NO_VERDICT)
    return found is not None and found.verdict.verdict not in open_


def _at(looks: Looks, n: int, family: int, equal: int) -> LookVerdict:
    """Return what the look ``n`` says, where so many of the family are EQUIVALENT already."""
    differ, stepped = (
        levels(looks.planned, stats.ALPHA / among, looks.most)[n]
        for among in (family, max(1, family - equal))
    )
    level = Level(differ.pairs, differ.differ, stepped.equal)
    look = looks.reached[n]
    found = stats.verdict(
        look.arm, look.base, margin=looks.margin, family=family, differ=level.differ,
        equal=level.equal,
    )  # fmt: skip
    undecided = found.verdict in (stats.INCONCLUSIVE, stats.NO_VERDICT)
    return LookVerdict(found, level, not undecided or n == len(looks.planned) - 1)


def judge(
    at_looks: Sequence[tuple[Sequence[float], Sequence[float]]],
    looks: tuple[int, ...],
    *,
    margin: float,
    family: int = 1,
    most: int = 0,
) -> LookVerdict:
    """Judge one comparison alone; ``at_looks``: (arm, base) of each look reached.

    Raises ValueError when no look has been reached.
    """
    reached = [Look(n, arm, base) for n, (arm, base) in enumerate(at_looks)]
    (found,) = decide(family, [Looks(looks, reached, margin, most)])
    if found is None:
        raise ValueError("no look has been reached")
    return found


def _nominal(
    looks: tuple[int, ...], gone_after: Sequence[float], *, two_sided: bool
) -> list[float]:
    """Return each look's nominal p, by recursive integration (Armitage, McPherson, Rowe 1969).

    ``gone_after``: the alpha that is gone after each look.
    The walk B has variance t at share t; what goes on after a look is its density between the
    boundaries, and the next boundary lets exactly the newly spent alpha out.
    """
    from scipy import optimize, special

    sides = 2 if two_sided else 1
    shares = [n / looks[-1] for n in looks]
    points: Floats = np.zeros(1)
    weights: Floats = np.ones(1)  # the walk starts at 0
    out, before, gone = [], 0.0, 0.0
    for share, upto in zip(shares, gone_after, strict=True):
        step, root = math.sqrt(share - before), math.sqrt(share)
        new = upto - gone

        def left(z: float, at: Any = (points, weights, step, root, new)) -> float:
            points, weights, step, root, new = at
            crossed = float(np.sum(weights * special.ndtr((points - z * root) / step)))
            return float(sides * crossed - new)  # both sides are alike

        z = float(optimize.brentq(left, 0.0, 20.0, xtol=1e-12))
        out.append(sides * float(special.ndtr(-z)))
        low = -z * root if two_sided else -_FAR * root
        nodes, rule = np.polynomial.legendre.leggauss(_POINTS if two_sided else 3 * _POINTS)
        fresh = 0.5 * (z * root - low) * nodes + 0.5 * (z * root + low)
        density = np.exp(-(((fresh[:, None] - points[None, :]) / step) ** 2) / 2)
        mass = density @ weights / (step * math.sqrt(2 * math.pi))
        points, weights = fresh, 0.5 * (z * root - low) * rule * mass
        before, gone = share, upto
    return out
