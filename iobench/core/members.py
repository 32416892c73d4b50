"""The value that each backend file ends with: one dataclass an axis.

A member's options are the typed keyword-only parameters of ``make``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import (
    Any,
    Callable,
    FrozenSet,
    Generic,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

from iobench.core.cases import Case, Scalar
from iobench.core.jobs import Scheduler
from iobench.core.protocols import (
    Decode,
    Filesystem,
    Format,
    Launcher,
    LoadRequest,
    Placing,
    Runtime,
)

T = TypeVar("T", covariant=True)


@dataclasses.dataclass(frozen=True)
class Backend(Generic[T]):
    """``requires``: modules that must be importable for it to run.

    ``stack``: whose Python it runs in; "": any.  ``libraries``: what it brings beside the stack's:
    importable module -> distribution; the fingerprint records their versions and files.
    ``judge``: raises SpecError for a case whose options do not go together or with the case;
    called before anything is made.  ``unused``: (case) -> key or ``axis_options.key`` -> why it has
    no effect there; a user who set it gets a warning.
    """

    make: Callable[..., T]
    summary: str
    requires: Tuple[str, ...] = ()
    stack: str = ""
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    judge: Callable[[Case], None] = lambda case: None
    unused: Callable[[Case], Mapping[str, str]] = lambda case: {}


@dataclasses.dataclass(frozen=True)
class FormatBackend(Backend[Format]):
    """``contents``: ``jpeg`` (encoded); where it can hold pixels, ``raw``; Caffe's ``float``.

    ``fileless``: nothing on disk, so no cache state and no ceiling.  ``mapped``: reads go through
    mmap, which fio cannot replay (the ceiling's record states it).  ``shared``: contents of which
    several samples lie in a unit that is read whole.  ``per_file``: a sample is a whole file.
    ``locking``: its option, a truth, with which readers wait for each other's lock of a file.
    """

    contents: FrozenSet[str] = frozenset({"jpeg"})
    fileless: bool = False
    mapped: bool = False
    shared: FrozenSet[str] = frozenset()
    per_file: bool = False
    locking: str = ""

    def stored_forms(self, name: str) -> List[str]:
        """Return the stored forms of this format, which is registered as ``name``, by content."""
        return [name if c == "jpeg" else f"{name}-{c}" for c in sorted(self.contents)]


@dataclasses.dataclass(frozen=True)
class DecoderBackend(Backend[Decode]):
    """``make()`` returns the function that decodes."""


@dataclasses.dataclass(frozen=True)
class LoaderBackend(Backend[Any]):
    """``make(request, **options) -> Loader``; stored forms and transforms are any where None.

    ``decodes``: it decodes by ``transforms.decode``, so a case may choose the ``decoder``; its
    ``requires`` do not name that one's libraries.

    ``orders``, ``sharings``: stored form -> the orders it can follow there, and how it can share
    the data among ranks (a form that is not named: every order that is one sequence, any sharing;
    no sharing: one rank only).  ``probe``:
    serial, (request, samples) -> read_s, decode_s, transform_s, one entry a sample, and the clock
    as each began (read_at ...), without which it cannot take turns.
    ``each_worker``: each of its workers makes ``prefetch`` batches ahead, not all together.
    ``in_turn``: batch k is made by worker k modulo their number, and its option ``in_order`` off
    delivers batches as they are made.  ``decoding_threads``: (case) -> threads of a rank that read
    and decode, of all its processes together; 0 of a loader that reads nothing.  ``also_audited``:
    options with which `iobench audit` runs it too, over one form.
    """

    stages: FrozenSet[str] = frozenset({"read", "decode", "load"})  # rungs that can run alone
    no_stage: Mapping[str, str] = dataclasses.field(default_factory=dict)  # why another cannot
    formats: Optional[FrozenSet[str]] = None  # stored forms it takes
    native: FrozenSet[str] = frozenset()  # those it reads with its own reader
    orders: Mapping[str, FrozenSet[str]] = dataclasses.field(default_factory=dict)
    sharings: Mapping[str, FrozenSet[str]] = dataclasses.field(default_factory=dict)
    transforms: Optional[FrozenSet[str]] = None
    no_transform: str = ""  # why it can do no other
    decodes: bool = False
    turns: str = ""  # why its decoder turns pictures by their EXIF orientation; "": it does not
    threads: int = 0  # of its decoder, fixed: a case's ``workers``; 0 if the user may set those
    each_worker: bool = False
    in_turn: bool = False
    decoding_threads: Callable[[Case], int] = lambda case: max(case.workers, 1)
    also_audited: Tuple[Mapping[str, Scalar], ...] = ()
    probe: Optional[Callable[[LoadRequest, int], Mapping[str, Sequence[float]]]] = None

    def ahead(self, workers: int, prefetch: int) -> int:
        """Return how many batches of a rank are made ahead of its trainer."""
        return workers * prefetch if self.each_worker else prefetch


@dataclasses.dataclass(frozen=True)
class TrainerBackend(Backend[Any]):
    """``make(*, batch, **options) -> Trainer``; where it takes them also ``rank``, ``world_size``,
    ``sharers`` (ranks of the case on this host's cores) and ``labels`` (classes in the data).

    ``step_s``: (batch, options) -> a first guess of one step, for the estimate of a suite's time.
    ``shape``: options -> the shape of a sample that its net takes (None: any).
    ``ranks``: several of them make sense: they exchange gradients (then ``describe()`` has
    ``comm_s``), or train nothing that would have to be one.
    ``loaders``: those that it goes with (None: any); one that feeds itself reads what they would.
    A trainer may have ``flop(batch)``, for the stage ``roof``: a mapping of the FLOP of one step
    and the roofs of what it computes on (``backends/trainers/_roofs``).
    """

    loaders: Optional[FrozenSet[str]] = None
    step_s: Callable[[int, Mapping[str, Scalar]], float] = lambda batch, options: 0.0
    shape: Callable[[Mapping[str, Scalar]], Optional[Tuple[int, int, int]]] = lambda options: None
    ranks: bool = False


@dataclasses.dataclass(frozen=True)
class RuntimeBackend(Backend[Runtime]):
    """``limits``: for one that enforces ``Start.cpus`` and ``Start.memory_bytes`` itself: "" where
    it does, else why it would not.  None: the driver puts its processes into a control group.
    ``data_images``: for one that mounts a file that holds a filesystem: by what, ``squashfs`` (the
    kernel) or ``squashfuse``.  ``takes``: forms of image that it can be started with beside its
    ``form()``.  ``apart``: for one that shows a rank who it is, by ``Start.passed``: (case) -> what
    the ranks of that case lack in several containers, "" if nothing.  None: it does not show it.
    """

    isolated: bool = False  # it shows a worker its own tree and the mounts only (DATA_INSIDE)
    limits: Optional[Callable[[], str]] = None
    data_images: Optional[Callable[[], str]] = None
    no_overlay: str = "it has no overlays"  # why it cannot lay a data image over its own; "": can
    takes: Tuple[str, ...] = ()
    apart: Optional[Callable[[Case], str]] = None


class Failure(NamedTuple):
    """The rank that failed first, as far as the launcher reports it."""

    rank: int
    code: int  # exit status, negative for a signal
    output: str  # the ranks' own standard error, without the launcher's lines


@dataclasses.dataclass(frozen=True)
class LauncherBackend(Backend[Launcher]):
    """``inside``: on one node it starts the ranks where they run, in the container, not around it,
    unless the case's scope is another.  ``stacks``: those whose images have it, for one that can.
    ``carried``: on several nodes another launcher starts it once on each, so that it can be in the
    containers there too.
    ``variables``, ``across``: set for its processes, if not set otherwise, on one node and on
    several (None: it starts no ranks on other nodes).  ``passed``: beginnings of the variables by
    which it tells a rank who it is.  ``failure``: (standard error) -> the rank that failed first,
    None if it names none.  ``lost``: (standard error) -> the node that it cannot reach any more, ""
    if it names none.  ``leaves``: (process) -> patterns of the folders that it leaves in the
    temporary folder of its node when it is killed.
    """

    inside: bool = False
    stacks: FrozenSet[str] = frozenset()
    carried: bool = False
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    across: Optional[Mapping[str, str]] = None
    passed: Tuple[str, ...] = ()
    failure: Callable[[str], Optional[Failure]] = lambda text: None
    lost: Callable[[str], str] = lambda text: ""
    leaves: Callable[[int], Sequence[str]] = lambda process: ()


@dataclasses.dataclass(frozen=True)
class SchedulerBackend(Backend[Scheduler]):
    """``number``, ``element``: variables in which a job finds its number, and which element of an
    array it is ("": no arrays; each is a job of its own).  ``again``: shell command by which a job
    whose time ran out goes back into the queue; SUBMIT: the one that submits its script once more.
    """

    number: str = ""
    element: str = ""
    again: str = "SUBMIT"


@dataclasses.dataclass(frozen=True)
class FilesystemBackend(Backend[Filesystem]):
    """``make(*, mount)``: of one mount.

    ``fstypes``, ``source``: patterns (fnmatch) of the type and the source in /proc/self/mountinfo
    that this file knows; of several files that know a mount the longest patterns win, and none are
    the fallback's.  ``magic``: what statfs(2) reports there (``f_type``); empty: anything.
    """

    fstypes: FrozenSet[str] = frozenset()
    source: str = "*"
    magic: FrozenSet[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class PlacementBackend(Backend[Optional[Placing]]):
    """``make`` returns None where the dataset stays as it is.

    ``in_image``: only a container sees the files, so the case needs an isolated runtime and fio
    cannot read them.  ``refused``: (runtime) -> why that cannot show the data, "" if it can.
    """

    in_memory: bool = False  # never cold; counts against the memory that a suite may take
    in_image: bool = False
    stage_to: bool = False  # it needs the spec's folder of that name
    refused: Callable[[RuntimeBackend], str] = lambda runtime: ""


@dataclasses.dataclass(frozen=True)
class Installed:
    """A stack on this host, outside any container.

    ``env``: variables that its processes need beside ``PYTHONPATH``, of which ``python_path`` are
    its own folders.  ``own``: a build of the user's, with these ``modules`` of ``Stack.libraries``.
    """

    python: str
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python_path: Tuple[str, ...] = ()
    prefix: str = ""  # the folder it lies in, where it is one
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the prefix's record
    own: bool = False
    modules: Tuple[str, ...] = ()
    probe: Tuple[str, ...] = ()  # shows that it starts, for one without a Python package


@dataclasses.dataclass(frozen=True)
class ImageRecipe:
    """How a stack's image is built; its target in the Dockerfile has the stack's name.

    ``suite``: Debian's, of the packages that ``first``, the stage that is built before the others,
    installs; ``locked``: they are fetched beforehand, by the sha256 in the suite's lock.  Sizes are
    those at the peak.
    """

    description: str  # the image's label
    python: str  # version of the Python inside, X.Y
    suite: str
    first: str
    wheels: Tuple[str, ...]  # pip's arguments; after -r and -c, files of requirements/
    files: Tuple[str, ...]  # of requirements/, which the Dockerfile's stages run or read
    store_bytes: float  # in the engine's store
    archive_bytes: float
    wheels_bytes: float  # while they are fetched
    locked: bool = False
    script: str = ""  # of requirements/, which makes the prefix on a host too; "": it cannot be
    prefix_bytes: float = 0.0  # of the installation without a container


@dataclasses.dataclass(frozen=True)
class Stack:
    """The software of a framework: its Python, on the host and in an image.

    ``on_host``: (the driver's environment) -> :class:`Installed`, or BackendUnavailable with the
    remedy.  ``environment``: (prefix) -> variables that processes of the stack at that folder need.
    ``serves``: outside containers its loaders also serve cases of other stacks, from a process of
    their own.
    """

    summary: str
    on_host: Callable[[Mapping[str, str]], Installed]
    libraries: Mapping[str, str]  # modules it must have -> the distributions in the fingerprint
    remedy: str  # what to do where one of its modules is missing
    environment: Callable[[str], Mapping[str, str]] = lambda prefix: {}
    serves: bool = False
    image: Optional[ImageRecipe] = None  # None: its cases run outside containers

    def prefix_environment(self, prefix: str, variables: Mapping[str, str]) -> Mapping[str, str]:
        """Return what processes of the stack at ``prefix`` need on the host, programs included."""
        env = dict(self.environment(prefix))
        if env:
            rest = filter(None, variables.get("PATH", os.defpath).split(os.pathsep))
            env["PATH"] = os.pathsep.join([f"{prefix}/bin", *rest])
        # as if unset: a module's libraries, or another Python's, are of other versions
        return {**env, "PYTHONNOUSERSITE": "1", "PYTHONHOME": "", "LD_LIBRARY_PATH": ""}
