"""Numbers and outcomes in words, the same in the terminal and in HTML."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

MIB = 2**20
NONE = "n/a"
#: A stall whose whole interval is below this share of the time is none.
NEGLIGIBLE = 0.05
#: Calls that are always told of a difference.
CALLS = ("open", "read")


def number(x: float | None, digits: int = 3) -> str:
    """Return a figure with ``digits`` significant ones and thousands separated."""
    if x is None:
        return NONE
    if x == 0 or not math.isfinite(x):
        return "0" if x == 0 else "unbounded"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(x))))
    return f"{x:,.{min(decimals, 6)}f}"


def percent(x: float | None) -> str:
    """Return a fraction as a percentage with two or three significant digits."""
    if x is None:
        return NONE
    return f"{100 * x:.0f} %" if abs(x) >= 0.1 else f"{100 * x:.1f} %"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as ms, to the microsecond where small."""
    if seconds is None:
        return NONE
    ms = 1e3 * seconds
    if abs(ms) < 5e-4:
        return "0"
    return f"{ms:.3f}" if abs(ms) < 1 else f"{ms:.2f}"


def limits(entry: Mapping[str, Any] | None, form: Any = number) -> str:
    """Return ``low to high`` of an estimate, "" where there are none."""
    if not entry or entry.get("low") is None or entry.get("high") is None:
        return ""
    return f"{form(entry['low'])} to {form(entry['high'])}"


def value(entry: Mapping[str, Any] | None, form: Any = number) -> str:
    """Return an estimate's point, or n/a."""
    return form(entry["value"]) if entry and entry.get("value") is not None else NONE


def rate(case: Mapping[str, Any], stage: str, cache: str) -> Mapping[str, Any] | None:
    """Return the estimate of a rung's samples/s, None where it was not measured.

    ``warm`` also finds a pipeline without files, whose cache state is ``-``.
    """
    rungs = case["stages"].get(stage, {})
    for name in (cache, "-") if cache == "warm" else (cache,):
        entry = rungs.get(name)
        if isinstance(entry, Mapping) and entry.get("samples_per_s"):
            found: Mapping[str, Any] = entry["samples_per_s"]
            return found
    return None


def rungs(case: Mapping[str, Any]) -> int:
    """Return how many of the rungs that read data have a figure."""
    return sum(
        any(rate(case, stage, cache) for cache in ("cold", "warm"))
        for stage in ("read", "decode", "load", "train")
    )


def au(case: Mapping[str, Any], cache: str) -> str:
    """Return AU of a cache state, two decimals."""
    entry = case["au"].get(cache) or (case["au"].get("-") if cache == "warm" else None)
    return f"{entry['value']:.2f}" if entry else NONE


def stall_share(case: Mapping[str, Any], kind: str) -> float | None:
    """Return a stall's share of the run's time: fetch of the cold run, prep of the warm one."""
    stall = case[f"{kind}_stall_s"]
    train = rate(case, "train", "cold" if kind == "fetch" else "warm")
    if stall.get("value") is None or not train:
        return None
    return float(stall["value"] * train["value"])


def stall(case: Mapping[str, Any], kind: str) -> str:
    """Return ``24 % (0.89 to 1.04 ms)``; n/a without figures.

    Where the interval holds 0: none seen, or not resolved when it holds over 5 % of the time too.
    """
    entry = case[f"{kind}_stall_s"]
    if entry.get("value") is None:
        return NONE
    spread = limits(entry, milliseconds)
    share = stall_share(case, kind)
    said = percent(share)
    if no_stall(entry):
        widest = max(abs(entry["low"]), abs(entry["high"])) / abs(entry["value"] or 1)
        small = not entry["value"] or abs(share or 0) * widest <= NEGLIGIBLE
        said = "none seen" if small else "not resolved"
    return f"{said} ({spread} ms)" if spread else f"{said} ({milliseconds(entry['value'])} ms)"


def no_stall(entry: Mapping[str, Any]) -> bool:
    """Tell whether a stall's interval holds 0."""
    return (
        entry.get("low") is not None
        and entry.get("high") is not None
        and entry["low"] <= 0 <= entry["high"]
    )


def communication(case: Mapping[str, Any]) -> str:
    """Return one line on what several ranks cost: their step, one rank's, and the difference.

    "" for one rank, and where nothing was planned that could tell.
    """
    found = case.get("comm")
    if not found:
        return ""
    if found["value"] is None:
        return f"communication n/a: {found['reason']}"
    spread = limits(found, milliseconds)
    own = found["exchange_s"]
    count = "" if own is None else f"; the exchange of gradients takes {milliseconds(own)} ms of it"
    step, alone = milliseconds(found["step_s"]), milliseconds(found["alone_step_s"])
    more = milliseconds(found["value"]) + (f" ({spread})" if spread else "")
    return (
        f"a step takes {step} ms on {found['ranks']} ranks and {alone} ms on one: communication, "
        f"and what they take from each other, {more} ms, "
        f"efficiency {percent(found['efficiency'])}{count}"
    )


def outcome(contrast: Mapping[str, Any]) -> str:
    """Return one sentence: who, by how much, how sure, and what could have been seen."""
    arm, base = contrast["arm"], contrast["base"]
    if contrast["ratio"] is None:
        return f"{arm} against {base}: {contrast['note']}"
    spread = limits(contrast["simultaneous"])
    text = {
        "FASTER": f"{arm} is {_faster(contrast['ratio'])} {base}",
        "SLOWER": f"{arm} takes {number(contrast['ratio'])} x the time of {base}",
        "EQUIVALENT": f"{arm} and {base} are within {percent(contrast['margin'])} of each other",
        "INCONCLUSIVE": f"{arm} against {base} is not resolved: {contrast['pairs_needed']} more "
        "pairs are needed",
    }.get(contrast["verdict"], f"{arm} against {base}: no verdict ({contrast['note']})")
    return f"{text} (time ratio {number(contrast['ratio'])}{', ' + spread if spread else ''})"


def _faster(ratio: float) -> str:
    return (
        f"{percent(1 / ratio - 1)} faster than"
        if ratio > 0.5
        else f"{number(1 / ratio)} x as fast as"
    )


def sentence(contrast: Mapping[str, Any], *, brief: bool = False) -> str:
    """Return the whole result of one contrast in one line; ``brief``: what differs is only counted.

    ``torch:lmdb load cold: docker / bare = 1.004 [0.996, 1.012], 12 pairs, EQUIVALENT within 3 %;
    start-up +0.41 s [0.38, 0.45]; confounders: none.``
    """
    what = f"{contrast['case']} {contrast['stage']} {contrast['cache'].strip('-')}".strip()
    arms = f"{contrast['arm_name']} / {contrast['base_name']}"
    if contrast["ratio"] is None:
        return f"{what}: {arms}: {contrast['note']}."
    spread = bracketed(contrast["simultaneous"])
    text = f"{what}: {arms} = {contrast['ratio']:.3f}{' ' + spread if spread else ''}, "
    pairs = f"{contrast['pairs']} pair{'s' * (contrast['pairs'] != 1)}"
    text += f"{pairs}, {verdict(contrast)}"
    count = len(contrast["confounders"]["differences"])
    if brief and count:
        other = f"confounders: {count}, listed below"
    else:
        other = f"confounders: {differing(contrast)}"
    parts = [text, startup(contrast), staging(contrast), *explained(contrast)]
    parts.append(other)
    if not brief:
        parts.append(contrast["not_separated"])
    return "; ".join(p for p in parts if p) + "."


def verdict(contrast: Mapping[str, Any]) -> str:
    """Return the verdict with what it needs to be read: its margin, what could be seen, why not."""
    said = str(contrast["verdict"])
    if said == "EQUIVALENT":
        return f"{said} within {percent(contrast['margin']).replace('.0', '')}"
    if said == "INCONCLUSIVE":
        seen = "" if contrast["smallest_effect"] is None else f", could see {resolved(contrast)}"
        return f"{said}{seen}, {contrast['pairs_needed']} more pairs needed"
    return f"{said} ({contrast['note']})" if said == "EXPLORATORY" and contrast["note"] else said


def startup(contrast: Mapping[str, Any]) -> str:
    """Return ``start-up +0.41 s [0.38, 0.45]``, "" where it was not recorded."""
    entry = contrast.get("startup_s")
    if not entry:
        return ""
    spread = bracketed(entry, 2)
    return f"start-up {entry['value']:+.2f} s{' ' + spread if spread else ''}"


def remarks(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each remark on how a case was measured once, with the cases it holds for."""
    grouped: dict[str, list[str]] = {}
    for case in cases:
        for text in case.get("remarks") or ():
            grouped.setdefault(text, []).append(case["case"])
    return [f"{', '.join(who)}: {text}" for text, who in grouped.items()]


def handover(case: Mapping[str, Any]) -> str:
    """Return what bringing a batch from another process cost, "" where none was brought.

    ``6.31 ms a batch to bring it from another process (copy 6.25, wake-up 0.061)``
    """
    found = case.get("handover_s")
    if not found:
        return ""
    copy, wake = milliseconds(found["copy"]), milliseconds(found["wake"])
    whole = milliseconds(found["median"])
    return f"{whole} ms a batch to bring it from another process (copy {copy}, wake-up {wake})"


def staging(contrast: Mapping[str, Any]) -> str:
    """Return ``3.1 s to make (141 MB), pays after 12 epochs (9 to 20)``, "" where nothing was."""
    found = contrast.get("staging")
    if not found:
        return ""
    cost = f"{number(found['seconds'])} s to make ({found['bytes'] / 1e6:,.0f} MB)"
    if found["pays_after_epochs"] is None:
        return f"{cost}, never pays" if contrast["ratio"] is not None else cost
    text = f"{cost}, pays after {number(found['pays_after_epochs'])} epochs"
    if found["low"] is None:
        return text
    last = "never" if found["high"] is None else number(found["high"])
    return f"{text} ({number(found['low'])} to {last})"


def attribution(contrast: Mapping[str, Any]) -> str:
    """Return the stage that a FASTER or SLOWER comes from, or why none is named; else ""."""
    found = contrast.get("attribution")
    if not found:
        return ""
    if not found["stage"]:
        return f"not attributed: {found['reason']}"
    part = found["parts"][found["stage"]]
    ms = f"{1e3 * part['value']:+.3f} ms a sample"
    return f"attributed to {found['stage']} ({ms} in the serial probe)"


def calls(contrast: Mapping[str, Any]) -> str:
    """Return the system calls of a difference: open(), read(), and up to three more that differ.

    ``calls a sample: open() 1.0 against 1.0, read() 2.0 against 4.0``
    """
    found = contrast.get("calls")
    if not found:
        return ""
    if found["reason"]:
        return f"calls n/a: {found['reason']}"
    names = [*CALLS, *[n for n in found["differing"] if n not in CALLS][:3]]
    arm, base = found["arm"], found["base"]
    said = [f"{n}() {arm.get(n, 0.0):.1f} against {base.get(n, 0.0):.1f}" for n in names]
    return f"calls a sample: {', '.join(said)}"


def work(contrast: Mapping[str, Any]) -> str:
    """Return what a sample cost each arm of a difference, "" where there is none.

    ``a sample: CPU 6.12 ms against 3.20 (kernel 0.310 against 0.050), 107 KiB against 112 from
    storage, 421 KiB against 0 by read()``
    """
    found = contrast.get("work")
    if not found or contrast["verdict"] not in ("FASTER", "SLOWER"):
        return ""
    arm, base = found["arm"], found["base"]
    cpu, kernel = (
        f"{milliseconds(arm[name])} ms against {milliseconds(base[name])}"
        for name in ("cpu_s", "system_s")
    )
    storage, read = (
        f"{_kib(arm[name])} KiB against {_kib(base[name])}"
        for name in ("storage_bytes", "read_bytes")
    )
    parts = [f"CPU {cpu} (kernel {kernel})"]
    if None not in (arm["storage_bytes"], base["storage_bytes"]) and contrast["cache"] != "warm":
        parts.append(f"{storage} from storage")
    return f"a sample: {', '.join([*parts, f'{read} by read()'])}"


def _kib(count: float | None) -> str:
    return NONE if count is None else f"{count / 1024:,.0f}"


def explained(contrast: Mapping[str, Any]) -> list[str]:
    """Return everything that explains a difference, each in a few words; [] where there is none."""
    return [text for text in (attribution(contrast), work(contrast), calls(contrast)) if text]


def capitalised(text: str) -> str:
    """Return the text with a capital first letter, the others as they are."""
    return text[:1].upper() + text[1:]


def bracketed(entry: Mapping[str, Any] | None, decimals: int = 3) -> str:
    """Return ``[0.996, 1.012]``, "" where a limit does not exist."""
    if not entry or entry.get("low") is None or entry.get("high") is None:
        return ""
    return f"[{entry['low']:.{decimals}f}, {entry['high']:.{decimals}f}]"


def differing(contrast: Mapping[str, Any]) -> str:
    """Return the confounders: ``none``, ``unknown``, or what differs."""
    found = contrast["confounders"]
    names = "; ".join(found["differences"])
    return names or {"PASS": "none"}.get(found["status"], "unknown")


def confounders(contrast: Mapping[str, Any]) -> str:
    """Return PASS, or CONFOUNDED with what differs."""
    found = contrast["confounders"]
    names = "; ".join(found["differences"])
    return f"{found['status']}: {names}" if names else str(found["status"])


def ratio(outcome: Mapping[str, Any], digits: int = 3) -> str:
    """Return ``0.82 (0.79 to 0.85)``, the simultaneous interval where the pairs allow one."""
    spread = limits(outcome["simultaneous"], functools.partial(number, digits=digits))
    return number(outcome["ratio"], digits) + (f" ({spread})" if spread else "")


def resolved(contrast: Mapping[str, Any]) -> str:
    """Return the smallest effect that noise and pairs could have resolved."""
    effect = contrast["smallest_effect"]
    return NONE if effect is None else percent(effect)


def who(cases: Mapping[str, Sequence[str]]) -> str:
    """Return ``torch:lmdb (cold, warm), dali:jpeg (warm)``."""
    return ", ".join(f"{name} ({', '.join(caches)})" for name, caches in cases.items())


def grouped_advice(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (who, text) of every different advice, in order."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for line in lines:
        by_case = grouped.setdefault(line["text"], {})
        by_case.setdefault(line["case"], []).append(line["cache"])
    return [(who(cases), text) for text, cases in grouped.items()]


def validity(document: Mapping[str, Any]) -> str:
    """Return one line: how many trials count, and why others do not."""
    v = document["validity"]
    parts = [f"{v['VALID']} of {v['planned']} trials VALID"]
    parts += [f"{v[s]} {s}" for s in ("EXPLORATORY", "INVALID", "FAILED") if v[s]]
    if v["planned"] > v["run"]:
        parts.append(f"{v['planned'] - v['run']} not run: `iobench run --resume`")
    for name, check in (("samples", "same_samples"), ("bytes", "same_bytes")):
        found = document["checks"][check]
        if found["ok"] is False:
            parts.append(f"the {name} were NOT the same everywhere: {found['reason']}")
    return ", ".join(parts)


def data(document: Mapping[str, Any]) -> str:
    """Return one line on the dataset."""
    d = document["dataset"]
    mean = d["mean_bytes"]
    size = f" of {mean / 1024:,.0f} KiB" if mean else ""
    return f"{d['name']}: {d['samples']:,} samples{size}"
