"""A search on machines of stated rates: where it ends, what it tries, and that it can be killed."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, Dict

import pytest

from iobench.core.cases import Case
from iobench.core.records import FAILED
from iobench.equations.signed_rank import FLOOR_PAIRS
from iobench.tune import tuning
from iobench.tune.answer import CHANGE, LEAVE_IT, NOT_SHOWN, UNFINISHED, answer
from iobench.tune.settings import default_of
from iobench.tune.space import defaults, key, space
from iobench.tune.tried import case_of, finals_of, limits_of, measured
from tests.build.tuned import DOCUMENT, begun, searched, world


def document(**case: Any) -> Dict[str, Any]:
    found = copy.deepcopy(DOCUMENT)
    found["case"].update(case)
    return found


def test_compute_bound_is_left_alone_without_one_trial(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(workers=2, prefetch=4))
    after, records = searched(tmp_path, plan, asked, world(800, 1200))
    more = after.trials[len(plan.trials) :]  # so close to the ceiling: both are measured again
    assert [t.stage for t in more] == ["compute", "train"]
    assert {t.case.label for t in after.trials} == {asked.current}
    found = answer(after, records, asked)
    assert found.verdict == LEAVE_IT
    assert "no setting of the loader can gain more than 1.0%" in found.words
    assert found.search_s == 0


def test_the_best_of_the_space_is_found_without_measuring_all_of_it(tmp_path: Path) -> None:
    rates = world(2000, 150)
    plan, asked = begun(tmp_path, document(decoder="opencv"))
    after, records = searched(tmp_path, plan, asked, rates)
    found = answer(after, records, asked)
    grid = list(space(case_of(plan, asked.current), asked, found.limits).points())
    assert len(grid) > 20
    assert len(found.tried) < len(grid)
    best = max(rates(case, "train") for case in grid)
    winner = case_of(after, found.winner)
    assert rates(winner, "train") >= 0.97 * best
    assert found.verdict == CHANGE
    assert [g.than for g in found.gains] == [asked.current, asked.default]
    assert all(g.shown and g.pairs >= FLOOR_PAIRS for g in found.gains)
    assert f"num_workers={winner.workers}" in found.code


SMALL = {"workers": (1, 2, 3, 4, 6, 8), "prefetch": (1, 2, 4), "decoder": ("simplejpeg", "opencv"),
         "loader_options.in_order": (True, False)}  # fmt: skip


@pytest.mark.parametrize("compute", [450.0, 900.0, 2000.0])
def test_of_few_settings_a_fifth_is_tried_and_that_is_enough(
    tmp_path: Path, compute: float
) -> None:
    rates = world(compute, 150)
    plan, asked = begun(tmp_path, document(decoder="opencv"), only=SMALL)
    after, records = searched(tmp_path, plan, asked, rates)
    grid = list(space(case_of(plan, asked.current), asked, None).points())
    assert len(grid) == 72
    before = [t for t in after.trials if not t.contrast]
    first = next(i for i, t in enumerate(after.trials) if t.contrast)
    parts = [t for t in before if t.case.label == after.contrasts[0].arm and t.stage != "train"]
    assert first - len(parts) <= max(tuning.LEAST, tuning.SHARE * len(grid))
    winner = case_of(after, after.contrasts[0].arm)
    assert rates(winner, "train") >= 0.97 * max(rates(case, "train") for case in grid)
    assert answer(after, records, asked).verdict == CHANGE


def test_a_pipeline_near_the_fastest_is_a_finalist_and_finals_alone_decide(tmp_path: Path) -> None:
    """LMDB is 3 % faster, and 3 % slower by its one trial in the search."""
    seen: Dict[str, int] = Counter()
    usual = world(600, 150, read=1100)

    def rates(case: Case, stage: str) -> float:
        seen[case.label] += stage == "train"
        factor = 1.0
        if stage == "train" and case.format == "lmdb":
            factor = 0.97 if seen[case.label] == 1 else 1.03
        return factor * usual(case, stage)

    only = {"pipeline": ("torch:jpeg", "torch:lmdb"), "workers": (1, 2, 3, 4, 6, 8),
            "prefetch": (1, 2, 4), "loader_options.in_order": (True, False)}  # fmt: skip
    plan, asked = begun(tmp_path, document(), formats=("lmdb",), only=only)
    after, records = searched(tmp_path, plan, asked, rates)
    finals = finals_of(after, asked)
    assert {t.case.format for t in finals} == {"jpeg", "lmdb"}
    winner = answer(after, records, asked).winner
    assert case_of(after, winner).format == "lmdb"
    found = next(t for t in measured(after, records, asked) if t.label == winner)
    assert found.samples_per_s == pytest.approx(1.03 * usual(case_of(after, winner), "train"))


def test_a_loop_that_decides_is_longer_than_its_queue(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(samples=192, prefetch=4))
    after, _ = searched(tmp_path, plan, asked, world(2000, 150))
    deciding = [t for t in after.trials if t in finals_of(after, asked) or t.contrast]
    assert deciding
    deepest = max(t.case.workers * t.case.prefetch for t in deciding)
    assert deepest * 3 > 192 // 16  # one epoch would not do
    needed = min(3 * deepest, 4 * 192 // 16)
    assert all(t.epochs * 192 // 16 >= needed for t in deciding)
    assert all(t.epochs == 1 for t in after.trials if t not in deciding)


#: Seconds of samples, one of them slow: 192 like these are as good as 4.6.
ONE_SLOW = [0.25] + [0.001] * 47


@pytest.mark.parametrize(("slow", "epochs"), [(0, 1), (1, 4)])
def test_few_slow_samples_make_every_loop_longer(tmp_path: Path, slow: int, epochs: int) -> None:
    times = ONE_SLOW if slow else [0.001] * 48
    plan, asked = begun(tmp_path, document(samples=192))
    after, records = searched(tmp_path, plan, asked, world(2000, 150), samples_s=times)
    ladder = len(plan.trials)
    assert all(t.epochs == 1 for t in after.trials[:ladder])
    compared = [t for t in after.trials[ladder:] if t.stage == "train"]
    assert compared
    assert {t.epochs for t in compared if t.least} == {epochs}
    assert all(t.epochs >= epochs for t in compared)
    current = [t for t in compared if t.case.label == asked.current and not t.contrast]
    assert [t.epochs for t in current] == [4] * slow
    row = next(t for t in measured(after, records, asked) if t.label == asked.current)
    assert row.runs == 1 + slow


def test_the_longest_loop_of_a_setting_counts(tmp_path: Path) -> None:
    """One epoch shows the current settings twice as fast as they are."""
    usual, seen = world(2000, 150), Counter[str]()

    def rates(case: Case, stage: str) -> float:
        seen[case.label] += stage == "train"
        flattered = stage == "train" and seen[case.label] == 1 and case.workers == 1
        return (2 if flattered else 1) * usual(case, stage)

    plan, asked = begun(tmp_path, document(samples=192))
    after, records = searched(tmp_path, plan, asked, rates, samples_s=ONE_SLOW)
    row = next(t for t in measured(after, records, asked) if t.label == asked.current)
    current = case_of(after, asked.current)
    assert row.samples_per_s == pytest.approx(usual(current, "train"))
    assert answer(after, records, asked).limits.train == pytest.approx(usual(current, "train"))


def test_a_longer_loop_that_fails_leaves_the_ceiling_as_it_was(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(samples=192))
    after, records = searched(tmp_path, plan, asked, world(2000, 150), samples_s=ONE_SLOW)
    again = next(t for t in after.trials if t.block == 2 and t.case.label == asked.current)
    lost = [
        dataclasses.replace(r, status=FAILED, ranks=()) if r.trial == again else r for r in records
    ]
    whole, without = (limits_of(after, found, asked) for found in (records, lost))
    assert without
    assert without.train == pytest.approx(whole.train)


def test_the_winner_is_proved_against_every_library_if_asked(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(), libraries=True)
    after, records = searched(tmp_path, plan, asked, world(2000, 150))
    others = [case.label for case in defaults(plan.cases[0], asked)]
    found = answer(after, records, asked)
    assert others
    assert [g.than for g in found.gains] == [
        label for label in dict.fromkeys([asked.current, asked.default, *others])
        if label != found.winner
    ]  # fmt: skip
    assert len({g.pairs for g in found.gains}) == 1


@pytest.mark.slow
def test_a_search_that_is_killed_after_every_trial_measures_nothing_twice(tmp_path: Path) -> None:
    rates = world(2000, 150)
    plan, asked = begun(tmp_path, document())
    after, records = searched(tmp_path, plan, asked, rates, killed=True)
    tried = Counter(key(t.case) for t in after.trials if t.least)
    assert tried
    assert set(tried.values()) == {1}
    assert answer(after, records, asked).verdict == CHANGE


def test_dominated_settings_end_early_and_never_win(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(workers=3))
    after, records = searched(tmp_path, plan, asked, world(5000, 200))
    found = answer(after, records, asked)
    early = [t for t in found.tried if t.early]
    assert early
    assert found.winner not in {t.label for t in early}
    assert all(not t.least for t in after.trials if t.contrast or t.block > 1)


def test_time_bounds_the_search_and_keeps_the_proof(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(), minutes=6.0)
    after, records = searched(tmp_path, plan, asked, world(2000, 150))
    found = answer(after, records, asked)
    assert 0 < found.wall_s < 60 * 6.0 * 1.25
    assert any(t.contrast for t in after.trials)


def test_too_little_time_is_no_answer(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(workers=4, prefetch=8), minutes=0.1)
    after, records = searched(tmp_path, plan, asked, world(2000, 150))
    found = answer(after, records, asked)
    assert found.verdict in (NOT_SHOWN, UNFINISHED)
    assert "more --minutes" in found.words


def test_the_fewest_pairs_can_show_a_gain_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "PAIRS", 1)  # as where no time is left
    plan, asked = begun(tmp_path, document(decoder="opencv"))
    after, records = searched(tmp_path, plan, asked, world(2000, 150))
    found = answer(after, records, asked)
    assert found.verdict == CHANGE
    assert [g.pairs for g in found.gains] == [7, 7]  # 2 / 2^6 is more than 5 % / 2


def test_a_winner_that_fresh_pairs_do_not_confirm_is_not_shown(tmp_path: Path) -> None:
    lucky: Dict[str, int] = Counter()

    def rates(case: Case, stage: str) -> float:
        lucky[case.label] += stage == "train"
        fast = stage == "train" and case.workers == 4 and lucky[case.label] <= 4
        return 300.0 if fast else world(2000, 150)(case.__class__(workers=1), stage)

    plan, asked = begun(tmp_path, document())
    after, records = searched(tmp_path, plan, asked, rates)
    found = answer(after, records, asked)
    assert found.winner
    assert found.verdict == NOT_SHOWN
    assert "keep the current ones" in found.words


def test_the_current_settings_may_be_the_library_s_defaults(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(workers=0, prefetch=2))
    assert asked.default == ""
    assert default_of(plan.cases[0]) == plan.cases[0]
    after, records = searched(tmp_path, plan, asked, world(2000, 150))
    assert [g.than for g in answer(after, records, asked).gains] == [asked.current]


@pytest.mark.parametrize("stopped", [0, 11, 14])
def test_an_answer_under_way_is_unfinished_or_whole(tmp_path: Path, stopped: int) -> None:
    plan, asked = begun(tmp_path, document())
    after, records = searched(tmp_path, plan, asked, world(2000, 150))
    found = answer(after, records[:stopped], asked)
    assert found.verdict in (UNFINISHED, NOT_SHOWN)


def test_of_a_script_only_the_parts_are_measured_that_it_has(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(trainer="torch", transform="rrc224", trainer_options={}),
                        script=("python", "train.py"))  # fmt: skip
    after, records = searched(tmp_path, plan, asked, world(2000, 150))
    assert after.contrasts
    winner = case_of(after, after.contrasts[0].arm)
    mine = {t.stage for t in after.trials if t.case == winner}
    own = {"compute"} if winner.trainer_options else set()
    assert mine == {"train", "load", *own}
    assert {t.case.pipeline for t in after.trials} == {"torch:jpeg"}
    assert {t.case.decoder for t in after.trials} == {"simplejpeg"}
    found = answer(after, records, asked)
    assert found.binds
    assert "decode" not in found.code


def test_an_early_end_beside_others_is_measured_again_to_its_end(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, document(workers=3))
    after, _ = searched(tmp_path, plan, asked, world(5000, 200), disturbed=True)
    cut = Counter(key(t.case) for t in after.trials if t.least)
    again = Counter(
        key(t.case)
        for t in after.trials
        if t.stage == "train" and t.block == 1 and not t.least and not t.contrast
        and t.case.label != asked.current
    )  # fmt: skip
    assert again
    assert set(again) <= set(cut)
    assert set(again.values()) == {1}
