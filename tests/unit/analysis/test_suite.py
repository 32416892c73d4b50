"""A suite in memory through the whole analysis: figures against what the queue model put in."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any, List

import pytest

from iobench.analysis import evidence, windows
from iobench.analysis.contrast_results import Outcome
from iobench.analysis.results import SuiteResult
from iobench.analysis.suite import _backed, _fastest, analyse
from iobench.core.cases import Plan
from iobench.core.records import EXPLORATORY, FAILED, INVALID, Record
from iobench.report import publish
from tests.build import report as fixture


@pytest.fixture(scope="module")
def suite() -> tuple[Plan, List[Record]]:
    return fixture.suite()


@pytest.fixture(scope="module")
def result(suite: tuple[Plan, List[Record]]) -> SuiteResult:
    return analyse(*suite)


@pytest.fixture(scope="module")
def document(result: SuiteResult) -> dict[str, Any]:
    return publish.document(result)


def analysed(plan: Plan, records: List[Record]) -> dict[str, Any]:
    return publish.document(analyse(plan, records))


def pipeline(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(p for p in document["pipelines"] if p["case"] == name)


def contrast(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in document["contrasts"] if c["id"] == name)


def edited(records: List[Record], **by_stage: Any) -> List[Record]:
    """Return the records with ``contrast`` or ``stage`` ones replaced by a function's answer."""
    return [
        by_stage[k](r) if r.ranks and (k := r.trial.contrast or r.trial.stage) in by_stage else r
        for r in records
    ]


def test_it_is_json_without_nan(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_regimes_are_the_models(document: dict[str, Any]) -> None:
    found = {
        p["case"]: (p["limits"]["cold"]["regime"], p["limits"]["warm"]["regime"])
        for p in document["pipelines"]
    }
    assert found == {
        "torch:lmdb": ("compute-bound", "compute-bound"),
        "torch:hdf5": ("prep-bound", "prep-bound"),
        "torch:jpeg": ("fetch-bound", "compute-bound"),
        "dali:jpeg": ("fetch-bound", "compute-bound"),
        "torch:jpeg trainer=torch": (None, None),
    }


def test_rates_are_the_models(document: dict[str, Any]) -> None:
    for name, (_, cold, warm, decode, load) in fixture.RATES.items():
        stages = pipeline(document, name)["stages"]
        for stage, cache, rate in (
            ("read", "warm", warm), ("load", "warm", load), ("decode", "warm", decode),
            ("load", "cold", min(cold, load)),
        ):  # fmt: skip
            if cache in stages[stage]:
                assert stages[stage][cache]["samples_per_s"]["value"] == pytest.approx(
                    rate, rel=0.1
                )


def test_stalls_are_arithmetic(document: dict[str, Any]) -> None:
    jpeg = pipeline(document, "torch:jpeg")
    step = fixture.STEP_S * 1.004 / fixture.BATCH
    assert jpeg["fetch_stall_s"]["value"] == pytest.approx(1 / 240 - step, rel=0.15)
    assert jpeg["fetch_stall_s"]["paired"]
    prep = pipeline(document, "torch:hdf5")["prep_stall_s"]
    assert prep["value"] == pytest.approx(1 / 262 - fixture.STEP_S / fixture.BATCH, rel=0.1)
    assert prep["contention_s"]["value"] == pytest.approx(0.004 * fixture.STEP_S / fixture.BATCH)
    parts = prep["wait_s"]["value"] + prep["contention_s"]["value"]
    assert parts == pytest.approx(prep["value"], rel=1e-9)


def test_au_uses_the_compute_stages_step(document: dict[str, Any]) -> None:
    lmdb = pipeline(document, "torch:lmdb")["au"]["warm"]["value"]
    assert lmdb == pytest.approx(fixture.STEP_S / (fixture.STEP_S * 1.004 + 2e-4))
    assert pipeline(document, "torch:jpeg")["au"]["cold"]["value"] == pytest.approx(0.74, abs=0.04)


def test_one_compute_rung_serves_equal_trainers(document: dict[str, Any]) -> None:
    assert pipeline(document, "torch:jpeg")["compute_from"] == "torch:lmdb"
    net = pipeline(document, "torch:jpeg trainer=torch")
    assert net["compute_from"] == ""
    assert net["stages"]["compute"]["-"]["samples_per_s"]["value"] == pytest.approx(28, rel=0.05)


def test_bytes_measured_beside_bytes_needed(document: dict[str, Any]) -> None:
    found = pipeline(document, "torch:lmdb")["bytes"]
    assert found["needed_per_sample"] == fixture.SIZE
    assert found["read_amplification"] == pytest.approx(1.09)


def test_verdicts(document: dict[str, Any]) -> None:
    verdicts = {(c["arm"], c["cache"]): c["verdict"] for c in document["contrasts"]}
    assert verdicts["torch:hdf5", "warm"] == "SLOWER"
    assert verdicts["dali:jpeg", "warm"] == "FASTER"
    assert verdicts["dali:jpeg", "cold"] == "SLOWER"
    for c in document["contrasts"]:
        assert c["family"] == 6
        assert c["simultaneous"]["low"] <= c["interval"]["low"] < c["interval"]["high"]
        assert c["smallest_effect"] > 0
        assert c["confounders"] == {"status": "PASS", "differences": []}


def test_a_repeated_block_replaces_its_own(document: dict[str, Any]) -> None:
    found = contrast(document, "c01")
    assert found["repeated_blocks"] == [3]
    assert found["pairs"] == found["pairs_planned"] == 10
    without = found["without_repeats"]
    assert len(without["ratios"]) == 10
    assert sorted(set(without["ratios"]) ^ set(found["ratios"])) == sorted(
        [without["ratios"][2], found["ratios"][-1]]
    )


def test_only_the_last_valid_attempt_enters(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    whole = analysed(plan, records)
    assert whole["validity"]["FAILED"] == 0  # its second attempt is VALID
    assert whole["validity"]["INVALID"] == 1
    assert whole["validity"]["attempts"] == whole["validity"]["planned"] + 1
    worse = [
        dataclasses.replace(r, attempt=2, status=INVALID, reasons=("later",)) for r in records
        if r.trial.stage == "read" and r.trial.case.label == "torch:hdf5"
    ]  # fmt: skip
    found = pipeline(analysed(plan, [*records, *worse]), "torch:hdf5")
    assert found["stages"]["read"]["cold"] == {
        "n": 0,
        "samples_per_s": None,
        "reason": "read cold has no valid trial: later",
    }


def test_unequal_order_takes_the_verdict_away(suite: tuple[Plan, List[Record]]) -> None:
    def other_order(record: Record) -> Record:
        if record.trial.arm == fixture.BASE:
            return record
        rank = dataclasses.replace(record.ranks[0], order_digest="c" * 16)
        return dataclasses.replace(record, ranks=(rank,))

    plan, records = suite
    found = contrast(analysed(plan, edited(records, c01=other_order)), "c01")
    assert (found["verdict"], found["equal_order"]) == ("EXPLORATORY", False)
    assert "order of the samples differs" in found["note"]
    assert found["ratio"] is not None


def test_confounders_stand_beside_the_ratio(suite: tuple[Plan, List[Record]]) -> None:
    def other_library(record: Record) -> Record:
        if record.trial.arm == fixture.BASE:
            return record
        changed = {**fixture.FINGERPRINT, "libraries": {"torch": "2.0.0"}}
        rank = dataclasses.replace(record.ranks[0], fingerprint=changed)
        return dataclasses.replace(record, ranks=(rank,))

    plan, records = suite
    found = contrast(analysed(plan, edited(records, c01=other_library)), "c01")
    assert found["confounders"]["status"] == "CONFOUNDED"
    assert any("torch" in line for line in found["confounders"]["differences"])


def test_exploratory_trials_give_rates_but_no_verdict(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    found = analysed(plan, fixture.exploratory(records))
    assert {c["verdict"] for c in found["contrasts"]} == {"EXPLORATORY"}
    assert "counts this mount's bytes" in found["contrasts"][0]["note"]
    lmdb = pipeline(found, "torch:lmdb")
    assert lmdb["stages"]["load"]["warm"]["standing"] == "EXPLORATORY"
    assert lmdb["bytes"]["read_amplification"] is None


@pytest.mark.parametrize(("unproven", "left"), [(1, 9), (7, 10), (10, 10)])
def test_few_exploratory_pairs_cost_themselves_and_many_the_verdict(
    suite: tuple[Plan, List[Record]], unproven: int, left: int
) -> None:
    """Memory that was paged out during one run is a chance; a mount that counts nothing is none."""

    def chance(record: Record) -> Record:
        if record.trial.arm == fixture.BASE or record.trial.block > unproven:
            return record
        return dataclasses.replace(record, status=EXPLORATORY, reasons=("paged out",))

    plan, records = suite
    before = contrast(analysed(plan, records), "c01")
    found = contrast(analysed(plan, edited(records, c01=chance)), "c01")
    assert (before["pairs"], found["pairs"], found["pairs_planned"]) == (10, left, 10)
    assert (found["verdict"] == "EXPLORATORY") is (left == 10)
    assert ("paged out" in (found["note"] or "")) is (left == 10)


@pytest.mark.parametrize("kept", [0, 1, 5, 30, 60, 90, 130, 200])
def test_an_interrupted_suite_is_analysed(suite: tuple[Plan, List[Record]], kept: int) -> None:
    plan, records = suite
    document = analysed(plan, records[:kept])
    json.dumps(document, allow_nan=False)
    assert not document["complete"]
    for entry in document["pipelines"]:
        for cache in ("cold", "warm"):
            limit = entry["limits"][cache]
            assert limit["regime"] or limit["reason"]
        for name in ("fetch_stall_s", "prep_stall_s"):
            assert entry[name]["value"] is not None or entry[name]["reason"]


def test_phase_one_has_no_contrast_yet(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    ladder = dataclasses.replace(
        plan, trials=tuple(t for t in plan.trials if not t.contrast), contrasts=(), phase=1
    )
    document = analysed(ladder, [r for r in records if not r.trial.contrast])
    assert document["contrasts"] == []
    assert not document["complete"]
    assert document["missing"] == ["the comparisons have not begun"]


def test_pages_that_were_not_locked_are_noted(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    assert not [note for note in analysed(plan, records)["notes"] if "not locked" in note]
    warm = [r for r in records if r.trial.cache == "warm"][:2]
    free = [
        dataclasses.replace(r, cache=dataclasses.replace(r.cache, unheld="limit 8192 KiB"))
        if r in warm
        else r
        for r in records
    ]
    note = "2 warm trials ran on pages that were not locked: limit 8192 KiB"
    assert note in analysed(plan, free)["notes"]


def test_answers_are_missing_only_where_nothing_gives_them(
    suite: tuple[Plan, List[Record]],
) -> None:
    plan, records = suite
    assert analysed(plan, records)["missing"] == []
    rung = [r for r in records if not r.trial.contrast and r.trial.stage == "load"]
    one = {t.trial.id for t in rung[:1]}
    spoilt = [dataclasses.replace(r, status=FAILED) if r.trial.id in one else r for r in records]
    assert analysed(plan, spoilt)["missing"] == [], "its other repeats answer"
    label = rung[0].trial.case.label
    spoilt = [
        dataclasses.replace(r, status=FAILED, reasons=("the lens is dirty",))
        if (r.trial.case.label, r.trial.stage) == (label, "load")
        else r
        for r in records
    ]
    missing = analysed(plan, spoilt)["missing"]
    assert f"{label} load warm has no valid trial: the lens is dirty" in missing
    assert any(" against " in line and line.endswith("no complete pair yet (the lens is dirty)")
               for line in missing)  # fmt: skip


def test_a_comparison_that_lost_its_pairs_is_missing(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    (first, *_) = plan.contrasts
    paired = [r for r in records if r.trial.contrast == (first.group or first.id)]
    kept = sorted({r.trial.block for r in paired})[:2]
    spoilt = [
        dataclasses.replace(r, status=FAILED, reasons=("the lens is dirty",))
        if r in paired and r.trial.block not in kept
        else r
        for r in records
    ]
    lines = [line for line in analysed(plan, spoilt)["missing"] if "fewer than 6 pairs" in line]
    assert lines
    assert all(line.endswith("(the lens is dirty)") for line in lines)


def test_samples_that_differ_are_found(suite: tuple[Plan, List[Record]]) -> None:
    def fewer(record: Record) -> Record:
        rank = dataclasses.replace(record.ranks[0], ids_digest="f" * 16)
        return dataclasses.replace(record, ranks=(rank,))

    def other_bytes(record: Record) -> Record:
        if record.trial.case.format != "lmdb":
            return record
        rank = dataclasses.replace(record.ranks[0], samples_digest="f" * 32)
        return dataclasses.replace(record, ranks=(rank,))

    plan, records = suite
    assert analysed(plan, records)["checks"]["same_samples"]["ok"] is True
    checks = analysed(plan, edited(records, decode=fewer, digest=other_bytes))["checks"]
    assert checks["same_samples"]["ok"] is False
    said = {"ok": False, "reason": "differ: torch:lmdb and torch:hdf5", "compared": 4, "groups": 1}
    assert checks["same_bytes"] == said


@pytest.mark.parametrize("whole", [True, False])
def test_several_ranks_are_one_trial(whole: bool) -> None:
    trial = fixture.planned()[0][1]
    one = fixture.record(trial, random.Random(1))
    slow = dataclasses.replace(
        one.ranks[0],
        rank=1,
        steps=fixture.run_queue(0.5, 0.0, warmup=one.ranks[0].steps.warmup),
    )
    two = dataclasses.replace(one, ranks=(one.ranks[0], slow))
    both = evidence.trial_window(two, whole=whole)
    alone = windows.epoch(slow.steps) if whole else windows.window(slow.steps)
    assert both is not None
    assert both.samples == 2 * alone.samples
    assert (both.wall_s, both.wait_s) == (alone.wall_s, alone.wait_s)


def test_a_wait_for_a_batch_that_was_there_is_its_hand_over() -> None:
    trial = fixture.planned()[0][1]
    one = fixture.record(trial, random.Random(1))
    steps = dataclasses.replace(one.ranks[0].steps, made_s=[0.0] * fixture.STEPS)
    there = dataclasses.replace(one, ranks=(dataclasses.replace(one.ranks[0], steps=steps),))
    unknown, found = (evidence.trial_window(record, whole=True) for record in (one, there))
    assert unknown is not None
    assert found is not None
    waits = [b - a for a, b in zip(steps.request_s[1:], steps.ready_s[1:], strict=True)]
    assert (unknown.handover_s, found.handover_s) == (0.0, pytest.approx(sum(waits) / len(waits)))


def test_all_warm_up_is_no_window() -> None:
    trial = fixture.planned()[0][1]
    one = fixture.record(trial, random.Random(1))
    steps = dataclasses.replace(one.ranks[0].steps, warmup=fixture.STEPS)
    ranks = (dataclasses.replace(one.ranks[0], steps=steps),)
    assert evidence.trial_window(dataclasses.replace(one, ranks=ranks), whole=False) is None


def test_cold_trials_count_whole_epochs_and_warm_ones_their_steady_window() -> None:
    for trial in fixture.planned()[0]:
        record = fixture.record(trial, random.Random(1))
        if trial.stage == "load":
            whole = evidence.trial_window(record, whole=trial.cache == "cold")
            assert evidence.trial_window(record) == whole


def test_advice_is_grounded(document: dict[str, Any]) -> None:
    said = {(a["case"], a["cache"]): "" for a in document["advice"]}
    for a in document["advice"]:
        said[a["case"], a["cache"]] += a["text"] + "\n"
    assert "nothing to gain from I/O" in said["torch:lmdb", "warm"]
    assert "stage the data" in said["torch:jpeg", "cold"]
    assert "torch:lmdb reads 6" in said["torch:jpeg", "cold"]
    assert "needs about 3 cores and this job has 2" in said["torch:hdf5", "warm"]
    assert "dali:jpeg prepares 3" in said["torch:hdf5", "warm"]


def test_a_compute_rung_that_failed_is_why_all_that_share_it_have_none(
    suite: tuple[Plan, List[Record]],
) -> None:
    def failed(record: Record) -> Record:
        return dataclasses.replace(record, status=FAILED, reasons=("the net is too large",))

    plan, records = suite
    document = analysed(plan, edited(records, compute=failed))
    for name in ("torch:lmdb", "torch:jpeg"):  # the one that ran it, and one that shares it
        reason = pipeline(document, name)["prep_stall_s"]["reason"]
        assert reason == "compute has no valid trial: the net is too large"
    none = dataclasses.replace(plan, trials=tuple(t for t in plan.trials if t.stage != "compute"))
    document = analysed(none, [r for r in records if r.trial.stage != "compute"])
    reason = pipeline(document, "torch:jpeg")["prep_stall_s"]["reason"]
    assert reason == "compute is not in the spec"


def test_fastest(document: dict[str, Any]) -> None:
    assert document["fastest"]["load warm"]["case"] == "dali:jpeg"
    assert document["fastest"]["load cold"]["case"] == "torch:lmdb"


def test_a_ranking_is_backed_by_contrasts_of_its_first_with_every_other(
    result: SuiteResult, document: dict[str, Any]
) -> None:
    assert document["fastest"]["load cold"]["judged"]
    equal = Outcome(verdict="EQUIVALENT")
    decided = [dataclasses.replace(c, outcome=equal) for c in result.contrasts]
    found = _fastest(result.pipelines, decided)
    assert found["load cold"].judged
    assert not found["load warm"].judged, "dali was compared with one alone"
    assert not found["read warm"].judged


@pytest.mark.parametrize(
    ("verdicts", "backed"),
    [
        ({"ab": "FASTER", "ac": "FASTER"}, True),
        ({"ba": "SLOWER", "ac": "EQUIVALENT"}, True),
        ({"ab": "FASTER", "ac": "FASTER", "bc": "INCONCLUSIVE"}, True),
        ({"ab": "FASTER", "bc": "FASTER"}, False),
        ({"ab": "FASTER", "ac": "SLOWER"}, False),
        ({"ab": "FASTER", "ca": "FASTER"}, False),
        ({"ab": "FASTER", "ac": "FASTER", "ca": "INCONCLUSIVE"}, False),
        ({"ab": "FASTER", "ac": "EXPLORATORY"}, False),
        ({}, False),
    ],
)
def test_verdicts_that_back_a_ranking(
    result: SuiteResult, verdicts: dict[str, str], backed: bool
) -> None:
    found = [
        dataclasses.replace(
            result.contrasts[0], arm=who[0], base=who[1], outcome=Outcome(verdict=v)
        )
        for who, v in verdicts.items()
    ]
    assert _backed(["a", "b", "c"], found) is backed


def test_one_case_alone_is_no_ranking() -> None:
    assert not _backed(["a"], [])
