"""What every launcher promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import pytest

from iobench.core import registry
from iobench.core.members import LauncherBackend
from iobench.core.protocols import Ranks

members = pytest.mark.parametrize("name", registry.names("launchers"))
COMMAND = ("python3", "-m", "iobench.worker", "/tmp/a task.json")


@members
def test_it_is_a_launcher_backend(name: str) -> None:
    backend = registry.load("launchers", name)
    assert isinstance(backend, LauncherBackend)
    assert backend.summary
    assert isinstance(backend.make().available(), str)


@members
def test_argv_is_a_pure_new_list_that_ends_in_the_command(name: str) -> None:
    launcher = registry.load("launchers", name).make()
    first, second = (launcher.argv(COMMAND, Ranks(1)) for _ in range(2))
    assert first == second
    assert first is not second
    assert tuple(first[-len(COMMAND) :]) == COMMAND


@members
def test_without_a_hint_it_is_rank_0_of_1(name: str) -> None:
    assert registry.load("launchers", name).make().rank({}) == (0, 1)
