"""Several ranks in one trial: which trials start them, who failed, and what they say as one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iobench import registry
from iobench.errors import SpecError
from iobench.model import Case, IoCounters, RankResult, Trial

#: Stages that one process answers for all ranks: what a sample holds and what its parts cost does
#: not depend on who reads it; ``alone`` is one rank by its meaning.
ONE_RANK = ("ceiling", "digest", "probe", "alone")
#: Ranks that begin further apart than this share of the loop had the machine to themselves so long.
SKEW_SHARE = 0.01


def started(trial: Trial) -> int:
    """Return how many ranks a trial starts."""
    return 1 if trial.stage in ONE_RANK else trial.case.world_size


def check(case: Case) -> None:
    """Raise SpecError where several ranks of a case make no sense, or cannot share its data so.

    One rank too needs a launcher that is where it starts.
    """
    launcher = registry.load("launchers", case.launcher)
    isolated = registry.load("runtimes", case.runtime).isolated
    if launcher.inside and isolated and case.image not in launcher.images:
        raise SpecError(
            f"launcher {case.launcher!r} starts inside the container, and image {case.image!r} has "
            f"none; those that have: {', '.join(sorted(launcher.images)) or 'no image'}"
        )
    if case.world_size == 1:
        return
    if not registry.load("trainers", case.trainer).ranks:
        able = [n for n in registry.names("trainers") if registry.load("trainers", n).ranks]
        raise SpecError(
            f"world_size = {case.world_size}, but trainer {case.trainer!r} exchanges no gradients: "
            f"every rank would train alone; those for several ranks: {', '.join(able)}"
        )
    ways = registry.load("loaders", case.loader).sharings.get(case.stored_form)
    if ways is not None and case.sharing not in ways:
        allowed = f"it shares by: {', '.join(sorted(ways))}" if ways else "it serves one rank only"
        raise SpecError(
            f"{case.pipeline} cannot share the data among ranks by {case.sharing!r}; {allowed}"
        )


def name(rank: int, world_size: int) -> str:
    """Return how errors call a rank: ``rank 1 of 2``, or ``worker`` where it is the only one."""
    return "worker" if world_size == 1 else f"rank {rank} of {world_size}"


def errors(results: Sequence[RankResult]) -> tuple[str, ...]:
    """Return the error of a trial, one line; of several ranks the first one's, which it names."""
    failed = [(r, r.error.splitlines()[-1]) for r in results if r.error]
    if not failed:
        return ()
    (first, text), *others = failed
    if first.world_size == 1:
        return (text,)
    if len(failed) == first.world_size and all(other == text for _, other in others):
        return (f"every rank: {text}",)
    more = f" ({len(others)} more failed)" if others else ""
    return (f"{name(first.rank, first.world_size)}: {text}{more}",)


def skew_s(results: Sequence[RankResult]) -> float:
    """Return how far apart the ranks began their loops, in seconds; 0 where it is not known.

    Ranks of one host share a clock; those of several do not, and count host by host.
    """
    began: dict[str, list[float]] = {}
    for result in results:
        if result.began_s:
            began.setdefault(result.host, []).append(result.began_s)
    return max((max(times) - min(times) for times in began.values()), default=0.0)


def note(results: Sequence[RankResult]) -> Mapping[str, Any]:
    """Return what a record notes of its ranks' start; {} for one rank or no loop.

    ``skew_s``: how far apart they began; ``late``: words, where that is over 1 % of the loop.
    """
    walls = [r.steps.done_s[-1] for r in results if r.steps.done_s]
    if len(walls) < 2:
        return {}
    apart, shortest = skew_s(results), min(walls)
    found: dict[str, Any] = {"skew_s": apart}
    if apart > SKEW_SHARE * shortest:
        found["late"] = (
            f"the ranks began {1e3 * apart:.1f} ms apart, {apart / shortest:.1%} of the loop: "
            "take more samples"
        )
    return found


def together(results: Sequence[RankResult]) -> IoCounters:
    """Return the ranks' counters as of one job: own ones added, the machine's and the wall's once.

    The machine's are of the rank that ran longest, which saw all of the others' work.
    """
    if not results:
        return IoCounters()
    longest = max((r.io for r in results), key=lambda io: io.wall_s)
    return IoCounters(
        rchar=sum(r.io.rchar for r in results),
        read_bytes=sum(r.io.read_bytes for r in results),
        major_faults=sum(r.io.major_faults for r in results),
        cpu_user_s=sum(r.io.cpu_user_s for r in results),
        cpu_sys_s=sum(r.io.cpu_sys_s for r in results),
        machine_busy_s=longest.machine_busy_s,
        machine_steal_s=longest.machine_steal_s,
        wall_s=longest.wall_s,
    )


def step_times(results: Sequence[RankResult]) -> tuple[list[float], list[float]]:
    """Return (wait, compute) of every step of ranks that go :func:`in_step`, in seconds.

    A step lasts until the slowest rank has its batch: what one rank waits for, the others spend in
    the exchange.  So the job's wait is the longest of the ranks', its compute the shortest.
    """
    waits = [
        [b - a for a, b in zip(r.steps.request_s, r.steps.ready_s, strict=True)] for r in results
    ]
    computes = [
        [b - a for a, b in zip(r.steps.ready_s, r.steps.done_s, strict=True)] for r in results
    ]
    return [max(w) for w in zip(*waits, strict=False)], [
        min(c) for c in zip(*computes, strict=False)
    ]


def in_step(results: Sequence[RankResult]) -> bool:
    """Tell whether the ranks go step by step together, because they exchange gradients."""
    return len(results) > 1 and all(exchange_s(r) is not None for r in results)


def parted(results: Sequence[RankResult]) -> str:
    """Return why ranks that exchange gradients did not train one net; "" where they did."""
    trainers = [r.notes.get("trainer") or {} for r in results]
    digests = [t.get("weights_digest") for t in trainers if isinstance(t, Mapping)]
    if len(set(filter(None, digests))) < 2:
        return ""
    return (
        "the ranks' weights differ after the run, so they did not train one net: did every rank "
        "begin with rank 0's weights and exchange in every step?"
    )


def exchange_s(result: RankResult) -> float | None:
    """Return the seconds a step that a rank's trainer says it spent exchanging gradients."""
    trainer = result.notes.get("trainer") or {}
    found = trainer.get("comm_s") if isinstance(trainer, Mapping) else None
    return None if found is None else float(found)
