"""One trial from the driver's side: start it, set and prove the cache state, release, judge.

The driver never imports what it measures.  The worker imports its libraries first and says
``ready``; only then is the page cache controlled and proven, so the proof is milliseconds old when
the clock starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iobench import ceiling, inside, pagecache, registry, starting, strace, world
from iobench.cacheproof import judge
from iobench.dataset import form_root
from iobench.errors import (
    BackendUnavailable,
    CacheStateError,
    ImageError,
    SpecError,
    TrialFailed,
)
from iobench.model import (
    EXPLORATORY,
    FAILED,
    INVALID,
    VALID,
    CacheProof,
    Dataset,
    IoCounters,
    Placement,
    RankResult,
    Record,
    Trial,
    to_json,
)
from iobench.mounts import describe_mount, filesystem_for
from iobench.placements import dataset_of
from iobench.process import Settings, Worker, worker_of
from iobench.timing import clock

__all__ = ["IN_PLACE", "Settings", "run_trial"]

_READ_DATA = ("ceiling", "read", "decode", "load", "train", "probe")
IN_PLACE = "read in place: others may read, change or cache the user's own files meanwhile"
_MISSING = "`iobench data verify` says what else is; restore it, or make the dataset again"
_NO_REASONS: tuple[str, ...] = ()


def run_trial(trial: Trial, dataset: Dataset, attempt: int, settings: Settings) -> Record:
    """Run one attempt and return its record; a trial that fails is a record too.

    Raises only what stops a whole suite: KeyboardInterrupt, and IobenchErrors about the results.
    """
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    begun = clock()
    place = settings.placements.get(trial.case.location)
    dataset = dataset_of(dataset, place)
    files = _files(trial, dataset, place)
    where = files[0] if files else Path(dataset.root)  # files read in place may lie elsewhere
    _, filesystem = filesystem_for(where)
    proof = CacheProof()
    ranks: tuple[RankResult, ...] = ()
    ceiling_result: Mapping[str, Any] = {}
    status, reasons = VALID, _NO_REASONS
    notes: dict[str, Any] = {}
    runtime: Mapping[str, Any] = {}
    ready_s = 0.0
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        work = Path(folder)
        try:
            if trial.stage != "ceiling":
                runtime = starting.record_of(trial.case, settings.images)
            with worker_of(trial, dataset, work, settings, place) as worker:
                ready_s = worker.wait_ready()
                if trial.stage != "ceiling":
                    prepare = _prepare_inside if worker.inside else _prepare
                    proof = prepare(trial, files, worker, settings)
                mount_before = dict(filesystem.counters(where))
                with _traced(trial, worker) as traced:
                    worker.release()
                    ranks = worker.results()
                mount_after = filesystem.counters(where)
            if trial.stage == "ceiling":
                proof, ceiling_result = _ceiling(trial, worker, files, settings)
                mount_after = filesystem.counters(where)
            notes["mount_bytes"] = {k: mount_after[k] - v for k, v in mount_before.items()}
            if place and worker.inside:
                proof = inside.after(proof, ranks, place)
            else:
                proof = _after(trial, proof, files, ranks, filesystem)
            proof = _without_image(trial, proof, runtime)
            status, reasons = _judge(trial, proof, ranks, ceiling_result)
            notes.update(world.note(ranks))
            if traced is not None and status == VALID:
                notes["calls"] = traced.note(ranks)
                status, reasons = strace.standing(notes["calls"])
            if dataset.in_place and status == VALID and trial.stage in _READ_DATA:
                status, reasons = EXPLORATORY, (IN_PLACE,)
        except CacheStateError as error:
            status, reasons = INVALID, (str(error),)
        except (TrialFailed, BackendUnavailable, ImageError, SpecError) as error:
            status, reasons = FAILED, (str(error),)
    return Record(
        trial=trial,
        attempt=attempt,
        status=status,
        reasons=tuple(reasons),
        started=started,
        wall_s=clock() - begun,
        cache=proof,
        ranks=ranks,
        ceiling=ceiling_result,
        mount=describe_mount(where),
        runtime=runtime,
        ready_s=ready_s,
        notes=notes,
    )


def _files(trial: Trial, dataset: Dataset, place: Placement | None) -> list[Path]:
    """Return the files on this host whose pages are the data's."""
    case = trial.case
    if place and place.inside:
        return [Path(place.files)] if Path(place.files).is_file() else []
    form = registry.load("formats", case.format).make(**case.format_options)
    files: list[Path] = form.files(dataset, form_root(dataset, case.stored_form))
    return files


def _prepare(trial: Trial, files: Sequence[Path], worker: Worker, settings: Settings) -> CacheProof:
    """Bring the files into the trial's cache state and measure what was reached.

    Raises TrialFailed for one that is missing or that cannot be read.
    """
    if trial.cache == "-" or not files:
        return CacheProof()
    try:
        return _brought(trial, files, worker, settings)
    except FileNotFoundError as error:
        raise TrialFailed(f"{error.filename} is missing: {_MISSING}") from None
    except OSError as error:
        raise TrialFailed(f"{error.filename or 'the data'}: {error.strerror}; {_MISSING}") from None


def _brought(trial: Trial, files: Sequence[Path], worker: Worker, settings: Settings) -> CacheProof:
    label = trial.cache
    if trial.cache == "cold":
        pagecache.evict(files)
        label = "data-cold"
        if settings.allow_drop_caches:
            pagecache.drop_caches(allowed=True)
            label = "client-cold"
    elif trial.cache == "warm":
        pagecache.check_warmable(sum(f.stat().st_size for f in files))
        pagecache.warm(files)  # also what is resident: kernels reclaim what was not read lately
    else:
        found = pagecache.set_fraction(
            worker.extents(), float(trial.cache), trial.case.seed, files=files
        )
        return CacheProof("fraction", found.method, found.fraction)
    found = pagecache.residency(files)
    return CacheProof(label, found.method, found.fraction)


def _prepare_inside(
    trial: Trial, files: Sequence[Path], worker: Worker, settings: Settings
) -> CacheProof:
    """Have the worker bring the data into the state, then the file that holds them where cold."""
    seen = worker.prepared()
    host = CacheProof()
    if trial.cache == "cold":
        host = _prepare(trial, files, worker, settings)
    return inside.before(trial.cache, host, seen)


def _ceiling(
    trial: Trial, worker: Worker, files: Sequence[Path], settings: Settings
) -> tuple[CacheProof, Mapping[str, Any]]:
    """Read the same extents in the same order with fio."""
    case = trial.case
    proof = _prepare(trial, files, worker, settings)
    result = ceiling.run(
        ceiling.plan(
            worker.extents(), jobs=max(case.workers, 1) * case.world_size, batch=case.batch
        ),
        work=worker.work / "fio",
        mapped=registry.load("formats", case.format).mapped,
        read_ahead=bool(case.format_options.get("readahead", True)),
        limit_s=settings.limit_s,
        enter=settings.enter,
    )
    return dataclasses.replace(proof, bytes_storage=result.storage_bytes), to_json(result)


def _after(
    trial: Trial,
    proof: CacheProof,
    files: Sequence[Path],
    ranks: Sequence[RankResult],
    filesystem: Any,
) -> CacheProof:
    if trial.cache == "-" or not files:
        return proof
    found = dataclasses.replace(
        proof,
        resident_after=pagecache.residency(files).fraction,
        bytes_needed=sum(r.bytes_needed for r in ranks),
    )
    if trial.stage == "ceiling":  # fio read the files, not the ranks; its count is read_bytes
        counts = filesystem.storage_bytes(IoCounters())[0] is not None
        return found if counts else dataclasses.replace(found, bytes_storage=None)
    counted = [filesystem.storage_bytes(r.io) for r in ranks]
    storage = [n for n, _ in counted]
    return dataclasses.replace(
        found,
        bytes_read=sum(r.io.rchar for r in ranks),
        bytes_storage=None if None in storage else sum(n for n in storage if n is not None),
        counter=counted[0][1] if counted else "",
    )


def _without_image(trial: Trial, proof: CacheProof, runtime: Mapping[str, Any]) -> CacheProof:
    """Return a warm proof without the bytes of programs' own files, where they may count as data's.

    A container's code is paged in while the loop runs, and every mount of a SIF begins with none
    of it cached: those bytes count as the worker's.  So do those of a program that a trainer
    starts.  Data that are wholly resident before and after were not read from storage.
    """
    whose = "the image's own files" if runtime.get("form") else ""
    if trial.stage == "train" and registry.load("trainers", trial.case.trainer).make.feeds_itself:
        whose = whose or "the trainer's program"
    resident = proof.resident_before == proof.resident_after == 1.0
    if not whose or trial.cache != "warm" or not resident or not proof.bytes_storage:
        return proof
    counter = f"{proof.counter}, without {proof.bytes_storage} of {whose}"
    return dataclasses.replace(proof, bytes_storage=0, counter=counter)


def _judge(
    trial: Trial,
    proof: CacheProof,
    ranks: Sequence[RankResult],
    ceiling_result: Mapping[str, Any],
) -> tuple[str, tuple[str, ...]]:
    errors = world.errors(ranks)
    if errors:
        return FAILED, errors
    if parted := world.parted(ranks):
        return INVALID, (parted,)
    if trial.stage == "ceiling":
        if ceiling_result["invalid"]:
            return INVALID, (ceiling_result["invalid"],)
        return judge(trial.cache, trial.stage, proof)
    if trial.stage == "digest":
        wrong = sum(int(r.notes.get("wrong_digests", 0)) for r in ranks)
        if wrong:
            return INVALID, (f"{wrong} samples are not the dataset's: run `iobench data verify`",)
        return VALID, ()
    if trial.stage in ("compute", "alone", "calls") or trial.cache == "-":
        return VALID, ()
    if trial.stage != "probe" and not sum(sum(r.steps.samples) for r in ranks):
        return INVALID, ("the loop saw no sample: fewer samples than one batch?",)
    return judge(trial.cache, trial.stage, proof)


def _traced(trial: Trial, worker: Worker) -> contextlib.AbstractContextManager[strace.Trace | None]:
    """Return what counts the worker's system calls, where the trial is for that."""
    if trial.stage != "calls":
        return contextlib.nullcontext()
    return strace.trace(worker.processes(), worker.work)
