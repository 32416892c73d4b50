"""Append-only results: one folder a suite, one file an attempt, nothing is ever rewritten.

docs/results.md lists the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import socket
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from iobench.analysis.evidence import enters, last_attempts
from iobench.core.cases import SCHEMA, Plan, to_json
from iobench.core.errors import ResultsError
from iobench.core.records import RankResult, Record
from iobench.host import columns, files, locks

#: The folder of the records in a suite's.
RUNS = "runs"
#: Which job of a batch system a suite is, where it was submitted.
JOB = "job.json"
#: Counter of a record of schema 1: its name, the bytes that were excluded, whose files they were.
_EXCLUDED = re.compile(r"(.*), without (\d+) of (.*)")

T = TypeVar("T")
_PLAN: pydantic.TypeAdapter[Plan] = pydantic.TypeAdapter(Plan)
_RECORD: pydantic.TypeAdapter[Record] = pydantic.TypeAdapter(Record)
_COUNTS: pydantic.TypeAdapter[dict[str, int]] = pydantic.TypeAdapter(dict[str, int])


def write_atomic(path: Path, text: str) -> None:
    """Write ``text`` so that a crash leaves the old file or the new one, never a part.

    Raises ResultsError when the disk is full or the folder cannot be written.
    """
    try:
        files.write_text(path, text)
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> ResultsError:
    gone = isinstance(error, FileNotFoundError)
    cure = "bring its folder back" if gone else "free some space or make it writable"
    return ResultsError(f"cannot write {path}: {error.strerror}; {cure}, then {_again(path)}")


def resume_command(folder: Path, options: Sequence[str] = ()) -> str:
    """Return, in words for a message, the command that goes on with the suite in ``folder``.

    ``options``: what else it was given that a resumed run needs again; a job's script has them.
    """
    if (folder / JOB).exists():
        return f"`{shlex.join(['iobench', 'submit', '--resume', '--results', str(folder)])}`"
    return f"`{shlex.join(['iobench', 'run', '--resume', '--results', str(folder), *options])}`"


def _again(path: Path) -> str:
    """Return what goes on once a file can be written: before the first plan there is no suite."""
    first = path.name in ("spec.toml", "plan.json") and not path.with_name("plan.json").exists()
    return "the same command again" if first else resume_command(_suite_of(path))


def _suite_of(path: Path) -> Path:
    return path.parents[path.parent.name == RUNS]


def _mend(path: Path) -> str:
    """Return what to do about a damaged file; nothing is removed or guessed for the user."""
    if path.parent.name == RUNS:
        return f"move it away and {resume_command(_suite_of(path))} runs that trial again"
    return "with a damaged plan.json a suite has to be run anew"


def create(results: Path, name: str) -> Store:
    """Make a new suite folder and point ``latest`` at it."""
    folder = make_folder(results, name)
    point_latest(folder)
    return Store(folder)


def at(folder: Path) -> Store:
    """Return the suite in a folder of its own, which is made unless it is there."""
    try:
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"cannot make {folder}: {error.strerror}; choose another") from error
    return Store(folder.resolve())


def make_folder(results: Path, name: str) -> Path:
    """Make the folder of a new suite."""
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    for suffix in ("", *(f".{i}" for i in range(2, 100))):
        folder = results / f"{stamp}-{name}{suffix}"
        try:
            (folder / RUNS).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ResultsError(
                f"cannot make {folder}: {error.strerror}; choose another --results folder"
            ) from error
        return folder
    raise ResultsError(f"no free name for a suite {stamp}-{name} under {results}")


def point_latest(folder: Path) -> None:
    """Let ``latest`` beside a suite's folder be that suite."""
    link = folder.with_name(f".latest.{os.getpid()}")
    link.symlink_to(folder.name)
    link.rename(folder.with_name("latest"))


def find(results: str | Path) -> Store:
    """Return the suite at ``results``: its folder, or a results root (then its ``latest``)."""
    folder = folder_at(results)
    if (folder / "plan.json").exists():
        return Store(folder)
    raise ResultsError(f"{folder} was submitted and has no plan yet: see `iobench status {folder}`")


def folder_at(results: str | Path) -> Path:
    """Return the folder of the suite at ``results``, which may have been submitted only."""
    path = Path(results)
    for folder in (path, path / "latest"):
        if (folder / "plan.json").exists() or (folder / JOB).exists():
            return folder.resolve()
    raise ResultsError(f"no suite at {path}: run `iobench run` first, or name a results folder")


class Store:
    """One suite's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save_spec(self, text: str) -> None:
        """Write the user's spec as it was read, for people: iobench itself reads the plan."""
        write_atomic(self.folder / "spec.toml", text)

    def save_plan(self, plan: Plan) -> None:
        """Write the plan (again, when a phase adds trials)."""
        write_atomic(self.folder / "plan.json", json.dumps(to_json(plan), indent=1))

    def plan(self) -> Plan:
        """Read the plan."""
        return _read(self.folder / "plan.json", _PLAN)

    def resumable_plan(self) -> Plan:
        """Read the plan of a suite to go on with; raises ResultsError for an earlier iobench's."""
        plan = self.plan()
        if not plan.usual_budget_s or not plan.sessions:
            raise ResultsError(
                f"{self.folder} is of iobench {plan.version}, and this one cannot go on with it: "
                "`iobench report` still reads it; run the suite anew"
            )
        return plan

    def start(self, trial: str) -> int:
        """Note that an attempt begins; return its number (1 for the first)."""
        attempt = 1 + sum(bool(entry["trial"] == trial) for entry in self._journal())
        who = {"pid": os.getpid(), "host": socket.gethostname()}
        line = json.dumps({"trial": trial, "attempt": attempt, **who}) + "\n"
        with open(self.folder / "journal.jsonl", "a+b") as file:
            torn = file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write((b"\n" if torn else b"") + line.encode())
            file.flush()
            os.fsync(file.fileno())
        return attempt

    def save(self, record: Record) -> None:
        """Store one attempt; an existing file is never replaced."""
        path = self.folder / RUNS / f"{record.trial.id}.{record.attempt}.json"
        if path.exists():
            raise ResultsError(f"{path} exists already; results are append-only")
        ranks = [_kept(rank, path.with_suffix("")) for rank in record.ranks]
        document = to_json(dataclasses.replace(record, ranks=()))
        write_atomic(path, json.dumps({**document, "ranks": ranks}))

    def columns(self, trial: str, attempt: int) -> Path:
        """Return the folder beside an attempt's record that holds its ranks' columns."""
        return self.folder / RUNS / f"{trial}.{attempt}"

    def records(self) -> list[Record]:
        """Return every stored attempt in the order in which they began, by the journal.

        The wall clock may have been set back meanwhile; it orders only what the journal lacks.
        """
        paths = sorted((self.folder / RUNS).glob("*.json"), key=_trial_order)
        order = {(e["trial"], e["attempt"]): n for n, e in enumerate(self._journal())}
        return sorted(
            map(_record, paths),
            key=lambda r: (order.get((r.trial.id, r.attempt), -1), r.started),
        )

    def begun_last(self, ended: Set[tuple[str, int]]) -> str:
        """Return the trial that began last, unless its attempt is among those that have ended."""
        last = (self._journal() or [{}])[-1]
        trial, attempt = str(last.get("trial", "")), int(last.get("attempt", 0))
        return "" if (trial, attempt) in ended else trial

    def done(self) -> dict[str, Record]:
        """Return trial id -> its last record, where that is usable (VALID or EXPLORATORY)."""
        return {i: r for i, r in last_attempts(self.records()).items() if enters(r)}

    @contextlib.contextmanager
    def lock(self) -> Iterator[Sequence[locks.Holder]]:
        """Hold the suite: two drivers at once would spoil each other's trials.

        What was begun to be written when its filesystem went away is removed.
        """

        def busy(who: str) -> ResultsError:
            return ResultsError(f"{self.folder} is being run by {who}: wait for it or stop it")

        with locks.held(self.folder, busy) as others:
            for left in (*self.folder.glob(".*.tmp"), *self.folder.glob("runs/.*.tmp")):
                with contextlib.suppress(OSError):
                    left.unlink()
            yield others

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


def _measured_bytes(document: dict[str, Any]) -> None:
    """Restore in a record of schema 1 the bytes that were counted: it excluded page-ins itself."""
    proof = document.get("cache")
    if isinstance(proof, dict) and (found := _EXCLUDED.fullmatch(str(proof.get("counter", "")))):
        proof.update(counter=found[1], bytes_storage=int(found[2]), programs=found[3])


def _kept(rank: RankResult, folder: Path) -> dict[str, Any]:
    """Return what a record holds of a rank, whose columns are in its file in ``folder``."""
    if columns.are_in(folder, rank):
        counts = columns.counts_of(rank)
    else:
        try:
            folder.mkdir(exist_ok=True)
            counts = columns.write(folder, rank)
        except OSError as error:
            raise _unwritten(folder.with_name(f"{folder.name}.json"), error) from error
    return {**to_json(columns.bare(rank)), "columns": counts}


def _record(path: Path) -> Record:
    """Read a record; the columns of its ranks are read when somebody looks at them."""
    document = _document(path)
    counts = [_counts(path, rank) for rank in document.get("ranks") or ()]
    record = _validated(path, document, _RECORD)
    folder = path.with_suffix("")
    pairs = zip(record.ranks, counts, strict=True)
    ranks = tuple(columns.joined(rank, held, folder) for rank, held in pairs)
    return dataclasses.replace(record, ranks=ranks)


def _counts(path: Path, rank: Any) -> dict[str, int]:
    """Return how long each column of a rank is; {} of a record that holds them itself."""
    try:
        return _COUNTS.validate_python(rank.get("columns") or {})
    except (AttributeError, pydantic.ValidationError):
        raise ResultsError(f"{path} is damaged: columns of a rank; {_mend(path)}") from None


def _read(path: Path, adapter: pydantic.TypeAdapter[T]) -> T:
    return _validated(path, _document(path), adapter)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultsError(f"cannot read {path}: {error}; {_mend(path)}") from error
    version = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(version, int):
        raise ResultsError(f"{path} is damaged: no schema number; {_mend(path)}")
    if version > SCHEMA:
        raise ResultsError(
            f"{path} has schema {version!r}, this iobench reads up to {SCHEMA}; update iobench"
        )
    if version < 2:
        _measured_bytes(document)
    return document  # type: ignore[no-any-return]


def _validated(path: Path, document: dict[str, Any], adapter: pydantic.TypeAdapter[T]) -> T:
    try:
        return adapter.validate_python(document)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise ResultsError(f"{path} is damaged: {where}: {first['msg']}; {_mend(path)}") from None
