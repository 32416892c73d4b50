"""The script of a job, run by a real shell: what it does as its suite ends or its time runs out."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Callable, List, Tuple

import pytest

from iobench.core import registry
from iobench.core.jobs import JobRequest
from iobench.run import job_script
from iobench.run.job_script import JobExtras

#: The suite's process: notes its arguments, leaves so many records, waits to be interrupted.
SUITE = """#!/bin/sh
printf '%s\\n' "$@" >"$HOME/asked"
for i in {records}; do touch "{folder}/runs/$i.json"; done
trap 'exit 130' TERM
{then}
"""
WAIT = "sleep 60 & wait"
Run = Callable[..., Tuple[int, List[str], str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a script whose time is over at once, or whose suite ends."""

    def script(
        then: str, *, records: str = "", starts: int = 0, scheduler: str = "slurm",
        suites: int = 1, element: int = 1,
    ) -> Tuple[int, List[str], str]:  # fmt: skip
        folders = [tmp_path / f"results/suite {n}" for n in range(1, suites + 1)]
        for folder in folders:
            (folder / "runs").mkdir(parents=True)
            (folder / "starts").write_text("then 17 n1\n" * starts)
        mine, backend = folders[element - 1], registry.load("schedulers", scheduler)
        bin_ = tmp_path / "bin"
        bin_.mkdir()
        program = bin_ / "iobench"
        program.write_text(SUITE.format(records=records, folder=mine, then=then))
        (bin_ / "scontrol").write_text('#!/bin/sh\necho scontrol "$@" >>"$HOME/again"\n')
        (bin_ / "flux").write_text("#!/bin/sh\necho parent\n")
        for each in bin_.iterdir():
            each.chmod(0o755)
        request = JobRequest("x", nodes=1, ranks=1, time_s=1, elements=suites if suites > 1 else 0)
        text = job_script.text(
            backend, backend.make(), request, folders, [str(program)], ["--data", "/a b"],
            JobExtras(str(tmp_path), (), ('SITE="as it is"',), {"PYTHONPATH": "/p p"}),
        )  # fmt: skip
        environment = {
            "PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(tmp_path),
            "SLURM_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": str(element), "PBS_JOBID": "17.s",
        }  # fmt: skip
        done = subprocess.run(["bash"], input=text, text=True, env=environment, check=False)
        asked = (tmp_path / "asked").read_text().splitlines()
        assert len((mine / "starts").read_text().splitlines()) == starts + 1
        return done.returncode, asked, (mine / "job.log").read_text()

    return script


def again(tmp_path: Path) -> str:
    found = tmp_path / "again"
    return found.read_text() if found.exists() else ""


def test_a_suite_that_ends_gives_the_job_its_status(run: Run, tmp_path: Path) -> None:
    status, asked, log = run("echo said; exit 1")
    assert status == 1
    folder = str(tmp_path / "results/suite 1")
    assert asked == ["run", f"{folder}/spec.toml", "--into", folder, "--data", "/a b"]
    assert log.splitlines()[0].split()[1] == "17"
    assert "said" in log
    assert again(tmp_path) == ""


def test_a_job_whose_time_ran_out_goes_back_into_the_queue(run: Run, tmp_path: Path) -> None:
    status, _, _ = run(WAIT, records="1 2")
    assert status == 124
    assert again(tmp_path) == "scontrol requeue 17\n"


def test_one_that_finished_no_trial_does_not(run: Run, tmp_path: Path) -> None:
    _, _, log = run(WAIT)
    assert "no trial ended within the job's time" in log
    assert again(tmp_path) == ""


def test_nor_one_that_was_begun_often(run: Run, tmp_path: Path) -> None:
    _, _, log = run(WAIT, records="1", starts=job_script.MOST_STARTS - 1)
    assert f"begun {job_script.MOST_STARTS} times" in log
    assert again(tmp_path) == ""


def test_one_that_the_user_ended_does_not(run: Run, tmp_path: Path) -> None:
    status, _, _ = run("exit 130", records="1")
    assert status == 130
    assert again(tmp_path) == ""


@pytest.mark.parametrize("scheduler", ["pbs", "flux"])
def test_elsewhere_its_script_is_submitted_again(run: Run, tmp_path: Path, scheduler: str) -> None:
    then = 'if [ "$1" = submit ]; then printf "%s " "$FLUX_URI" "$@" >"$HOME/again"; exit; fi\n'
    run(then + WAIT, records="1", scheduler=scheduler)
    parent = "parent" if scheduler == "flux" else ""
    wanted = f"{parent} submit --resume --results {tmp_path / 'results/suite 1'} "
    assert again(tmp_path) == wanted


def test_an_element_of_an_array_runs_its_own_suite(run: Run, tmp_path: Path) -> None:
    _, asked, _ = run("exit 0", suites=3, element=2)
    assert asked[3] == str(tmp_path / "results/suite 2")


def test_modules_are_loaded_in_a_login_shell() -> None:
    backend = registry.load("schedulers", "slurm")
    around = JobExtras("/here", ("mpi/4.1", "apptainer"), ("ulimit -n 4096",))
    request = JobRequest("x", nodes=1, ranks=1, time_s=3600)
    text = job_script.text(backend, backend.make(), request, [Path("/r")], ["i"], [], around)
    assert text.startswith("#!/bin/bash -l\n#SBATCH ")
    assert "cd /here || exit\nmodule load mpi/4.1\nmodule load apptainer\nulimit -n 4096\n" in text
    assert "TERM 3540 " in text, "a minute to write the report"
    plain = dataclasses.replace(around, modules=())
    text = job_script.text(backend, backend.make(), request, [Path("/r")], ["i"], [], plain)
    assert text.startswith("#!/bin/bash\n")
