"""Run fio: find it, give it a job file, take its JSON.

fio reports ``bw`` in KiB/s and ``bw_bytes`` in B/s; only the latter is used.  Its clock ticks in
milliseconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Mapping, Sequence

from iobench import iocount
from iobench.errors import BackendUnavailable, TrialFailed

#: The oldest fio whose JSON has ``bw_bytes`` and whose replay takes version 2 logs as used here.
OLDEST = (3, 1)
INSTALL = (
    "install it (Debian, Ubuntu: apt-get install fio; Rocky, RHEL: dnf install fio; conda: fio)"
)


@dataclasses.dataclass(frozen=True)
class FioResult:
    """All jobs of one run together.

    ``storage_bytes`` is what fio and its jobs made block devices deliver (/proc/self/io), set-up
    included; 0 on filesystems without a block device.
    """

    bytes_per_s: float
    io_bytes: int
    runtime_s: float
    ios: int
    storage_bytes: int
    version: str
    argv: tuple[str, ...]


def available() -> str:
    """Return "" when a fio that iobench can use is on PATH, else the reason with the remedy."""
    try:
        version()
    except BackendUnavailable as error:
        return str(error)
    return ""


def version() -> str:
    """Return the version text ("fio-3.33").  Raises BackendUnavailable."""
    program = shutil.which("fio")
    if program is None:
        raise BackendUnavailable(f"no program fio on PATH: {INSTALL}")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    text = done.stdout.strip()
    match = re.match(r"fio-(\d+)\.(\d+)", text)
    if done.returncode or match is None:
        raise BackendUnavailable(f"{program} is not the fio benchmark (says {text!r}): {INSTALL}")
    if (int(match.group(1)), int(match.group(2))) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BackendUnavailable(f"{program} is {text}, iobench needs {oldest} or later: {INSTALL}")
    return text


def job_file(options: Mapping[str, str], jobs: Sequence[Mapping[str, str]]) -> str:
    """Return the text of a fio job file: ``options`` for all, one section a job."""
    sections = [("global", options)]
    sections += [(f"reader{number}", job) for number, job in enumerate(jobs)]
    return "".join(
        f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in values.items())
        for name, values in sections
    )


def run(folder: Path, jobs: str, *, time_limit_s: float, enter: Sequence[str] = ()) -> FioResult:
    """Run a job file; ``folder`` keeps ``fio.job`` and ``fio.json``.

    ``enter`` is put before the command (to join a control group).  The files are opened read-only
    (``--readonly``) unless the job file lays out its own.  fio and its jobs are killed when time
    is up or the caller is interrupted.

    Raises BackendUnavailable without fio, TrialFailed when it fails or overruns.
    """
    said = version()
    job, answer = folder / "fio.job", folder / "fio.json"
    job.write_text(jobs)
    argv = [*enter, "fio", "--readonly", "--output-format=json", f"--output={answer}", str(job)]
    before = iocount.snapshot()
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            talk, _ = process.communicate(timeout=time_limit_s)
        except subprocess.TimeoutExpired as error:
            raise TrialFailed(
                f"fio took longer than {time_limit_s:.0f} s: fewer samples, or a longer time limit"
            ) from error
        finally:
            _kill_all(process)
    counted = iocount.difference(before, iocount.snapshot())
    document = _parse(answer, talk)
    if process.returncode:
        raise TrialFailed(f"fio failed with exit status {process.returncode}: {_last_line(talk)}")
    return _result(document, counted.read_bytes, said, tuple(argv))


def _result(document: Any, storage: int, said: str, argv: tuple[str, ...]) -> FioResult:
    reads = [job["read"] for job in document["jobs"]]
    errors = [job["error"] for job in document["jobs"] if job["error"]]
    if errors:
        raise TrialFailed(f"fio: {os.strerror(errors[0])}; see fio.json beside the job file")
    io_bytes = sum(read["io_bytes"] for read in reads)
    runtime_s = max(read["runtime"] for read in reads) / 1000
    return FioResult(
        bytes_per_s=io_bytes / runtime_s if runtime_s else 0.0,
        io_bytes=io_bytes,
        runtime_s=runtime_s,
        ios=sum(read["total_ios"] for read in reads),
        storage_bytes=storage,
        version=said,
        argv=argv,
    )


def _parse(answer: Path, talk: str) -> Any:
    """Return fio's JSON; notes that it prints into the same file come before the brace."""
    try:
        text = answer.read_text()
        return json.loads(text[text.index("{") :])
    except (OSError, ValueError) as error:
        raise TrialFailed(f"fio gave no JSON: {_last_line(talk)}") from error


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def _kill_all(process: subprocess.Popen[str]) -> None:
    """End fio and its jobs, each by its pid: a job makes a session of its own (setsid)."""
    if process.poll() is not None:
        return
    family = _descendants(process.pid)
    process.kill()
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> list[int]:
    """Return the processes below ``pid`` (proc_pid_task(5): children)."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *_descendants(child)]
    return found
