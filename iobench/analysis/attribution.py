"""A difference -> the stage that it comes from, by serial probes of both arms.

Of ranks that exchange gradients first by the parts of the compared steps: loading, compute,
communication.  docs/method.md, "Attribution".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iobench.analysis.contrast_results import AttributionResult
from iobench.analysis.evidence import Evidence, usable
from iobench.analysis.hosts import together
from iobench.analysis.pairs import complete_pairs, proven
from iobench.analysis.ranks import COMMUNICATION, COMPUTE, LOADING, probed, step_parts
from iobench.core import registry, stages
from iobench.core.cases import Contrast
from iobench.core.errors import SpecError
from iobench.core.records import EXPLORATORY, Record
from iobench.equations import stats
from iobench.plan.blocks import group_of
from iobench.spec.schema import MIN_PROBES

#: A part of the probe -> the stage as people call it.
STAGE_NAMES = {"read_s": "read", "decode_s": "decode", "transform_s": "transform"}
#: A stage -> the parts of the probe that it runs; all of them where it is not named.
RUN = {"read": ("read_s",), "decode": ("read_s", "decode_s")}
FOUND = (stats.FASTER, stats.SLOWER)


def attribute(evidence: Evidence, contrast: Contrast, verdict: str) -> AttributionResult | None:
    """Return the attribution of a FASTER or SLOWER; None for another verdict, or without probes of
    ranks that exchange nothing.
    """
    if verdict not in FOUND:
        return None
    by_steps = _by_steps(evidence, contrast, verdict)
    if not contrast.probes or (by_steps and by_steps.stage != LOADING):
        return by_steps
    by_probes = _by_probes(evidence, contrast, verdict)
    return by_probes if by_probes.stage or by_steps is None else by_steps


def _by_probes(evidence: Evidence, contrast: Contrast, verdict: str) -> AttributionResult:
    """Return the attribution by the serial probes of both arms."""
    pairs = _pairs(evidence, contrast)
    if len(pairs) < MIN_PROBES:
        return AttributionResult("", _why_few(evidence, contrast, len(pairs)), len(pairs), {})
    deltas = {
        part: [arm[part] - base[part] for arm, base in pairs]
        for part in pairs[0][0]
        if part in RUN.get(contrast.stage, (part,))
        and all(part in side for pair in pairs for side in pair)
    }
    if not deltas:
        reason = f"the probes have no part that stage {contrast.stage} runs"
        return AttributionResult("", reason, len(pairs), {})
    return _of(deltas, len(pairs), verdict, "the serial probe")


def _by_steps(evidence: Evidence, contrast: Contrast, verdict: str) -> AttributionResult | None:
    """Return the attribution by what the compared steps consist of; None without exchanges."""
    if not stages.of(contrast.stage).trained:
        return None
    both = proven(complete_pairs(evidence, contrast))
    pairs = [(step_parts(pair.arm.ranks), step_parts(pair.base.ranks)) for pair in both]
    if not pairs or not all(arm and base for arm, base in pairs):
        return None
    deltas = {
        part: [arm[part] - base[part] for arm, base in pairs]
        for part in (LOADING, COMPUTE, COMMUNICATION)
    }
    return _of(deltas, len(pairs), verdict, "the compared steps")


def _of(
    deltas: Mapping[str, Sequence[float]], pairs: int, verdict: str, source: str
) -> AttributionResult:
    level = 1 - stats.ALPHA / len(deltas)
    found = {part: stats.hodges_lehmann(d, level=level) for part, d in deltas.items()}
    stage, reason = _name(deltas, found, 1 if verdict == stats.SLOWER else -1, source)
    parts = {STAGE_NAMES.get(p, p): interval for p, interval in found.items()}
    return AttributionResult(stage, reason, pairs, parts, source)


def can_probe(loader: str) -> str:
    """Return why a stage cannot be named for this loader; "" if it has a serial probe."""
    try:
        known = registry.load("loaders", loader).probe is not None
    except SpecError as error:  # results of a plug-in that is not here
        return str(error)
    return "" if known else f"loader {loader!r} has no serial probe"


def _name(
    deltas: Mapping[str, Sequence[float]],
    found: Mapping[str, stats.Interval],
    sign: int,
    source: str,
) -> tuple[str, str]:
    moved = [part for part, interval in found.items() if _beyond(interval, sign)]
    if not moved:
        way = "slower" if sign > 0 else "faster"
        return "", f"no stage alone is {way} beyond the noise of {source}"
    most = max(moved, key=lambda part: sign * found[part].value)
    for other in (part for part in deltas if part != most):
        apart = [a - b for a, b in zip(deltas[most], deltas[other], strict=True)]
        if not _beyond(stats.hodges_lehmann(apart), sign):
            one, two = (STAGE_NAMES.get(part, part) for part in (most, other))
            return "", f"{one} and {two} are not told apart"
    return STAGE_NAMES.get(most, most), ""


def _beyond(interval: stats.Interval, sign: int) -> bool:
    return interval.low > 0 if sign > 0 else interval.high < 0


def _pairs(
    evidence: Evidence, contrast: Contrast
) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
    """Return (arm, base) of every complete pair of proven probes: mean seconds of each part."""
    blocks: dict[int, dict[str, Record]] = {}
    for record in _probes(evidence, contrast):
        if record.status != EXPLORATORY and record.ranks and record.ranks[0].probe:
            blocks.setdefault(record.trial.block, {})[record.trial.arm] = record
    arm, base = contrast.arm, contrast.base
    whole = [(b[arm], b[base]) for _, b in sorted(blocks.items()) if {arm, base} <= {*b}]
    return [(_means(one), _means(other)) for one, other in whole if together(one, other)]


def _means(record: Record) -> Mapping[str, float]:
    return {part: sum(s) / max(1, len(s)) for part, s in probed(record).items()}


def _probes(evidence: Evidence, contrast: Contrast) -> list[Record]:
    wanted = group_of(contrast), stages.PROBE
    records = usable(evidence.last.values())
    return [r for r in records if (r.trial.contrast, r.trial.stage) == wanted]


def _why_few(evidence: Evidence, contrast: Contrast, pairs: int) -> str:
    loaders = {c.loader for c in evidence.plan.cases if c.label in (contrast.arm, contrast.base)}
    if reason := next(filter(None, map(can_probe, sorted(loaders))), ""):
        return reason
    probes = _probes(evidence, contrast)
    if unproven := next((r for r in probes if r.status == EXPLORATORY), None):
        return f"probes are EXPLORATORY: {'; '.join(unproven.reasons)}"
    return f"{pairs} pairs of probes, {MIN_PROBES} are needed: `iobench run --resume`"
