"""The protocols of the six axes, and the value each backend file ends with.

A backend is one file in its axis's folder that ends in one ``BACKEND = ...Backend(...)``.  Its
options are the typed keyword-only parameters of ``make``; nothing else in the tree is edited.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import (
    Any,
    Callable,
    FrozenSet,
    Generic,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
)

from iobench.model import Batch, Dataset, Extent, IoCounters, Scalar

T = TypeVar("T", covariant=True)
#: Told of what is under way, in words, a line at a time.
Say = Callable[[str], None]


# -- format: the bytes on disk ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StoredSample:
    """A sample on its way into a format.  ``data``: JPEG bytes, or (h, w, 3) uint8 when raw."""

    id: int
    key: str  # relative path without suffix: "n03/000017"
    data: Any
    label: int


class Reader(Protocol):
    """An opened stored form.  Picklable *before* first use; opens its files lazily, in the process
    that reads (a DataLoader worker), so a fork never shares a handle."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Tuple[Any, int]:
        """Return (data, label): data is a bytes-like JPEG, or (h, w, 3) uint8.

        It may be a view of the reader's memory, good until :meth:`close`.
        """
        ...

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the file ranges that ``read(index)`` must fetch, in the order it does."""
        ...

    def close(self) -> None: ...


class Format(Protocol):
    """Writes and opens one layout of bytes."""

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write all samples under ``root`` (an empty folder); ids ascend from 0 without a gap."""
        ...

    def open(self, dataset: Dataset, root: Path) -> Reader: ...

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return every data file of this stored form (the page cache is controlled on these)."""
        ...


# -- loader: who reads and makes batches -----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LoadRequest:
    """Everything a loader needs to make the batches of one epoch on one rank.

    ``ids``: this rank's sample numbers in the order wanted (int64, whole batches only).
    ``labels``, ``sizes``: label and encoded bytes of every sample (int64, indexed by id).
    ``stage``: ``read``, ``decode`` or ``load`` (``train`` asks for ``load``).
    ``rank``, ``world_size``: whose ``ids`` these are, for a loader that shares out the data itself;
    ``sharing``: ``stride`` (ids are r, r + n, ... of the order) or ``disjoint`` (its r-th n-th).
    ``digest``: the untimed twin; batches carry one digest a sample.
    ``root``: folder of the stored form.  ``device``: ``cpu`` or ``cuda``.
    """

    dataset: Dataset
    format_name: str
    format: Format
    root: Path
    ids: Any
    labels: Any
    sizes: Any
    stage: str = "load"
    batch: int = 64
    workers: int = 2
    prefetch: int = 2
    transform: str = "rrc224"
    seed: int = 0
    epoch: int = 0
    order: str = "shuffled"
    device: str = "cpu"
    digest: bool = False
    decode_delay_s: float = 0.0
    rank: int = 0
    world_size: int = 1
    sharing: str = "stride"


class Loader(Protocol):
    """Makes the batches of one epoch.

    ``make`` brings its workers up as far as it can, opens nothing of the dataset, fills no queue.
    """

    #: Batches that can wait in the prefetch queue: the measured loop discards at least as many.
    queue_batches: int
    # It may have ``in_pieces = True``: no queue, read in the loop, several batches at a time.

    def batches(self) -> Iterator[Batch]:
        """Begin on an empty queue and yield ``len(ids) // batch`` batches, once."""
        ...

    def close(self) -> None:
        """Stop and reap the workers (their I/O then counts in this process); harmless twice."""
        ...

    # It may have ``describe() -> Mapping[str, Scalar]`` too: facts for the record; ``processes()``:
    # ids of those it runs; ``walk()``: what it does once with all samples before the first batch.


# -- trainer: who consumes batches -----------------------------------------------------------


class Trainer(Protocol):
    """Consumes batches.

    One that ``feeds_itself`` (a program with its own data layer) has two methods instead of
    ``step``: ``feed(loader, request, warmup=)`` trains on what the loader would have read,
    ``replay(request, seconds=)`` on nothing; both return what the measured loop does.
    """

    feeds_itself: bool
    #: Device its batches should be on: "cpu" or "cuda".
    device: str

    def step(self, batch: Batch) -> None:
        """Do one step; return when it is complete (synchronised)."""
        ...

    def sync(self) -> None:
        """Wait for everything that was started."""
        ...

    def describe(self) -> Mapping[str, Scalar]:
        """Return facts for the fingerprint: parameters, threads, step_s, device ..."""
        ...

    def close(self) -> None: ...


# -- runtime, launcher, filesystem -----------------------------------------------------------


#: Where an image has its (empty) mount points, and a worker finds things inside a container.
DATA_INSIDE, WORK_INSIDE, CODE_INSIDE = "/iobench/data", "/iobench/work", "/iobench/code"
JPEG_INSIDE, PLUGINS_INSIDE = "/iobench/jpeg", "/iobench/plugins"
#: Set for every worker, to the name of its start: the driver holds its standard input, which closes
#: when that dies.
HELD = "IOBENCH_HELD"
#: A traced worker asks for these two paths, which are nowhere, before and after its loop.
CALLS_BEGIN, CALLS_END = "/iobench/calls-begin", "/iobench/calls-end"


@dataclasses.dataclass(frozen=True)
class Mount:
    """A host folder, and where a runtime shows it; read-only unless it says ``writable``.

    ``kind``: ``bind``; or ``host`` is a file that holds a filesystem, for a runtime that mounts
    such files (``RuntimeBackend.data_images``): ``image`` shows that filesystem's folder
    ``inside``, ``overlay`` lays all of it over the image.
    """

    host: Path
    inside: str
    writable: bool = False
    kind: str = "bind"


@dataclasses.dataclass(frozen=True)
class Start:
    """What one start asks of a runtime.

    ``image``: the image in the form that the runtime takes (a tag, a .sif file, a folder).
    ``name``: unique on this machine, for runtimes whose containers are stopped by name.
    ``cpus``, ``memory_bytes``, ``shm_bytes``: limits, 0: none.  ``gpus``: show the GPUs.
    """

    image: str = ""
    mounts: Sequence[Mount] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    shm_bytes: int = 0
    gpus: bool = False


class Runtime(Protocol):
    """Where a worker runs."""

    def available(self) -> str:
        """Return "" when it can run here, else the reason with the remedy."""
        ...

    def form(self) -> str:
        """Return the form of image it runs: docker, podman, sif, rootfs; "" for none."""
        ...

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return the command that runs ``command`` in this runtime; pure, a new list."""
        ...

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return facts for the record: the runtime's version, how the image is mounted."""
        ...

    def stop(self, name: str) -> None:
        """End what a killed ``argv`` may leave behind; harmless when there is nothing."""
        ...


class Launcher(Protocol):
    """How ranks start."""

    def available(self) -> str: ...

    def argv(self, command: Sequence[str], *, world_size: int) -> List[str]:
        """Return the command that starts ``world_size`` ranks of ``command``; pure, a new list."""
        ...

    def rank(self, env: Mapping[str, str]) -> Tuple[int, int]:
        """Return (rank, world size) from a worker's environment."""
        ...


class Filesystem(Protocol):
    """Knows how to describe, count and control one kind of mount."""

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return facts of the mount under ``path``: fstype, mount point, options, device ..."""
        ...

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return the mount's own byte counters ({} when it has none); differences tell traffic."""
        ...

    def storage_bytes(self, io: IoCounters) -> Tuple[Optional[int], str]:
        """Return (bytes the process tree made cross this mount or None, counter's name)."""
        ...

    def cold(self) -> str:
        """Return "" when eviction makes this mount cold, else the reason why it cannot be."""
        ...


# -- the value a backend file ends with ------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Backend(Generic[T]):
    """``make``: the constructor; ``requires``: modules that must be importable for it to run.

    ``image``: the image, or on bare metal the stack of that name, that it can run in; "": any.
    """

    make: Callable[..., T]
    summary: str
    requires: Tuple[str, ...] = ()
    image: str = ""


@dataclasses.dataclass(frozen=True)
class FormatBackend(Backend[Format]):
    """``contents``: ``jpeg`` (encoded); where it can hold pixels, ``raw``; Caffe's ``float``.

    ``fileless``: nothing on disk, so no cache state and no ceiling.
    ``mapped``: reads go through mmap (the ceiling says so: fio cannot replay that as it is).
    """

    contents: FrozenSet[str] = frozenset({"jpeg"})
    fileless: bool = False
    mapped: bool = False


@dataclasses.dataclass(frozen=True)
class LoaderBackend(Backend[Any]):
    """``make(request, **options) -> Loader``.

    ``stages``: rungs that can run alone.  ``no_stage``: why one cannot.  ``formats``: stored forms
    it takes (None: any).  ``native``: those it reads with its own reader.  ``transforms``: those it
    can do (None: any); ``no_transform``: why no other.  ``threads``: of one whose decoding threads
    are not to be chosen, their number: a case's ``workers`` is that (0: as the case says).
    """

    stages: FrozenSet[str] = frozenset({"read", "decode", "load"})
    no_stage: Mapping[str, str] = dataclasses.field(default_factory=dict)
    formats: Optional[FrozenSet[str]] = None
    native: FrozenSet[str] = frozenset()
    #: Stored form -> the orders it can follow there; a form that is not named follows any.
    orders: Mapping[str, FrozenSet[str]] = dataclasses.field(default_factory=dict)
    #: Stored form -> how it can share the data among ranks; one that is not named: any way.  An
    #: empty set: one rank only.
    sharings: Mapping[str, FrozenSet[str]] = dataclasses.field(default_factory=dict)
    transforms: Optional[FrozenSet[str]] = None
    no_transform: str = ""
    threads: int = 0
    #: Serial probe: (request, samples) -> read_s, decode_s, transform_s, one entry a sample.
    probe: Optional[Callable[[LoadRequest, int], Mapping[str, Sequence[float]]]] = None


@dataclasses.dataclass(frozen=True)
class TrainerBackend(Backend[Any]):
    """``make(*, batch, **options) -> Trainer``; where it takes them also ``rank``, ``world_size``,
    ``sharers`` (ranks of the case on this host's cores) and ``labels`` (classes in the data).

    ``step_s``: (batch, options) -> a first guess of one step, for the estimate of a suite's time.
    ``shape``: options -> the shape of a sample that its net takes (None: any).
    ``ranks``: several of them make sense: they exchange gradients (then ``describe()`` has
    ``comm_s``), or train nothing that would have to be one.
    ``loaders``: those that it goes with (None: any); one that feeds itself reads what they would.
    """

    loaders: Optional[FrozenSet[str]] = None
    step_s: Callable[[int, Mapping[str, Scalar]], float] = lambda batch, options: 0.0
    shape: Callable[[Mapping[str, Scalar]], Optional[Tuple[int, int, int]]] = lambda options: None
    ranks: bool = False


@dataclasses.dataclass(frozen=True)
class RuntimeBackend(Backend[Runtime]):
    """A runtime.

    ``isolated``: it shows a worker its own tree and the mounts only (see ``DATA_INSIDE``).
    ``limits``: for one that enforces ``Start.cpus`` and ``Start.memory_bytes`` itself: "" where it
    does, else why it would not.  None: the driver puts its processes into a control group.
    ``data_images``: for one that mounts a file that holds a filesystem: by what, ``squashfs`` (the
    kernel) or ``squashfuse``.  ``no_overlay``: why it cannot lay one over its image; "": it can.
    """

    isolated: bool = False
    limits: Optional[Callable[[], str]] = None
    data_images: Optional[Callable[[], str]] = None
    no_overlay: str = "it has no overlays"


class Failure(NamedTuple):
    """What a launcher says of the rank that failed first.

    ``code``: its exit status, negative for a signal.  ``said``: what the ranks themselves wrote to
    standard error, the launcher's own words taken out.
    """

    rank: int
    code: int
    said: str


@dataclasses.dataclass(frozen=True)
class LauncherBackend(Backend[Launcher]):
    """A launcher.

    ``inside``: it starts the ranks where they run, in the container (one node), not around it.
    ``variables``: what its ranks' environment gets where the user's own says nothing.
    ``failure``: (standard error) -> the rank that failed first, None where it does not say.
    ``images``: those that have it, for one that starts inside.
    """

    inside: bool = False
    images: FrozenSet[str] = frozenset()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    failure: Callable[[str], Optional[Failure]] = lambda text: None


@dataclasses.dataclass(frozen=True)
class FilesystemBackend(Backend[Filesystem]):
    """``fstypes``: names in /proc/self/mountinfo that this file knows (empty: the fallback)."""

    fstypes: FrozenSet[str] = frozenset()
