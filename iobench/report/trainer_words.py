"""A trainer under its roofline, and its utilisation by MLPerf Storage's rules, in words."""

from __future__ import annotations

from iobench.analysis.case_results import CaseResult
from iobench.report.numbers import limits, milliseconds, number, percent


def compute_roof(case: CaseResult) -> str:
    """Return a trainer's place under Williams' roofline; "" where it was not measured."""
    roof = case.compute_roof
    if roof is None:
        return ""
    text = (
        f"{number(roof.flop_per_sample / 1e9)} GFLOP a sample; with {roof.threads} "
        f"thread{'s' * (roof.threads > 1)} a GEMM gives {number(roof.peak_flops / 1e9)} GFLOP/s, a "
        f"triad {number(roof.memory_bytes_per_s / 1e9)} GB/s ({roof.by}, ridge at "
        f"{number(roof.ridge)} FLOP a byte)"
    )
    if roof.compute_flops:
        text += (
            f"; it computes at {number(roof.compute_flops / 1e9)} GFLOP/s, "
            f"{percent(roof.compute_flops / roof.peak_flops)} of that, which takes at least "
            f"{number(roof.least_intensity)} FLOP a byte"
        )
        if roof.compute_flops > roof.peak_flops:
            text += (
                "; more than the GEMM gave: other programs slowed it, or the library takes fewer "
                "products than are counted"
            )
    return f"{text}; {roof.traffic}"


def copies(case: CaseResult) -> str:
    """Return what copying a batch to the GPU takes; "" where it was not measured."""
    found = case.copy_s
    if found is None:
        return ""
    spread = limits(found.seconds, milliseconds)
    share = f", {percent(found.share)} of a step of compute" if found.share else ""
    return (
        f"copying a batch of {number(found.bytes / 1e6)} MB to the GPU takes "
        f"{milliseconds(found.seconds.value)} ms{f' ({spread})' if spread else ''}: "
        f"{number(found.bytes_per_s / 1e9)} GB/s from "
        f"{'pinned' if found.pinned else 'pageable'} memory{share}"
    )


def mlperf(case: CaseResult) -> str:
    """Return AU as MLPerf Storage counts it, with what of its rules was not kept; "" without."""
    found = case.mlperf
    if found is None:
        return ""
    spread = f" ({limits(found.au, _tenths)})" if found.au.limited else ""
    verdict = "reaches" if found.reached else "is below"
    if found.au.limited and found.au.low < found.floor <= found.au.high:
        verdict = f"by its mean alone {verdict}"
    short = "".join(f"; too small for its rules: {line}" for line in found.short)
    return (
        f"AU as MLPerf Storage counts it, {found.workload}: {_tenths(found.au.value)}{spread}, "
        f"which {verdict} the floor of {percent(found.floor)}; {found.accelerators} simulated "
        f"accelerator{'s' * (found.accelerators > 1)}, {found.epochs} "
        f"epoch{'s' * (found.epochs > 1)} of {found.steps} steps, "
        f"{number(found.samples_per_s)} samples/s, "
        f"{number(found.samples_per_s * found.bytes / found.samples / 1e6)} MB/s{short}. "
        f"Not an MLPerf result"
    )


def _tenths(share: float) -> str:
    return f"{100 * share:.1f} %"
