"""What the analysis finds about one case, as values.

The fields' names are the keys of ``analysis.json``.  An estimate is an ``Interval``, or a subclass
of it where more is known; its limits are infinite where there are too few repeats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from iobench.analysis.storage_results import (
    MetadataResult,
    ServersCacheResult,
    SteadyResult,
    StorageResult,
)
from iobench.analysis.trainer_results import ComputeRoof, CopyResult, MlperfResult
from iobench.equations.stats import Interval

#: What rounds to more than 1 is no utilisation.
MOST_AU = 1.005


@dataclasses.dataclass(frozen=True)
class RateResult:
    """The rate of one rung at one cache state; ``outliers`` are the ids of trials."""

    n: int
    samples_per_s: Interval
    seconds_per_sample: Interval
    bytes_per_s: float | None
    standing: str
    outliers: Sequence[str]


@dataclasses.dataclass(frozen=True)
class NoRate:
    """A planned rung without a figure, and why."""

    n: int = 0
    samples_per_s: None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class StageResult:
    """One stage of the ladder: cache state -> rate; ``reason``: why the case cannot run it."""

    caches: Mapping[str, RateResult | NoRate] = dataclasses.field(metadata={"inline": True})
    reason: str = dataclasses.field(default="", metadata={"optional": True})


@dataclasses.dataclass(frozen=True)
class NoStall:
    """A stall that cannot be computed, and why."""

    value: None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class StallResult(Interval):
    """A stall in seconds a sample; see :class:`iobench.equations.stalls.Stall`."""

    bound_s: float
    paired: bool
    standing: str


@dataclasses.dataclass(frozen=True)
class FetchStall(StallResult):
    """T(cold) - T(warm); ``waited_s`` is the difference of the waits alone."""

    waited_s: Interval


@dataclasses.dataclass(frozen=True)
class PrepStall(StallResult):
    """T(warm) - T(compute), and its two parts."""

    wait_s: Interval
    contention_s: Interval


@dataclasses.dataclass(frozen=True)
class NoCommunication:
    """The cost of several ranks where it cannot be computed, and why."""

    ranks: int
    value: None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class CommunicationResult(Interval):
    """What a step of several ranks takes longer than one rank's, in seconds a step.

    ``exchange_s``: what the trainers themselves count for exchanging gradients, of the rank that
    waits least in it (None: they report no exchange).  ``waited_s``: its part after the last rank
    has all of its gradients, which nothing hides; ``peers_s``: what the rank that waits longest
    waits for that one (both None: the trainer does not part them).  ``efficiency``: that of weak
    scaling, 0..1; None where nothing is exchanged, or where several ranks were no slower than one.
    """

    ranks: int
    reason: str
    paired: bool
    standing: str
    step_s: float
    alone_step_s: float
    exchange_s: float | None
    efficiency: float | None
    waited_s: float | None = None
    peers_s: float | None = None


@dataclasses.dataclass(frozen=True)
class LimitResult:
    """What limits a case at one cache state; rates in samples/s.

    ``roofs``: the mean rate of each.  ``regime`` None: ``reason`` says why nothing is named.
    ``storage_roof``: bandwidth, IOPS or latency of the mount, where its storage binds.
    """

    roofs: Mapping[str, float]
    binding: str | None = None
    regime: str | None = None
    rate: float | None = None
    headroom: float | None = None
    next: str | None = None
    words: str | None = None
    storage_roof: str | None = None
    predicted_samples_per_s: Interval | None = None
    measured_samples_per_s: Interval | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class BytesResult:
    """Bytes a sample, cold; ``counter`` names what counted those from storage."""

    needed_per_sample: float | None
    read_per_sample: float | None
    storage_per_sample: float | None
    read_amplification: float | None
    counter: str


@dataclasses.dataclass(frozen=True)
class StartupResult(Interval):
    """The start-up in seconds, and the mean of each of its parts."""

    process_s: float
    imports_s: float
    open_s: float
    walk_s: float
    first_batch_s: float


@dataclasses.dataclass(frozen=True)
class WaitResult:
    """Waits of the steps after the warm-up, in seconds; ``taken``: for a batch that was there."""

    steps: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    taken: float = 0.0  # 0: not known


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """The serial probe: mean seconds a sample of each part, and its share (0..1)."""

    seconds: Mapping[str, float]
    shares: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Seconds of many samples."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclasses.dataclass(frozen=True)
class SampleTimes:
    """What samples took while the pipeline ran; ``parts``: read, decode, transform.

    ``slowest``: ``id`` and ``seconds`` of the slowest ones.  ``effective``: their effective
    number (:func:`iobench.equations.stats.effective`), small where few take most of the time.
    """

    samples: int
    effective: float
    parts: Mapping[str, Spread]
    all: Spread
    slowest: Sequence[Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class HeadOfLine:
    """What delivering batches in order cost.

    ``loss_s``: seconds a sample that the order cost, by a replay of the measured times of all
    batches and steps without it.  ``held_s``: seconds a sample that the loop waited while a later
    batch was made already.  ``gain``: how many times faster in_order = false is expected to be.
    """

    loss_s: Interval
    held_s: Interval
    gain: Interval


@dataclasses.dataclass(frozen=True)
class NoHeadOfLine:
    """Why that is not known."""

    loss_s: None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class HandoverResult:
    """Seconds a batch to bring it from another process: medians over trials, and the mean."""

    batches: int
    median: float
    mean: float
    copy: float
    wake: float


@dataclasses.dataclass(frozen=True)
class Validity:
    """How many trials were planned and ran, how they ended, and why some do not count."""

    planned: int
    run: int
    statuses: Mapping[str, int] = dataclasses.field(metadata={"inline": True})
    reasons: Mapping[str, int]
    attempts: int | None = dataclasses.field(default=None, metadata={"optional": True})


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """Facts of the first usable record; "", 0 or None: not seen.

    ``cpu_count``: what ``os.cpu_count()`` says, limits left out.  ``threads``: library -> threads
    of its pool.  ``mounted``: how the image was.  ``load_cpu_s``, ``compute_cpu_s``: CPU seconds a
    sample of warm loading, and of the compute rung.  ``faults``: major page faults a sample, cold.
    ``rank_cores``: the fewest of a rank, ``bound_rank``; ``core_share``: its node has for each.
    ``container``: what it does to I/O (:mod:`iobench.host.container_io`).  ``store``: filesystem
    of the container engine's images and upper layers.
    """

    cpu_count: int = 0
    threads: Mapping[str, int] = dataclasses.field(default_factory=dict)
    shm_bytes: int = 0
    memory_bytes: int = 0
    fstype: str = ""
    mounted: str = ""
    load_cpu_s: float | None = None
    compute_cpu_s: float | None = None
    faults: float | None = None
    rank_cores: int = 0
    bound_rank: str = ""
    core_share: int = 0
    container: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    store: str = ""


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """Everything a suite finds about one case; ``case`` is its label.

    ``compute_from``: the case whose compute rung serves this one ("": its own).
    ``decoding_threads``: those of a rank that read and decode; 0: nothing is read, or not known.
    ``device``: where its loader decodes.
    """

    case: str
    pipeline: str
    runtime: str
    format: str
    loader: str
    trainer: str
    order: str
    transform: str
    decoder: str
    batch: int
    workers: int
    prefetch: int
    world_size: int
    sharing: str
    placement: str
    cpus: float
    memory_bytes: int
    fixed_threads: bool
    decoding_threads: int
    cores: int | None
    stages: Mapping[str, StageResult]
    compute_from: str
    comm: CommunicationResult | NoCommunication | None
    fetch_stall_s: FetchStall | NoStall
    prep_stall_s: PrepStall | NoStall
    au: Mapping[str, Interval | None]
    limits: Mapping[str, LimitResult]
    storage: StorageResult | None
    metadata: MetadataResult | None
    steady: SteadyResult | None
    servers_cache: ServersCacheResult | None
    compute_roof: ComputeRoof | None
    copy_s: CopyResult | None
    mlperf: MlperfResult | None
    bytes: BytesResult
    startup_s: StartupResult | None
    step_wait_s: Mapping[str, WaitResult | None]
    probe: ProbeResult | None
    sample_s: Mapping[str, SampleTimes]
    head_of_line: Mapping[str, HeadOfLine | NoHeadOfLine]
    handover_s: HandoverResult | None
    harness_step_s: float | None
    remarks: Sequence[str]
    validity: Validity
    seen: Surroundings
    device: str = "cpu"

    def utilisation(self, cache: str) -> Interval | None:
        """Return AU of a cache state (``warm``: also of a pipeline without files); None if unknown.

        One above 1, rounded, is none: the compute rung was slower than training itself.
        """
        found = self.au.get(cache) or (self.au.get("-") if cache == "warm" else None)
        return found if found and 0 <= found.value < MOST_AU else None

    def rate(self, stage: str, cache: str) -> Interval | None:
        """Return samples/s of a rung at exactly this cache state; None where not measured."""
        rungs = self.stages.get(stage)
        rung = rungs.caches.get(cache) if rungs else None
        return rung.samples_per_s if rung else None
