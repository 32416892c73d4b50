"""The protocols of the axes, and what crosses between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ContextManager, List, NamedTuple, Optional, Protocol, Tuple

from iobench.core.cases import Batch, Case, Dataset, Extent, Placement, Scalar
from iobench.core.errors import SpecError
from iobench.core.records import IoCounters
from iobench.core.striping import Spreading

#: Receives progress messages, one line at a time.
Say = Callable[[str], None]
#: Decodes one JPEG: bytes-like -> (height, width, 3) uint8 RGB, C order, the picture as it is
#: stored (docs/files.md).  Raises ValueError for what it cannot decode.  Picklable; one function
#: serves every thread.
Decode = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class StoredSample:
    """A sample on its way into a format."""

    id: int
    key: str  # relative path without suffix: "n03/000017"
    data: Any  # JPEG bytes, or (h, w, 3) uint8 when raw
    label: int


class Reader(Protocol):
    """An opened stored form.  Picklable *before* first use; opens its files lazily, in the process
    that reads (a DataLoader worker), so a fork never shares a handle."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Tuple[Any, int]:
        """Return (data, label): data is a bytes-like JPEG, or (h, w, 3) uint8.

        It may be a view of the reader's memory, good until :meth:`close`.
        """

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the file ranges that ``read(index)`` must fetch, in the order it does."""

    def close(self) -> None:
        """Close what this process opened.  Idempotent."""
        return


class Format(Protocol):
    """Writes and opens one layout of bytes."""

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write all samples under ``root`` (an empty folder); ids ascend from 0 without a gap."""

    def open(self, dataset: Dataset, root: Path) -> Reader: ...

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return every data file of this stored form (the page cache is controlled on these)."""


@dataclasses.dataclass(frozen=True)
class LoadRequest:
    """Everything a loader needs to make the batches of one epoch on one rank.

    ``rank``, ``world_size``: whose ``ids`` these are, for a loader that shares out the data itself;
    ``sharing``: ``stride`` (ids are r, r + n, ... of the order) or ``disjoint`` (its r-th n-th).
    ``digest``: the untimed twin; batches carry one digest a sample.
    """

    dataset: Dataset
    format_name: str
    format: Format
    root: Path  # folder of the stored form
    ids: Any  # this rank's samples in the order wanted, whole batches only; int64
    labels: Any  # of every sample, by id; int64
    sizes: Any  # encoded bytes, likewise
    stage: str = "load"  # or read, decode (the stage train asks for load)
    batch: int = 64
    workers: int = 2
    prefetch: int = 2
    transform: str = "rrc224"
    decoder: str = Case.decoder
    seed: int = 0
    epoch: int = 0
    order: str = "shuffled"
    device: str = "cpu"  # or cuda
    digest: bool = False
    decode_delay_s: float = 0.0
    rank: int = 0
    world_size: int = 1
    sharing: str = "stride"

    def batches(self) -> Any:
        """Return the ids batch by batch, int64 of shape (batches, ``batch``)."""
        count = len(self.ids) // self.batch
        import numpy as np

        return np.asarray(self.ids, np.int64)[: count * self.batch].reshape(count, self.batch)


class Loader(Protocol):
    """Makes the batches of one epoch.

    ``make`` brings its workers up as far as it can, opens nothing of the dataset, fills no queue.
    """

    #: Batches that can wait in the prefetch queue: the measured loop discards at least as many.
    queue_batches: int
    # It may have ``in_pieces = True``: no queue, read in the loop, several batches at a time.

    def batches(self) -> Iterator[Batch]:
        """Begin on an empty queue and yield ``len(ids) // batch`` batches, once."""

    def close(self) -> None:
        """Stop and reap the workers (their I/O then counts in this process).  Idempotent."""

    # It may have ``describe() -> Mapping[str, Scalar]`` too: facts for the record; ``processes()``:
    # ids of those it runs; ``walk()``: what it does once with all samples before the first batch.


class Trainer(Protocol):
    """Consumes batches; ranks that exchange gradients: :mod:`iobench.core.peers`.

    One that ``feeds_itself`` (a program with its own data layer) has two methods instead of
    ``step``: ``feed(loader, request, warmup=)`` trains on what the loader would have read,
    ``replay(request, seconds=)`` on nothing; both return what the measured loop does.
    """

    feeds_itself: bool = False
    #: Device its batches should be on: "cpu" or "cuda".
    device: str = "cpu"

    def step(self, batch: Batch) -> None:
        """Do one step; return when it is complete (synchronised)."""

    def sync(self) -> None:
        """Wait for everything that was started; nothing where a step is complete at its end."""
        return

    def describe(self) -> Mapping[str, Scalar]:
        """Return facts for the fingerprint: parameters, threads, step_s, device ..."""

    def close(self) -> None:
        """Free what is held.  Idempotent."""
        return


@dataclasses.dataclass(frozen=True)
class Mount:
    """A host folder, and where a runtime shows it; read-only unless ``writable``.

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
    """What one start asks of a runtime; limits of 0 are none."""

    image: str = ""  # in the form that the runtime takes: a tag, a .sif file, a folder
    mounts: Sequence[Mount] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: str = ""  # unique on this machine: some runtimes stop their containers by it
    cpus: float = 0.0
    memory_bytes: int = 0
    shm_bytes: int = 0
    gpus: bool = False  # show them
    passed: Sequence[str] = ()  # beginnings of variables of its own environment, shown inside too
    of_one_rank: bool = False  # of several: they share memory, and know each other by process id


class Runtime(Protocol):
    """Where a worker runs."""

    def available(self) -> str:
        """Return "" when it can run here, else the reason with the remedy."""
        return ""

    def form(self) -> str:
        """Return the form of image it runs: docker, podman, sif, rootfs; "" for none."""
        return ""

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return the command that runs ``command`` in this runtime; pure, a new list."""

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return facts for the record: the runtime's version, how the image is mounted."""
        return {}

    def lacks(self, image: str) -> str:
        """Return "" when this node has the image (in the runtime's form), else the reason."""
        return ""

    def stop(self, name: str) -> None:
        """End what a killed ``argv`` may leave on this node; nothing where all are its children."""

    def sweep(self, say: Say) -> None:
        """Remove what drivers of this node that were killed left with the runtime's daemon."""


@dataclasses.dataclass(frozen=True)
class Ranks:
    """What one start asks of a launcher.  Raises SpecError where they cannot be shared out."""

    count: int = 1
    hosts: Sequence[str] = ()  # the nodes that get equally many each, in this order; (): this one
    forward: Sequence[str] = ()  # names of variables that ranks on ``hosts`` get as they are here
    python: Sequence[str] = ()  # of a launcher inside a container: the interpreter there; (): ours
    contained: Callable[[Sequence[str]], List[str]] = list  # a command -> in the node's container
    outside: bool = False  # in no container, even where the launcher itself starts each rank in one

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SpecError(f"world_size = {self.count} is no number of ranks; use 1 or more")
        if self.hosts and self.count % len(self.hosts):
            why = f"is not divisible by {len(self.hosts)} nodes; set ranks_per_node"
            raise SpecError(f"world_size = {self.count} {why}")

    @property
    def on_each(self) -> int:
        """Number of ranks on each host."""
        return self.count // max(len(self.hosts), 1)


class Launcher(Protocol):
    """How ranks start; with ``by``: what starts it, and agents, once on each of several nodes."""

    #: Variables of a rank's environment: its rank, the number of ranks, its rank on its node.
    rank_variables: Tuple[str, str, str] = ("", "", "")

    def available(self) -> str:
        """Return "" when it can start ranks here, else the reason with the remedy."""
        return ""

    def argv(self, command: Sequence[str], ranks: Ranks) -> List[str]:
        """Return the command that starts ``ranks`` of ``command``; pure, a new list.

        Only one that has ``LauncherBackend.across`` gets hosts.  Raises SpecError.
        """

    def rank(self, env: Mapping[str, str]) -> Tuple[int, int]:
        """Return (rank, world size) from a worker's environment; (0, 1) without its variables."""
        return int(env.get(self.rank_variables[0], "0")), int(env.get(self.rank_variables[1], "1"))

    def local_rank(self, env: Mapping[str, str]) -> int:
        """Return the rank among those of its node."""
        return int(env.get(self.rank_variables[2], "0"))


class Crossed(NamedTuple):
    """What crossed a mount during a trial.

    ``nbytes``: None where nothing counts them; ``counter``: what counted, or then why nothing does.
    ``whole``: it counts everybody's traffic on the mount, and the protocol's own messages.
    """

    nbytes: Optional[int]
    counter: str
    whole: bool = False


class Filesystem(Spreading, Protocol):
    """Knows how to describe, count and control one kind of mount."""

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return facts of the mount under ``path``: fstype, mount point, options, device ..."""

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return the mount's own byte counters, {} if it has none; differences are its traffic."""
        return {}

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what came from storage: past the page cache and any cache of a client daemon.

        ``io``: the counters of our own processes, all ranks together.  ``moved``: the differences
        of :meth:`counters` over the same time; {} where none were read.
        """

    def cold(self) -> str:
        """Return "" when eviction makes this mount cold, else the reason why it cannot be."""

    # It may have ``caches() -> Mapping[str, int]``: name -> bytes, now, in its client's own memory.


@dataclasses.dataclass(frozen=True)
class Site:
    """What a placement may choose a place by."""

    dataset: Dataset
    form: str  # of the runtime's image: docker, podman, sif, rootfs; "": it does not matter
    image: str  # in this form
    stage_to: str  # the spec's
    say: Say


class Placing(Protocol):
    """Puts the data of some cases somewhere before the trials."""

    def shared_by(self, form: str, image: str) -> Tuple[str, str]:
        """Return (form, image name) as far as they matter.

        Cases that agree in them and in the stored form share one place.
        """

    def root(self, site: Site, name: str) -> str:
        """Return where the data will lie: a folder ``name``, or an image's tag; nothing is made.

        An absolute path is made by the driver as an empty, locked folder, and removed by it.
        Raises DatasetError where there is no place.
        """

    def space(self, place: Placement) -> Path:
        """Return a folder on the filesystem that the data are written to."""

    def put(self, place: Placement, data: Any, image: str) -> ContextManager[Placement]:
        """Write ``data`` to the device; yield the place with ``files``, and what else it now knows.

        ``data.files`` come to lie at ``data.names`` below the place's root, as by
        ``data.copy_to(folder)``.  ``image``: as the runtime takes it.  What is no folder is removed
        afterwards.  Raises DatasetError.
        """


@dataclasses.dataclass(frozen=True)
class ImageUse:
    """An image as trials use it.

    ``digests``: form -> its digest, of an image that does not have the same one in every form.
    """

    name: str
    digest: str
    forms: Mapping[str, str]  # form -> the string that the runtime takes
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
