"""What every runtime promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iobench import registry
from iobench.protocols import Mount, RuntimeBackend, Start

members = pytest.mark.parametrize("name", registry.names("runtimes"))
COMMAND = ("python3", "-m", "iobench.worker", "/tmp/a task.json")


def argv_of(name: str) -> list:
    return (
        registry.load("runtimes", name)
        .make()
        .argv(
            COMMAND,
            Start(
                image="image:1",
                mounts=(Mount(Path("/data"), "/iobench/data"),),
                env={"OMP_NUM_THREADS": "1"},
                name="iobench-test",
            ),
        )
    )


@members
def test_it_is_a_runtime_backend(name: str) -> None:
    backend = registry.load("runtimes", name)
    assert isinstance(backend, RuntimeBackend)
    assert backend.summary
    assert isinstance(backend.make().available(), str)


@members
def test_argv_is_a_pure_new_list_that_ends_in_the_command(name: str) -> None:
    first, second = argv_of(name), argv_of(name)
    assert first == second
    assert first is not second
    assert all(isinstance(word, str) for word in first)
    assert tuple(first[-len(COMMAND) :]) == COMMAND


@members
def test_argv_carries_the_environment(name: str) -> None:
    assert any("OMP_NUM_THREADS" in word for word in argv_of(name))


@members
def test_identity_is_json(name: str) -> None:
    runtime = registry.load("runtimes", name).make()
    if runtime.available():
        pytest.skip(runtime.available())
    json.dumps(dict(runtime.identify("")))
