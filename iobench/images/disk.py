"""Space, atomic files, programs: a build that is killed or fails leaves nothing whole-looking."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from iobench.core.errors import ImageError
from iobench.host import files, interrupts, locks
from iobench.host.probes import last_lines
from iobench.images import docker_daemon

#: Seconds that an interrupted program gets to clean up behind itself.
_END_S = 10.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_space(folder: Path, nbytes: float, what: str, *, by: str = "--images") -> None:
    """Raise ImageError unless ``nbytes`` are free in ``folder``, which option ``by`` names."""
    free = shutil.disk_usage(files.nearest(folder.resolve())).free
    if free < nbytes:
        raise ImageError(
            f"{what} needs about {_gb(nbytes)} in {folder}, and {_gb(free)} are free: free some "
            f"space, or choose another folder by {by}"
        )


@contextlib.contextmanager
def partial(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write a file or folder at; it becomes ``path`` at the end.

    Whatever is left of it after an error (or of an earlier, killed try) is removed.  A full disk
    becomes an ImageError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.partial")
    discard(unfinished)
    try:
        yield unfinished
        if unfinished.is_file():
            with open(unfinished, "rb") as file:
                os.fsync(file.fileno())
        if path.is_dir():
            discard(path)
        unfinished.rename(path)
    except OSError as error:
        if error.errno in _FULL:
            raise ImageError(
                f"the disk is full: {path} was not finished, and what there was of it is removed; "
                "free some space, or choose another folder by --images"
            ) from error
        raise
    finally:
        discard(unfinished)


@contextlib.contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """Yield a new folder; it is removed at the end, and what an earlier, killed try left of it."""
    with partial(path) as folder:
        folder.mkdir()
        yield folder
    discard(path)


def lock(folder: Path) -> contextlib.AbstractContextManager[Sequence[locks.Holder]]:
    """Keep other builds out of ``folder``. Raises ImageError when one is at work there."""
    folder.mkdir(parents=True, exist_ok=True)
    return locks.held(
        folder,
        lambda who: ImageError(
            f"images are being built in {folder} by {who}: wait for it, or choose another folder "
            "by --images"
        ),
    )


def call(
    argv: Sequence[str],
    what: str,
    *,
    env: Mapping[str, str] | None = None,
    limit_s: float | None = None,
    errors: str = "replace",
) -> str:
    """Run a program and return its stdout.  Raises ImageError with the end of its output."""
    try:
        with running(argv, what, stderr=subprocess.PIPE, env=env, errors=errors) as process:
            out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{what} did not end in {limit_s:.0f} s ({argv[0]})") from error
    if process.returncode:
        raise ImageError(f"{what} failed ({argv[0]}): {complaint(err or out)}")
    return out


@contextlib.contextmanager
def running(
    argv: Sequence[str],
    what: str,
    *,
    stderr: int,
    env: Mapping[str, str] | None = None,
    errors: str = "replace",
) -> Iterator[subprocess.Popen[str]]:
    """Start a program whose stdout is read in this context, and wait for its end.

    When this process is interrupted, the program and all that it started end first: nothing goes on
    writing to what is then removed.  Raises ImageError where it is not installed.
    """
    with contextlib.ExitStack() as at_end:
        with interrupts.held() as before:  # one right after the start must find what to end

            def begin() -> None:
                docker_daemon.die_with_parent()  # kill -9 of this process ends it too
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

            try:
                process = subprocess.Popen(
                    list(argv),
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    errors=errors,
                    start_new_session=True,
                    preexec_fn=begin,
                )
            except FileNotFoundError as error:
                raise ImageError(
                    f"{what}: the program {argv[0]} is not installed "
                    "(`requirements/install.sh containers`)"
                ) from error
            at_end.enter_context(process)
            at_end.push(lambda kind, *_: _end(process) if kind else None)
        yield process


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a program's whole group to end, then make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_S)


def step(line: str, width: int = 96) -> str:
    """Return one line of a builder's progress, as short as a reader wants it."""
    words = " ".join(line.split()).removeprefix("iobench: ")
    return words if len(words) <= width else f"{words[: width - 4]} ..."


def complaint(text: str) -> str:
    """Return the last lines of a failed program's output as one."""
    words = last_lines(text, 3)[-600:] or "it printed nothing"
    return f"{words} (the disk is full)" if "o space left on device" in text else words


def sha256(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def discard(path: Path) -> None:
    """Remove a file or a folder with all in it; idempotent."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB"
