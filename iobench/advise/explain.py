"""A suite -> what makes its cases slow, most to gain first: the one place of advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from iobench.advise.findings import NOTHING, Finding, Rule, Scene, Unjudged
from iobench.advise.rules import container, overlap, preparing, storage
from iobench.analysis.case_results import NoRate
from iobench.analysis.results import SuiteResult
from iobench.core.cases import OF_SCRIPT
from iobench.equations import roofline
from iobench.equations.stats import Interval

#: Every cause, in the order in which equal gains are listed.
RULES: tuple[Rule, ...] = (
    *storage.RULES, *preparing.RULES, *overlap.RULES, *container.RULES, *preparing.CAUTIONS,
)  # fmt: skip
_CAUTIONS = {rule.cause for rule in preparing.CAUTIONS}
CACHES = ("cold", "warm")
#: A cure that makes training less than this much faster is none.
WORTH = 1.05


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The causes found, and those that this suite cannot decide."""

    findings: list[Finding]
    unjudged: list[Unjudged]


def explain(suite: SuiteResult) -> Explanation:
    """Return what every rule finds in every case, most to gain first, and what was not measured."""
    findings: list[Finding] = []
    unjudged: list[Unjudged] = []
    for case in suite.pipelines:
        if "null" in (case.loader, case.format, case.trainer):
            continue
        for cache in caches_of(suite):
            scene = Scene(case, cache, suite)
            found = {rule.cause: [*_find(rule, scene)] for rule in RULES}
            findings += _worth([f for of_rule in found.values() for f in of_rule])
            for rule in RULES:
                if not found[rule.cause] and not of_script(suite):
                    unjudged += _missing(rule, scene)
    return Explanation(sorted(findings, key=_order), unjudged)


def caches_of(suite: SuiteResult) -> tuple[str, ...]:
    """Return the cache states that are judged; of a script nobody sets any."""
    return ("warm",) if of_script(suite) else CACHES


def of_script(suite: SuiteResult) -> bool:
    """Return whether a script was measured: its parts are all that there is to measure."""
    return suite.dataset.source == OF_SCRIPT


def advise(suite: SuiteResult) -> list[Finding]:
    """Return the causes alone."""
    return explain(suite).findings


def _find(rule: Rule, scene: Scene) -> Iterator[Finding]:
    if scene.cache not in rule.caches or (rule.regimes and scene.limit.regime not in rule.regimes):
        return
    for found in rule.find(scene):
        yield Finding(
            case=scene.case.case,
            cache=scene.cache,
            cause=rule.cause,
            symptom=found.symptom,
            remedy=found.remedy,
            evidence={name: v for name, v in found.evidence.items() if v is not None},
            gain=found.gain,
            source=rule.source,
        )


def _worth(found: Sequence[Finding]) -> list[Finding]:
    """Return those that are worth a cure; one that says so where none of them is."""
    kept = [f for f in found if f.gain is None or _gains(f.gain)]
    if not found or any(f.gain for f in kept) or len(kept) == len(found):
        return kept
    most = max((f for f in found if f.gain), key=lambda f: f.gain.value if f.gain else 0.0)
    text = f"{most.symptom}; no cure is shown to gain more than {WORTH - 1:.0%}"
    return [*kept, dataclasses.replace(most, cause=NOTHING, symptom=text, remedy="")]


def _gains(gain: Interval) -> bool:
    """Return whether a cure is worth it, and seen to be: its limits, if any, do not hold 1."""
    return gain.value >= WORTH and (not gain.limited or gain.low > 1)


def _missing(rule: Rule, scene: Scene) -> Iterator[Unjudged]:
    """Yield a rule whose rungs this case has not measured, and the run that would."""
    regime = scene.limit.regime
    if scene.cache not in rule.caches or (regime and rule.regimes and regime not in rule.regimes):
        return
    for stage, cache in rule.needs:
        if why := _why_missing(scene, stage, cache or scene.cache):
            yield Unjudged(scene.case.case, scene.cache, rule.cause, why)
            return


def _why_missing(scene: Scene, stage: str, cache: str) -> str:
    """Return why a rung has no figure and which run would give it, "" where it has one."""
    case = scene.case
    timed = case.metadata and case.metadata.whole_files
    if stage == "files" and (timed or case.format != "jpeg"):
        return ""
    served = {"compute": roofline.COMPUTE, "ceiling": roofline.STORAGE}.get(stage)
    if served in scene.roofs or case.rate(stage, cache) or case.rate(stage, "-"):
        return ""
    known = case.stages.get(stage)
    if not known:
        return f"add {stage} to the ladder's stages"
    rung = known.caches.get(cache)
    if isinstance(rung, NoRate):
        return rung.reason
    where = f"{stage} {cache}".removesuffix(" -")
    return known.reason or f"{where} was not measured: add {stage} to the ladder's stages"


def _order(finding: Finding) -> tuple[bool, bool, bool, float]:
    """Sort by gain, then what has none that is known, then cautions, then what needs no cure."""
    gain = finding.gain.value if finding.gain else 0.0
    last = finding.cause == NOTHING, finding.cause in _CAUTIONS
    return *last, finding.gain is None, -gain
