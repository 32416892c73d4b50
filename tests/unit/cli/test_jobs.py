"""``iobench submit`` and ``status`` with a batch system of a few lines of shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from iobench.run import jobs

#: It gives numbers, keeps what it was given, and runs nothing.
SBATCH = """#!/bin/sh
if [ -n "$REFUSE" ]; then echo "sbatch: error: invalid partition specified: x" >&2; exit 1; fi
echo "$@" >>"$BATCH/asked"
echo $((16 + $(wc -l <"$BATCH/asked")))
"""
SQUEUE = '#!/bin/sh\necho "${STATE:-PENDING|Resources|1:00:00|}"\n'
Iobench = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def iobench(tmp_path: Path) -> Iobench:
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "BATCH": str(tmp_path), **env}
        command = [sys.executable, "-m", "iobench.cli", *words]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
        )

    return run


def status(iobench: Iobench, *words: str, **env: str) -> List[Dict[str, Any]]:
    done = iobench("status", *words, "--json", **env)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.slow
def test_a_suite_is_submitted_followed_and_shown(iobench: Iobench, tmp_path: Path) -> None:
    done = iobench("submit", "smoke", "--time", "1h", "--account", "me", "--budget", "30s")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "results").glob("*-smoke")
    assert done.stdout.startswith(f"job 17: {folder}/job.sh\n")
    script = (folder / "job.sh").read_text()
    assert "#SBATCH --account=me\n" in script
    assert f"suite={folder}\n" in script
    assert '--into "$suite" --budget 30s\n' in script
    (found,) = status(iobench)
    assert (found["state"], found["planned"]) == ("queued", 0)
    assert found["job_state"] == ["queued", "PENDING (Resources)"]
    shown = iobench("show")
    assert shown.returncode == 2
    assert "was submitted and has no plan yet" in shown.stderr
    ran = subprocess.run(
        ["bash", "-e", str(folder / "job.sh")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"},
        check=False,
    )
    assert ran.returncode == 0, (folder / "job.log").read_text()
    (found,) = status(iobench, STATE="COMPLETED|None|0:00|n1")
    assert found["state"] == "complete"
    assert found["planned"] == found["usable"] > 0
    assert found["next"] == f"`iobench show {folder}`"
    assert iobench("status", STATE="COMPLETED|None|0:00|n1").stdout.startswith("complete: ")
    shown = iobench("show")
    assert shown.returncode == 0


@pytest.mark.slow
def test_several_suites_are_elements_of_an_array(iobench: Iobench, tmp_path: Path) -> None:
    assert iobench("submit", "smoke", "--repeat", "2", "--time", "1h").returncode == 0
    first, second = status(iobench)
    assert [first["job"]["number"], second["job"]["number"]] == ["17_1", "17_2"]
    assert first["folder"] != second["folder"]
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    ended = {"STATE": "TIMEOUT|TimeLimit|0:00|n1"}
    (alone,) = status(iobench, second["folder"], **ended)
    assert alone["state"] == "stopped"
    assert f"`iobench submit --resume --results {second['folder']}`" in alone["next"]
    again = iobench("submit", "--resume", "--results", second["folder"], **ended)
    assert again.returncode == 0, again.stderr
    asked = (tmp_path / "asked").read_text().splitlines()[1]
    assert asked == f"--parsable --array=2 {second['folder']}/job.sh"


@pytest.mark.slow
def test_a_results_root_shows_others_that_wait(iobench: Iobench) -> None:
    for _ in range(2):
        assert iobench("submit", "smoke", "--time", "1h").returncode == 0
    assert [found["job"]["number"] for found in status(iobench)] == ["17", "18"]
    ended = {"STATE": "CANCELLED|None|0:00|n1"}
    assert [found["job"]["number"] for found in status(iobench, **ended)] == ["18"]


def test_a_limit_may_be_written_as_batch_systems_do(iobench: Iobench) -> None:
    done = iobench("submit", "smoke", "--time", "1-01:30:00", "--nodes", "2", "--dry-run")
    assert "#SBATCH --time=25:30:00\n" in done.stdout
    assert "no case uses more than 1 of the 2 nodes" in done.stderr


def test_a_job_that_is_there_is_not_submitted_again(iobench: Iobench) -> None:
    assert iobench("submit", "smoke", "--time", "1h").returncode == 0
    again = iobench("submit", "--resume", SLURM_JOB_ID="")
    assert again.returncode == 2
    assert "its job 17 is there already: PENDING (Resources)" in again.stderr


def test_what_is_refused_leaves_nothing(iobench: Iobench, tmp_path: Path) -> None:
    done = iobench("submit", "smoke", "--time", "1h", "--partition", "x", REFUSE="1")
    assert done.returncode == 2
    assert "sbatch did not take the job" in done.stderr
    assert "invalid partition specified" in done.stderr
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("smoke",), "--time is missing"),
        (("smoke", "--time", "soon"), "--time = 'soon' is no duration"),
        (("smoke", "--time", "1s"), "too short for any trial"),
        (("smoke", "--time", "90"), "--time 90 has no unit: write 90s, 90m or 90h"),
        (("smok", "--time", "1h"), "no spec 'smok'"),
        (("distributed", "--time", "1h", "--nodes", "1"), "--nodes 1: case"),
        (("smoke", "--time", "1h", "--scheduler", "slrm"), "unknown scheduler 'slrm'"),
        (("smoke", "--time", "1h", "--scheduler", "flux"), "no program flux"),
        (("smoke", "--time", "1h", "--line", "a\nb"), "is not one line"),
    ],
)
def test_errors_come_before_the_queue(
    iobench: Iobench, tmp_path: Path, words: tuple[str, ...], expected: str
) -> None:
    done = iobench("submit", *words)
    assert done.returncode == 2
    assert expected in done.stderr
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())


def test_a_dry_run_prints_the_script_and_makes_nothing(iobench: Iobench, tmp_path: Path) -> None:
    words = ("--nodes", "2", "--time", "90m", "--line", "#SBATCH --mail-type=END", "--dry-run")
    done = iobench("submit", *words)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n" in done.stdout
    assert "\n#SBATCH --mail-type=END\n" in done.stdout
    assert "-distributed" in done.stdout, "of two nodes it is the usual spec"
    assert not (tmp_path / "results").exists()


def test_what_is_known_beforehand_is_said_before_the_queue(
    iobench: Iobench, tmp_path: Path
) -> None:
    text = '[case]\npipeline = "null:null"\n[matrix]\nruntime = ["bare", "charliecloud"]\n'
    (tmp_path / "two.toml").write_text('name = "two"\nbudget = "1s"\n' + text)
    done = iobench("submit", "two.toml", "--time", "1h", "--dry-run", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "note: budget = 1 s cannot hold the ladder" in done.stderr
    assert "note: runtime charliecloud does not run here (" in done.stderr


@pytest.mark.parametrize(
    "lines",
    [
        ("--container-image=/me/images/torch.sqsh", "--container-mounts=/scratch,/home/me"),
        ("--environment=/me/my env.toml",),
        ("--container=/me/bundle",),
    ],
)
def test_a_job_in_a_container_of_the_sites_has_its_lines_as_they_are(
    iobench: Iobench, lines: tuple[str, ...]
) -> None:
    """Of pyxis, of CSCS's container engine and of Slurm itself: directives of the whole job."""
    words = [f"--line={line}" for line in lines]
    done = iobench("submit", "smoke", "--time", "1h", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    script = done.stdout.splitlines()
    first = script.index(f"#SBATCH {lines[0]}")
    assert script[first : first + len(lines) + 1] == [*(f"#SBATCH {line}" for line in lines), ""]
    assert all(line.startswith("#") for line in script[:first]), "before any command"


def test_where_no_batch_system_is_all_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Exception, match=r"no program flux.* no program qsub.* no program sbatch"):
        jobs.scheduler_here()
