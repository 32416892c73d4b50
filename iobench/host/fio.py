"""Run fio: find it, give it a job file, take its JSON (whose times are in milliseconds)."""

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

from iobench.core.errors import BackendUnavailable, TrialFailed
from iobench.host import io_counters
from iobench.host.probes import ask, last_lines

#: The oldest fio whose JSON has ``bw_bytes`` and whose replay takes version 2 logs as used here.
OLDEST = (3, 1)
INSTALL = (
    "install it (Debian, Ubuntu: apt-get install fio; Rocky, RHEL: dnf install fio; conda: fio)"
)


@dataclasses.dataclass(frozen=True)
class FioResult:
    """All jobs of one run together.

    ``storage_bytes`` is what fio and its jobs made block devices deliver (/proc/self/io), set-up
    and the program's own pages included; 0 on filesystems without a block device.
    """

    bytes_per_s: float
    io_bytes: int
    runtime_s: float
    ios: int
    storage_bytes: int
    version: str
    argv: tuple[str, ...]


def version() -> str:
    """Return the version text ("fio-3.33").  Raises BackendUnavailable."""
    program = shutil.which("fio")
    if program is None:
        raise BackendUnavailable(f"no program fio on PATH: {INSTALL}")
    code, text = ask([program, "--version"])
    match = re.match(r"fio-(\d+)\.(\d+)", text)
    if code or match is None:
        raise BackendUnavailable(f"{program} is not the fio benchmark (prints {text!r}): {INSTALL}")
    if (int(match.group(1)), int(match.group(2))) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BackendUnavailable(f"{program} is {text}, iobench needs {oldest} or later: {INSTALL}")
    return text


def run(
    folder: Path,
    options: Mapping[str, str],
    jobs: Sequence[Mapping[str, str]],
    *,
    time_limit_s: float,
    enter: Sequence[str] = (),
) -> FioResult:
    """Run fio with ``options`` for all ``jobs``; ``folder`` keeps ``fio.job`` and ``fio.json``.

    ``enter`` is put before the command (to join a control group).  The files are opened read-only
    (``--readonly``).  fio and its jobs are killed when time is up or the caller is interrupted.

    Raises BackendUnavailable without fio, TrialFailed when it fails or overruns.
    """
    found = version()
    job, answer = folder / "fio.job", folder / "fio.json"
    sections = {"global": options, **{f"reader{n}": own for n, own in enumerate(jobs)}}
    lines = [[f"[{s}]", *(f"{k}={v}" for k, v in values.items())] for s, values in sections.items()]
    job.write_text("".join(f"{line}\n" for section in lines for line in section))
    argv = [*enter, "fio", "--readonly", "--output-format=json", f"--output={answer}", str(job)]
    before = io_counters.snapshot()
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
    counted = io_counters.difference(before, io_counters.snapshot())
    last = last_lines(talk) or "no output"
    try:
        text = answer.read_text()
        document = json.loads(text[text.index("{") :])  # notes come before the brace
    except (OSError, ValueError) as error:
        raise TrialFailed(f"fio gave no JSON: {last}") from error
    if process.returncode:
        raise TrialFailed(f"fio failed with exit status {process.returncode}: {last}")
    return _result(document, counted.read_bytes, found, tuple(argv))


def _result(document: Any, storage: int, found: str, argv: tuple[str, ...]) -> FioResult:
    reads = [job["read"] for job in document["jobs"]]
    if errors := [job["error"] for job in document["jobs"] if job["error"]]:
        raise TrialFailed(f"fio: {os.strerror(errors[0])}; see fio.json beside the job file")
    io_bytes = sum(read["io_bytes"] for read in reads)
    runtime_s = max(read["runtime"] for read in reads) / 1000
    return FioResult(
        bytes_per_s=io_bytes / runtime_s if runtime_s else 0.0,
        io_bytes=io_bytes,
        runtime_s=runtime_s,
        ios=sum(read["total_ios"] for read in reads),
        storage_bytes=storage,
        version=found,
        argv=argv,
    )


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
