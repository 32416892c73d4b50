"""Causes in what a loader does with the bytes that it has read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from iobench.advise.findings import Diagnosis, Rule, Scene
from iobench.advise.rules.storage import ONE_THREAD, better
from iobench.advise.what_ifs import WHAT_IFS
from iobench.equations import pipeline, roofline, stalls

#: Loading that takes this share of the cores' time cannot be made faster by more workers.
SATURATED = 0.85


def prepared(scene: Scene) -> float:
    """Return samples/s that this case's loader prepares."""
    return min(scene.roofs[r] for r in (roofline.LOAD, roofline.DECODE) if r in scene.roofs)


def saturated(scene: Scene) -> bool:
    """Return whether loading needs more CPU time than there is; by its rate where none is known."""
    cpu_s, cores = scene.case.seen.load_cpu_s, scene.case.cores
    if not cores:
        return False
    if not cpu_s:
        return _wanted(scene) > cores
    return prepared(scene) * cpu_s > SATURATED * cores


def _wanted(scene: Scene) -> int:
    """Return the workers, or cores, that would prepare as fast as the compute takes."""
    each = prepared(scene) / max(scene.case.workers, 1) / scene.case.world_size
    return stalls.cores_needed(scene.roofs[roofline.COMPUTE], each)


def held(parts: pipeline.Parts) -> str:
    """Return that the cores hold no more workers, where they limit their number; else ""."""
    return f", as many as {parts.cores:g} cores hold" if parts.most < parts.compute else ""


def _symptom(scene: Scene) -> str:
    workers, ranks = max(scene.case.workers, 1), scene.case.world_size
    each = f" of each of {ranks} ranks" if ranks > 1 else ""
    who = f"{workers} workers{each} prepare" if workers > 1 else f"one worker{each} prepares"
    if scene.case.fixed_threads:
        who = f"one thread{each} prepares"
    takes = scene.roofs[roofline.COMPUTE]
    return f"{who} {prepared(scene):,.0f} samples/s, the compute takes {takes:,.0f}"


def _evidence(scene: Scene) -> dict[str, float | str | None]:
    return {
        "load samples/s": prepared(scene),
        "compute samples/s": scene.roofs[roofline.COMPUTE],
        "CPU seconds a sample": scene.case.seen.load_cpu_s or None,
        "cores": scene.case.cores,
    }


def _workers(scene: Scene) -> Iterator[Diagnosis]:
    if scene.case.fixed_threads or saturated(scene) or not scene.ahead or scene.few_slow:
        return
    if not scene.model:
        return
    ranks, parts = scene.case.world_size, scene.model.value
    each = math.ceil(pipeline.workers_useful(parts, ranks * scene.case.workers) / ranks)
    about = f"{each} a rank" if ranks > 1 else f"{each}"
    yield Diagnosis(
        _symptom(scene),
        f"raise workers to about {about}{held(parts)} (and check that it scales)",
        _evidence(scene),
        WHAT_IFS["workers"].gain(scene.model, each),
    )


def _cores(scene: Scene) -> Iterator[Diagnosis]:
    if scene.case.fixed_threads or not saturated(scene):
        return
    cpu_s, have = scene.case.seen.load_cpu_s, scene.case.cores
    wanted = math.ceil(scene.roofs[roofline.COMPUTE] * cpu_s) if cpu_s else _wanted(scene)
    yield Diagnosis(
        _symptom(scene),
        f"it needs about {wanted} cores and this job has {have}; ask for more cores, or prepare "
        "less per sample (raw or smaller images)",
        _evidence(scene),
        WHAT_IFS["cores"].gain(scene.model, wanted),
    )


def _one_thread(scene: Scene) -> Iterator[Diagnosis]:
    if scene.case.fixed_threads:
        remedy = f"{ONE_THREAD}, or store what needs less preparing"
        yield Diagnosis(_symptom(scene), remedy, _evidence(scene))


def _format(scene: Scene) -> Iterator[Diagnosis]:
    yield from better(scene, "load", "prepares")


def _decode_score(scene: Scene) -> Iterator[Diagnosis]:
    cold, warm = scene.case.rate("load", "cold"), scene.case.rate("load", "warm")
    read = scene.roofs.get(roofline.READ)
    if cold and warm and read and read > 2 * cold.value > warm.value:
        yield Diagnosis(
            f"loading cold gives {cold.value:,.0f} samples/s and warm {warm.value:,.0f}, while "
            f"reading alone gives {read:,.0f}",
            "do not take this rate for a figure of the storage: it is one of decoding; compare "
            "mounts by `read` and `ceiling`",
            {"load cold": cold.value, "load warm": warm.value, "read cold": read},
        )


_PREP = (roofline.PREP_BOUND,)
_LOADED = (("load", "warm"), ("compute", "-"))
_STALLS = "Mohan et al., Analyzing and mitigating data stalls in DNN training, VLDB 14(5), 2021"

RULES = (
    Rule("workers", "too few workers, on cores that have time left", _STALLS, _workers, _LOADED,
         _PREP),
    Rule("cores", "preparing takes more CPU time than the job has cores", _STALLS, _cores, _LOADED,
         _PREP),
    Rule("one thread", "a loader that prepares in one thread", _STALLS, _one_thread, _LOADED,
         _PREP),
    Rule("format", "another pipeline of this suite prepares faster", _STALLS, _format, _LOADED,
         _PREP),
)  # fmt: skip

#: No cause of slow training, but of a wrong reading of its figures.
CAUTIONS = (
    Rule("decode score", "a rate that looks like the storage's and is that of decoding",
         "docs/method.md, The ladder", _decode_score,
         (("read", "cold"), ("load", "cold"), ("load", "warm")), _PREP, ("cold",)),
)  # fmt: skip
