"""Which settings are tried next: Optuna's tree-structured Parzen estimator over the space.

The study is a journal in the suite's folder, so a search that was killed goes on with all that it
has learned.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iobench.core.cases import Case
from iobench.tune.settings import Value
from iobench.tune.space import Space, value_of

JOURNAL = "tune.journal"
_STUDY = "tune"


class Search:
    """Asks for cases and learns from their rates."""

    def __init__(self, folder: Path, space: Space, seed: int) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._space = optuna, space
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        with contextlib.suppress(optuna.exceptions.DuplicatedStudyError):
            optuna.create_study(storage=storage, study_name=_STUDY, direction="maximize")
        with warnings.catch_warnings():  # grouping pipelines' own parameters is experimental there
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, group=True, n_startup_trials=len(space.starts())
            )
        self._study = optuna.load_study(storage=storage, study_name=_STUDY, sampler=sampler)
        self._open: dict[int, Any] = {}
        if not self._study.trials:
            for case in space.starts():
                self._study.enqueue_trial(_parameters(space, case))
        for trial in self._study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
            # killed between asking and planning, or while it ran: the same settings come again
            self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            self._study.enqueue_trial(trial.params)

    def ask(self) -> tuple[int, Case]:
        """Return the number of a new trial, and its case."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            trial = self._study.ask()
            case = self._space.case(lambda *asked: _taken(trial, *asked))
        self._open[trial.number] = trial
        return trial.number, case

    def enqueue(self, case: Case) -> None:
        """Let a case of the space be the next that :meth:`ask` returns, after those enqueued."""
        self._study.enqueue_trial(_parameters(self._space, case))

    def tell(self, number: int, rate: float | None, *, early: bool = False) -> None:
        """Enter the rate of a trial, samples/s; None: it failed.  ``early``: it was cut short."""
        states = self._optuna.trial.TrialState
        if rate is None:
            self._study.tell(number, state=states.FAIL)
        elif early:
            self._open[number].report(rate, step=0)
            self._study.tell(number, state=states.PRUNED)
        else:
            self._study.tell(number, rate)


def _taken(trial: Any, name: str, values: Sequence[Value], ordered: bool) -> Value:
    if ordered:
        return values[int(trial.suggest_int(name, 0, len(values) - 1))]
    found: Value = trial.suggest_categorical(name, list(values))
    return found


def _parameters(space: Space, case: Case) -> dict[str, Any]:
    """Return the parameters of the search that give a case of the space."""
    found: dict[str, Any] = {}

    def choose(name: str, values: Sequence[Value], ordered: bool) -> Value:
        value = value_of(case, name, values)
        found[name] = values.index(value) if ordered else value
        return value

    space.case(choose)
    return found
