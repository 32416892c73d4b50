"""The local launcher: one rank, said so when several are asked for."""

from __future__ import annotations

import pytest

from iobench import registry
from iobench.errors import SpecError


def test_argv_is_the_command_alone() -> None:
    command = ["worker", "task.json"]
    argv = registry.load("launchers", "local").make().argv(command, world_size=1)
    assert argv == command
    assert argv is not command


@pytest.mark.parametrize("world_size", [0, 2])
def test_it_starts_one_rank_only(world_size: int) -> None:
    with pytest.raises(SpecError, match=f"world_size = {world_size}"):
        registry.load("launchers", "local").make().argv(["worker"], world_size=world_size)


def test_rank_is_0_of_1_whatever_the_environment_says() -> None:
    launcher = registry.load("launchers", "local").make()
    assert launcher.rank({"RANK": "3", "WORLD_SIZE": "4"}) == (0, 1)
