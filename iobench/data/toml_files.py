"""TOML that strangers wrote: read with a limit, and every way in which it is none in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomllib

from iobench.core.errors import IobenchError

#: Bytes: /dev/zero is a file too.
LONGEST = 1 << 20


def read(path: Path, what: str, kind: type[IobenchError], language: str = "TOML") -> str:
    """Return the text of a file.  Raises ``kind``, beginning with ``what``, where there is none."""
    wanted = f"give a .{language.lower()} file"
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
        text = data.decode()
    except UnicodeDecodeError as error:
        raise kind(
            f"{what} is not valid {language}: byte {error.start + 1} is not UTF-8; save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in a name
        reason = getattr(error, "strerror", None) or "no file has such a name"
        raise kind(f"{what} cannot be read: {reason}; {wanted}") from None
    if len(data) > LONGEST:
        raise kind(f"{what} is longer than {LONGEST} bytes; {wanted}")
    return text


def parse(text: str, what: str, kind: type[IobenchError]) -> dict[str, Any]:
    """Return the document of a text.  Raises ``kind``, beginning with ``what``, for no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
    except ValueError:
        reason = "a number has too many digits"
    except RecursionError:
        reason = "brackets are nested too deeply"
    raise kind(f"{what} is not valid TOML: {reason}")
