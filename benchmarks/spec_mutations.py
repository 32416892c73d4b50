"""One change to a spec: its keys, values, types, structure, or the bytes of its TOML."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from benchmarks.spec_strategies import (
    ODD,
    Path,
    documents,
    get,
    known_values,
    places,
    shipped,
    toml,
    values_of,
)
from iobench.spec import schema

#: Ends and middles that TOML does not allow, or reads otherwise than they look.
_RAW = (
    "=",
    "[",
    "]",
    '"',
    "'''",
    "\x00",
    "\x1b[2J",
    "\ufeff",
    "\r",
    "#",
    "\n[case]\n",
    "é",
    "_",
    "9" * 5000,
    "[" * 5000,
)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One spec.  ``document``: as it was written; None: changed as text.

    ``kind``: ``schema`` (as drawn), ``text``, ``several`` changes, or the one change that was made.
    ``changed``: the place whose value or name was changed last, () for none.  ``other``: a place of
    it, and another value that its key may have: it should make a difference.  ``before``: the text
    before it was changed.
    """

    data: bytes
    document: Mapping[str, Any] | None
    changed: Path = ()
    kind: str = "schema"
    other: tuple[Path, Any] | None = None
    before: bytes = b""


@st.composite
def specs(draw: st.DrawFn) -> Drawn:
    """Draw a spec: from the schema or shipped, with up to two changes."""
    changes = draw(st.sampled_from([0, 0, 0, 1, 1, 1, 2]))
    valid = st.sampled_from(shipped()).map(copy.deepcopy)
    # what one change does is seen where all was well before
    document = draw(st.one_of(*([documents()] * (1 if changes == 1 else 3)), valid, valid))
    changed: Path = ()
    kind = "schema"
    before = toml(document).encode()
    for _ in range(changes):
        kind, changed = _mutate(draw, document)
    kind = "several" if changes > 1 else kind
    data = toml(document).encode()
    if draw(st.sampled_from([False] * 6 + [True] + [False] * 5)):
        return Drawn(_broken(draw, data), None, kind="text")
    return Drawn(data, document, changed, kind, _other(draw, document), before)


def _other(draw: st.DrawFn, document: dict[str, Any]) -> tuple[Path, Any] | None:
    """Draw a place of a document whose key has a known type, and another value for it."""
    known: dict[Path, FieldInfo] = {}
    for path in places(document):
        model, value = model_of(path), get(document, path)
        plain = not isinstance(value, dict) and not any(isinstance(v, dict) for v in _listed(value))
        if plain and model is not None and str(path[-1]) in model.model_fields:
            known[path] = model.model_fields[str(path[-1])]
    if not known:
        return None
    path = draw(st.sampled_from(sorted(known, key=str)))
    return path, draw(values_of(str(path[-1]), known[path]))


def _mutate(draw: st.DrawFn, document: dict[str, Any]) -> tuple[str, Path]:
    """Change one place of a document; return how, and where."""
    path = draw(st.sampled_from(list(places(document))))
    parent, key = get(document, path[:-1]), path[-1]
    kind = draw(st.sampled_from(["odd", "odd", "odd", "other", "delete", "twice", "typo", "move"]))
    if kind == "odd":
        parent[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    elif kind == "other" and isinstance(key, str) and key in known_values():
        value = draw(known_values()[key])
        parent[key] = [value] if path[0] == "matrix" else value
    elif kind == "delete":
        del parent[key]
    elif kind == "twice" and isinstance(parent[key], list):
        parent[key] = parent[key] * 2
    elif kind == "typo" and isinstance(key, str) and isinstance(parent, dict):
        at = draw(st.integers(0, max(len(key) - 1, 0)))
        new = draw(
            st.sampled_from([key[:at] + key[at + 1 :], key[:at] + key[at : at + 1] + key[at:]])
        )
        parent[new] = parent.pop(key)
        path = (*path[:-1], new)
    elif kind == "move" and isinstance(key, str):
        tables = [p for p in places(document) if isinstance(get(document, p), dict)]
        if tables:
            target = draw(st.sampled_from(tables))
            if target[: len(path)] != path:
                get(document, target)[key] = copy.deepcopy(parent[key])
                path = (*target, key)
    return kind, path


def single_changes(every: int = 1) -> Iterator[Drawn]:
    """Yield the shipped specs with every odd value at every place, and a typo in every key; of all
    that, each ``every``-th.
    """
    count = itertools.count()
    for document in shipped():
        before = toml(document).encode()
        for path in places(document):
            changes = [(path, odd, "odd") for odd in ODD]
            if isinstance(key := path[-1], str):
                value = get(document, path)
                changes += [((*path[:-1], typo), value, "typo") for typo in (key[1:], f"{key}s")]
            for where, value, kind in changes:
                if next(count) % every:
                    continue
                changed = copy.deepcopy(document)
                parent = get(changed, where[:-1])
                if kind == "typo":
                    del parent[path[-1]]
                parent[where[-1]] = value
                yield Drawn(toml(changed).encode(), changed, where, kind, None, before)


def _broken(draw: st.DrawFn, data: bytes) -> bytes:
    """Return the bytes of a spec with one of them changed, cut or doubled."""
    at = draw(st.integers(0, len(data)))
    piece = draw(st.sampled_from(_RAW)).encode()
    other = draw(st.sampled_from([piece, piece, piece, b"\xff", piece, b"\xc3"]))
    rest = draw(st.sampled_from([0, 0, 1, 8]))
    return data[:at] + other + data[at + rest :]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def model_of(path: Path) -> type[pydantic.BaseModel] | None:
    """Return the model whose key the end of a place is, None for what is in no model."""
    models: dict[tuple[str, ...], type[pydantic.BaseModel]] = {
        (): schema.Spec,
        ("dataset",): schema.DatasetSpec,
        ("mlperf",): schema.MlperfSpec,
        ("case",): schema.CaseSpec,
        ("cases",): schema.ExtraCase,
        ("ladder",): schema.LadderSpec,
        ("contrasts",): schema.ContrastSpec,
    }
    return models.get(tuple(part for part in path[:-1] if isinstance(part, str)))
