"""A suite that may end early: look by look, group by group, killed at any point and resumed."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from math import exp
from pathlib import Path
from typing import Any, Callable, Sequence

import pytest

from iobench.analysis.attribution import attribute
from iobench.analysis.evidence import Evidence, evidence
from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.analysis.verdicts import judged as results_of
from iobench.core import units
from iobench.core.cases import Dataset, Plan, Trial
from iobench.core.errors import CannotStop
from iobench.core.records import FAILED, INVALID, VALID, Record
from iobench.host.agent import LOCAL
from iobench.plan.blocks import probe_blocks
from iobench.plan.resolve import Here, resolve
from iobench.plan.rules import rules
from iobench.run import later_looks, ledger, next_trials, store
from iobench.run import suite as scheduler
from iobench.run.trial import TrialSettings
from iobench.spec import load
from tests.build import pairs as fixture
from tests.build.datasets import indexed

DOCUMENT: dict[str, Any] = {
    "name": "looks",
    "budget": "10h",
    "case": {"trainer": "null", "batch": 4, "workers": 0},
    "matrix": {"pipeline": ["torch:jpeg"], "prefetch": [1, 2, 3]},
    "ladder": {"stages": ["load"], "caches": ["warm"], "repeats": 1, "digest": False},
    "contrasts": [
        {"over": "prefetch", "base": 1, "caches": ["warm"], "looks": [10, 20, 30], "shared": True,
         "probes": 8, "slice_s": 0},
    ],
}  # fmt: skip
#: prefetch -> (time of a sample, its noise): 2 is EQUIVALENT at once, 3 needs more pairs.
QUIET = {1: (1e-3, 0.001), 2: (1e-3, 0.001), 3: (1e-3, 0.001)}
NOISY = {**QUIET, 3: (1e-3, 0.3)}
SLOW = {**QUIET, 3: (1.1e-3, 0.001)}

#: Of 3 against 1, ten pairs, one look.
ONCE = {"over": "prefetch", "base": 1, "arms": [3], "caches": ["warm"], "pairs": 10, "probes": 0,
        "slice_s": 0}  # fmt: skip


class Killed(Exception):
    """The suite's process has gone."""


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what makes a suite of stated times; ``kill``: after so many trials of each run."""
    monkeypatch.setattr(scheduler.Suite, "_discard_cold_pass", lambda suite: None)
    dataset = indexed(tmp_path / "data", 32)

    def suite(times: dict[int, tuple[float, float]], name: str = "r", **changes: Any) -> Any:
        def run_trial(trial: Trial, _: Dataset, attempt: int, __: TrialSettings) -> Record:
            if suite.left == 0:
                raise Killed
            suite.left -= 1
            seconds, noise = times[trial.case.prefetch]
            rng = random.Random(f"{trial.case.prefetch}-{trial.block}-{trial.repeat_of}")
            parts = {"read_s": seconds, "decode_s": 1e-3 * rng.gauss(1, 1e-3), "transform_s": 1e-3}
            record = fixture.record(trial, seconds * rng.lognormvariate(0, noise), probe=parts)
            return dataclasses.replace(record, attempt=attempt, wall_s=1.0, host=LOCAL.name())

        monkeypatch.setattr(scheduler, "run_trial", run_trial)
        parsed = load.parse({**DOCUMENT, **changes})
        plan = resolve(parsed, Here(dataset), units.seconds(parsed.budget), "now")
        found = store.create(tmp_path / name, "looks")
        found.save_plan(plan)
        return lambda: scheduler.Suite(found, TrialSettings(), lambda *_: None)

    suite.left = -1
    return suite


def blocks_run(suite: scheduler.Suite) -> dict[str, int]:
    trials = suite.store.plan().trials
    counted = Counter((t.contrast, t.arm) for t in trials if t.contrast and t.stage == "load")
    return {arm[-1]: n for (_, arm), n in counted.items()}


def judged(suite: scheduler.Suite) -> dict[str, dict[str, Any]]:
    document = to_json(analyse(suite.store.plan(), suite.store.records()))
    assert document["complete"]
    return {c["arm"][-1]: c for c in document["contrasts"]}


def test_a_group_ends_when_all_of_it_is_decided(begin: Callable[..., Any]) -> None:
    suite = begin(QUIET)()
    suite.run()
    assert blocks_run(suite) == {"1": 10, "2": 10, "3": 10}
    found = judged(suite)
    assert {c["verdict"] for c in found.values()} == {"EQUIVALENT"}
    assert found["2"]["look"]["taken"] == 1
    assert found["2"]["look"]["planned"] == [10, 20, 30]
    assert found["2"]["look"]["level"] == pytest.approx(0.02264 / 2, rel=0.01)
    assert found["2"]["simultaneous"]["level"] == pytest.approx(1 - 0.02264 / 2, abs=1e-4)
    assert found["2"]["attribution"] is None


def test_an_undecided_contrast_gets_its_looks_and_the_decided_one_keeps_its_verdict(
    begin: Callable[..., Any],
) -> None:
    suite = begin(NOISY)()
    suite.run()
    assert blocks_run(suite) == {"1": 30, "2": 30, "3": 30}
    found = judged(suite)
    assert (found["2"]["verdict"], found["2"]["pairs"]) == ("EQUIVALENT", 10)
    assert found["2"]["pairs_run"] == 30
    assert (found["3"]["verdict"], found["3"]["pairs"]) == ("INCONCLUSIVE", 30)
    assert found["3"]["look"]["spent"] == pytest.approx(found["3"]["look"]["alpha"])


def test_a_difference_is_probed_and_attributed(begin: Callable[..., Any]) -> None:
    suite = begin(SLOW)()
    suite.run()
    found = judged(suite)
    probes = [t for t in suite.store.plan().trials if t.stage == "probe" and t.contrast]
    assert Counter(t.case.prefetch for t in probes) == {1: 8, 3: 8}, "only the arms that differ"
    assert {t.cache for t in probes} == {"warm"}
    assert found["3"]["verdict"] == "SLOWER"
    assert found["3"]["attribution"]["stage"] == "read"
    assert found["2"]["attribution"] is None


def test_the_calls_of_a_difference_are_counted_last_and_once_an_arm(
    begin: Callable[..., Any],
) -> None:
    suite = begin(SLOW)()
    suite.run()
    trials = suite.store.plan().trials
    assert [t.case.prefetch for t in trials if t.stage == "calls"] == [1, 3]
    assert {t.stage for t in trials[-2:]} == {"calls"}
    suite.run()
    assert suite.store.plan().trials == trials, "none again"
    found = judged(suite)
    assert found["3"]["calls"]["arm"] == {"open": 1.0, "read": 2.0}
    assert found["2"]["calls"] is None


def test_no_difference_no_calls(begin: Callable[..., Any]) -> None:
    suite = begin(QUIET)()
    suite.run()
    assert not [t for t in suite.store.plan().trials if t.stage == "calls"]


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 7, 32, 33, 34, 47, 70, 92, 93])
def test_a_suite_killed_anywhere_ends_as_if_it_had_not_been(
    begin: Callable[..., Any], after: int
) -> None:
    whole = begin(NOISY, "whole")()
    whole.run()
    make = begin(NOISY, "killed")
    begin.left = after
    with pytest.raises(Killed):
        make().run()
    begin.left = -1
    again = make()
    again.run()
    trials = [dataclasses.replace(t, case=None) for t in again.store.plan().trials]
    assert trials == [dataclasses.replace(t, case=None) for t in whole.store.plan().trials]
    assert judged(again) == judged(whole)


@pytest.mark.parametrize(("arms", "attempts"), [(1, (2, 2, 1)), (2, (2, 2, 2)), (3, (1, 1, 1))])
def test_a_block_that_a_kill_cut_is_run_again_as_a_whole(
    begin: Callable[..., Any], arms: int, attempts: tuple[int, int, int]
) -> None:
    """Its arms run back to back; the block before stays as it is."""
    make = begin(QUIET)
    begin.left = len(make().plan.trials) + 3 + arms  # the ladder, the first block, some arms
    with pytest.raises(Killed):
        make().run()
    begin.left = -1
    make().run()
    again = make()
    last = {r.trial.id: r.attempt for r in again.store.records()}
    blocks: dict[int, list[int]] = {}
    for trial in again.store.plan().trials:
        if trial.contrast:
            blocks.setdefault(trial.block, []).append(last[trial.id])
    first, second, *_ = blocks.values()
    assert (first, second) == ([1, 1, 1], list(attempts))


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_block_is_measured_again_only_when_its_failed_arm_no_longer_fails(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, sessions: int
) -> None:
    make = begin(QUIET)
    real, broken = scheduler.run_trial, [True] * sessions

    def run_trial(trial: Trial, *rest: Any) -> Record:
        record = real(trial, *rest)
        fails = broken and trial.contrast and trial.case.prefetch == 3
        return dataclasses.replace(record, status=FAILED) if fails else record

    monkeypatch.setattr(scheduler, "run_trial", run_trial)

    def last() -> dict[int, set[tuple[int, str]]]:
        found: dict[int, set[tuple[int, str]]] = {1: set(), 2: set(), 3: set()}
        for record in evidence(make().store.plan(), make().store.records()).last.values():
            if record.trial.contrast:
                found[record.trial.case.prefetch].add((record.attempt, record.status))
        return found

    for session in range(sessions):
        make().run()
        kept = {(1, VALID)}
        assert last() == {1: kept, 2: kept, 3: {(1 + session, FAILED)}}
    broken.clear()
    make().run()
    assert last() == {1: {(2, VALID)}, 2: {(2, VALID)}, 3: {(2 + sessions, VALID)}}
    apart = [r for r in make().store.records() if r.reasons == (scheduler.APART,)]
    assert {(r.attempt, r.status) for r in apart} == {(1 + sessions, INVALID)}


def test_a_block_that_did_not_run_in_one_go_is_split() -> None:
    cases = fixture.cases("bare", "docker")
    plan = fixture.plan(cases, [fixture.contrast(cases[1], cases[0])])
    done = {t.id: fixture.record(t) for t in plan.trials}
    assert ledger.split_blocks(plan, done) == []
    first, second, *_ = plan.trials
    without = {i: r for i, r in done.items() if i != second.id}
    assert ledger.split_blocks(plan, without) == [[first, second]]
    again = {**{i: r for i, r in done.items() if i != first.id}, first.id: done[first.id]}
    assert ledger.split_blocks(plan, again) == [[first, second]]
    ladder = tuple(dataclasses.replace(t, contrast="") for t in (first, second))
    assert ledger.split_blocks(dataclasses.replace(plan, trials=ladder), without) == []


def test_probes_killed_half_way_are_finished(begin: Callable[..., Any]) -> None:
    make = begin(SLOW)
    begin.left = 3 + 30 + 1 + 5
    with pytest.raises(Killed):
        make().run()
    assert any(t.stage == "probe" and t.contrast for t in make().plan.trials)
    begin.left = -1
    make().run()
    assert judged(make())["3"]["attribution"]["stage"] == "read"


def room_s(suite: scheduler.Suite) -> float:
    """Return what is left of the budget by the stated times."""
    return suite.plan.budget_s - sum(r.wall_s for r in suite.store.records())


def test_without_budget_no_further_look_and_resume_goes_on(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ladder and the first look take 36 s of stated times."""

    monkeypatch.setattr(scheduler.Suite, "_room_s", room_s)
    make = begin(NOISY, budget="40s")
    make().run()
    suite = make()
    assert blocks_run(suite) == {"1": 10, "2": 10, "3": 10}
    found = judged(suite)
    assert found["3"]["verdict"] == "INCONCLUSIVE"
    assert not found["3"]["final"]
    plan = suite.store.plan()
    suite.store.save_plan(dataclasses.replace(plan, budget_s=1e6))
    passes: list[scheduler.Suite] = []
    monkeypatch.setattr(scheduler.Suite, "_discard_cold_pass", lambda suite: passes.append(suite))
    make().run()
    assert blocks_run(make()) == {"1": 30, "2": 30, "3": 30}
    assert passes, "its rate judges the new blocks, as it did the first ones"
    passes.clear()
    make().run()
    assert not passes, "nothing is left to run"


def test_the_last_look_comes_after_the_pairs_that_the_budget_holds(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ladder and first look leave 24 s of stated times: eight blocks, and alpha that is left."""

    monkeypatch.setattr(scheduler.Suite, "_room_s", room_s)
    make = begin(NOISY, budget="60s")
    make().run()
    suite = make()
    assert blocks_run(suite) == {"1": 18, "2": 18, "3": 18}
    found = judged(suite)
    assert found["3"]["look"]["planned"] == [10, 18]
    assert found["3"]["look"]["spent"] == pytest.approx(found["3"]["look"]["alpha"])
    assert found["3"]["final"]
    assert (found["2"]["verdict"], found["2"]["pairs"]) == ("EQUIVALENT", 10)
    assert found["2"]["look"]["level"] == pytest.approx(0.02264 / 2, rel=0.01)


@pytest.mark.parametrize(
    ("noises", "first"),
    [((0.04, 0.5), {"g01"}), ((0.5, 0.04), {"g02"}), ((0.5, 0.5), {"g01", "g02"}),
     ((0.04, 0.04), {"g01", "g02"})],
)  # fmt: skip
def test_what_can_still_be_decided_goes_first(noises: tuple[float, float], first: set[str]) -> None:
    """Of two groups, neither decided, one may vary by so much that its looks would not do."""
    arms = fixture.cases("bare", "docker", "apptainer")
    looks: dict[str, Any] = {"looks": (10, 20), "pairs": 20}
    contrasts = [
        fixture.contrast(arms[i], arms[0], id=f"c0{i}", group=f"g0{i}", **looks) for i in (1, 2)
    ]
    plan = fixture.plan(arms, contrasts, upto=10)
    noise = dict(zip([arms[1].label, arms[2].label], noises, strict=True))
    records = {
        t.id: fixture.record(t, 1e-3 * exp(noise.get(t.arm, 0.0) * ((t.block * 7919) % 11 - 5) / 3))
        for t in plan.trials
    }
    found = results_of(Evidence(plan, records))
    due = later_looks.spans_due(plan, found)
    assert due == {"g01": (10, 20), "g02": (10, 20)}
    assert set(later_looks.promising(plan, found, due)) == first


def test_repeated_blocks_do_not_collide_with_those_of_later_looks(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_trials, "disturbed", lambda record: "by the test")
    suite = begin(NOISY)()
    suite.run()
    trials = [t for t in suite.store.plan().trials if t.contrast]
    assert len({(t.block, t.arm) for t in trials}) == len(trials)
    repeats = [t for t in trials if t.repeat_of]
    assert len({t.repeat_of for t in repeats}) == 2
    assert min(t.block for t in repeats) > 30
    assert Counter(t.arm for t in repeats) == dict.fromkeys({t.arm for t in trials}, 2)
    assert judged(suite)["3"]["pairs"] == 30


def test_a_difference_that_a_later_look_found_is_probed_too() -> None:
    """Its group's other arm was probed before the suite was resumed."""
    cases = fixture.cases("bare", "docker", "podman")
    bare, docker, podman = cases
    contrasts = [
        fixture.contrast(docker, bare, group="g01"),
        fixture.contrast(podman, bare, group="g01", id="c02"),
    ]
    plan = fixture.plan(cases, contrasts)
    first = probe_blocks(contrasts[:1], cases, seed=1, start=len(plan.trials) + 1, samples=64)
    plan = dataclasses.replace(plan, trials=(*plan.trials, *first))
    seconds = {bare.label: 1e-3, docker.label: 1.2e-3, podman.label: 1.3e-3}

    def found(plan: Plan) -> Evidence:
        records = [
            fixture.record(
                t,
                seconds[t.arm] * (1 + 1e-4 * t.block),
                probe={"read_s": seconds[t.arm] * (1 + 1e-3 * (t.block % 3)), "decode_s": 1e-3},
            )
            for t in plan.trials
        ]
        return evidence(plan, records)

    ((due,),) = next_trials.probes_due(found(plan))
    assert due.arm == podman.label
    later = probe_blocks(
        [due],
        cases,
        seed=1,
        start=len(plan.trials) + 1,
        samples=64,
        done=next_trials.planned_blocks(plan, "g01", paired=False),
    )
    assert {t.block for t in later}.isdisjoint(t.block for t in first)
    plan = dataclasses.replace(plan, trials=(*plan.trials, *later))
    assert next_trials.probes_due(found(plan)) == []
    for contrast in contrasts:
        named = attribute(found(plan), contrast, "SLOWER")
        assert named is not None
        assert (named.stage, named.pairs) == ("read", 8)


@pytest.mark.parametrize("digest", [True, False])
def test_arms_that_are_not_on_the_ladder_are_digested_before_their_pairs(
    begin: Callable[..., Any], digest: bool
) -> None:
    ladder = {**DOCUMENT["ladder"], "only": {"prefetch": [1]}, "digest": digest}
    suite = begin(QUIET, contrasts=[ONCE], ladder=ladder)()
    suite.run()
    trials = suite.store.plan().trials
    digests = [t for t in trials if t.stage == "digest"]
    assert [t.case.prefetch for t in digests] == [1, 3] * digest, "none of 2, which nobody compares"
    assert len({t.id for t in trials}) == len(trials)
    first = min(i for i, t in enumerate(trials) if t.contrast)
    assert all(t.contrast for t in trials[first:])
    assert {t.case.prefetch for t in trials[first:]} == {1, 3}


# -- arms that take turns --------------------------------------------------------------------

#: Of both against 1, in turns.
TURNS = {**DOCUMENT["contrasts"][0], "slice_s": 0.1, "loop_s": 3.0}


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[list[Trial]]:
    """Let blocks that take turns take the stated times; return them as they are run."""
    ran: list[list[Trial]] = []

    def run_block(
        trials: Sequence[Trial], data: Dataset, attempts: Sequence[int], settings: TrialSettings
    ) -> list[Record]:
        ran.append(list(trials))
        both = zip(trials, attempts, strict=True)
        return [scheduler.run_trial(t, data, n, settings) for t, n in both]

    monkeypatch.setattr(scheduler, "run_block", run_block)
    return ran


def test_blocks_in_turns_are_run_whole_for_as_many_epochs_as_their_loops_shall_last(
    begin: Callable[..., Any], together: list[list[Trial]]
) -> None:
    suite = begin(QUIET, contrasts=[TURNS])()
    suite.run()
    assert [len(block) for block in together] == [3] * 10
    assert all(len({(t.contrast, t.block) for t in block}) == 1 for block in together)
    trials = suite.store.plan().trials
    # 32 samples of 1 ms: an epoch takes 32 ms
    assert {(t.epochs, t.slice_s) for t in trials if t.contrast} == {(94, 0.1)}
    assert {(t.epochs, t.slice_s) for t in trials if not t.contrast} == {(1, 0.0)}
    assert {c.epochs for c in suite.store.plan().contrasts} == {94}
    assert {c["verdict"] for c in judged(suite).values()} == {"EQUIVALENT"}


def test_a_block_in_turns_that_a_kill_cut_is_run_again_as_a_whole(
    begin: Callable[..., Any], together: list[list[Trial]]
) -> None:
    make = begin(QUIET, contrasts=[TURNS])
    begin.left = len(make().plan.trials) + 4
    with pytest.raises(Killed):
        make().run()
    begin.left = -1
    del together[:]
    make().run()
    assert len(together) == 9
    last = evidence(make().store.plan(), make().store.records()).last
    assert Counter(r.attempt for r in last.values() if r.trial.contrast) == {1: 27, 2: 3}


@pytest.fixture
def spoilt(
    together: list[list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Trial], bool], str], None]:
    """Let arms of blocks end with a status, and the others of these blocks be INVALID."""
    real = scheduler.run_block

    def spoil(which: Callable[[Trial], bool], status: str) -> None:
        def run_block(trials: Sequence[Trial], *rest: Any) -> list[Record]:
            records = real(trials, *rest)
            hurt = [t for t in trials if which(t)]
            return [
                dataclasses.replace(r, status=status if r.trial in hurt else INVALID) if hurt else r
                for r in records
            ]

        monkeypatch.setattr(scheduler, "run_block", run_block)

    return spoil


def test_a_block_in_turns_that_was_invalid_is_run_again_at_once(
    begin: Callable[..., Any],
    together: list[list[Trial]],
    spoilt: Callable[[Callable[[Trial], bool], str], None],
) -> None:
    make, once = begin(QUIET, contrasts=[TURNS]), [True]
    spoilt(lambda t: bool(once) and once.pop(), INVALID)
    make().run()
    blocks = [(b[0].contrast, b[0].block) for b in together]
    assert len(blocks) == 11
    assert blocks[0] == blocks[1]
    make().run()
    assert len(together) == 11


def test_an_arm_that_always_fails_costs_the_others_no_verdict(
    begin: Callable[..., Any],
    together: list[list[Trial]],
    spoilt: Callable[[Callable[[Trial], bool], str], None],
) -> None:
    make = begin(QUIET, contrasts=[TURNS])
    failing = next(c.label for c in make().plan.cases if c.prefetch == 2)
    spoilt(lambda t: t.arm == failing, FAILED)
    suite = make()
    suite.run()
    assert [len(block) for block in together] == [3, 2] * 3 + [2] * 7, "then it is given up"
    found = analyse(suite.store.plan(), suite.store.records()).contrasts
    assert {c.arm == failing: c.outcome.verdict for c in found}[False] == "EQUIVALENT"


def test_a_block_whose_base_fails_waits_for_a_resume(
    begin: Callable[..., Any],
    together: list[list[Trial]],
    spoilt: Callable[[Callable[[Trial], bool], str], None],
) -> None:
    make, once = begin(QUIET, contrasts=[TURNS]), [True]
    base = next(c.label for c in make().plan.cases if c.prefetch == 1)
    spoilt(lambda t: t.arm == base and bool(once) and once.pop(), FAILED)
    make().run()
    assert [len(block) for block in together] == [3] * 10
    make().run()
    assert [len(block) for block in together] == [3] * 11
    assert judged(make())["2"]["verdict"] == "EQUIVALENT"


@pytest.mark.parametrize(("failing", "pairs"), [((4,), 10), ((4, 5), 9)])
def test_a_block_whose_base_fails_after_it_has_worked_is_run_again_once(
    begin: Callable[..., Any],
    together: list[list[Trial]],
    spoilt: Callable[[Callable[[Trial], bool], str], None],
    failing: tuple[int, ...],
    pairs: int,
) -> None:
    suite = begin(QUIET, contrasts=[TURNS])()
    base = next(c.label for c in suite.plan.cases if c.prefetch == 1)
    spoilt(lambda t: t.arm == base and len(together) in failing, FAILED)
    suite.run()
    assert [len(block) for block in together] == [3] * 11
    assert together[3] == together[4] != together[5]
    found = analyse(suite.store.plan(), suite.store.records()).contrasts
    assert {c.pairs for c in found} == {pairs}


def test_arms_that_may_not_be_stopped_run_one_after_the_other(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_block(*_: Any) -> list[Record]:
        raise CannotStop("another user's")

    monkeypatch.setattr(scheduler, "run_block", run_block)
    suite = begin(QUIET, contrasts=[TURNS])()
    suite.run()
    plan = suite.store.plan()
    assert plan.notes[-1] == "arms run one after the other, not in turns: another user's"
    assert {t.slice_s for t in plan.trials} == {0.0}
    assert {t.epochs for t in plan.trials if t.contrast} == {94}
    assert {c["verdict"] for c in judged(suite).values()} == {"EQUIVALENT"}
    assert {r.attempt for r in suite.store.records() if r.trial.contrast} == {1, 2}


@pytest.mark.parametrize(
    ("keys", "contrast", "turns"),
    [
        ({}, {}, True),
        ({}, {"caches": ["cold"]}, False),  # they differ in what they ask the device for
        ({"placement": "staged"}, {"caches": ["cold"]}, False),
        ({}, {"caches": [0.5]}, False),
        ({}, {"slice_s": 0}, False),
        ({"cpus": 1}, {}, False),
        ({"memory": "1G"}, {}, False),
        ({"launcher": "mpirun", "world_size": 2}, {}, False),
        ({}, {"stage": "train"}, False),
    ],
)
def test_only_arms_that_a_stop_leaves_as_they_are_take_turns(
    keys: dict[str, Any], contrast: dict[str, Any], turns: bool
) -> None:
    document = {
        **DOCUMENT,
        "case": {**DOCUMENT["case"], **keys},
        "ladder": {**DOCUMENT["ladder"], "stages": ["load", "train"], "caches": ["warm", "cold"]},
        "contrasts": [{**TURNS, **contrast}],
        "stage_to": "/local",
    }
    parsed = load.parse(document)
    cells = [cell for rule in rules(parsed, load.expand(parsed)) for cell in rule.cells]
    assert {bool(cell.slice_s) for cell in cells} == {turns}


def test_probes_take_turns_and_are_run_whole_after_a_kill(
    begin: Callable[..., Any], together: list[list[Trial]]
) -> None:
    make = begin(SLOW, contrasts=[TURNS])
    begin.left = 6 + 30 + 3  # in the second block of probes
    with pytest.raises(Killed):
        make().run()
    begin.left = -1
    suite = make()
    suite.run()
    probes = [block for block in together if block[0].stage == "probe"]
    assert [len(block) for block in probes] == [2] * 9, "the second is run twice"
    trials = [t for t in suite.store.plan().trials if t.stage == "probe" and t.contrast]
    assert {(t.slice_s, t.epochs) for t in trials} == {(0.1, 32)}, "1,024 of 32 samples"
    assert judged(suite)["3"]["attribution"]["stage"] == "read"


def test_probes_that_may_not_be_stopped_leave_what_took_turns_as_it_is(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, together: list[list[Trial]]
) -> None:
    suite = begin(SLOW, contrasts=[TURNS])()
    run_block = scheduler.run_block

    def stops(trials: Sequence[Trial], *more: Any) -> list[Record]:
        if trials[0].stage == "probe":
            raise CannotStop("another user's")
        return run_block(trials, *more)

    monkeypatch.setattr(scheduler, "run_block", stops)
    suite.run()
    plan = suite.store.plan()
    assert plan.notes[-1] == "serial probes run one after the other, not in turns: another user's"
    assert {t.slice_s for t in plan.trials if t.stage == "load" and t.contrast} == {0.1}
    assert {t.slice_s for t in plan.trials if t.stage == "probe"} == {0.0}
    assert judged(suite)["3"]["attribution"]["stage"] == "read"


# -- one look --------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 6, 7, 9])
def test_a_suite_of_one_look_that_was_stopped_has_not_looked(
    begin: Callable[..., Any], blocks: int
) -> None:
    make = begin(SLOW, contrasts=[ONCE])
    begin.left = len(make().plan.trials) + 2 * blocks
    with pytest.raises(Killed):
        make().run()
    suite = make()
    (found,) = to_json(analyse(suite.store.plan(), suite.store.records()))["contrasts"]
    assert (found["verdict"], found["final"]) == ("EXPLORATORY", False)
    assert (found["pairs"], found["pairs_planned"]) == (blocks, 10)
    assert found["note"].startswith(f"{blocks} of 10 pairs so far")
    assert found["attribution"] is None
    begin.left = -1
    suite.run()
    found = judged(suite)["3"]
    assert (found["verdict"], found["final"], found["pairs"]) == ("SLOWER", True, 10)


def test_pairs_that_the_budget_did_not_buy_are_not_waited_for(begin: Callable[..., Any]) -> None:
    suite = begin(SLOW, budget="0.001s", contrasts=[ONCE])()
    suite.run()
    assert blocks_run(suite) == {"1": 6, "3": 6}
    found = judged(suite)["3"]
    assert (found["verdict"], found["final"], found["pairs_planned"]) == ("SLOWER", True, 6)


def once(tried: int, *, failed: int = 0, repeated: int = 0) -> dict[str, Any]:
    """Return the entry of ten pairs: ``tried`` of 20 trials ran, one of block ``failed`` in vain.

    ``repeated``: a block whose repeat is planned.
    """
    cases = fixture.cases("bare", "docker")
    plan = fixture.plan(cases, [fixture.contrast(cases[1], cases[0], probes=0)])
    ordered = sorted(plan.trials, key=lambda t: (t.block, t.position))
    again = [
        dataclasses.replace(t, id=f"again-{t.arm}", block=11, repeat_of=str(repeated))
        for t in ordered
        if t.block == repeated
    ]
    plan = dataclasses.replace(plan, trials=(*ordered, *again))
    records = [
        fixture.record(
            t,
            1.2e-3 if t.arm == cases[1].label else 1e-3,
            status=FAILED if (t.block, t.position) == (failed, 1) else VALID,
        )
        for t in plan.trials[:tried]
    ]
    return to_json(analyse(plan, records))["contrasts"][0]


def test_a_pair_that_failed_was_tried_and_is_not_waited_for() -> None:
    found = once(20, failed=4)
    assert (found["verdict"], found["final"]) == ("SLOWER", True)
    assert (found["pairs"], found["pairs_planned"]) == (9, 10)
    assert once(19, failed=4)["verdict"] == "EXPLORATORY"


def test_a_repeat_that_is_planned_is_waited_for() -> None:
    assert (once(20)["verdict"], once(20)["final"]) == ("SLOWER", True)
    found = once(21, repeated=3)
    assert (found["verdict"], found["final"]) == ("EXPLORATORY", False)
    found = once(22, repeated=3)
    assert (found["verdict"], found["final"], found["pairs"]) == ("SLOWER", True, 10)
    assert found["without_repeats"]["verdict"] == "SLOWER"
