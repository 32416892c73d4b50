"""One node's part in one attempt: its cache state, its locked pages, its counters, its proof."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from iobench.analysis import ranks as rank_figures
from iobench.core import stages
from iobench.core.cases import STEADY, Extent, Placement, Trial
from iobench.core.clock import clock
from iobench.core.errors import CacheStateError, TrialFailed
from iobench.core.protocols import Crossed
from iobench.core.records import CacheProof, IoCounters, NodeRecord, RankResult
from iobench.host.agent import NodeAgent
from iobench.run import cache_proof, cache_state
from iobench.run.cache_state import Verdict
from iobench.run.trial_settings import TrialSettings

_MISSING = "`iobench data verify` says what else is; restore it, or make the dataset again"
_CHANGED = "the software must be the same on every node, and stay as it is during the run"


class TrialNode:
    """A node of one attempt.  ``name``: as its ranks report it; "" where it is the only one."""

    def __init__(
        self,
        name: str,
        agent: NodeAgent,
        trial: Trial,
        files: Sequence[Path],
        where: Path,
        settings: TrialSettings,
    ) -> None:
        self.name, self.agent, self._trial, self._settings = name, agent, trial, settings
        self._files, self._where = files, where
        self._remedy = _CHANGED if stages.of(trial.stage).starts else _MISSING
        self.proof = CacheProof()
        self._mount: Mapping[str, Any] = {}
        self._counters: Mapping[str, int] = {}
        self._unlocked = False  # warm data that may be paged out
        self._counting_s = 0.0  # the clock as they were read; then how long it was counted
        self._others_per_s: float | None = None
        self.moved: Mapping[str, int] = {}
        self._bytes_before = 0  # of the files, resident once their state was set
        self.fetched = 0  # bytes of the software that its ranks' start brought into memory

    def set_state(
        self, extents: Callable[[], list[list[Extent]]], held: contextlib.ExitStack
    ) -> None:
        """Bring the files into the trial's cache state and prove what was reached.

        ``extents``: of the samples of this node's ranks.  ``held``: what is locked, until the
        attempt is judged.  Raises TrialFailed for a file that is missing or cannot be read.
        """
        if self.name:
            self._mount = self.agent.mount(self._where)
        if self._trial.cache == "-" or not self._files:
            return
        try:
            self.proof = self._proven(extents, held)
        except FileNotFoundError as error:
            raise TrialFailed(f"{error.filename} is missing{self._on()}: {self._remedy}") from None
        except OSError as error:
            name = error.filename or "the data"
            raise TrialFailed(f"{name}: {error.strerror}; {self._remedy}") from None

    def _on(self) -> str:
        return f" on node {self.name}" if self.name else ""

    def _proven(
        self, extents: Callable[[], list[list[Extent]]], held: contextlib.ExitStack
    ) -> CacheProof:
        agent, label = self.agent, self._trial.cache
        more: dict[str, Any] = {"unseen": agent.unseen(self._where)}
        if label == "cold":
            agent.evict(self._files)
            label = "data-cold"
            if self._settings.allow_drop_caches:
                agent.drop_caches(allowed=True)
                label = "client-cold"
        elif label == "warm":
            nbytes = sum(f.stat().st_size for f in self._files)
            agent.check_warmable(nbytes, self._files)
            self._check_limit(nbytes)
            agent.warm(self._files)  # also what is resident: kernels reclaim what was not read
            unheld = self._lock(held)
            rate = self._settings.cold_rates.get(self._trial.case.folder)
            self._unlocked = bool(unheld)
            more |= {"held": not unheld, "unheld": unheld, "cold_bytes_per_s": rate}
        elif label == STEADY:
            agent.evict(self._files)
        else:
            found = agent.set_fraction(extents(), float(label), self._trial.case.seed, self._files)
            unheld = self._lock(held, resident=True)
            more |= {"held": not unheld, "unheld": unheld}
            return CacheProof("fraction", found.method, found.fraction, **more)
        found = agent.residency(self._files)
        self._bytes_before = found.nbytes
        if label == "client-cold" and agent.caches(self._where):
            # a FUSE client keeps data of the files that the kernel has names of; last, because
            # looking a file up can bring them
            agent.drop_caches(allowed=True, names=True)
        return CacheProof(label, found.method, found.fraction, **more)

    def _check_limit(self, nbytes: int) -> None:
        """Raise CacheStateError where a case's own limit of memory holds less than its data."""
        if 0 < (limit := self._trial.case.memory_bytes) < nbytes:
            raise CacheStateError(
                f"{nbytes / 2**20:,.0f} MiB of data cannot be warm in memory = "
                f"{limit / 2**20:,.0f} MiB: use fewer samples, or measure 'steady'"
            )

    def _lock(self, held: contextlib.ExitStack, *, resident: bool = False) -> str:
        """Lock the data's pages, or those in memory, until this attempt is judged.

        Returns "" or why they are not.
        """
        if not self._settings.lock_pages:
            return "memory is limited in this suite"
        return held.enter_context(self.agent.lock(self._files, resident=resident))

    def count(self) -> None:
        """Begin to count what crosses the mount: nothing of ours uses it now.

        What others use of it counts where the data have to cross it.  Warm data that could not be
        locked are read once more: kernels reclaim them while other arms are prepared.
        """
        if self._unlocked and self._trial.slice_s:
            self.agent.warm(self._files)
        if self._files and self._trial.cache not in ("warm", "-"):
            self._others_per_s = self.agent.others(self._where)
            self.proof = dataclasses.replace(self.proof, caches=self.agent.caches(self._where))
        self._counters, self._counting_s = self.agent.counters(self._where), clock()

    def count_again(self) -> None:
        """Stop counting, when all ranks have ended."""
        after, self._counting_s = self.agent.counters(self._where), clock() - self._counting_s
        # a counter may be gone: its server was replaced, say
        self.moved = {name: after[name] - n for name, n in self._counters.items() if name in after}

    def own(self, ranks: Sequence[RankResult]) -> list[RankResult]:
        """Return the results of the ranks that ran here."""
        return [r for r in ranks if self.name in ("", r.host)]

    def prove_after(
        self, ranks: Sequence[RankResult], fio: IoCounters | None = None, opened: int = 1
    ) -> None:
        """Complete the proof by what is resident now and what crossed the mount for its ranks.

        ``fio``: what fio counted, where it read in their place, and how often it opened each file.
        """
        own = self.own(ranks)
        crossed = self._crossed(fio or cache_proof.io_of(own))
        self.proof = cache_proof.after_here(
            self.proof,
            own,
            self._files,
            self.agent,
            crossed,
            self._others(),
            by_fio=fio.rchar if fio else None,
            opened=opened,
        )

    def prove_started(self) -> None:
        """Complete the proof of a start by what of its software is resident now.

        What was brought in since has crossed the mount, whoever read it: the runtime's own
        programs, a daemon or the kernel, whose bytes no counter of ours has.
        """
        left = self.agent.residency(self._files)
        if left.fraction is not None:
            self.fetched = max(0, left.nbytes - self._bytes_before)
        self.proof = dataclasses.replace(
            self.proof,
            resident_after=left.fraction,
            bytes_resident=None if left.fraction is None else left.nbytes,
        )

    def prove_after_inside(self, ranks: Sequence[RankResult], place: Placement) -> None:
        """Complete the proof of data inside an image, which its ranks alone see."""
        below = self._crossed(cache_proof.io_of(ranks)) if self._files else None
        self.proof = cache_proof.after(self.proof, ranks, place, below, self._others())

    def _crossed(self, io: IoCounters) -> Crossed:
        return self.agent.crossed(self._where, io, self.moved)

    def _others(self) -> int:
        """Return the bytes that others may have moved meanwhile, at their rate just before."""
        return int((self._others_per_s or 0.0) * self._counting_s)

    def judge(self, ranks: Sequence[RankResult]) -> Verdict:
        """Return whether its evidence holds: (status, reasons), which name it."""
        loop_s = rank_figures.loop_s(self.own(ranks))
        trial = self._trial
        status, reasons = cache_state.judge(trial.cache, trial.stage, self.proof, loop_s)
        prefix = f"node {self.name}: " if self.name else ""
        return status, tuple(prefix + reason for reason in reasons)

    def record(self, ranks: Sequence[RankResult]) -> NodeRecord:
        """Return what is stored of it."""
        own = tuple(r.rank for r in self.own(ranks))
        return NodeRecord(self.name, own, self.proof, self._mount, self.moved)


def everywhere(nodes: Sequence[TrialNode], act: Callable[[TrialNode], None]) -> None:
    """Do something on every node at once.  Raises what the first of them to fail raises."""
    if len(nodes) == 1:
        act(nodes[0])
        return
    with concurrent.futures.ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(act, nodes))
