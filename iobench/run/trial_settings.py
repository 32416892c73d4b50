"""What every trial of a suite shares, and who its nodes are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from iobench.core import stages
from iobench.core.cases import Dataset, Placement, Trial
from iobench.core.protocols import ImageUse
from iobench.host.agent import LOCAL, Agent, NodeAgent
from iobench.run import ranks
from iobench.run.nodes import Nodes


@dataclasses.dataclass(frozen=True)
class TrialSettings:
    """What every trial of a suite shares.

    ``enter``: words put before the worker's command (a benchmark joins a throttled cgroup by it;
    a daemon's containers are no children of it).  ``images``: name -> image, for the runtimes that
    need one (:func:`iobench.run.command.images_for`).  ``first_touch``: cold trials read copies
    that nobody has read (:mod:`iobench.run.copies`).  ``placements``: by the location of the cases
    whose data were put somewhere.  ``lock_pages``: hold warm data in memory; not where memory is
    what is studied.  ``cold_rates``: bytes/s of one stream by stored form, as measured.
    ``copies``: (stored form, number) -> a copy of the dataset in that form.  ``agent``: of this
    node, where the ranks of most cases run.  ``nodes``: those of the others.  ``keeps``:
    (trial, attempt) -> the folder that keeps the columns of its ranks; None: memory does.
    """

    limit_s: float = 120.0
    compute_s: float = 6.0
    allow_drop_caches: bool = False
    first_touch: bool = False
    decode_delay_s: float = 0.0
    enter: Sequence[str] = ()
    images: Mapping[str, ImageUse] = dataclasses.field(default_factory=dict)
    placements: Mapping[str, Placement] = dataclasses.field(default_factory=dict)
    lock_pages: bool = True
    cold_rates: dict[str, float] = dataclasses.field(default_factory=dict)
    copies: dict[tuple[str, int], Dataset] = dataclasses.field(default_factory=dict)
    agent: Agent = LOCAL
    nodes: Nodes | None = None
    keeps: Callable[[str, int], Path] | None = None
    columns: Path | None = None  # that of one attempt

    def of(self, trial: Trial, attempt: int) -> TrialSettings:
        """Return the settings of one attempt."""
        kept = self.keeps(trial.id, attempt) if self.keeps else None
        return dataclasses.replace(self, columns=kept)

    def nodes_of(self, trial: Trial) -> Nodes | None:
        """Return the nodes of a trial whose case is on several; None: it runs on this one."""
        if trial.case.nodes == 1 or stages.of(trial.stage).on_host:
            return None
        assert self.nodes is not None
        return self.nodes.first(ranks.nodes(trial))

    def agents(self, trial: Trial) -> dict[str, NodeAgent]:
        """Return the agents of a trial's nodes by their names; of this one alone by ""."""
        several = self.nodes_of(trial)
        return {a.node: a for a in several.agents} if several else {"": self.agent}
