"""Everything iobench raises on purpose; what else escapes is a bug and shows its traceback."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Mapping
from typing import Any


class IobenchError(Exception):
    """A problem the user can act on: exit status 2, and one line with the remedy in it."""


class SpecError(IobenchError):
    """A spec (or a command-line option) asks for something that is not possible."""


class DatasetError(IobenchError):
    """A dataset is missing, incomplete, corrupt or does not fit."""


class BackendUnavailable(IobenchError):
    """A library, program or kernel feature is not here; the message names what to install."""


class CacheStateError(IobenchError):
    """A page-cache state cannot be reached or proven."""


class CannotStop(IobenchError):
    """Processes cannot be stopped and continued by this user."""


class ImageError(IobenchError):
    """A container image is missing, of another revision, half-built or cannot be built."""


class ResultsError(IobenchError):
    """A results folder is missing, foreign or damaged."""


class TrialFailed(IobenchError):
    """One trial ended without a result; the suite goes on."""


#: What a mount answers whose client, server or network has gone.
GONE = (
    errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN, errno.ESTALE, errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
)  # fmt: skip


def environment(error: OSError) -> str:
    """Return what a full disk, a missing right or a wrong path means for the user.

    Raises ``error`` again when it is none of them: that is a bug.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cure = "free some space, or choose other folders by --out, --results and TMPDIR"
    elif error.errno in GONE:
        where = error.filename or "a filesystem"
        return f"{where}: {error.strerror}; its filesystem has gone: have it mounted again"
    elif isinstance(error, FileNotFoundError) and os.sep not in os.fsdecode(error.filename or "/"):
        return f"no program {os.fsdecode(error.filename)} is on PATH: install it, or set PATH"
    elif error.filename is not None:
        cure = "choose a folder that is there and that you may write, by --out, --results or TMPDIR"
    else:
        raise error
    return f"{error.filename or 'writing'}: {error.strerror}; {cure}"


def shown(value: Any, longest: int = 60) -> str:
    """Return a value of a spec or an option as TOML writes it, in one line and not too long."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, (str, int, float)):
        text = repr(value)
    elif isinstance(value, Mapping):
        text = f"{{{', '.join(f'{key} = {shown(inner)}' for key, inner in value.items())}}}"
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(map(shown, value))}]"
    else:
        text = str(value)  # a date or a time
    return text if len(text) <= longest else f"{text[:longest]}..."


def printable(text: str, kept: str = "") -> str:
    """Return text that does nothing to a terminal: control characters as ``\\xNN``, but ``kept``.

    Names come from strangers' specs, folders and hosts.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else f"\\x{ord(c):02x}" for c in text)


def one_line(text: str, longest: int = 2000) -> str:
    """Return text as one line that a terminal can show, cut in the middle."""
    line = printable(" ".join(text.split()))
    half = longest // 2
    return line if len(line) <= longest else f"{line[:half]} ... {line[-half:]}"


def near(name: str, allowed: Iterable[str]) -> str:
    """Return ``; did you mean 'X'? allowed: X, Y``, the question only where a name is close."""
    known = list(allowed)
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]!r}? allowed" if close else "; allowed"
    return f"{meant}: {', '.join(known) or 'none'}"


def plain(error: BaseException) -> str:
    """Return an error's words; of one of the system the file and what is wrong, no number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
