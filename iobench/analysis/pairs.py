"""The paired blocks of a contrast: both arms of a block, and whether they read alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from iobench.analysis.evidence import Evidence, trial_window, usable
from iobench.analysis.hosts import together
from iobench.core import registry
from iobench.core.cases import Case, Contrast, Trial
from iobench.core.order import add_sums, shard_buffer
from iobench.core.records import VALID, Record
from iobench.plan.blocks import group_of
from iobench.plan.rules import FOLLOWING


class Pair(NamedTuple):
    """Both arms of one block; ``repeat_of`` is the block this one repeats (0: none)."""

    block: int
    repeat_of: int
    arm: Record
    base: Record

    @property
    def seconds_per_sample(self) -> tuple[float, float]:
        """Return (arm, base); of arms in turns those of the whole loop.

        What is made ahead as a warm-up ends differs from process to process.  So does which worker
        ends last: where both arms' make their batches in turn, and alike, their mean end is the
        loop's.  Raises ValueError where nothing was measured.
        """
        whole, workers = (True, self._workers) if self.in_turns else (None, 0)
        arm, base = (_seconds(r, whole=whole, workers=workers) for r in (self.arm, self.base))
        return arm, base

    @property
    def tails(self) -> tuple[float, float]:
        """Return (arm, base), of arms in turns: by which share of it a loop outlasted the mean end
        of its workers.
        """
        both, counted_s = (self.arm, self.base), self.seconds_per_sample
        arm, base = (_seconds(r, whole=True) / s - 1 for r, s in zip(both, counted_s, strict=True))
        return arm, base

    @property
    def in_turns(self) -> bool:
        """Tell whether the two took turns."""
        return self.arm.slices is not None and self.base.slices is not None

    @property
    def _workers(self) -> int:
        """How many workers make batches in turn, alike in both arms; 0: none, or not alike."""
        arm, base = (_dealt(record.trial.case) for record in (self.arm, self.base))
        return arm[0] if arm == base else 0


def factors(arm: Case, base: Case) -> list[str]:
    """Return the keys in which two cases differ: what is under study."""
    fields = [f.name for f in dataclasses.fields(Case) if f.name not in FOLLOWING]
    return [n for n in fields if getattr(arm, n) != getattr(base, n)]


def complete_pairs(evidence: Evidence, contrast: Contrast) -> list[Pair]:
    """Return the blocks whose two arms both have a usable record of one host, by block.

    The two ran in the plan's order: a resume that was interrupted leaves blocks whose arms are of
    two sessions, the earlier one of the later session.
    """
    blocks: dict[int, dict[str, Record]] = {}
    for record in usable(evidence.last.values()):
        trial = record.trial
        if is_of(trial, contrast) and trial_window(record) is not None:
            blocks.setdefault(trial.block, {})[trial.arm] = record
    return [
        Pair(block, int(arm.trial.repeat_of or 0), arm, base)
        for block, arms in sorted(blocks.items())
        if (arm := arms.get(contrast.arm))
        and (base := arms.get(contrast.base))
        and one_go([r for name, r in arms.items() if name in (contrast.arm, contrast.base)])
    ]


def one_go(ran: Sequence[Record]) -> bool:
    """Tell whether records of a block are of one go: in its order, on one host, in one job.

    Resumes can break it.  ``ran``: in the order in which the attempts began.
    """
    places = [r.trial.position for r in ran]
    return places == sorted(places) and all(together(ran[0], r) for r in ran[1:])


def proven(pairs: Sequence[Pair]) -> list[Pair]:
    """Leave out the pairs with an EXPLORATORY trial where most have none.

    A chance, such as memory that was paged out meanwhile, costs its pair.  Where most have one it
    is no chance, and all are returned.
    """
    valid = [pair for pair in pairs if pair.arm.status == pair.base.status == VALID]
    return valid if 2 * len(valid) > len(pairs) else list(pairs)


def equal_order(pairs: Sequence[Pair]) -> tuple[bool, str]:
    """Return (whether both arms of every pair saw the same samples in the same order, why not).

    Where the order itself is the factor, or how ranks share the data, any order will do; so it will
    where a loader is told (``in_order``) not to keep it, or draws it (``shards:N``).
    """
    for pair in pairs:
        arm, base = pair.arm.trial.case, pair.base.trial.case
        shared = (arm.world_size, arm.sharing) == (base.world_size, base.sharing) and (
            arm.order == base.order or arm.world_size == 1
        )  # which samples a rank of several gets depends on the order
        free = arm.order != base.order or not (_keeps_order(arm) and _keeps_order(base))
        name = "ids_digest" if free else "order_digest"
        one, other = (
            [getattr(r, name) for r in x.ranks]
            if shared
            else [add_sums([r.ids_sum for r in x.ranks])]
            for x in (pair.arm, pair.base)
        )
        if not all(one) or not all(other):
            return False, f"block {pair.block}: the order of the samples was not recorded"
        if one != other:
            same = shared and name == "order_digest"
            what = "order of the samples differs" if same else "samples differ"
            whole = "; take a number of samples that batch x ranks of every arm divides"
            more = "" if shared else whole
            return False, f"block {pair.block}: the {what} between the arms{more}"
    return True, ""


def _keeps_order(case: Case) -> bool:
    return _in_order(case) and not shard_buffer(case.order)


def _in_order(case: Case) -> bool:
    return case.loader_options.get("in_order") is not False


def is_of(trial: Trial, contrast: Contrast) -> bool:
    """Return whether a trial is in the blocks of the contrast; its serial probes are not."""
    return (trial.contrast, trial.stage) == (group_of(contrast), contrast.stage)


def _seconds(record: Record, *, whole: bool | None = None, workers: int = 0) -> float:
    found = trial_window(record, whole=whole, workers=workers)
    if found is None:
        raise ValueError(f"trial {record.trial.id} has no measured window")
    return found.seconds_per_sample


def _dealt(case: Case) -> tuple[int, int, int]:
    """Return workers, prefetch and batch where worker k makes every batch whose number is k modulo
    theirs; zeros where not, or where the loader is a plug-in that is not here.
    """
    loader = registry.known("loaders", case.loader)
    in_turn = loader is not None and loader.in_turn and _in_order(case)
    return (case.workers, case.prefetch, case.batch) if in_turn else (0, 0, 0)
