"""Causes below the loader: the mount, and what a format asks of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from iobench.advise.findings import Diagnosis, Rule, Scene
from iobench.advise.forecast import model
from iobench.advise.what_ifs import WHAT_IFS, other_pipeline
from iobench.equations import roofline, stalls
from iobench.equations.storage import BANDWIDTH, IOPS, LATENCY, METADATA

MIB = 2**20
#: Reading this many times the bytes needed is worth a line.
AMPLIFIED = 1.2
#: Another pipeline has to be this much faster to be recommended on ladder numbers.
WORTH_MOVING = 1.2
#: A format of one file a sample that gets less than this share of fio's rate pays for its files.
FILES_SHARE = 0.5
#: Above this share of a cold file's time its open and close bind, not its bytes.
METADATA_SHARE = 0.5
#: Formats that are read through a memory map.
MAPPED = ("lmdb",)
#: Filesystems on which a page fault is a request to a server.
NETWORK = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "fuse.sshfs", "cifs", "smb3", "ceph", "9p")
#: A loader that decodes in one thread gains nothing from more workers.
ONE_THREAD = "this loader has one thread: use another loader"


_STAGE = "stage the data to a faster filesystem (local disk, burst buffer, tmpfs)"
#: What a mount's own limit asks for.
_REMEDIES = {
    BANDWIDTH: _STAGE,
    IOPS: "ask for more bytes a request: pack the samples into few files and read them in stored "
    f"order (tar), or {_STAGE}",
    METADATA: "open fewer files: pack the samples into few (tar, LMDB, HDF5), or " + _STAGE,
    LATENCY: f"keep more requests in flight: raise workers; or {_STAGE}",
}


def supply(scene: Scene) -> float:
    """Return samples/s that reading can give."""
    return min(scene.roofs[r] for r in (roofline.READ, roofline.STORAGE) if r in scene.roofs)


def demand(scene: Scene) -> float:
    """Return samples/s that the rest of the job could use."""
    return min(scene.roofs[r] for r in (roofline.LOAD, roofline.COMPUTE) if r in scene.roofs)


def _short(scene: Scene) -> bool:
    return supply(scene) < demand(scene)


def _storage(scene: Scene) -> Iterator[Diagnosis]:
    need = scene.case.bytes.needed_per_sample
    if not need or not _short(scene):
        return
    rate, wanted = supply(scene), demand(scene)
    remedy = _REMEDIES[scene.limit.storage_roof or BANDWIDTH]
    warm = scene.case.limits["warm"].roofs.get(roofline.READ)
    if warm and rate < wanted < warm:
        share = stalls.cache_needed(warm, rate, wanted, wanted)
        remedy += (
            f"; about {math.ceil(100 * share)} % of the data cached would end the fetch stall too"
        )
    mount = scene.case.storage
    named = f"; {mount.words}" if mount and scene.limit.storage_roof else ""
    seen = {f"{name} roof, samples/s": roof for name, roof in mount.roofs.items()} if mount else {}
    yield Diagnosis(
        f"reading gives {rate * need / MIB:,.0f} MiB/s and the job could use "
        f"{wanted * need / MIB:,.0f}{named}",
        remedy,
        {"read samples/s": rate, "wanted samples/s": wanted, "bytes a sample": need, **seen},
        WHAT_IFS["cached"].gain(scene.model),
    )


def _turns(scene: Scene) -> Iterator[Diagnosis]:
    if _short(scene):
        return
    enough = f"reading alone would do ({supply(scene):,.0f} samples/s)"
    evidence = {"read samples/s": supply(scene), "load cold": scene.roofs.get(roofline.LOAD_COLD)}
    if scene.case.fixed_threads:
        yield Diagnosis(
            f"{enough}, but one thread reads and prepares in turn",
            f"{ONE_THREAD}, or store what needs less preparing",
            evidence,
        )
        return
    yield Diagnosis(
        f"{enough}, but {_readers(scene)} and prepare in turn",
        "raise workers so that some read while others prepare",
        evidence,
        WHAT_IFS["workers"].gain(scene.model, 2 * max(scene.case.workers, 1)),
    )


def _readers(scene: Scene) -> str:
    workers = scene.case.workers
    if workers > 1:
        return f"{workers} workers read"
    return "one worker has to read" if workers else "the training loop itself has to read"


def _requests(scene: Scene) -> Iterator[Diagnosis]:
    if scene.limit.binding != roofline.READ or not _short(scene):
        return
    ceiling = scene.roofs.get(roofline.STORAGE)
    evidence = {"read samples/s": scene.roofs[roofline.READ], "fio samples/s": ceiling}
    if scene.case.fixed_threads:
        yield Diagnosis("one thread reads", f"{ONE_THREAD}, for more requests in flight", evidence)
    elif ceiling or scene.cache == "warm":
        yield Diagnosis(
            f"{_readers(scene)}, and asks for less than the mount could give"
            if scene.case.workers < 2
            else f"{scene.case.workers} workers ask for less than the mount could give",
            f"raise workers above {scene.case.workers}: more requests in flight",
            evidence,
            WHAT_IFS["workers"].gain(scene.model, 2 * max(scene.case.workers, 1)),
        )


def _files(scene: Scene) -> Iterator[Diagnosis]:
    case, ceiling = scene.case, scene.roofs.get(roofline.STORAGE)
    if case.format != "jpeg" or not ceiling or roofline.READ not in scene.roofs:
        return
    share = scene.roofs[roofline.READ] / ceiling
    if share < FILES_SHARE and _short(scene):
        packed = scene.model and scene.model.changed(
            lambda p: dataclasses.replace(p, read=max(p.read, ceiling))
        )
        yield Diagnosis(
            f"one file a sample: opening and reading them gets {share:.0%} of what fio gets from "
            "this mount",
            "pack the samples into few files: format lmdb, tar or hdf5",
            {"read samples/s": scene.roofs[roofline.READ], "fio samples/s": ceiling},
            scene.model.gain(packed) if scene.model and packed else None,
        )


def _cold_metadata(scene: Scene) -> Iterator[Diagnosis]:
    whole = scene.case.metadata.whole_files if scene.case.metadata else ()
    best = max(whole, key=lambda w: w.files_per_s.value, default=None)
    if best is None or best.share <= METADATA_SHARE or not _short(scene):
        return
    around, times = best.open_s.value + best.close_s.value, 1 / (1 - best.share)
    packed = scene.model and scene.model.changed(
        lambda p: dataclasses.replace(p, read=p.read * times, storage=p.storage * times)
    )
    yield Diagnosis(
        f"a cold file's open and close take {1e3 * around:.2f} ms and its bytes "
        f"{1e3 * best.read_s.value:.2f} ms: {best.share:.0%} of the time is its names'",
        "pack the samples into few files (tar, LMDB, HDF5); else keep names in memory between "
        "epochs and jobs (vm.vfs_cache_pressure, the mount's attribute timeout), and let more "
        "workers open at once",
        {
            "open s": best.open_s.value,
            "read s": best.read_s.value,
            "close s": best.close_s.value,
            "files/s": best.files_per_s.value,
            "read samples/s": scene.roofs.get(roofline.READ),
        },
        scene.model.gain(packed) if scene.model and packed else None,
    )


def _mapped(scene: Scene) -> Iterator[Diagnosis]:
    seen = scene.case.seen
    if scene.case.format in MAPPED and seen.fstype in NETWORK:
        yield Diagnosis(
            f"{scene.case.format} is read through a memory map on {seen.fstype}, where every page "
            "fault waits for a server",
            "copy it to a local disk first (placement staged), or use a format that is read in "
            "large pieces (tar, hdf5)",
            {"major faults a sample": seen.faults, "filesystem": seen.fstype},
            WHAT_IFS["cached"].gain(scene.model),
        )


def _amplified(scene: Scene) -> Iterator[Diagnosis]:
    factor = scene.case.bytes.read_amplification
    if factor and math.isfinite(factor) and factor > AMPLIFIED:
        yield Diagnosis(
            f"{factor:.1f} x the bytes needed come from storage (read-ahead, whole pages, files "
            "of programs)",
            "turn read-ahead down for this device or format, or read in stored order",
            {"read amplification": factor},
        )


def better(scene: Scene, stage: str, verb: str) -> Iterator[Diagnosis]:
    """Yield the pipeline of an equal case whose rung is the fastest, where it is worth moving."""
    cache = "warm" if stage == "load" else scene.cache
    mine = scene.case.rate(stage, cache)
    rates = [(r.value, i) for i, o in enumerate(scene.others) if (r := o.rate(stage, cache))]
    if not mine or not rates:
        return
    rate, which = max(rates)
    if rate > WORTH_MOVING * mine.value:
        best = scene.others[which]
        yield Diagnosis(
            f"{best.pipeline} {verb} {rate / mine.value:.1f} x as fast here {cache}",
            f"use {best.pipeline}",
            {f"{stage} {cache} samples/s": mine.value, f"of {best.pipeline}": rate},
            other_pipeline(scene.model, model(best, scene.cache, scene.suite)),
        )


def _format(scene: Scene) -> Iterator[Diagnosis]:
    if _short(scene):
        yield from better(scene, "read", "reads")


_FETCH = (roofline.FETCH_BOUND,)
_READ = (("read", ""), ("load", "warm"), ("compute", "-"))
_STALLS = "Mohan et al., Analyzing and mitigating data stalls in DNN training, VLDB 14(5), 2021"

RULES = (
    Rule(
        "storage", "the mount gives fewer bytes than the job could use", _STALLS, _storage, _READ,
        _FETCH, ("cold",),
    ),
    Rule(
        "turns", "the same workers read and prepare in turn", _STALLS, _turns, _READ, _FETCH,
        ("cold",),
    ),
    Rule(
        "requests", "too few requests in flight for what the mount could give",
        "Little's law: requests/s <= requests in flight / latency", _requests, _READ, _FETCH,
    ),
    Rule(
        "files", "one small file a sample, which costs a request and a look-up each",
        "Lim, Young, Patton 2016: image files over 17 x slower than a key-value store under Caffe",
        _files, (("ceiling", "cold"), ("read", "cold")), _FETCH, ("cold",),
    ),
    Rule(
        "cold metadata", "names are looked up anew, and take longer than the bytes",
        'docs/method.md, "Many files"; MDTest and IO500 measure the same of a filesystem',
        _cold_metadata, (("files", "cold"), *_READ), _FETCH, ("cold",),
    ),
    Rule(
        "mmap", "a memory map on a network filesystem",
        "Pumma et al.: LMDB's memory map under parallel training", _mapped, _READ, _FETCH,
        ("cold",),
    ),
    Rule(
        "amplified", "more bytes come from storage than the samples have",
        "docs/method.md, Bytes", _amplified, (), _FETCH, ("cold",),
    ),
    Rule("format read", "another pipeline of this suite reads faster", _STALLS, _format, _READ,
         _FETCH),
)  # fmt: skip
