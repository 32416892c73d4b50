"""Append-only results: one folder a suite, one file an attempt, nothing is ever rewritten.

::

    results/<time>-<name>/
        plan.json      every planned trial, written before the first one runs
        journal.jsonl  one line a started attempt: how a killed one is known
        runs/<trial>.<attempt>.json
        trials.csv report.html analysis.json environment.json
    results/latest -> the newest suite
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from iobench.errors import ResultsError
from iobench.figures import enters, last_attempts
from iobench.model import SCHEMA, Plan, Record, to_json

#: What to do about a damaged file; nothing is removed or guessed for the user.
_MEND = (
    "move a damaged runs/ file away and `iobench run --resume` runs that trial again; without its "
    "plan.json a suite has to be run anew"
)

T = TypeVar("T")
_PLAN: pydantic.TypeAdapter[Plan] = pydantic.TypeAdapter(Plan)
_RECORD: pydantic.TypeAdapter[Record] = pydantic.TypeAdapter(Record)


def write_atomic(path: Path, text: str) -> None:
    """Write ``text`` so that a crash leaves the old file or the new one, never a part.

    Raises ResultsError when the disk is full or the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.tmp")
    try:
        with open(partial, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ResultsError(
            f"cannot write {path}: {error.strerror}; free some space or choose another --results "
            "folder, then `iobench run --resume`"
        ) from error


def create(results: Path, name: str) -> Store:
    """Make a new suite folder and point ``latest`` at it."""
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for suffix in ("", *(f".{i}" for i in range(2, 100))):
        folder = results / f"{stamp}-{name}{suffix}"
        try:
            (folder / "runs").mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ResultsError(
                f"cannot make {folder}: {error.strerror}; choose another --results folder"
            ) from error
        link = results / f".latest.{os.getpid()}"
        link.symlink_to(folder.name)
        link.rename(results / "latest")
        return Store(folder)
    raise ResultsError(f"no free name for a suite {stamp}-{name} under {results}")


def find(results: str | Path) -> Store:
    """Return the suite at ``results``: its folder, or a results root (then its ``latest``)."""
    path = Path(results)
    for folder in (path, path / "latest"):
        if (folder / "plan.json").exists():
            return Store(folder.resolve())
    raise ResultsError(f"no suite at {path}: run `iobench run` first, or name a results folder")


class Store:
    """One suite's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save_plan(self, plan: Plan) -> None:
        """Write the plan (again, when a phase adds trials)."""
        write_atomic(self.folder / "plan.json", json.dumps(to_json(plan), indent=1))

    def plan(self) -> Plan:
        """Read the plan."""
        return _read(self.folder / "plan.json", _PLAN)

    def start(self, trial: str) -> int:
        """Note that an attempt begins; return its number (1 for the first)."""
        attempt = 1 + sum(bool(entry["trial"] == trial) for entry in self._journal())
        line = json.dumps({"trial": trial, "attempt": attempt, "pid": os.getpid()}) + "\n"
        with open(self.folder / "journal.jsonl", "a+b") as file:
            torn = file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write((b"\n" if torn else b"") + line.encode())
            file.flush()
            os.fsync(file.fileno())
        return attempt

    def save(self, record: Record) -> None:
        """Store one attempt; an existing file is never replaced."""
        path = self.folder / "runs" / f"{record.trial.id}.{record.attempt}.json"
        if path.exists():
            raise ResultsError(f"{path} exists already; results are append-only")
        write_atomic(path, json.dumps(to_json(record)))

    def records(self) -> list[Record]:
        """Return every stored attempt, in order of trial and attempt."""
        paths = sorted((self.folder / "runs").glob("*.json"), key=_trial_order)
        return [_read(path, _RECORD) for path in paths]

    def done(self) -> dict[str, Record]:
        """Return trial id -> its last record, where that is usable (VALID or EXPLORATORY)."""
        return {i: r for i, r in last_attempts(self.records()).items() if enters(r)}

    def unusable(self) -> list[Record]:
        """Return the last record of each trial that has no usable one."""
        return [r for r in last_attempts(self.records()).values() if not enters(r)]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the suite: two drivers at once would spoil each other's trials."""
        with open(self.folder / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ResultsError(
                    f"{self.folder} is being run by another iobench; wait for it or stop it"
                ) from None
            except OSError as error:
                raise ResultsError(
                    f"{self.folder} cannot be locked ({error.strerror}): choose another folder by "
                    "--results"
                ) from None
            yield

    def _journal(self) -> list[dict[str, Any]]:
        try:
            lines = (self.folder / "journal.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError):  # a kill may tear the last line
                entries.append(json.loads(line))
        return entries


def _trial_order(path: Path) -> tuple[str, int]:
    trial, _, attempt = path.stem.rpartition(".")
    if not trial or not attempt.isdecimal():
        raise ResultsError(f"{path} is no <trial>.<attempt>.json of iobench: move it away")
    return trial, int(attempt)


def _read(path: Path, adapter: pydantic.TypeAdapter[T]) -> T:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot read {path}: {error}; {_MEND}") from error
    version = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(version, int):
        raise ResultsError(f"{path} is damaged: no schema number; {_MEND}")
    if version > SCHEMA:
        raise ResultsError(
            f"{path} has schema {version!r}, this iobench reads up to {SCHEMA}; update iobench"
        )
    try:
        return adapter.validate_python(document)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise ResultsError(f"{path} is damaged: {where}: {first['msg']}; {_MEND}") from None
