"""Copies of the data for arms that take turns cold: none finds in memory what another has read.

docs/method.md, "Arms that take turns".
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from iobench.backends.placements import _content
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.dataset import files_of
from iobench.core.errors import DatasetError
from iobench.host import files
from iobench.host.agent import Agent
from iobench.host.striping import stripe
from iobench.run import placed_folders
from iobench.run.worker_process import TrialSettings


def make(
    block: Sequence[Trial], dataset: Dataset, settings: TrialSettings, undo: ExitStack
) -> None:
    """Make the copies that the trials of a block read and that ``settings`` has not yet.

    They lie beside the dataset until ``undo`` is closed.  Raises DatasetError where there is no
    room, and for files that are read in place.
    """
    for trial in block:
        key = trial.case.folder, trial.copy
        if trial.copy and key not in settings.copies:
            settings.copies[key] = _copy(trial.case, dataset, settings.agent, undo)
            undo.callback(settings.copies.pop, key)


def _copy(case: Case, dataset: Dataset, agent: Agent, undo: ExitStack) -> Dataset:
    what = f"a copy of {case.stored_form} for cold arms that take turns"
    if dataset.in_place:
        raise DatasetError("the files are read in place, and cold arms would need copies of them")
    parent, data = Path(dataset.root).parent, _content.of(dataset, [case])
    data.check_space(parent, what)
    name = f"{placed_folders.PREFIX}{dataset.digest[:8]}-{secrets.token_hex(4)}"
    root = undo.enter_context(placed_folders.held(parent / name, what))
    try:
        data.copy_to(root, functools.partial(stripe, options=case.striping))
    except OSError as error:
        raise DatasetError(f"{what}: {error.filename or root}: {error.strerror}") from None
    files.settle(root)
    made = _content.at(dataset, root)
    agent.evict(files_of(case, made))  # the first pass after writing is unlike others
    agent.warm(files_of(case, made))
    return made
