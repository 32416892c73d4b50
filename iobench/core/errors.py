"""Everything iobench raises on purpose; what else escapes is a bug and shows its traceback."""

from __future__ import annotations

import errno


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


def environment(error: OSError) -> str:
    """Return what a full disk, a missing right or a wrong path means for the user.

    Raises ``error`` again when it is none of them: that is a bug.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cure = "free some space, or choose other folders by --out, --results and TMPDIR"
    elif error.filename is not None:
        cure = "choose a folder that is there and that you may write, by --out or --results"
    else:
        raise error
    return f"{error.filename or 'writing'}: {error.strerror}; {cure}"
