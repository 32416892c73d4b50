"""Progress of long work: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from iobench.core.cases import Trial
from iobench.core.clock import clock
from iobench.core.records import FAILED, Record
from iobench.report.numbers import duration

#: Seconds between lines where the output is no terminal.
LOG_EVERY_S = 20.0


class Reporter:
    """Shows what is being done, how much is done and how long the rest may take."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, left="")
        self._logged = clock() - LOG_EVERY_S
        self._ends: float | None = None
        self._failures: set[str] = set()

    def __enter__(self) -> Reporter:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, soft_wrap=True)

    def search(self, limit_s: float) -> None:
        """Say of trials before the pairs that they end within so many seconds from now: nobody
        knows how many a search will run.
        """
        self._ends = clock() + limit_s

    def trial(self, done: int, total: int, left_s: float, trial: Trial | None) -> None:
        """Show the trial that starts now and the time left."""
        what = _what(trial) if trial else "done"
        if trial and trial.contrast:
            what += f" ({trial.contrast}, pair {trial.block})"
        if self._ends and trial and not trial.contrast:
            most = max(0.0, self._ends - clock())
            self.step(what, done, 0, f"searching, at most {duration(most)} left")
            return
        self.step(what, done, total, f"{duration(left_s)} left")

    def ended(self, record: Record) -> None:
        """Print a FAILED trial's reasons; the same failure of a case's rung is printed once."""
        if record.status != FAILED:
            return
        failure = f"{_what(record.trial)}: {FAILED}: {'; '.join(record.reasons)}"
        if failure not in self._failures:
            self._failures.add(failure)
            self.say(failure)

    def step(self, what: str, done: int, total: int, left: str = "") -> None:
        """Show that ``done`` of ``total`` of ``what`` are done, and the time ``left`` in words.

        ``total`` 0: it is not known.
        """
        whole = total or None
        self._bar.update(self._task, description=what, completed=done, total=whole, left=left)
        if self._console.is_terminal:
            return
        now = clock()
        if 0 < total <= done or now - self._logged >= LOG_EVERY_S:
            self._logged = now
            self.say(f"[{done}/{total or '?'}] {what} {left}".rstrip())


def _what(trial: Trial) -> str:
    """Return a trial's rung and case in words."""
    return " ".join(w for w in (trial.stage, trial.cache.strip("-"), trial.case.label) if w)
