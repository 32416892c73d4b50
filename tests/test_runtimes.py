"""The bare runtime: an argv and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

from iobench import registry
from iobench.protocols import Mount, Start


def bare() -> object:
    return registry.load("runtimes", "bare").make()


def test_argv_is_the_command_alone() -> None:
    command = ["python3", "-m", "iobench.worker", "a task.json"]
    assert bare().argv(command, Start()) == command


def test_variables_go_before_it_and_reach_it() -> None:
    argv = bare().argv(
        ["printenv", "IOBENCH_X"],
        Start(mounts=(Mount(Path("/a"), "/b"),), env={"IOBENCH_X": "a b=c"}),
    )
    assert argv == ["env", "IOBENCH_X=a b=c", "printenv", "IOBENCH_X"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "a b=c\n"


def test_there_is_no_image() -> None:
    assert bare().identify("anything") == {}
