"""Copies of the data, on the mount under test, for cold trials.

Arms that take turns read one each: none finds in memory what another has read (docs/method.md,
"Arms that take turns").  With ``first_touch`` every cold trial reads one that nobody has read since
it was written (docs/filesystems.md, "Beyond the client").
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from iobench.backends.placements import _content
from iobench.core import records, registry, stages
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.dataset import files_of, form_root
from iobench.core.errors import DatasetError, TrialFailed
from iobench.host.agent import LOCAL, Agent
from iobench.host.remote_agent import RemoteAgent
from iobench.host.striping import stripe
from iobench.run import placed_folders
from iobench.run.trial_settings import TrialSettings


class Writer(Protocol):
    """An agent that writes copies."""

    def copy(self, pairs: Sequence[tuple[Path, Path]]) -> None:
        """Copy files, (source, target) each."""

    def settle(self, path: Path) -> None:
        """Write out what is dirty of the filesystem under ``path``."""


#: What a copy is for.
TURNS, FIRST_TOUCH = "cold arms that take turns", "first_touch"


def make(
    block: Sequence[Trial], dataset: Dataset, settings: TrialSettings, undo: ExitStack
) -> None:
    """Make the copies that the trials of a block read and that ``settings`` has not yet.

    They lie beside the dataset until ``undo`` is closed.  Trials that read a copy first make their
    own.  Raises DatasetError where there is no room, and for files that are read in place.
    """
    for trial in block:
        key = trial.case.folder, trial.copy
        if trial.copy and key not in settings.copies and not touches_first(trial, settings):
            copied = _copied(trial.case, dataset, TURNS)
            settings.copies[key] = made = undo.enter_context(copied)
            undo.callback(settings.copies.pop, key)
            _first_pass(trial.case, made, settings.agent)


def touches_first(trial: Trial, settings: TrialSettings) -> bool:
    """Return whether a trial is to read a copy that nobody has read since it was written.

    Cold ones are, that read no byte twice and their files where the dataset is.
    """
    if not settings.first_touch or trial.cache != "cold":
        return False
    stage = stages.of(trial.stage)
    return stage.reads and stage.once and not stage.starts and _on_the_mount(trial.case)


def _on_the_mount(case: Case) -> bool:
    """Return whether a case reads files, and where the dataset is."""
    placement = registry.load("placements", case.placement)
    return placement.make() is None and not registry.load("formats", case.format).fileless


@contextmanager
def untouched(
    trial: Trial, dataset: Dataset, settings: TrialSettings
) -> Iterator[tuple[Dataset, str]]:
    """Have a copy written of what a trial reads, and nothing of it read; it is removed afterwards.

    By a node that reads nothing of it, if there is one.  Yield the copy, and what the record says
    of it.  Raises TrialFailed where it cannot be made.
    """
    other = _beside(trial, settings)
    said = f"{records.FIRST_TOUCH}, {records.BY_ANOTHER}" if other else records.FIRST_TOUCH
    with ExitStack() as undo:
        try:
            copied = _copied(trial.case, dataset, FIRST_TOUCH, other or LOCAL)
            made = undo.enter_context(copied)
        except DatasetError as error:
            raise TrialFailed(str(error)) from None
        yield made, said


def _beside(trial: Trial, settings: TrialSettings) -> RemoteAgent | None:
    """Return the agent of a node that reads nothing of a trial; None where there is none."""
    readers = trial.case.nodes
    found = settings.nodes.after(readers) if settings.nodes else None
    return None if found and readers == 1 and found.node == settings.agent.name() else found


def check(cases: Sequence[Case], dataset: Dataset, what: str = FIRST_TOUCH) -> None:
    """Raise DatasetError where the copy of one of the cases cannot be made."""
    for case in filter(_on_the_mount, cases):
        _checked(case, dataset, what)


def _checked(case: Case, dataset: Dataset, what: str) -> _content.Content:
    if dataset.in_place:
        raise DatasetError(
            f"the files are read in place, and {what} would need copies of them: leave --in-place "
            "out"
        )
    data, parent = _content.of(dataset, [case]), Path(dataset.root).parent
    if not LOCAL.same_mount(parent, form_root(dataset, case.folder)):
        raise DatasetError(
            f"{dataset.root} is where its filesystem is mounted, and {what} would need copies "
            "beside it: use a dataset in a folder below"
        )
    data.check_space(parent, f"a copy of {case.stored_form} for {what}")
    return data


@contextmanager
def _copied(case: Case, dataset: Dataset, what: str, writer: Writer = LOCAL) -> Iterator[Dataset]:
    data, words = _checked(case, dataset, what), f"a copy of {case.stored_form} for {what}"
    name = f"{placed_folders.PREFIX}{dataset.digest[:8]}-{secrets.token_hex(4)}"
    with placed_folders.held(Path(dataset.root).parent / name, words) as root:
        try:
            data.copy_to(root, functools.partial(stripe, options=case.striping), writer.copy)
        except OSError as error:
            where = error.filename or root
            raise DatasetError(f"{words}: {where}: {error.strerror}") from None
        writer.settle(root)
        yield _content.at(dataset, root)


def _first_pass(case: Case, made: Dataset, agent: Agent) -> None:
    """Read it once from cold: the first pass after writing is unlike others."""
    agent.evict(files_of(case, made))
    agent.warm(files_of(case, made))
