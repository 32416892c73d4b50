"""Whether code that a name leads to may be run: nobody but root and this user can have written it.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import pwd
import stat
from typing import Iterable, Iterator

from iobench.core.errors import SpecError


def doubt(path: str) -> str:
    """Return why what is at ``path``, links followed, may be another user's; "" if it cannot.

    Raises OSError where nothing is there.
    """
    facts = os.stat(path)
    if facts.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {_name(facts.st_uid)}"
    if facts.st_mode & stat.S_IWOTH:
        return f"{path} can be written by everybody"
    return ""


def check_tree(top: str, folders: Iterable[str], what: str) -> None:
    """Raise SpecError unless ``top`` and all in its ``folders`` is this user's or root's."""
    for path in _walk(top, folders):
        if why := doubt(path):
            raise SpecError(
                f"{what}: {why}, and its code would run as you: copy it to a folder of your own, "
                "or `chmod -R o-w` what is yours"
            )


def check_program(name: str, option: str) -> None:
    """Raise SpecError for a program's path that a spec may not have run.

    A plain name is looked for on PATH, which is the user's own.
    """
    if not name or name.startswith("-") or not name.isprintable():
        raise SpecError(f"{option} = {name!r} is no name of a program; leave it out")
    if os.sep not in name:
        return
    if not os.path.isabs(name) or ".." in name.split(os.sep):
        raise SpecError(f"{option} = {name!r}: write its whole path, without '..'")
    if not (os.path.isfile(name) and os.access(name, os.X_OK)):
        raise SpecError(f"{option} = {name!r} is no program that you may run; leave it out")
    if why := doubt(name):
        raise SpecError(f"{option}: {why}: name a program that is yours or the system's")


def _walk(top: str, folders: Iterable[str]) -> Iterator[str]:
    yield top
    for folder in filter(os.path.isdir, (os.path.join(top, name) for name in folders)):
        yield folder
        for path, below, files in os.walk(folder, followlinks=False):
            found = (os.path.join(path, name) for name in (*below, *files))
            yield from filter(os.path.exists, found)  # no link that leads nowhere


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
