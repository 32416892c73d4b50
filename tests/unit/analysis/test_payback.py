"""When a copy pays: n* = t_stage / (t_epoch of the base - t_epoch of the arm)."""

from __future__ import annotations

import dataclasses
import io
import json
from types import SimpleNamespace

import pytest

from iobench.analysis import payback
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.core.cases import Case, Placement, Trial
from iobench.report import contrast_words, html, terminal
from iobench.report.screen import Screen
from tests.build.pairs import DATASET, contrast, plan, record

#: Seconds a sample of the base; the dataset has 32 samples.
BASE_S = 0.01
EPOCH_S = 32 * BASE_S


def judged(
    arm_s: float,
    kind: str = "staged",
    base: str = "bind",
    pairs: int = 10,
    samples: int = 0,
    **changes: object,
) -> ContrastResult:
    cases = [
        Case(label=f"torch:lmdb placement={where}", format="lmdb", placement=where,
             location=location, samples=samples)
        for where, location in ((kind, "/p"), (base, "/d"))
    ]  # fmt: skip
    made = plan(cases, [contrast(*cases, pairs=pairs)])
    copied = Placement(kind, "/p", seconds=6.4, bytes=41_000_000)
    made = dataclasses.replace(made, **{"placements": (copied,), **changes})
    records = [record(t, (arm_s if t.case.placement == kind else BASE_S)) for t in made.trials]
    (found,) = analyse(made, records).contrasts
    return found


def test_a_faster_copy_pays_after_its_time_over_what_an_epoch_saves() -> None:
    found = judged(BASE_S / 2)
    staging = found.staging
    assert (staging.seconds, staging.bytes) == (6.4, 41_000_000)
    assert staging.pays_after_epochs == pytest.approx(6.4 / (EPOCH_S / 2), rel=0.01)
    assert staging.low <= staging.pays_after_epochs <= staging.high
    assert json.loads(json.dumps(to_json(found))) == to_json(found)
    sentence = contrast_words.sentence(found)
    assert "torch:lmdb load cold: staged / bind = 0.500" in sentence
    assert "6.40 s to make (41 MB), pays after 40.3 epochs (40.3 to 40.3)" in sentence


def test_an_epoch_is_over_all_samples_that_were_copied() -> None:
    """A trial that takes 8 of the 32 samples says what each costs, not how long an epoch is."""
    every, few = judged(BASE_S / 2), judged(BASE_S / 2, samples=8)
    assert few.staging.pays_after_epochs == pytest.approx(every.staging.pays_after_epochs)


def test_a_slower_copy_never_pays() -> None:
    found = judged(1.2 * BASE_S)
    assert found.staging.pays_after_epochs is None
    assert found.staging.high is None
    assert "6.40 s to make (41 MB), never pays" in contrast_words.sentence(found)


def test_pairs_too_few_for_an_interval_give_no_range() -> None:
    found = judged(BASE_S / 2, pairs=3)
    assert found.outcome.simultaneous is not None
    assert not found.outcome.simultaneous.limited
    assert (found.staging.low, found.staging.high) == (None, None)
    assert found.staging.pays_after_epochs == pytest.approx(40.3, rel=0.01)
    sentence = contrast_words.sentence(found)
    assert "pays after 40.3 epochs;" in sentence
    assert "never" not in sentence


def test_only_a_copy_against_the_original_is_paid_back() -> None:
    assert judged(BASE_S / 2, base="tmpfs").staging is None
    found = judged(BASE_S / 2, placements=())
    assert found.staging is None
    assert "to make" not in contrast_words.sentence(found)


def test_before_any_pair_there_is_the_cost_alone() -> None:
    cases = [
        Case(label="a placement=image", placement="image", location="/p"),
        Case(label="a placement=bind", location="/d"),
    ]
    made = dataclasses.replace(
        plan(cases, [contrast(*cases)]), dataset=DATASET,
        placements=(Placement("image", "/p", seconds=2.0, bytes=1),),
    )  # fmt: skip
    (found,) = analyse(made, []).contrasts
    assert found.staging.pays_after_epochs is None
    assert contrast_words.staging(found) == "2.00 s to make (0 MB)"


def test_the_terminal_and_html_print_the_sentence() -> None:
    cases = [
        Case(label="torch:lmdb placement=staged", format="lmdb", placement="staged", location="/p"),
        Case(label="torch:lmdb placement=bind", format="lmdb", location="/d"),
    ]
    made = dataclasses.replace(
        plan(cases, [contrast(*cases)]),
        placements=(Placement("staged", "/p", seconds=6.4, bytes=41_000_000),),
    )
    records = [record(t, BASE_S / (2 if t.case.placement == "staged" else 1)) for t in made.trials]
    document = analyse(made, records)
    said = io.StringIO()
    terminal.render(document, Screen(file=said, width=200))
    assert "staged / bind" in said.getvalue()
    assert "pays after 40.3 epochs" in said.getvalue()
    assert "pays after 40.3 epochs" in html.render(made, records, document)


def test_several_nodes_are_a_prediction_from_the_mounts_bandwidth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """41 MB at 100 MB/s: 32 nodes copy for 13.1 s and then save 0.41 s less 0.005 s an epoch."""
    assert judged(BASE_S / 2).staging.at_nodes == []
    mount = SimpleNamespace(bandwidth=100e6)
    monkeypatch.setattr(payback, "storage_of", lambda found, case: mount)
    found = judged(BASE_S / 2).staging
    assert [each.nodes for each in found.at_nodes] == [2, 8, 32]
    assert found.at_nodes[2].seconds == pytest.approx(32 * 0.41)
    saved = 0.41 - EPOCH_S / 2 / 32
    assert found.at_nodes[2].pays_after_epochs == pytest.approx(32 * 0.41 / saved, rel=0.01)
    sentence = contrast_words.staging(judged(BASE_S / 2))
    assert "predicted for 2, 8, 32 nodes: " in sentence
    assert "each copies all, and the mount gives all together the 100 MB/s" in sentence


def test_a_copy_in_memory_is_held_against_the_cold_original() -> None:
    cases = [
        Case(label="m", format="lmdb", placement="tmpfs", location="/p"),
        Case(label="d", format="lmdb", location="/d"),
    ]
    trials = [
        Trial("1", cases[0], "load", "warm"),
        Trial("2", cases[1], "load", "cold"),
        Trial("3", cases[1], "load", "warm"),
    ]
    made = dataclasses.replace(
        plan(cases, []), trials=tuple(trials),
        placements=(Placement("tmpfs", "/p", seconds=6.4, bytes=41_000_000),),
    )  # fmt: skip
    records = [record(t, BASE_S / (1 if t.cache == "cold" else 2)) for t in trials]
    of_memory, of_mount = analyse(made, records).pipelines
    (remark,) = (text for text in of_memory.remarks if text.startswith("placement"))
    assert "tmpfs: 6.4 s to make (41 MB); against placement bind, cold, at load" in remark
    assert "it pays after 40" in remark
    assert not [text for text in of_mount.remarks if text.startswith("placement")]
