"""What the noise at the start says of the verdicts to come."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from iobench.core.cases import Plan
from iobench.equations import signed_rank
from iobench.equations.sequential import levels
from iobench.plan.outlook import LOADER_SD, QUIET_SD, in_turns, outlook
from iobench.plan.resolve import Here, resolve
from iobench.report import plan_words
from iobench.spec import load
from tests.build.datasets import indexed


def planned(root: Path, **contrast: object) -> Plan:
    spec = load.parse(
        {
            "name": "o",
            "case": {"trainer": "null", "batch": 4, "workers": 1},
            "matrix": {"pipeline": ["jpeg"], "prefetch": [1, 2, 4]},
            "contrasts": [
                {"over": "prefetch", "base": 1, "caches": ["warm"], "pairs": 12, **contrast}
            ],
        }
    )
    return resolve(spec, Here(indexed(root, 8)), 60.0, "now")


def test_a_loop_of_n_slices_varies_by_a_root_of_n_less(tmp_path: Path) -> None:
    plan = dataclasses.replace(planned(tmp_path, loop_s=2.5), slice_sd=0.1)
    found = outlook(plan)
    assert found is not None
    assert found.cores_sd == pytest.approx(0.1 / math.sqrt(2.5 / 0.1))
    assert found.block_sd == pytest.approx(math.hypot(found.cores_sd, LOADER_SD / math.sqrt(2.5)))
    assert not found.quiet
    assert found.needed == signed_rank.pairs_for(0.03, found.block_sd, alpha=0.05 / 2)
    assert found.can_show == signed_rank.smallest_effect(found.block_sd, 12, alpha=0.05 / 2)
    # two contrasts, each a block of two arms that start and run for 2.5 s
    assert found.needed_s == pytest.approx(found.needed * 4 * (3.2 + 2.5))
    text = plan_words.outlook(found, plan.slice_sd)
    assert text.startswith("at the start this machine was noisy: the speed of its cores changed by")
    assert "by 10 % from" in text
    assert "2.8 % a pair" in text


def test_pairs_are_judged_as_the_first_look_of_all_that_are_judged_together(tmp_path: Path) -> None:
    changes = {"looks": [12, 20], "pairs": 20, "caches": ["warm", "cold"]}
    plan = dataclasses.replace(planned(tmp_path, **changes), slice_sd=0.1)
    found = outlook(plan)
    assert found is not None
    level = levels((12, 20), 0.05 / 4)[0].differ  # two arms, warm and cold, are one family
    assert level < 0.05 / 4
    assert found.needed == signed_rank.pairs_for(0.03, found.block_sd, alpha=level)
    assert found.can_show == signed_rank.smallest_effect(found.block_sd, 12, alpha=level)


def test_a_quiet_hour_is_called_so(tmp_path: Path) -> None:
    plan = planned(tmp_path, loop_s=2.5)
    found = outlook(dataclasses.replace(plan, slice_sd=QUIET_SD * 5))
    assert found is not None
    assert found.quiet
    assert "quiet" in plan_words.outlook(found, 0.05)


@pytest.mark.parametrize("changes", [{"caches": ["cold"]}, {"slice_s": 0}, {"pairs": 3}])
def test_no_outlook_where_no_verdict_comes_of_turns(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    plan = dataclasses.replace(planned(tmp_path, **changes), slice_sd=0.1)
    assert not in_turns(plan)
    assert outlook(plan) is None
