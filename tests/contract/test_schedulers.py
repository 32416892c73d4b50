"""What every batch system promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from iobench.core import jobs, registry
from iobench.core.jobs import JobRequest
from iobench.core.members import SchedulerBackend
from iobench.run import job_script
from iobench.run.job_script import JobExtras

members = pytest.mark.parametrize("name", registry.names("schedulers"))
REQUEST = JobRequest("suite", nodes=2, ranks=4, time_s=5400, log="/r s/batch.log", extra=("-x 1",))


@members
def test_it_is_a_scheduler_backend(name: str) -> None:
    backend = registry.load("schedulers", name)
    assert isinstance(backend, SchedulerBackend)
    assert backend.summary
    assert backend.number.isidentifier()
    assert isinstance(backend.make().available(), str)


@members
def test_directives_are_comments_of_a_shell(name: str) -> None:
    scheduler = registry.load("schedulers", name).make()
    lines = scheduler.directives(REQUEST)
    assert lines == scheduler.directives(REQUEST)
    assert all(line.startswith("#") and line.isprintable() for line in lines)
    assert lines[-1].endswith(" -x 1"), "the user's own come last: the last one counts"
    assert any("2" in line for line in lines)


@members
def test_submission_is_a_pure_new_list_that_names_the_script(name: str) -> None:
    scheduler = registry.load("schedulers", name).make()
    first, second = (scheduler.submission("/r s/job.sh") for _ in range(2))
    assert first == second
    assert first is not second
    assert first[-1] == "/r s/job.sh"


@members
def test_outside_of_a_job_it_has_no_hosts(name: str) -> None:
    assert registry.load("schedulers", name).make().hosts({}) == []


@members
def test_what_it_has_not_said_is_no_job(name: str) -> None:
    scheduler = registry.load("schedulers", name).make()
    assert scheduler.number("Welcome to the cluster!\n") == ""


@members
def test_a_job_of_a_system_that_is_not_here_is_unknown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert registry.load("schedulers", name).make().state("17").state == jobs.UNKNOWN


@members
def test_its_script_is_one_that_a_shell_reads(name: str) -> None:
    backend = registry.load("schedulers", name)
    suites, around = [Path("/r s/suite")], JobExtras("/h h", ("mpi",), ("ulimit -n 4096",))
    text = job_script.text(backend, backend.make(), REQUEST, suites, ["iobench"], [], around)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert text.splitlines()[1].startswith("#")
