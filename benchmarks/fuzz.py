"""Fuzz specs: valid ones plan, invalid ones are refused in one line before anything is made.

Specs are drawn from the schema, and from the shipped specs with changes to keys, values, types,
structure and raw text.  Each is judged as ``iobench run`` judges it before it makes data, and held
against properties that know nothing of single keys:

- no exception but iobench's own; a refusal is one line of plain words, without control characters,
  and the command exits with status 2 without having made a file or having asked for data;
- a refusal after one change names the key that was changed, and its value or what is allowed;
- what is accepted holds no number that is not finite or beyond 64 bits, and no value of another
  type than its key's;
- what the user typed has an effect on the plan, or a note or an error says that it has none.

Exit status 0: nothing found.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import dataclasses
import io
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks.spec_mutations import Drawn, single_changes, specs
from benchmarks.spec_strategies import get, places, toml
from benchmarks.spec_types import misfits, option_misfits
from iobench.cli import main as cli_main
from iobench.core.errors import IobenchError, shown
from iobench.plan import foresee
from iobench.run import prepare
from iobench.spec import load

#: Words of the libraries and the language behind a spec.
JARGON = re.compile(
    r"pydantic|[Ii]nput should|validation error|Traceback|Exception|\w+Error\b|<class|object at 0x|"
    r"NoneType|__\w+__|site-packages|\bdict\b|dictionary|\btuple\b|\binstance\b|(a|valid) float\b|"
    r"\bint\b|\bbool\b|iobench/\w+/|\.py\b|datetime\.|Schema|Spec\b|regex|pattern|keyword argument"
)
LONGEST = 2100
#: Keys that another one refers to: a refusal may name that one instead.
REFERRED_TO_BY = {"name": "base", "instead": "base"}
#: Keys that a plan does not hold: a description, a folder that is looked at when it is used, what
#: is left out where a library is missing.
NOT_IN_A_PLAN = ("about", "stage_to", "optional")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: How a refusal says what is allowed, or what to do.
ALLOWED = re.compile(
    r"allowed|did you mean|\b(give|leave|remove|use|set|write|name|choose|fix)\b|"
    r"\bit (reads|follows|does|shares)|those (that|for)"
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one spec: a plan, a refusal, or what must not be."""

    kind: str  # valid, refused, or the property that does not hold
    words: str = ""


class ReachedDataError(BaseException):
    """A spec that was to be refused got as far as the data."""


def judge(drawn: Drawn, folder: Path) -> Outcome:
    """Return what becomes of a spec in an empty ``folder``, and whether that is as it should be."""
    path = folder / "fuzz.toml"
    path.write_bytes(drawn.data)
    try:
        foreseen = foresee.judged(*load.read(str(path)))
    except IobenchError as error:
        return _refused(drawn, str(error), path)
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        return Outcome(f"exception {type(error).__name__}{_where(error)}", str(error)[:300])
    return _accepted(drawn, foreseen)


def _where(error: BaseException) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f" {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else ""


def _refused(drawn: Drawn, words: str, path: Path) -> Outcome:
    plain = words.replace(str(path), "")
    if found := JARGON.search(plain.replace(_typed(drawn), "")):
        return Outcome(f"jargon {found[0]}", words)
    status, text = _command(path)
    if status != 2 or text.count("\n") != 1 or not text.startswith("iobench: "):
        return Outcome(f"status {status}", text[:300])
    if CONTROL.search(text[:-1]) or len(text) > LONGEST:
        return Outcome("not one short line", text[:300])
    if left := [p.name for p in path.parent.iterdir() if p != path]:
        return Outcome(f"made {left}", words)
    if drawn.document is not None and drawn.changed and drawn.kind in ("odd", "typo"):
        lacks = _unnamed(drawn, plain)
        if lacks and _is_valid(drawn.before):
            return Outcome(f"does not name {lacks}: {_named(drawn.changed)}", words)
    return Outcome("refused", words)


def _unnamed(drawn: Drawn, words: str) -> str:
    """Return what a refusal of one change does not name, "" if it names key and value.

    A whole table or list that is replaced may leave another key without what it needs.
    """
    key = [p for p in map(str, drawn.changed) if not p.isdigit()][-1]
    value = _value(drawn)
    if not _has(words, key[:40] or "''"):
        other = isinstance(value, dict | list) or _has(words, REFERRED_TO_BY.get(key, "\0"))
        return "" if other and ALLOWED.search(words) else "the key"
    texts = [text for text in (shown(value)[:20], str(value)[:20]) if text]
    if value is not None and any(_has(words, text) for text in texts):
        return ""
    return "" if ALLOWED.search(words) else "value or what is allowed"


def _has(words: str, text: str) -> bool:
    """Tell whether a text is there, and not as a part of a longer word."""
    return bool(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", words)) or (
        not text.isalnum() and text in words
    )


def _is_valid(data: bytes) -> bool:
    try:
        foresee.judged(data.decode(), "before")
    except IobenchError:
        return False
    return True


def _typed(drawn: Drawn) -> str:
    """Return the value that was put into the spec, as a refusal may repeat it."""
    value = _value(drawn)
    return repr(value) if value is not None else "\0"


def _value(drawn: Drawn) -> Any:
    if drawn.document is None or not drawn.changed or drawn.kind == "delete":
        return None
    with contextlib.suppress(KeyError, IndexError, TypeError):
        return get(drawn.document, drawn.changed)
    return None


def _command(path: Path) -> tuple[int, str]:
    """Run the command on a spec that must be refused; return exit status and standard error."""
    text = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["iobench", "run", str(path), "--out", str(path.parent)]),
        mock.patch.object(prepare, "dataset_for", side_effect=ReachedDataError),
        contextlib.redirect_stderr(text),
        contextlib.redirect_stdout(text),
    ):
        try:
            return cli_main.command(), text.getvalue()
        except ReachedDataError:
            return -1, "asked for data"


def _accepted(drawn: Drawn, foreseen: foresee.Foreseen) -> Outcome:
    plan = foreseen.plan
    if any(CONTROL.search(note) or len(note) > LONGEST for note in foreseen.notes):
        return Outcome("a note is not one short line", str(foreseen.notes))
    if drawn.document is None:
        return Outcome("valid")
    for path in places(drawn.document):
        value = get(drawn.document, path)
        number = isinstance(value, int | float)
        if number and not (math.isfinite(value) and abs(value) < 2**63):
            return Outcome(f"accepted {_named(path)} = {value}")
        if isinstance(value, list) and len(set(map(repr, value))) < len(value):
            return Outcome(f"accepted {_named(path)} with a value twice", repr(value)[:300])
    for path, value in misfits(drawn.document):
        return Outcome(f"accepted {_named(path)} = {type(value).__name__}", repr(value)[:300])
    for path, value in option_misfits(plan.cases):
        return Outcome(
            f"accepted option {_named(path)} = {type(value).__name__}", repr(value)[:300]
        )
    if not plan.trials:
        return Outcome("a plan without trials")
    return _ignored(drawn, foreseen) or Outcome("valid")


def _ignored(drawn: Drawn, foreseen: foresee.Foreseen) -> Outcome | None:
    """Return that a key has no effect and no note says so: another value gives the same plan."""
    if drawn.other is None or drawn.document is None:
        return None
    path, value = drawn.other
    said = any(str(path[-1]) in note for note in foreseen.notes)
    unplanned = path[-1] in NOT_IN_A_PLAN or any(c.instead for c in foreseen.spec.contrasts)
    if said or unplanned or _means(path, get(drawn.document, path)) == _means(path, value):
        return None
    document = copy.deepcopy(dict(drawn.document))
    get(document, path[:-1])[path[-1]] = value
    try:
        other = foresee.judged(toml(document), "other")
    except IobenchError:
        return None
    said = any(str(path[-1]) in note for note in other.notes)
    if said or other.plan != foreseen.plan:
        return None
    return Outcome(f"ignored {_named(path)}", f"{get(drawn.document, path)!r} or {value!r}")


def _means(path: tuple[str | int, ...], value: Any) -> Any:
    """Return a value by its other name: ``lmdb`` is the pipeline ``torch:lmdb``."""
    if "pipeline" in path and isinstance(value, str):
        with contextlib.suppress(IobenchError):
            return load.pipeline(value)
    if path[-1] == "over" and value == "ranks_per_node":
        return "world_size"  # on one node
    return value


def _named(path: tuple[str | int, ...]) -> str:
    return ".".join(p for p in map(str, path) if not p.isdigit())


def fuzz(count: int, start: int, found: Callable[[Drawn, Outcome], None]) -> None:
    """Judge ``count`` specs drawn from a seed; ``found`` gets each with its outcome."""
    with tempfile.TemporaryDirectory(prefix="iobench-fuzz-") as name:

        @seed(start)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(specs())
        def each(drawn: Drawn) -> None:
            found(drawn, judge(drawn, Path(name)))

        each()


@dataclasses.dataclass
class Tally:
    """Counts outcomes; keeps the shortest spec of each property that does not hold."""

    seconds: float = 0.0
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    worst: dict[str, tuple[bytes, str]] = dataclasses.field(default_factory=dict)
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, drawn: Drawn, outcome: Outcome) -> None:
        self.kinds[outcome.kind] += 1
        if outcome.kind == "refused":
            self.refusals[re.sub(r"'[^']*'|\d+", "_", outcome.words.split(":", 1)[1])[:60]] += 1
        elif outcome.kind != "valid":
            before = self.worst.get(outcome.kind)
            if before is None or len(drawn.data) < len(before[0]):
                self.worst[outcome.kind] = drawn.data, outcome.words

    @property
    def total(self) -> int:
        return self.kinds.total()


def run(count: int, start: int, limit_s: float) -> Tally:
    """Judge specs until ``count`` are done or ``limit_s`` is over; return what was found."""
    tally, begun = Tally(), time.perf_counter()
    while tally.total < count and time.perf_counter() - begun < limit_s:
        fuzz(min(250, count - tally.total), start, tally.add)
        start += 1
    tally.seconds = time.perf_counter() - begun
    return tally


def sweep(every: int = 1) -> Tally:
    """Judge the shipped specs with each single change, or only ``every`` so many; return the same.

    What is drawn seldom meets a key that few specs have.
    """
    tally, begun = Tally(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="iobench-fuzz-") as name:
        for drawn in single_changes(every):
            tally.add(drawn, judge(drawn, Path(name)))
    tally.seconds = time.perf_counter() - begun
    return tally


def main() -> int:
    """Fuzz, print what was found; return 1 if a property does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--specs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds, at most")
    parser.add_argument(
        "--sweep", action="store_true", help="every single change to the shipped specs instead"
    )
    parser.add_argument("--messages", action="store_true", help="show the kinds of refusals")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    tally = sweep() if args.sweep else run(args.specs, args.seed, args.limit)
    for kind, count in tally.kinds.most_common():
        print(f"{count:7}  {kind}")
    for kind, (data, words) in tally.worst.items():
        print(f"\n--- {kind}\n{words}\n{data.decode(errors='backslashreplace')[:1500]}")
    if args.messages:
        for words, count in tally.refusals.most_common(150):
            print(f"{count:7}  {words}")
    rate = tally.total / tally.seconds * 3600
    print(f"\n{tally.total} specs in {tally.seconds:.0f} s: {rate:.0f} an hour")
    if args.json:
        figures = {"specs": tally.total, "specs_per_hour": rate, "outcomes": dict(tally.kinds)}
        args.json.write_text(json.dumps(figures, indent=2))
    return 1 if tally.worst else 0


if __name__ == "__main__":
    sys.exit(main())
