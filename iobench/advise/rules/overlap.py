"""Causes between parts that are fast enough alone: queues, order, and the cores that they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from iobench.advise.findings import NOTHING, Diagnosis, Rule, Scene
from iobench.advise.rules.preparing import held
from iobench.analysis.case_results import PrepStall
from iobench.core import registry
from iobench.equations import pipeline, roofline
from iobench.equations.stats import Interval

#: A pipeline at or above this AU needs no cure.
FINE_AU = 0.95
#: The hand-over of batches explains the waits where it is such a share of the mean one.
MOST = 0.5
#: Steps that keep less of a core busy than this have no thread pool to speak of.
BUSY = 0.5


def _idle(scene: Scene) -> Interval | None:
    """Return AU where the parts are fast enough alone and training is not, else None."""
    au = scene.case.utilisation(scene.cache)
    return au if scene.ahead and au is not None and au.value < FINE_AU else None


def _could(au: Interval) -> Interval:
    """Return how many times faster training with an AU of 1 is."""
    return au.inverse()


def _words(au: Interval) -> str:
    return f"the parts are fast enough alone, yet AU is {au.value:.2f}"


def _contended(scene: Scene) -> bool | None:
    """Return whether slower steps cost more than waits; None where it is not measured."""
    stall, waits = scene.case.prep_stall_s, scene.waits
    if not isinstance(stall, PrepStall) or not waits:  # or a program that reports no wait
        return None
    wait = stall.wait_s.value
    if scene.cache == "cold":  # the stall is of warm trials
        wait = waits.mean / (scene.case.batch * scene.case.world_size)
    return stall.contention_s.value > wait


def _handed(scene: Scene) -> bool:
    """Tell whether steps wait mostly for batches that are there, which no deeper queue cures."""
    if (waits := scene.waits) is None or _contended(scene) is not False:
        return False
    return waits.taken >= MOST * waits.mean > 0


def _waiting(scene: Scene) -> Interval | None:
    """Return AU where steps wait for batches that are not there yet, else None."""
    return None if _contended(scene) or _handed(scene) else _idle(scene)


def _evidence(scene: Scene) -> dict[str, float | str | None]:
    waits, stall = scene.waits, scene.case.prep_stall_s
    found: dict[str, float | str | None] = {"headroom": scene.limit.headroom}
    if waits:
        found |= {f"wait {name} s": getattr(waits, name) for name in ("mean", "p50", "p99", "max")}
    if isinstance(stall, PrepStall):
        found["contention s a sample"] = stall.contention_s.value
    return found


def _contention(scene: Scene) -> Iterator[Diagnosis]:
    if (au := _idle(scene)) and _contended(scene):
        yield Diagnosis(
            _words(au),
            "the loader takes cores from the steps; bind trainer and workers to different cores, "
            "or add a core",
            _evidence(scene),
            _could(au),
        )


def _hand_over(scene: Scene) -> Iterator[Diagnosis]:
    waits, au = scene.waits, _idle(scene)
    if au and waits and _handed(scene):
        yield Diagnosis(
            f"AU is {au.value:.2f}: a step waits {1e3 * waits.mean:.1f} ms, and for a batch that "
            f"is there {1e3 * waits.taken:.1f} ms",
            "give a batch fewer bytes (8-bit pixels, made floats by the trainer), or make batches "
            "in the trainer's process (threads, DALI); a deeper queue cures nothing",
            {**_evidence(scene), "wait for a batch that is there s": waits.taken},
            _could(au),
        )


def _slow_sample(scene: Scene) -> Iterator[Diagnosis]:
    waits, au = scene.waits, _waiting(scene)
    if au and waits and scene.few_slow:
        yield Diagnosis(
            f"AU is {au.value:.2f}: half of the steps wait less than {1e3 * waits.p50:.1f} ms, the "
            f"slowest {1e3 * waits.max:,.0f} ms",
            "a few slow samples hold up the batches behind theirs; find the largest files and "
            "shrink them, raise prefetch, or let batches overtake (in_order = false)",
            _evidence(scene),
            _could(au),
        )


def _made_ahead(scene: Scene) -> int:
    """Return how many batches are made ahead; as many as prefetch by a plug-in that is not here."""
    case = scene.case
    loader = registry.known("loaders", case.loader)
    return int(loader.ahead(max(case.workers, 1), case.prefetch)) if loader else case.prefetch


def _prefetch(scene: Scene) -> Iterator[Diagnosis]:
    au = _waiting(scene)
    if not au or scene.case.fixed_threads or _made_ahead(scene) > 1:
        return
    yield Diagnosis(
        f"{_words(au)}: at most one batch is made ahead (prefetch = {scene.case.prefetch}), and "
        "each that takes longer than a step is waited for",
        "raise prefetch (DataLoader(prefetch_factor=4), DALI's prefetch_queue_depth, MLPerf's "
        "prefetch_size) or workers",
        {"batches ahead": _made_ahead(scene), **_evidence(scene)},
        _could(au),
    )


def _queue(scene: Scene) -> Iterator[Diagnosis]:
    au = _waiting(scene)
    if not au or scene.few_slow or _made_ahead(scene) <= 1:
        return
    remedy = "steps wait for their batches; raise prefetch or the batch"
    if _contended(scene) is None:
        remedy = (
            "steps wait for their batches, or the loader takes cores from them; raise prefetch or "
            "the batch, or add a core"
        )
    yield Diagnosis(_words(au), remedy, _evidence(scene), _could(au))


def _alone(scene: Scene) -> Iterator[Diagnosis]:
    if scene.ahead or not scene.model:
        return
    parts = scene.model.value
    workers = pipeline.workers_useful(parts, 1)
    beside = scene.model.changed(
        lambda p: dataclasses.replace(p, ahead=True, load=pipeline.scaled(p, workers))
    )
    yield Diagnosis(
        f"nobody prepares while a step runs (workers = 0): {1e3 / parts.load:.2f} ms a sample of "
        f"loading and {1e3 / parts.compute:.2f} ms of compute add up",
        f"set workers to {workers} (DataLoader(num_workers={workers})){held(parts)}",
        {"load samples/s": parts.load, "compute samples/s": parts.compute},
        scene.model.gain(beside),
    )


def _oversubscribed(scene: Scene) -> Iterator[Diagnosis]:
    cores, ranks, seen = scene.case.cores, scene.case.world_size, scene.case.seen
    busy = (seen.compute_cpu_s or 0.0) * scene.roofs.get(roofline.COMPUTE, 0.0)
    wide = {k: n for k, n in seen.threads.items() if cores and n * ranks > cores}
    if wide and cores and busy > BUSY:
        pools = ", ".join(f"{library} {count}" for library, count in wide.items())
        each = max(1, cores // ranks)
        yield Diagnosis(
            f"thread pools are wider than the job's cores: {pools} threads"
            f"{f' in each of {ranks} ranks' if ranks > 1 else ''} on {cores} cores",
            f"set OMP_NUM_THREADS={each} (torch.set_num_threads({each}), cv2.setNumThreads(1))",
            {**wide, "cores": cores},
        )


def _fine(scene: Scene) -> Iterator[Diagnosis]:
    headroom, au = scene.limit.headroom, scene.case.utilisation(scene.cache)
    if headroom is None or _idle(scene) or not scene.ahead:
        return
    evidence = {"headroom": headroom, "AU": au.value if au else None}
    if headroom < roofline.TIE:
        yield Diagnosis(
            "data and compute are as fast as each other", "a faster accelerator would wait",
            evidence,
        )  # fmt: skip
        return
    gain = "nothing to gain from I/O here" if au else "nothing is seen to gain from I/O"
    why = "" if au else " (by the parts alone: AU is not known)"
    text = f"{gain}: data could feed an accelerator {headroom:.1f} x as fast{why}"
    yield Diagnosis(text, "", evidence)


_COMPUTE = (roofline.COMPUTE_BOUND,)
_TRAIN = (("train", ""), ("load", "warm"), ("compute", "-"))
_LOTUS = "Lotus, IISWC 2024: waits of batches that arrive out of order"

RULES = (
    Rule("no overlap", "nobody prepares batches while a step runs",
         "Shi, Wang, Chu, arXiv 1711.05979: without a pipeline the times add up", _alone,
         (("load", "warm"), ("compute", "-"))),
    Rule("contention", "the loader takes cores from the steps",
         "docs/method.md, Stalls: the contention part of the prep stall", _contention, _TRAIN,
         _COMPUTE),
    Rule("hand-over", "taking a batch that is there takes most of the wait",
         "docs/method.md, Stalls: the hand-over", _hand_over, _TRAIN, _COMPUTE),
    Rule("slow sample", "a few slow samples hold up the batches behind theirs",
         "MinatoLoader, arXiv 2509.10712: head-of-line blocking", _slow_sample, _TRAIN,
         (roofline.PREP_BOUND, *_COMPUTE)),
    Rule("prefetch", "no batch, or one alone, is made ahead of the steps",
         "PyTorch, torch.utils.data: prefetch_factor; tf.data guide: prefetching overlaps a step",
         _prefetch, _TRAIN, _COMPUTE),
    Rule("queue", "the queue of batches is too short for their spread", _LOTUS, _queue, _TRAIN,
         _COMPUTE),
    Rule("oversubscribed", "thread pools wider than the cores that the job has",
         "PyTorch, Performance Tuning Guide: OMP_NUM_THREADS", _oversubscribed),
    Rule(NOTHING, "the data come as fast as the compute takes them", "docs/method.md, Stalls",
         _fine, (("load", "warm"), ("compute", "-")), _COMPUTE),
)  # fmt: skip
