"""Every data type that crosses a module or a process: frozen, versioned, JSON in and out.

Units are in the names: seconds (``_s``), bytes, samples.  Raw values are kept; means and intervals
are computed late, by ``iobench.analysis``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union

#: Version of every JSON document that iobench writes.  History:
#: 1  first version.
#: 2  a record's ``cache.bytes_storage`` is what was counted; ``cache.programs`` names whose own
#:    files may be among them (1 wrote 0 in their place, and the count into ``cache.counter``).
SCHEMA = 2

#: Cache state of data that need not fit into memory: the first epoch of a trial from cold is not
#: measured, the others are, with what it and they left in memory.
STEADY, STEADY_EPOCHS = "steady", 3

Scalar = Union[str, int, float, bool, None]
Options = Mapping[str, Scalar]
T = TypeVar("T")


class Extent(NamedTuple):
    """Bytes of one file: what a sample occupies on disk."""

    path: str
    offset: int
    length: int


class Batch(NamedTuple):
    """What a loader hands to a trainer.

    ``digests`` is set only by the untimed twin: one hex digest of the stored bytes a sample.
    ``marks``: clock readings of whoever made it, for each sample as it began and after each part
    (read, decode, transform); float64 of one dimension, None where the loader has none.
    """

    data: Any  # (n, 3, 224, 224) float32 after load (n: samples), None after read and decode
    labels: Any  # int64, shape (n,)
    ids: Any  # sample numbers of the dataset, likewise
    nbytes: int  # encoded bytes that the samples occupy
    digests: Optional[Sequence[str]] = None
    marks: Any = None


#: ``source`` of the dataset that stands for what a script of the user's own reads.
OF_SCRIPT = "a script of the user's own"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A complete dataset on disk (``dataset.json``); ``samples.tsv`` beside it lists the samples.

    ``in_place`` means that the JPEGs are the user's own files under ``jpeg_root``; they are never
    written.
    """

    root: str  # holds one folder a stored form: jpeg, lmdb, hdf5, tar, lmdb-raw ...
    name: str
    samples: int
    bytes: int
    classes: int
    seed: int
    digest: str  # over every sample's (id, label, digest) in order
    source: str  # the recipe's name, or the user's tree
    jpeg_root: str = ""
    in_place: bool = False
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def of_script(self) -> bool:
        """Whether a script of the user's own reads it: files, order, transform are its own."""
        return self.source == OF_SCRIPT


@dataclasses.dataclass(frozen=True)
class Case:
    """One cell of the matrix: what is measured, without the stage and the cache state.

    ``label`` names it in a suite: the pipeline, and what distinguishes it from the other cases.
    """

    label: str = ""
    format: str = "jpeg"
    loader: str = "torch"
    trainer: str = "emulated"
    runtime: str = "bare"
    image: str = "torch"  # which image a runtime other than bare runs
    launcher: str = "local"
    location: str = ""  # the dataset's root on the filesystem under test
    placement: str = "bind"
    order: str = "shuffled"  # stored, shuffled, window:N, shards:N
    transform: str = "rrc224"
    decoder: str = "simplejpeg"  # of a loader that takes one
    content: str = "jpeg"  # jpeg (encoded bytes), raw (pixels), float (Caffe's HDF5 values)
    batch: int = 64
    workers: int = 2
    prefetch: int = 2
    world_size: int = 1  # ranks; batch, workers and prefetch are each rank's own
    nodes: int = 1  # that they run on, equally many on each
    sharing: str = "stride"  # rank r of n reads r, r+n, ... or (disjoint) the r-th n-th
    scope: str = ""  # of a container: rank, node, or as the launcher has it (registry.scope_of)
    samples: int = 0  # samples a trial (0: the whole dataset)
    seed: int = 0
    loader_options: Options = dataclasses.field(default_factory=dict)
    format_options: Options = dataclasses.field(default_factory=dict)
    striping: Options = dataclasses.field(default_factory=dict)  # of its files: core/striping
    trainer_options: Options = dataclasses.field(default_factory=dict)
    runtime_options: Options = dataclasses.field(default_factory=dict)
    launcher_options: Options = dataclasses.field(default_factory=dict)
    name: str = ""  # that the spec gives it; its label then
    layout: str = ""  # of the stored form, where options shape what is written (registry.layout_of)
    cpus: float = 0.0  # limits that every runtime enforces alike; 0: none
    memory_bytes: int = 0

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node's cores and memory."""
        return self.world_size // self.nodes

    @property
    def trains_on_gpu(self) -> bool:
        """Whether the trainer's steps run on a GPU."""
        return self.trainer_options.get("device") == "cuda"

    @property
    def uses_gpu(self) -> bool:
        """Whether the trainer or the loader uses a GPU."""
        asked = self.loader_options
        return (
            self.trains_on_gpu
            or asked.get("device") in ("mixed", "gpu", "cuda")
            or asked.get("pin_memory") is True
        )

    @property
    def pipeline(self) -> str:
        """``loader:format``, with the content after one that does not hold JPEG bytes."""
        return f"{self.loader}:{self.stored_form}"

    @property
    def stored_form(self) -> str:
        """Name of the format and its content."""
        return self.format if self.content == "jpeg" else f"{self.format}-{self.content}"

    @property
    def folder(self) -> str:
        """Name of the dataset's folder that holds this form in this layout and striping."""
        spread = "".join(f"+stripe_{k}-{v}" for k, v in sorted(self.striping.items()) if v)
        return self.stored_form + self.layout + spread


@dataclasses.dataclass(frozen=True)
class Trial:
    """One planned process start: a case at one stage and cache state."""

    id: str
    case: Case
    stage: str
    cache: str  # cold, warm, steady, - (no data read) or a cached fraction as text (0.35)
    contrast: str = ""  # this and ``arm`` are empty for ladder trials
    arm: str = ""
    block: int = 0  # numbers the pair
    position: int = 0  # inside the block
    repeat_of: str = ""  # the block that a pre-stated rule repeats
    epochs: int = 1  # in one loop: one long order of ids, through one iterator
    slice_s: float = 0.0  # the arms of its block take turns of this length; 0: no turns
    copy: int = 0  # of the data, one an arm of those that take turns cold; 0: the dataset itself
    least: float = 0.0  # samples/s below which its loop ends early; 0: it never does

    @property
    def all_epochs(self) -> int:
        """Epochs in its loop, with those that are not measured."""
        return STEADY_EPOCHS if self.cache == STEADY else self.epochs


@dataclasses.dataclass(frozen=True)
class Contrast:
    """Two cases compared by paired blocks; ratio = seconds per sample, ``arm`` / ``base``.

    ``group``: contrasts of one group share their blocks, so a base is run once a block; a trial's
    ``contrast`` names the group.  ``looks``: numbers of pairs after which it may end, ascending;
    () is one look, at ``pairs``.
    """

    id: str
    arm: str  # label of a case; a trial's ``arm`` is that of its own
    base: str  # likewise
    stage: str
    cache: str
    margin: float = 0.03
    pairs: int = 10  # planned before the first pair ran
    primary: bool = True
    group: str = ""  # "": its own id
    looks: Tuple[int, ...] = ()
    probes: int = 0  # pairs of serial probes that attribute a difference to a stage
    probe_slice_s: float = 0.0  # these take turns of this length; 0: one after the other
    slice_s: float = 0.0  # of each trial, and so are these
    loop_s: float = 0.0
    epochs: int = 1


@dataclasses.dataclass(frozen=True)
class Cell:
    """The cases of one group that can be in one cache state."""

    cache: str
    group: int  # index into the rule's ``groups``
    cases: Tuple[str, ...]
    base: str = ""  # "": the fastest case on the ladder
    slice_s: float = 0.0  # its blocks' arms take turns of this length; 0: one after the other
    probe_slice_s: float = 0.0  # and those of its serial probes, where nobody trains


@dataclasses.dataclass(frozen=True)
class ContrastRule:
    """One entry of a spec's contrasts, resolved but for what the ladder will rank; by labels."""

    stage: str
    groups: Tuple[Tuple[str, ...], ...]  # of cases that differ in what is compared alone
    cells: Tuple[Cell, ...]
    chosen: Tuple[str, ...]  # cases that may be arms
    also: Tuple[str, ...] = ()  # those that are second bases
    first: int = 0  # how many arms of a cell (0: all)
    after: int = 0  # from which arm on
    fastest_only: bool = False  # only of the group that holds the ladder's fastest case
    shared: bool = False
    margin: float = 0.03
    pairs: int = 10
    looks: Tuple[int, ...] = ()
    primary: bool = True
    probes: int = 0
    loop_s: float = 0.0  # how long a loop shall run where arms take turns


@dataclasses.dataclass(frozen=True)
class Task:
    """Everything that one rank needs to run one trial, as its runtime shows it."""

    trial: Trial
    dataset: Dataset
    seconds: float = 0.0  # compute stage: stop after this long, 0 = no limit
    decode_delay_s: float = 0.0  # slept in every decode: a known truth, to test the instrument
    inside: bool = False  # the rank itself sets the cache's state, when the driver asks it to
    scratch: str = ""  # folder on the mount of the data, for a stage that writes
    allow_drop_caches: bool = False


@dataclasses.dataclass(frozen=True)
class Placement:
    """Data put somewhere for the cases of one placement; their ``location`` is its ``root``.

    ``files``: on this host, the folder that holds the data as a dataset does, or the one file that
    holds a filesystem with them.  ``inside``: the data's own files cannot be reached on this host,
    so their cache state is set and proven inside the container.
    """

    kind: str  # member of ``placements/``
    root: str  # folder or image's tag, made before the trials and removed after the suite
    seconds: float = 0.0  # from a cold source until it is on the device; 0: not made yet
    bytes: int = 0
    filesystem: str = ""
    form: str = ""  # of the images it is for; "": the runtime does not matter
    base: str = ""  # name of the image that the data are put into
    image: str = ""  # what the runtime is started with instead; "": its own image
    files: str = ""
    inside: bool = False
    mount: str = ""  # how a runtime shows the file ``files``: image, overlay


@dataclasses.dataclass(frozen=True)
class Session:
    """One start of a driver on a suite.  ``facts``: what must be equal where it is resumed."""

    host: str
    job: str
    began: str  # ISO 8601, UTC
    facts: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a suite needs to run, resolved from a spec and what is here (``plan.json``).

    ``trials`` are written before the first of them runs, and grow by the contrasts' in phase 2.
    Files of schema 1 have neither ``rules`` nor ``usual_budget_s``.
    """

    name: str
    created: str
    seed: int
    budget_s: float
    dataset: Dataset
    cases: Tuple[Case, ...]
    trials: Tuple[Trial, ...]
    contrasts: Tuple[Contrast, ...] = ()
    phase: int = 1  # 2: the contrasts' base has been chosen from the ladder
    rules: Tuple[ContrastRule, ...] = ()  # the contrasts are made of them after the ladder
    usual_budget_s: float = 0.0  # the spec's; a larger ``budget_s`` buys more pairs
    limit_s: float = 120.0
    compute_s: float = 6.0
    max_repeated_pairs: int = 2
    allow_drop_caches: bool = False
    first_touch: bool = False  # a cold trial reads a copy that nobody has read since it was written
    servers_cache_bytes: int = 0  # as the user states it
    version: str = ""
    slice_sd: float = 0.0  # of the cores' speed, at the start: host/speed_noise.py
    notes: Tuple[str, ...] = ()  # what a reader of every figure should know
    placements: Tuple[Placement, ...] = ()
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name -> digest
    sessions: Tuple[Session, ...] = ()
    mlperf: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # workload, floor of its AU
    schema: int = SCHEMA


def alike(kind: Type[T], source: Any, **others: Any) -> T:
    """Return a ``kind`` (a dataclass): ``others``, and what ``source`` has of the same names."""
    names = {f.name for f in dataclasses.fields(kind)} - {*others}  # type: ignore[arg-type]
    return kind(**{n: getattr(source, n) for n in names if hasattr(source, n)}, **others)


def to_json(value: Any) -> Any:
    """Return ``value`` (a dataclass of this module) as plain JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def task_from_json(document: Dict[str, Any]) -> Task:
    """Rebuild a :class:`Task` in a worker (standard library only).

    Raises TypeError when the document holds a key this version does not know.
    """
    trial = dict(document["trial"])
    trial["case"] = Case(**trial["case"])
    fields = {**document, "trial": Trial(**trial), "dataset": Dataset(**document["dataset"])}
    return Task(**fields)
