"""The keys of a spec: what TOML may hold, and their defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import pydantic

from iobench.core import stages

#: Pairs of serial probes that a contrast over runtimes gets when it has found a difference: the
#: fewest in which one disturbed pair, however far out, cannot hide a stage's difference (2 * 110 of
#: 2^14 signed-rank sums lie as low as that pair's rank, below 5 % / 3 stages).
PROBES = 14
#: Three stages are judged at 95 % together: their intervals exist from seven pairs on.
MIN_PROBES = 7
#: More than a week of the shortest trials; every pair of a plan is held in memory.
MOST_PAIRS = 100_000
#: Rounds of a ladder, ranks, workers and so on: more is a slip of the keyboard, and a plan holds
#: every trial in memory.
MOST_REPEATS, MOST_RANKS, MOST_WORKERS, MOST_QUEUED = 1000, 4096, 4096, 10_000
MOST_SAMPLES = 1_000_000_000
MOST_RECORD = 16 << 30  # bytes
MOST_CASES, MOST_TRIALS, MOST_PAIRED = 500, 50_000, 500_000
#: Seconds: one trial may take a day.
DAY_S = 86_400.0
T = TypeVar("T")
#: A TOML array.
Many = Annotated[tuple[T, ...], pydantic.Field(strict=False)]
#: A filter of cases: key -> the values that may take part.
Filter = dict[str, list[Any]]
#: A seed of a generator of random numbers: what TOML's whole numbers can hold.
Seed = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
Samples = Annotated[int, pydantic.Field(ge=1, le=MOST_SAMPLES)]


class Strict(pydantic.BaseModel):
    """Rejects keys that it does not know, values of another type, and numbers that are none."""

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )


class DatasetSpec(Strict):
    """Which samples: a recipe of ``datasets/``; ``--data`` overrides it."""

    recipe: str = "imagenet-like"
    samples: Samples = 1280
    seed: Seed = 1
    mean_bytes: int = pydantic.Field(default=0, ge=0, le=MOST_RECORD)
    sd_bytes: int = pydantic.Field(default=0, ge=0, le=MOST_RECORD)


class MlperfSpec(Strict):
    """AU as MLPerf Storage counts it, of the rung ``feed``: the workload and its floor."""

    workload: str
    au: float = pydantic.Field(gt=0, le=1)


class CaseSpec(Strict):
    """One case, or the defaults of all of them; unset keys fall through to the defaults."""

    pipeline: str | None = None
    content: Literal["jpeg", "raw", "float"] | None = None
    trainer: str | None = None
    runtime: str | None = None
    image: str | None = None
    cpus: float | None = pydantic.Field(default=None, ge=0.01, le=MOST_WORKERS)
    memory: str | None = None
    launcher: str | None = None
    placement: str | None = None
    order: str | None = None
    transform: str | None = None
    decoder: str | None = None
    batch: int | None = pydantic.Field(default=None, ge=1, le=MOST_SAMPLES)
    workers: int | None = pydantic.Field(default=None, ge=0, le=MOST_WORKERS)
    prefetch: int | None = pydantic.Field(default=None, ge=1, le=MOST_QUEUED)
    world_size: int | None = pydantic.Field(default=None, ge=1, le=MOST_RANKS)
    nodes: int | None = pydantic.Field(default=None, ge=1, le=MOST_RANKS)
    ranks_per_node: int | None = pydantic.Field(default=None, ge=1, le=MOST_RANKS)
    sharing: Literal["stride", "disjoint"] | None = None
    scope: Literal["rank", "node"] | None = None
    samples: Samples | None = None
    loader_options: dict[str, Any] = {}
    format_options: dict[str, Any] = {}
    striping: dict[str, Any] = {}
    trainer_options: dict[str, Any] = {}
    runtime_options: dict[str, Any] = {}
    launcher_options: dict[str, Any] = {}


class ExtraCase(CaseSpec):
    """A case beside the matrix, with its own rungs and repeats; ``name`` is its label then.

    ``optional``: it is left out, with the reason, where its members cannot run.
    """

    name: str | None = pydantic.Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
        max_length=60,
        description="letters, digits, spaces and '.', '_', '-' after a letter or digit",
    )
    stages: Many[str] | None = None
    repeats: int | None = pydantic.Field(default=None, ge=1, le=MOST_REPEATS)
    optional: bool = False


class LadderSpec(Strict):
    """The rungs every case of the matrix climbs; ``only`` names those that do (else all).

    The others are compared in contrasts alone; their samples are digested all the same.
    """

    stages: Many[str] = pydantic.Field(default_factory=stages.usual)
    caches: Many[str | float] = ("cold", "warm")
    repeats: int = pydantic.Field(default=3, ge=1, le=MOST_REPEATS)
    probe: bool = True
    digest: bool = True
    only: Filter = {}


def _contrasted(stage: str) -> str:
    if stage not in stages.contrasted():
        raise ValueError(f"unknown stage; allowed: {', '.join(stages.contrasted())}")
    return stage


class ContrastSpec(Strict):
    """Paired blocks over one key: every other value of ``over`` against ``base`` (docs/spec.md).

    ``also``: second bases in the same blocks; they count neither for ``first`` nor for ``after``.
    """

    over: str = "pipeline"
    base: str | int | float = "fastest"
    stage: Annotated[str, pydantic.AfterValidator(_contrasted)] = "load"
    caches: Many[str | float] = ("warm", "cold")
    pairs: int = pydantic.Field(default=10, ge=1, le=MOST_PAIRS)
    looks: Many[int] = ()
    margin: float = pydantic.Field(default=0.03, gt=0, lt=1)
    primary: bool = True
    instead: bool = False
    where: Filter = {}
    only: Literal["", "fastest"] = ""
    arms: Many[Any] | None = None
    first: int | None = pydantic.Field(default=None, ge=1, le=MOST_REPEATS)
    after: int | None = pydantic.Field(default=None, ge=1, le=MOST_REPEATS)
    also: Many[Any] = ()
    shared: bool | None = None
    probes: int | None = pydantic.Field(default=None, ge=0, le=MOST_PAIRS)
    slice_s: float = pydantic.Field(default=0.1, ge=0, le=10)
    loop_s: float | None = pydantic.Field(default=None, gt=0, le=DAY_S)

    @property
    def shares_blocks(self) -> bool:
        """Whether all arms of a group stand in one block; unless said, those over runtimes do."""
        return self.over == "runtime" if self.shared is None else self.shared

    @property
    def probe_pairs(self) -> int:
        """Pairs of serial probes after a FASTER or SLOWER."""
        return (PROBES if self.over == "runtime" else 0) if self.probes is None else self.probes

    @property
    def most_pairs(self) -> int:
        """Pairs at the last look."""
        return self.looks[-1] if self.looks else self.pairs


def _tables(matrix: Any) -> Any:
    """Return ``[matrix]`` or every ``[[matrix]]`` as tables of lists: one value is a list of it."""
    tables = [matrix] if isinstance(matrix, dict) else matrix
    if not isinstance(tables, list | tuple) or not all(isinstance(t, dict) for t in tables):
        return tables
    return tuple({k: v if isinstance(v, list) else [v] for k, v in t.items()} for t in tables)


class Spec(Strict):
    """A whole suite.

    ``matrix``: a case for every combination of the listed values; of several tables, as a study
    that varies one factor after the other writes them, all their cases, each once.  ``exclude``:
    those of its cases that have one of the values of every key are left out.
    """

    name: str = pydantic.Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="letters, digits and '.', '_', '-' after a letter or digit",
    )
    about: str = ""
    seed: Seed = 1
    budget: str = "15m"
    limit_s: float = pydantic.Field(default=120.0, gt=0, le=DAY_S)
    compute_s: float = pydantic.Field(default=6.0, gt=0, le=DAY_S)
    max_repeated_pairs: int = pydantic.Field(default=2, ge=0, le=MOST_PAIRS)
    allow_drop_caches: bool = False
    first_touch: bool = False
    servers_cache: str = ""  # a size: what the servers' memory holds of the data at most
    stage_to: str = ""  # folder that placement "staged" copies to
    dataset: DatasetSpec = DatasetSpec()
    mlperf: MlperfSpec | None = None
    case: CaseSpec = CaseSpec()
    matrix: Annotated[Many[dict[str, list[Any]]], pydantic.BeforeValidator(_tables)] = ()
    exclude: Many[Filter] = pydantic.Field(default=(), max_length=MOST_CASES)
    cases: Many[ExtraCase] = pydantic.Field(default=(), max_length=MOST_CASES)
    ladder: LadderSpec = pydantic.Field(default_factory=LadderSpec)
    contrasts: Many[ContrastSpec] = pydantic.Field(default=(), max_length=MOST_CASES)
