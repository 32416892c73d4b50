"""Shared by all tests: the count of what this machine could not test, said at the end."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Iterator, List

import pytest

from iobench.host import rivals, tools
from tests import capabilities

SYSTEM = Path(__file__).parent / "system"


def pytest_configure(config: pytest.Config) -> None:
    tools.extend_path()
    rivals.PREFIX = f"iobench-test-{os.getpid()}"  # trials of other tests are no rivals
    # a shell's background job ignores Ctrl-C, and so would every process that the tests interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # likewise nohup
    unknown = capabilities.unknown_requirements()
    if unknown:
        raise pytest.UsageError(f"IOBENCH_REQUIRE names no capability: {', '.join(unknown)}")


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Spread tests/system, which waits more than it computes, among the others, file by file.

    Side by side with those it leaves no core idle; alone at the end it did.
    """
    files = [list(found) for _, found in itertools.groupby(items, key=lambda item: item.path)]
    system = [found for found in files if SYSTEM in found[0].path.parents]
    others = [found for found in files if SYSTEM not in found[0].path.parents]
    places = [(k + 0.5) / len(found) for found in (others, system) for k in range(len(found))]
    order = sorted(zip(places, others + system), key=lambda placed: placed[0])
    items[:] = [item for _, found in order for item in found]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    capabilities.begin(item)


@pytest.fixture(scope="module")
def daemon() -> Iterator[None]:
    """A Docker daemon, as tests/build/containers.py starts it."""
    from tests.build import containers  # not for the stacks' Pythons, which run some tests too

    capabilities.need("docker")
    with containers.daemon():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each capability whose absence skipped tests, and how many."""
    skipped = capabilities.skipped(terminalreporter.getreports("skipped"))
    total = sum(skipped.values())
    names = ", ".join(f"{name} ({count})" for name, count in sorted(skipped.items()))
    terminalreporter.write_line(
        f"capabilities: {total} tests skipped: {names}"
        if total
        else "capabilities: no test skipped for want of one"
    )
