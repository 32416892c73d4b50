"""What a trial measured, as stored: one record an attempt, raw values only."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence, Tuple

from iobench.core.cases import SCHEMA, Trial

VALID, EXPLORATORY, INVALID, FAILED = "VALID", "EXPLORATORY", "INVALID", "FAILED"
#: What is known of caches past this host: nothing, or that nobody has read the files since they
#: were written; of these, that none of the nodes that read them wrote them.
UNKNOWN, FIRST_TOUCH, BY_ANOTHER = "unknown", "first touch", "written by another node"


@dataclasses.dataclass(frozen=True)
class Steps:
    """Raw clock readings of the measured loop, seconds since the loop began, one entry a step."""

    request_s: Sequence[float] = ()  # the loop asked for a batch
    ready_s: Sequence[float] = ()  # it has it
    done_s: Sequence[float] = ()  # the trainer is done with it
    samples: Sequence[int] = ()
    bytes: Sequence[int] = ()
    warmup: int = 0  # so many steps are stored and excluded from every rate
    # Seconds of the step, of ranks that exchange gradients (else empty):
    peers_s: Sequence[float] = ()  # it waited for ranks that had more to do before
    exchange_s: Sequence[float] = ()  # it waited for the exchange itself
    # Clock of the step's batch, where the loader gives it (else empty):
    begun_s: Sequence[float] = ()  # whoever makes it began
    made_s: Sequence[float] = ()  # and was done


#: Of a stage without a measured loop.
NO_STEPS = Steps()


@dataclasses.dataclass(frozen=True)
class Startup:
    """What happens once, before the loop, in seconds; never mixed into throughput."""

    imports_s: float = 0.0
    open_s: float = 0.0  # dataset, loader, trainer
    first_batch_s: float = 0.0  # from an empty queue to the first batch (inside the loop)
    process_s: float = 0.0  # interpreter start until ready
    walk_s: float = 0.0  # once through the whole dataset, where a loader was asked to


@dataclasses.dataclass(frozen=True)
class IoCounters:
    """/proc/self/io and rusage of the worker and its reaped children over the loop."""

    rchar: int = 0  # bytes of read() calls
    read_bytes: int = 0  # what this process tree made block devices deliver, mmap included
    major_faults: int = 0
    cpu_user_s: float = 0.0
    cpu_sys_s: float = 0.0
    machine_busy_s: float = 0.0  # /proc/stat, all cores, everybody
    machine_steal_s: float = 0.0
    wall_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        """CPU seconds that the rank used, in the kernel too."""
        return self.cpu_user_s + self.cpu_sys_s

    @property
    def foreign_cpu_s(self) -> float:
        """CPU seconds that others used inside this machine meanwhile, at least 0.

        /proc/stat counts in ticks (10 ms a core), so a few hundredths of a second are noise.
        """
        return max(0.0, self.machine_busy_s - self.cpu_s)


@dataclasses.dataclass(frozen=True)
class RankResult:
    """What one worker process writes."""

    rank: int
    world_size: int
    host: str
    pid: int
    steps: Steps = NO_STEPS
    startup: Startup = Startup()
    io: IoCounters = IoCounters()
    ids_digest: str = ""  # multiset of the sample ids that the loop saw
    order_digest: str = ""  # the same ids in their order
    ids_sum: str = ""  # the multiset again, so that sums over ranks compare with other ranks'
    samples_digest: str = ""  # digest stage only: (id, label, digest of the bytes), any order
    bytes_needed: int = 0
    began_s: float = 0.0  # CLOCK_MONOTONIC as the loop began: one clock for a host's ranks
    fingerprint: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    probe: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    #: Of single samples in the loop: id, read_s, decode_s, transform_s (``worker/sample_times``).
    sample_times: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""
    schema: int = SCHEMA


@dataclasses.dataclass(frozen=True)
class CacheProof:
    """Page-cache evidence for one trial; fractions 0..1 of the pages of the files it reads."""

    label: str = ""  # data-cold, client-cold, warm or fraction
    method: str = ""  # cachestat or mincore
    resident_before: Optional[float] = None
    resident_after: Optional[float] = None
    bytes_needed: int = 0
    bytes_read: int = 0
    bytes_storage: Optional[int] = None  # crossed the mount during the loop; None: not countable
    counter: str = ""  # what counted them, or why nothing does
    bytes_resident: Optional[int] = None  # of the data, in the page cache after the trial
    others_bytes: Optional[int] = None  # of a counter of everybody's traffic: the others' share, by
    # the mount's rate just before; None: it counts our own processes alone
    messages_bytes: int = 0  # at most so many of those bytes are a protocol's own
    arms: int = 1  # of its block, whose bytes the counter counted together
    caches: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of a client's own: bytes
    held: bool = False  # the pages that its state has in memory were locked
    unheld: str = ""  # why they were not
    cold_bytes_per_s: Optional[float] = None  # one stream's from storage, where it was measured
    programs: str = ""  # whose own files may be among them: the image's, the trainer's program's
    beyond: str = UNKNOWN  # caches past this host: a server's, a virtual disk's
    unseen: str = ""  # what on this host may hold data in memory that nobody can look into


@dataclasses.dataclass(frozen=True)
class NodeRecord:
    """One node's part in a trial; the CPU seconds there are in the counters of its ranks."""

    node: str
    ranks: Sequence[int]
    cache: CacheProof  # of its own page cache, and of its own ranks' bytes
    mount: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mount_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)  # while it ran


@dataclasses.dataclass(frozen=True)
class Slices:
    """When an arm of a block ran while the others were stopped, by the clock of ``began_s``.

    ``thawed``: (before the first SIGCONT, when all threads that work had been sent SIGSTOP), a
    slice each.  ``stop_s``: from there until all of its processes were seen stopped.  ``thaw_s``:
    from the first SIGCONT until the last was sent, 0 where one was for all.
    """

    thawed: Sequence[Tuple[float, float]]
    stop_s: Sequence[float]
    thaw_s: Sequence[float]
    processes: int = 0
    others_cpu_s: float = 0.0  # CPU seconds of the other arms and the driver meanwhile


@dataclasses.dataclass(frozen=True)
class Record:
    """One attempt at one trial, as stored: ``runs/<trial>.<attempt>.json``.

    What grows with steps is in a file a rank beside it: :mod:`iobench.host.columns`.
    """

    trial: Trial
    attempt: int
    status: str
    reasons: Tuple[str, ...]
    started: str  # ISO 8601, UTC
    wall_s: float  # of what ran at once, an equal share
    cache: CacheProof  # of several nodes: the worst residency, all bytes
    ranks: Tuple[RankResult, ...] = ()
    nodes: Tuple[NodeRecord, ...] = ()
    ceiling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mount: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    runtime: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # image, mode, version
    ready_s: float = 0.0  # from the launch until every rank had its libraries: start-up
    slices: Optional[Slices] = None  # of an arm that took turns with others
    host: str = ""  # the driver's; a rank in a container may have another name
    job: str = ""  # number of the batch job
    at_once: int = 1  # attempts that ran at once: all arms of a block that took turns
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    schema: int = SCHEMA
