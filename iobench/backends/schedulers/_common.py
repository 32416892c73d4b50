"""What batch systems share."""

from __future__ import annotations

import shutil

from iobench.core.errors import SpecError
from iobench.core.jobs import JobRequest


def clock(seconds: int) -> str:
    """Return a time limit as HH:MM:SS."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def missing(program: str, what: str) -> str:
    """Return why jobs cannot be submitted without a program; "" where it is on PATH."""
    if shutil.which(program):
        return ""
    return f"no program {program}: submit from a login node of {what}"


def refuse(job: JobRequest, system: str, *names: str) -> None:
    """Raise SpecError for options that a batch system does not have."""
    for name in names:
        if value := getattr(job, name):
            raise SpecError(
                f"--{name} {value}: {system} has none; leave it out, or write what this site has "
                "in its place by --line"
            )
