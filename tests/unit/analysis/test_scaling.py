"""Scaling studies, stragglers and the model, on suites whose every time is stated."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from iobench.analysis import scale_model
from iobench.analysis.evidence import evidence
from iobench.analysis.ranks import running
from iobench.analysis.results import SuiteResult, to_json
from iobench.analysis.scale_results import ScalingStudy
from iobench.analysis.stragglers import stragglers
from iobench.analysis.studies import series
from iobench.analysis.suite import analyse
from iobench.core.cases import Contrast, Plan, Trial
from iobench.core.records import CacheProof, NodeRecord, Record, Slices, Steps
from iobench.plan.ladder import ladder
from iobench.report import html, scale_words, terminal
from iobench.report.csv import trials_frame
from iobench.spec import load
from iobench.spec.contrast_rules import matches
from tests.build import scaling as fixture
from tests.build.scaling import BATCH, case_of, rank_of, record_of, steps_of

RANKS = (1, 2, 4)


def study_of(found: SuiteResult, kind: str = "weak") -> ScalingStudy:
    (study,) = (s for s in found.studies if s.kind == kind)
    return study


def test_a_rung_against_the_smallest_case() -> None:
    study = study_of(analyse(*fixture.suite([case_of(n) for n in RANKS])))
    assert study.name == "torch:lmdb nodes=1"
    loads = [p for p in study.points if p.stage == "load"]
    assert [(p.ranks, p.nodes, p.paired) for p in loads] == [(n, 1, False) for n in RANKS]
    assert [p.samples_per_s.value for p in loads] == pytest.approx(
        [n * BATCH / 0.03 for n in RANKS]
    )
    assert [p.speedup.value for p in loads] == pytest.approx(RANKS)
    assert [p.efficiency.value for p in loads] == pytest.approx([1.0] * 3)
    train = [p for p in study.points if p.stage == "train"]
    expected = [fixture.PARTS.seconds(fixture.comm_s(n)) for n in RANKS]
    assert expected[0] < expected[1] < expected[2], "the exchange is not hidden whole"
    assert [p.efficiency.value for p in train] == pytest.approx([expected[0] / s for s in expected])
    assert all(p.efficiency.limited for p in train[1:])


def test_strong_scaling_keeps_the_batch_of_all() -> None:
    cases = [case_of(n, batch=8 // n, label=f"x n={n}") for n in (1, 2)]
    plan, records = fixture.suite(cases)
    found = analyse(plan, records)
    assert [(s.kind, s.name) for s in found.studies] == [("strong", "x")]
    assert not found.studies[0].models, "the parts of a step change with its batch"


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("mahon2020", [(1, 2, 4, 8, 12)]),
        ("shi2018", [(1, 2, 4)] * 5),
        ("distributed", [(2, 4)] * 2),
    ],
)
def test_the_shipped_studies_are_series_of_ranks(name: str, ranks: list[tuple[int, ...]]) -> None:
    """Each of its trials is planned by `iobench run --dry-run`; all cases are in one series."""
    spec = load.load(name)
    cases = load.expand(spec)
    found = [tuple(c.world_size for c in together) for _, together in series(cases)]
    assert found == ranks
    assert sum(map(len, found)) == len(cases)
    planned = {(t.case.label, t.stage) for t in ladder(spec, cases)}
    for case in cases:
        assert ((case.label, "train") in planned) == matches(case, spec.ladder.only)


def test_cases_that_differ_in_more_are_no_study() -> None:
    plan, records = fixture.suite([case_of(1), case_of(2, workers=7)])
    assert analyse(plan, records).studies == []


def test_paired_blocks_give_the_speedup() -> None:
    cases = [case_of(1), case_of(2)]
    plan, records = fixture.suite(cases)
    contrast = Contrast("c", cases[1].label, cases[0].label, "load", "warm", pairs=6)
    trials, more = [], []
    for block in range(1, 7):
        for case, seconds in ((cases[0], 0.03), (cases[1], 0.04 + 0.001 * block)):
            trial = Trial(
                f"c{block}{case.world_size}", case, "load", "warm", "c", case.label, block
            )
            ranks = [rank_of(case, r, steps_of(seconds, 0.0)) for r in range(case.world_size)]
            trials.append(trial)
            more.append(record_of(trial, ranks))
    plan = dataclasses.replace(plan, contrasts=(contrast,), trials=(*plan.trials, *trials))
    study = study_of(analyse(plan, [*records, *more]))
    (point,) = (p for p in study.points if p.stage == "load" and p.ranks == 2)
    assert point.paired
    assert point.speedup.n == 6
    assert point.speedup.low == pytest.approx(2 * 0.03 / 0.046)
    assert point.speedup.high == pytest.approx(2 * 0.03 / 0.041)


# -- the model -------------------------------------------------------------------------------------


def test_the_model_predicts_what_its_own_parts_give() -> None:
    study = study_of(analyse(*fixture.suite([case_of(n) for n in RANKS])))
    (model,) = study.models
    assert model.io_s == pytest.approx(0.03)
    assert model.compute_s == pytest.approx(0.07)
    assert model.exchange_ranks == 4
    assert "inside one node" in model.note
    known = {p.ranks: p for p in model.predictions}
    assert [known[n].error for n in RANKS] == pytest.approx([0.0] * 3, abs=1e-9)
    largest = model.predictions[-1]
    assert (largest.nodes, largest.ranks, largest.measured) == (1024, 4096, None)
    step_s = fixture.PARTS.seconds(fixture.comm_s(4096))
    assert largest.samples_per_s == largest.worst == pytest.approx(4096 * BATCH / step_s)
    assert (largest.limit, known[1].limit) == ("exchange", "compute")


def test_a_model_that_missed_what_was_measured_is_not_to_be_relied_on() -> None:
    (model,) = study_of(analyse(*fixture.suite([case_of(n) for n in RANKS]))).models
    assert scale_words.doubt(model) == ""
    (first, *rest) = model.predictions
    off = dataclasses.replace(model, predictions=(dataclasses.replace(first, error=-0.5), *rest))
    assert "it was 50 % off where it was measured" in scale_words.doubt(off)


def test_what_several_nodes_loaded_is_no_better_at_worst() -> None:
    """Two nodes share what one almost has alone: with more of them it is not more."""
    likely_s, worst_s = scale_model._io_s({(2, 1): 0.028, (4, 2): 0.064}, 8, 4, "cold")
    assert likely_s == pytest.approx(8 * 0.064 / 4)
    assert worst_s == likely_s


def test_gradients_exchanged_after_the_backward_pass_are_one_bucket() -> None:
    """So do Caffe's ranks; one size does not part latency from bandwidth."""
    plan, records = fixture.suite([case_of(n) for n in RANKS])
    trainer = {"comm_s": 0.02, "comm_bytes": 4_000_000, "forward_s": 0.02, "backward_s": 0.04}

    def plain(record: Record) -> Record:
        notes = {"trainer": trainer if record.trial.case.world_size > 1 else {}}
        ranks = [dataclasses.replace(r, notes=notes) for r in record.ranks]
        return dataclasses.replace(record, ranks=tuple(ranks))

    (model,) = study_of(analyse(plan, list(map(plain, records)))).models
    assert (model.exposed_s, model.latency_s) == (pytest.approx(0.02), 0.0)
    four = next(p for p in model.predictions if p.ranks == 4)
    assert four.samples_per_s == pytest.approx(4 * BATCH / (0.07 + 0.02))


def test_without_its_parts_there_is_no_model() -> None:
    plan, records = fixture.suite([case_of(n) for n in RANKS])
    kept = [r for r in records if r.trial.stage != "compute"]
    assert study_of(analyse(plan, kept)).models == []


def test_cold_the_worst_case_is_shared_storage() -> None:
    plan, records = fixture.suite([case_of(n) for n in RANKS])

    def cold(trial: Trial) -> Trial:
        return dataclasses.replace(trial, cache="cold") if trial.cache == "warm" else trial

    plan = dataclasses.replace(plan, trials=tuple(map(cold, plan.trials)))
    found = [dataclasses.replace(r, trial=cold(r.trial)) for r in records]
    (model,) = study_of(analyse(plan, found)).models
    last = model.predictions[-1]
    assert last.worst == pytest.approx(4 * BATCH / 0.03), "what four ranks were seen to load"
    assert last.samples_per_s > last.worst
    assert "see the worst case" in model.note


# -- stragglers ------------------------------------------------------------------------------------


def one(plan_and_records: tuple[Plan, list[Record]], stage: str) -> tuple[int, str, str] | None:
    found = [s for s in stragglers(evidence(*plan_and_records)) if s.stage == stage]
    return (found[0].rank, found[0].node, found[0].cause) if found else None


def shared_step(own: Steps, total: float) -> Steps:
    """Return steps that last as long as the slowest rank's: the rest waits in the exchange."""
    step = own.done_s[0] + own.peers_s[0]
    return steps_of(own.ready_s[0], total - own.ready_s[0], peers_s=total - step, exchange_s=0.0)


@pytest.mark.parametrize(
    ("wait_s", "compute_s", "cause"), [(0.05, 0.07, "decode"), (0.001, 0.12, "compute")]
)
def test_a_slow_rank_of_those_in_step_is_named(wait_s: float, compute_s: float, cause: str) -> None:
    slow = steps_of(wait_s, compute_s, peers_s=0.0, exchange_s=0.0)
    total = slow.done_s[0]
    usual = shared_step(steps_of(0.001, 0.07, peers_s=0.0, exchange_s=0.0), total)
    cases = [case_of(4, nodes=2)]
    steps = {("train", r): usual for r in range(4)} | {("train", 2): slow}
    assert one(fixture.suite(cases, changed=steps), "train") == (2, "n2", cause)
    assert one(fixture.suite(cases), "train") is None


def test_who_waits_for_a_straggler_is_none() -> None:
    """The others' steps are as long as its own, and their computing seems to be longer."""
    slow = steps_of(0.10, 0.07, peers_s=0.0, exchange_s=0.0)
    usual = steps_of(0.001, 0.169, peers_s=0.099, exchange_s=0.0)
    steps = {("train", 0): usual, ("train", 1): slow}
    assert one(fixture.suite([case_of(2)], changed=steps), "train") == (1, "n1", "decode")


def test_one_that_is_slow_cold_alone_reads_slower() -> None:
    slow, usual = steps_of(0.10, 0.0), steps_of(0.03, 0.0)
    plan, records = fixture.suite([case_of(2)])
    case = plan.cases[0]
    ranks = [rank_of(case, r, (usual, slow)[r], notes={}) for r in range(2)]
    colds = [record_of(Trial(f"cold{i}", case, "load", "cold", block=i), ranks) for i in (1, 2)]
    found = plan, [*records, *colds]
    assert one((plan, [*records, colds[0]]), "load") is None, "one repeat names nobody"
    assert one(found, "load") == (1, "n1", "read")
    without = [r for r in found[1] if (r.trial.stage, r.trial.cache) != ("load", "warm")]
    assert one((plan, without), "load") == (1, "n1", "read or decode")


def test_one_that_began_late_is_not_slow_at_its_work() -> None:
    case = case_of(2)
    trials = [Trial(f"{i}", case, "load", "warm", block=i) for i in (1, 2)]
    ranks = [
        rank_of(case, r, steps_of(0.01, 0.0), began_s=100.0 + 0.5 * r, notes={}) for r in range(2)
    ]
    plan = dataclasses.replace(fixture.suite([case])[0], trials=tuple(trials))
    assert one((plan, [record_of(t, ranks) for t in trials]), "load") == (1, "n1", "arrival")


def test_waits_of_ranks_that_were_stopped_meanwhile_are_not_known() -> None:
    case = case_of(2)
    ranks = [rank_of(case, r, fixture.trained(case), began_s=100.0) for r in range(2)]
    slices = Slices(((100.0, 100.5), (103.0, 110.0)), (0.0, 0.0), (0.0, 0.0))
    for rank in running(ranks, slices):
        assert (rank.steps.peers_s, rank.steps.exchange_s) == ((), ())
    trial = Trial("t", case, "train", "warm", block=1)
    plan = dataclasses.replace(fixture.suite([case])[0], trials=(trial,))
    record = dataclasses.replace(record_of(trial, ranks), slices=slices)
    assert one((plan, [record]), "train") is None


def test_another_rank_each_time_is_no_straggler() -> None:
    case = case_of(2)
    trials = [Trial(str(i), case, "load", "warm", block=i) for i in range(2)]
    plan = dataclasses.replace(fixture.suite([case])[0], trials=tuple(trials))
    records = [
        record_of(
            t, [rank_of(case, r, steps_of(0.05 if r == t.block else 0.03, 0.0)) for r in range(2)]
        )
        for t in trials
    ]
    assert one((plan, records), "load") is None


# -- containers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "spaces", "text"),
    [
        ("node", "aabb", "4 ranks in 2 containers: one a node"),
        ("rank", "abcd", "4 ranks in 4 containers: one a rank"),
        ("node", "abcd", "4 ranks in 4 containers, and not in 2: one a node"),
    ],
)
def test_it_is_said_in_how_many_containers_ranks_were(scope: str, spaces: str, text: str) -> None:
    plan, records = fixture.suite([case_of(4, nodes=2)])
    ranks = tuple(
        dataclasses.replace(r, fingerprint={**r.fingerprint, "mount_namespace": space})
        for r, space in zip(records[0].ranks, spaces, strict=True)
    )
    found = [dataclasses.replace(r, ranks=ranks, runtime={"scope": scope}) for r in records]
    assert text in analyse(plan, found).pipelines[0].remarks


# -- the report ------------------------------------------------------------------------------------


def test_the_report_has_a_row_a_node() -> None:
    plan, records = fixture.suite([case_of(2, nodes=2)])
    proofs = [
        CacheProof(resident_before=before, bytes_needed=100, bytes_storage=crossed)
        for before, crossed in ((0.25, 98), (0.5, 103))
    ]
    mount = {"fstype": "lustre", "device": "0:77"}
    nodes = [NodeRecord(f"n{i + 1}", [i], proofs[i], mount) for i in range(2)]
    loads = [dataclasses.replace(r, nodes=tuple(nodes)) for r in records if r.trial.stage == "load"]
    page = html.render(plan, loads, analyse(plan, loads))
    for name, before, crossed in (("n1", "25.0 %", "98.0 %"), ("n2", "50.0 %", "103.0 %")):
        (row,) = (line for line in page.splitlines() if f'data-h="node">{name}<' in line)
        assert f">{before}<" in row
        assert f">{crossed}<" in row
        assert ">lustre 0:77<" in row
        assert 'data-h="trials">2<' in row
    frame = trials_frame(plan, loads)
    assert set(zip(frame["nodes"], frame["sharing"], strict=True)) == {(2, "stride")}


def test_it_is_all_in_the_report() -> None:
    slow = steps_of(0.05, 0.07, peers_s=0.0, exchange_s=0.0)
    usual = shared_step(steps_of(0.001, 0.07, peers_s=0.0, exchange_s=0.0), slow.done_s[0])
    cases = [case_of(n) for n in RANKS]
    plan, records = fixture.suite(cases, changed={("train", 0): usual, ("train", 1): slow})
    found = analyse(plan, records)
    document = to_json(found)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["studies"][0]["models"][0]["predictions"][-1]["ranks"] == 4096
    line, *_ = scale_words.stragglers(found)
    assert line.startswith("torch:lmdb world_size=2 nodes=1, train warm: rank 1 on n1 takes 69 %")
    assert line.endswith(
        "(49.00 ms, 49.00 to 49.00), to decode; the others wait up to 49.00 ms a step for it"
    )
    page = html.render(plan, records, found)
    console = Console(file=io.StringIO(), width=200)
    terminal.render(found, console)
    assert isinstance(console.file, io.StringIO)
    for text in (page, console.file.getvalue()):
        assert "weak scaling, the same batch on every rank" in text
        assert "rank 1 on n1" in text
        assert "4,096" in text
    assert "Scaling of torch:lmdb" in page
