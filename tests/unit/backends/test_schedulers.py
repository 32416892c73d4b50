"""Batch systems: the exact lines and words, and what their programs' answers mean."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable

import pytest

from iobench.core import jobs, registry
from iobench.core.errors import BackendUnavailable, SpecError
from iobench.core.jobs import JobRequest

WHOLE = JobRequest(
    "iobench-x", nodes=2, ranks=4, time_s=5400, log="/r s/100%.log", queue="batch", account="me",
    constraint="rome", extra=("--mail-type=END",), elements=3,
)  # fmt: skip
SHARED = JobRequest("iobench-x", nodes=1, ranks=3, time_s=45, log="/r/b.log", cores=8)

Fake = Callable[..., None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put programs of given names on PATH that answer with a text and an exit status."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(name: str, answer: str, status: int = 0) -> None:
        (tmp_path / f"{name}.txt").write_text(answer)
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.txt\nexit {status}\n")
        program.chmod(0o755)

    return put


def made(name: str) -> Any:
    return registry.load("schedulers", name).make()


def test_slurm_directives() -> None:
    asked = dataclasses.replace(WHOLE, qos="high")
    assert made("slurm").directives(asked) == [
        "#SBATCH --job-name=iobench-x",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --exclusive",
        "#SBATCH --time=01:30:00",
        "#SBATCH '--output=/r s/100%%.log'",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --partition=batch",
        "#SBATCH --account=me",
        "#SBATCH --qos=high",
        "#SBATCH --constraint=rome",
        "#SBATCH --array=1-3%1",
        "#SBATCH --mail-type=END",
    ]
    assert "#SBATCH --cpus-per-task=3" in made("slurm").directives(SHARED), "8 cores, 3 ranks"
    assert "#SBATCH --exclusive" not in made("slurm").directives(SHARED)


def test_slurm_submission() -> None:
    assert made("slurm").submission("/r/job.sh") == ["sbatch", "--parsable", "/r/job.sh"]
    again = ["sbatch", "--parsable", "--array=2", "/r/job.sh"]
    assert made("slurm").submission("/r/job.sh", 2) == again
    assert made("slurm").number("Hello!\n17\n") == "17"
    assert made("slurm").number("17;cluster\n") == "17"


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        ("PENDING|Resources|1:00:00|", jobs.QUEUED, "PENDING (Resources)"),
        (
            "PENDING|InvalidAccount|1:00:00|",
            jobs.QUEUED,
            "PENDING (InvalidAccount); another --account",
        ),
        ("RUNNING|None|58:03|n[1-2]", jobs.RUNNING, "RUNNING on n[1-2], 58:03 left"),
        ("TIMEOUT|TimeLimit|0:00|n1", jobs.ENDED, "TIMEOUT"),
    ],
)
def test_slurm_state(fake: Fake, answer: str, state: str, words: str) -> None:
    fake("squeue", answer + "\n")
    assert made("slurm").state("17") == (state, words)


def test_slurm_asks_the_accounts_for_a_job_that_it_has_forgotten(fake: Fake) -> None:
    fake("squeue", "slurm_load_jobs error: Invalid job id specified", 1)
    fake("sacct", "CANCELLED by 1000|0:15|00:10:00|n1\n")
    found = made("slurm").state("17")
    assert found == (jobs.ENDED, "CANCELLED by 1000, exit status 0:15, after 00:10:00 on n1")
    fake("sacct", "Slurm accounting storage is disabled", 1)
    assert made("slurm").state("17") == (jobs.UNKNOWN, "Slurm no longer knows it")


def test_slurm_hosts(fake: Fake) -> None:
    fake("scontrol", "n1\nn2\n")
    assert made("slurm").hosts({"SLURM_JOB_NODELIST": "n[1-2]"}) == ["n1", "n2"]
    fake("scontrol", "", 1)
    with pytest.raises(BackendUnavailable, match="name the hosts by --hosts"):
        made("slurm").hosts({"SLURM_JOB_NODELIST": "n[1-2]"})


def test_pbs_directives() -> None:
    asked = dataclasses.replace(WHOLE, elements=0, extra=("-m e",))
    assert made("pbs").directives(asked) == [
        "#PBS -N iobench-x",
        "#PBS -l select=2:mpiprocs=4:rome",
        "#PBS -l place=scatter:excl",
        "#PBS -l walltime=01:30:00",
        "#PBS -j oe",
        "#PBS -o '/r s/100%.log'",
        "#PBS -r y",
        "#PBS -q batch",
        "#PBS -A me",
        "#PBS -m e",
    ]
    assert "#PBS -l select=1:mpiprocs=3:ncpus=8" in made("pbs").directives(SHARED)
    with pytest.raises(SpecError, match="--qos high: PBS has none"):
        made("pbs").directives(dataclasses.replace(asked, qos="high"))


@pytest.mark.parametrize(
    ("letter", "state"), [("Q", jobs.QUEUED), ("R", jobs.RUNNING), ("F", jobs.ENDED)]
)
def test_pbs_state(fake: Fake, letter: str, state: str) -> None:
    fake("qstat", f"Job Id: 12.server\n    Job_Name = x\n    job_state = {letter}\n    queue = q\n")
    assert made("pbs").state("12.server") == (state, letter)


def test_pbs_job(tmp_path: Path) -> None:
    assert made("pbs").submission("/r/job.sh") == ["qsub", "/r/job.sh"]
    assert made("pbs").number("Hello!\n12.server\n") == "12.server"
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    assert made("pbs").hosts({"PBS_NODEFILE": str(tmp_path / "nodes")}) == ["n1", "n2"]
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        made("pbs").hosts({"PBS_NODEFILE": str(tmp_path / "none")})


def test_flux_directives() -> None:
    asked = dataclasses.replace(WHOLE, elements=0)
    assert made("flux").directives(asked) == [
        "# flux: --job-name=iobench-x",
        "# flux: --nodes=2",
        "# flux: --nslots=2",
        "# flux: --exclusive",
        "# flux: --time-limit=5400s",
        "# flux: '--output=/r s/100%.log'",
        "# flux: --queue=batch",
        "# flux: --bank=me",
        "# flux: --requires=rome",
        "# flux: --mail-type=END",
    ]
    assert "# flux: --cores-per-slot=8" in made("flux").directives(SHARED)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("SCHED|", jobs.QUEUED),
        ("RUN|n[1-2]", jobs.RUNNING),
        ("COMPLETED|n[1-2]", jobs.ENDED),
        ("TIMEOUT|n1", jobs.ENDED),
    ],
)
def test_flux_state(fake: Fake, answer: str, state: str) -> None:
    fake("flux", f"{answer}\n")
    assert made("flux").state("fABC").state == state


def test_flux_job(fake: Fake) -> None:
    assert made("flux").submission("/r/job.sh") == ["flux", "batch", "/r/job.sh"]
    assert made("flux").number("Hello!\n\u01922pqRs\n") == "\u01922pqRs"
    fake("flux", "n1 n2\n")
    assert made("flux").hosts({"FLUX_ENCLOSING_ID": "fABC"}) == ["n1", "n2"]
