"""Which GPU each of several ranks of a node takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Optional

import pytest

from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable
from iobench.host import gpus
from iobench.worker import own_gpu

TWO = Case(trainer="torch", trainer_options={"device": "cuda"}, world_size=2, launcher="torchrun")


@pytest.fixture(autouse=True)
def nothing_is_known_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "_NODES", str(tmp_path))


def seen(case: Case, local_rank: int, visible: Optional[str], patch: pytest.MonkeyPatch) -> str:
    patch.delenv(gpus.VISIBLE, raising=False)
    if visible is not None:
        patch.setenv(gpus.VISIBLE, visible)
    own_gpu.choose(case, local_rank)
    return own_gpu.os.environ.get(gpus.VISIBLE, "")


@pytest.mark.parametrize(
    ("case", "local_rank", "visible", "expected"),
    [
        (TWO, 0, None, "0"),
        (TWO, 1, None, "1"),
        (TWO, 1, "4,6", "6"),
        (TWO, 1, "GPU-a, GPU-b", "GPU-b"),
        (TWO, 1, "5", "5"),  # the launcher has given it this one
        (Case(trainer="torch", trainer_options={"device": "cuda"}), 0, "4,6", "4,6"),
        (Case(world_size=2, launcher="torchrun"), 1, "4,6", "4,6"),
    ],
)
def test_each_rank_sees_its_own(
    case: Case, local_rank: int, visible: Optional[str], expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert seen(case, local_rank, visible, monkeypatch) == expected


def test_fewer_gpus_than_ranks_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    three = dataclasses.replace(TWO, world_size=3)
    with pytest.raises(BackendUnavailable, match=r"3 ranks .*shows 2: .*ranks_per_node = 2"):
        seen(three, 2, "4,6", monkeypatch)
