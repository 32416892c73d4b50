"""Whose containers are whose: what a driver that is gone left is told from what another holds."""

from __future__ import annotations

import os
import subprocess
from typing import List

import pytest

from iobench.host import engines


@pytest.mark.parametrize("kind", ["container", "image"])
def test_what_is_of_a_process_that_is_gone_is_left(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = engines.owner().partition("=")[2]
    space, pid, begun = mine.rsplit("/", 2)
    ended = subprocess.Popen(["true"])
    ended.wait()
    labels = {
        "mine": mine,
        "ended": f"{space}/{ended.pid}/1",
        "a process id used again": f"{space}/{pid}/{int(begun) - 1}",
        "another node's": f"node7/1/{ended.pid}/1",
        "another user's": f"{space}0/{ended.pid}/1",
        "nobody's": "",
    }

    def ask(argv: List[str]) -> tuple[int, str]:
        if "inspect" in argv:
            assert f"--type={kind}" in argv
            return 0, labels[argv[-1]] + "\n"
        assert f"--filter=label={engines.LABEL}" in argv
        return 0, "\n".join(ids)

    ids = {str(i): name for i, name in enumerate(labels)}
    labels = {i: labels[name] for i, name in ids.items()}
    monkeypatch.setattr(engines, "ask", ask)
    found = engines.left(["docker"], kind)
    assert [ids[i] for i in found] == ["ended", "a process id used again"]
    assert int(pid) == os.getpid()


def test_an_engine_that_does_not_answer_has_nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "ask", lambda argv: (1, "Cannot connect to the Docker daemon"))
    assert engines.left(["docker"], "container") == []
