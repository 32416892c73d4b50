"""Protocol buffers' text format, as Caffe's prototxt files are: written and read by hand.

So nets are made, and a user's are changed, in any Python, and for builds that have no pycaffe.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterator, List, NamedTuple, Tuple

from iobench.core.errors import SpecError

_TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[{}<>\[\]:;,])
      | (?P<word>[^\s{}<>\[\]:;,"'\#]+)""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CLOSES = {"{": "}", "<": ">"}


class Word(str):
    """A value without quotes: a number, an enum's name, true or false."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A message: (name, value) in order.

    A value is a Message, a Word or number or bool (written bare), or a str (written in quotes).
    """

    fields: Tuple[Tuple[str, Any], ...] = ()

    def all(self, name: str) -> List[Any]:
        """Return every value of the field, in order."""
        return [value for key, value in self.fields if key == name]

    def get(self, name: str, default: Any = "") -> Any:
        """Return the last value of the field, as protobuf reads a field that is set twice."""
        found = self.all(name)
        return found[-1] if found else default

    def without(self, *names: str) -> Message:
        """Return it without these fields."""
        return Message(tuple(f for f in self.fields if f[0] not in names))

    def plus(self, other: Message) -> Message:
        """Return it with the other's fields after its own."""
        return Message((*self.fields, *other.fields))


def message(**fields: Any) -> Message:
    """Return a message; a list's values repeat the field, None leaves it out."""
    pairs: List[Tuple[str, Any]] = []
    for name, value in fields.items():
        if isinstance(value, (list, tuple)):
            pairs += [(name, item) for item in value]
        elif value is not None:
            pairs.append((name, value))
    return Message(tuple(pairs))


def render(found: Message, depth: int = 0) -> str:
    """Return the text of a message, two spaces a level, one field a line."""
    indent = "  " * depth
    lines = []
    for name, value in found.fields:
        if isinstance(value, Message):
            lines.append(f"{indent}{name} {{\n{render(value, depth + 1)}{indent}}}\n")
        else:
            lines.append(f"{indent}{name}: {_scalar(value)}\n")
    return "".join(lines)


def parse(text: str, where: str) -> Message:
    """Return the message that ``text`` holds; numbers and enums stay as they are written.

    Raises SpecError, naming ``where`` and the line, when it is no text format.
    """
    return _Parser(text, where).whole()


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """A recursive descent over the tokens of one file."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self._tokens = self._split()
        self._ahead = next(self._tokens)

    def whole(self) -> Message:
        found = self._fields("")
        if self._ahead.kind != "end":
            raise self._wrong(f"{self._ahead.text!r} closes nothing")
        return found

    def _split(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._error(at, "a string is not closed")
            if match.lastgroup != "blank":
                yield _Token(str(match.lastgroup), match.group(), at)
            at = match.end()
        while True:
            yield _Token("end", "", len(self._text))

    def _take(self) -> _Token:
        token, self._ahead = self._ahead, next(self._tokens)
        return token

    def _skip(self, *marks: str) -> bool:
        """Go past one of these marks; return whether it was there."""
        there = self._ahead.text in marks
        if there:
            self._take()
        return there

    def _fields(self, closing: str) -> Message:
        pairs: List[Tuple[str, Any]] = []
        while self._ahead.kind == "word":
            name = self._take().text
            colon = self._skip(":")
            if self._ahead.text in _CLOSES:
                pairs.append((name, self._block()))
            elif colon:
                pairs += [(name, value) for value in self._values()]
            else:
                raise self._wrong(f"':' or '{{' is missing after {name!r}")
            self._skip(",", ";")
        if closing and self._ahead.text != closing:
            raise self._wrong(f"{closing!r} is missing")
        return Message(tuple(pairs))

    def _block(self) -> Message:
        closing = _CLOSES[self._take().text]
        found = self._fields(closing)
        self._take()
        return found

    def _values(self) -> List[Any]:
        if not self._skip("["):
            return [self._value()]
        found: List[Any] = []
        while not self._skip("]"):
            found.append(self._block() if self._ahead.text in _CLOSES else self._value())
            self._skip(",")
        return found

    def _value(self) -> Any:
        if self._ahead.kind == "word":
            return Word(self._take().text)
        if self._ahead.kind != "string":
            raise self._wrong("a value is missing")
        parts = []
        while self._ahead.kind == "string":  # neighbours are one string
            parts.append(_ESCAPE.sub(_unescaped, self._take().text[1:-1]))
        return "".join(parts)

    def _wrong(self, what: str) -> SpecError:
        return self._error(self._ahead.at, what)

    def _error(self, at: int, what: str) -> SpecError:
        line = self._text.count("\n", 0, at) + 1
        return SpecError(f"{self._where}, line {line}: {what}; fix that prototxt file")


def _unescaped(match: Any) -> str:
    code: str = match.group(1)
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPED.get(code, code)


def _scalar(value: Any) -> str:
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return f"{value:.9g}" if isinstance(value, float) else str(value)
