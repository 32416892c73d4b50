"""Several ranks in one trial: what they say as one job, on records with stated times."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import pytest

from iobench.analysis import disturbance, suite
from iobench.analysis import evidence as figures
from iobench.analysis.case_results import CommunicationResult
from iobench.analysis.confounders import confounders
from iobench.analysis.evidence import evidence, startup_s, step_waits, trial_window
from iobench.analysis.pairs import complete_pairs, equal_order
from iobench.analysis.ranks import note, parted, skew_s, together
from iobench.analysis.results import CheckResult, to_json
from iobench.analysis.verdicts import judged
from iobench.core import registry
from iobench.core.cases import Case, Contrast, Dataset, Plan, Trial
from iobench.core.errors import SpecError
from iobench.core.order import multiset_sum, sample_order
from iobench.core.protocols import Crossed
from iobench.core.records import VALID, CacheProof, IoCounters, RankResult, Record, Startup, Steps
from iobench.equations import stalls
from iobench.host import agent
from iobench.plan import ladder
from iobench.report import words
from iobench.report.csv import trials_frame
from iobench.run import cache_proof
from iobench.run import ranks as world
from iobench.spec import load as spec
from tests.build import pairs as fixture
from tests.build.report import case_result

SAMPLES, BATCH = 96, 4
DATASET = Dataset("/d", "t", SAMPLES, SAMPLES * 10, 3, 1, "d" * 32, "test")


def case_of(**changes: Any) -> Case:
    keys = {"label": "x", "batch": BATCH, "world_size": 2, "launcher": "mpirun", "workers": 1,
            "trainer": "null", "loader": "null", "format": "null"}  # fmt: skip
    return Case(**{**keys, **changes})


def loop(pairs: Sequence[tuple[float, float]], warmup: int = 1, samples: int = BATCH) -> Steps:
    """Return the readings of steps of (wait, compute) seconds, without a gap."""
    request, ready, done, now = [], [], [], 0.0
    for wait, compute in pairs:
        request.append(now)
        ready.append(now + wait)
        now += wait + compute
        done.append(now)
    n = len(pairs)
    return Steps(request, ready, done, [samples] * n, [10 * samples] * n, warmup)


def rank_of(
    rank: int, steps: Steps, case: Case, *, comm_s: float | None = None, **changes: Any
) -> RankResult:
    world_size = changes.pop("world_size", case.world_size)
    ids = sample_order(
        SAMPLES, case.order, seed=1, rank=rank, world_size=world_size, batch=case.batch,
        sharing=case.sharing,
    )  # fmt: skip
    notes = {"trainer": {} if comm_s is None else {"comm_s": comm_s}}
    made = RankResult(
        rank, world_size, "node17", 7 + rank, steps, Startup(), IoCounters(), f"i{rank}",
        "".join(map(str, ids.tolist())), multiset_sum(ids), bytes_needed=10 * len(ids),
        fingerprint=fixture.FINGERPRINT, notes=notes,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def seen_by(rank: RankResult) -> str:
    """Return which samples a rank of :func:`rank_of` has seen, in any order."""
    return str(rank.ids_sum)


def record_of(
    ranks: Sequence[RankResult], case: Case, stage: str = "train", cache: str = "warm", **trial: Any
) -> Record:
    made = Trial("t", case, stage, cache, **{"block": 1, **trial})
    return Record(
        made, 1, VALID, (), "2026-01-01T00:00:00+00:00", 1.0, CacheProof(), ranks=tuple(ranks)
    )


# -- rates: total samples / slowest wall, ranks never repeats ------------------------------------


def test_the_slowest_rank_decides_the_rate() -> None:
    case = case_of()
    fast, slow = loop([(0.0, 0.5)] * 5), loop([(0.25, 0.5)] * 5)
    window = trial_window(record_of([rank_of(0, slow, case), rank_of(1, fast, case)], case))
    assert window is not None
    assert (window.samples, window.steps) == (2 * 4 * BATCH, 4)
    assert (window.wall_s, window.wait_s, window.compute_s) == (3.0, 1.0, 2.0)
    assert window.seconds_per_sample == 3.0 / 32


def test_ranks_are_not_repeats() -> None:
    case = case_of()
    trials = [Trial(f"t{b}", case, "load", "-", block=b) for b in (1, 2, 3)]
    found = Plan("s", "now", 1, 60.0, DATASET, (case,), tuple(trials), phase=2)
    records = [
        dataclasses.replace(
            record_of([rank_of(r, loop([(0.5, 0.0)] * 12), case) for r in (0, 1)], case), trial=t
        )
        for t in trials
    ]
    document = to_json(suite.analyse(found, records))
    rate = document["pipelines"][0]["stages"]["load"]["-"]
    assert rate["n"] == 3
    assert rate["samples_per_s"]["value"] == pytest.approx(2 * BATCH / 0.5)


# -- ranks in step: one waits for data, the other for it ------------------------------------------


def in_step(case: Case) -> list[RankResult]:
    """Both ranks wait for data in turn; the exchange makes every step 0.75 s on both."""
    odd = [(0.25, 0.5), (0.0, 0.75)] * 4
    even = [(0.0, 0.75), (0.25, 0.5)] * 4
    return [
        rank_of(0, loop(odd, warmup=2), case, comm_s=0.1),
        rank_of(1, loop(even, warmup=2), case, comm_s=0.1),
    ]


def test_what_one_rank_waits_for_the_job_waits_for() -> None:
    case = case_of()
    window = trial_window(record_of(in_step(case), case))
    assert window is not None
    assert (window.wall_s, window.wait_s, window.compute_s) == (4.5, 1.5, 3.0)
    whole = trial_window(record_of(in_step(case), case, cache="cold"))
    assert whole is not None
    assert whole.compute_s == 4.0
    assert whole.wait_s == whole.wall_s - 4.0
    assert step_waits([record_of(in_step(case), case)]).seconds.tolist() == [0.25] * 6


def test_without_an_exchange_each_rank_stands_for_itself() -> None:
    case = case_of()
    apart = [dataclasses.replace(r, notes={"trainer": {}}) for r in in_step(case)]
    window = trial_window(record_of(apart, case))
    assert window is not None
    assert (window.wall_s, window.wait_s) == (4.5, 0.75)
    assert step_waits([record_of(apart, case)]).count == 12


def test_the_stall_of_ranks_in_step_is_wait_and_not_contention() -> None:
    case = case_of()
    record = record_of(in_step(case), case)
    warm = [w for b in (1, 2) if (w := trial_window(dataclasses.replace(
        record, trial=dataclasses.replace(record.trial, block=b))))]  # fmt: skip
    steps = loop([(0.0, 0.5)] * 8, warmup=2)
    alone = trial_window(
        record_of([rank_of(r, steps, case, comm_s=0.1) for r in (0, 1)], case, "compute", "-")
    )
    assert alone is not None
    stall, wait, contention = stalls.prep_stall(warm, [alone])
    assert stall.interval.value == pytest.approx(0.25 / 8)
    assert wait.value == pytest.approx(0.25 / 8)
    assert contention.value == pytest.approx(0.0, abs=1e-12)


# -- start-up and skew ----------------------------------------------------------------------------


def test_start_up_is_of_the_rank_that_is_last_in_each_part() -> None:
    case = case_of()
    steps = loop([(0.0, 0.5)] * 3)
    one = rank_of(0, steps, case, startup=Startup(1.0, 2.0, 0.1, 1.5))
    other = rank_of(1, steps, case, startup=Startup(1.0, 0.5, 0.7, 2.0))
    record = record_of([one, other], case)
    assert startup_s(record) == 1.5 + 2.0 + 0.7
    parts = figures.startup_parts(record)
    assert parts is not None
    assert (parts.open_s, parts.first_batch_s) == (2.0, 0.7)


def test_a_skew_over_one_percent_of_the_loop_is_said() -> None:
    case = case_of()
    steps = loop([(0.0, 0.5)] * 20)
    ranks = [rank_of(r, steps, case, began_s=1000.0 + 0.05 * r) for r in (0, 1)]
    noted = note(ranks)
    assert noted["skew_s"] == pytest.approx(0.05)
    assert "late" not in noted
    late = [rank_of(r, steps, case, began_s=1000.0 + 0.2 * r) for r in (0, 1)]
    assert "200.0 ms apart, 2.0% of the loop" in note(late)["late"]
    assert note(late[:1]) == {}
    there = {**late[1].fingerprint, "boot_id": "b2"}
    elsewhere = [late[0], dataclasses.replace(late[1], host="node18", fingerprint=there)]
    assert skew_s(elsewhere) == 0.0, "two hosts have two clocks"
    record = dataclasses.replace(record_of(late, case, "load", "-"), notes=note(late))
    found = Plan("s", "now", 1, 60.0, DATASET, (case,), (record.trial,), phase=2)
    assert any("200.0 ms apart" in n for n in to_json(suite.analyse(found, [record]))["notes"])


# -- errors ----------------------------------------------------------------------------------------


def test_one_error_names_the_rank() -> None:
    case = case_of()
    failed = [rank_of(r, loop([]), case, error=f"Traceback\nE: bad file {r}") for r in (0, 1)]
    fine = rank_of(1, loop([]), case)
    assert world.errors([fine]) == ()
    assert world.errors([failed[0], fine]) == ("rank 0 of 2: E: bad file 0",)
    assert world.errors(failed) == ("rank 0 of 2: E: bad file 0 (1 more failed)",)
    same = [dataclasses.replace(r, error="E: no such file") for r in failed]
    assert world.errors(same) == ("every rank: E: no such file",)
    alone = rank_of(0, loop([]), case_of(world_size=1), error="E: no such file")
    assert world.errors([alone]) == ("E: no such file",)


def test_ranks_whose_weights_part_have_not_trained_one_net() -> None:
    def after(*digests: str) -> list[RankResult]:
        made = [rank_of(r, loop([]), case_of(), comm_s=0.1) for r in range(len(digests))]
        return [
            dataclasses.replace(m, notes={"trainer": {"comm_s": 0.1, "weights_digest": d}})
            for m, d in zip(made, digests, strict=True)
        ]

    assert parted(after("a", "a")) == ""
    assert "weights differ" in parted(after("a", "b"))
    assert parted([rank_of(0, loop([]), case_of())]) == ""


def test_one_rank_answers_what_does_not_depend_on_ranks() -> None:
    case = case_of(world_size=4)
    stages = ("ceiling", "read", "load", "train", "compute", "digest", "probe", "calls", "alone")
    counts = {s: world.started(Trial("t", case, s, "-")) for s in stages}
    assert [s for s, n in counts.items() if n == 1] == ["ceiling", "digest", "probe", "alone"]
    assert {n for n in counts.values() if n > 1} == {4}


# -- the machine: a rank is no rival of another ----------------------------------------------------


def test_ranks_are_no_rivals_of_each_other() -> None:
    case = case_of()
    busy = IoCounters(wall_s=2.0, cpu_user_s=1.9, machine_busy_s=3.8, read_bytes=5, rchar=7)
    ranks = [rank_of(r, loop([(0.0, 0.5)] * 3), case, io=busy) for r in (0, 1)]
    assert disturbance.disturbed(record_of(ranks, case)) == ""
    assert "rivals used 1.90 s" in disturbance.disturbed(record_of(ranks[:1], case))
    one = together(ranks)
    assert (one.cpu_user_s, one.machine_busy_s, one.read_bytes, one.rchar) == (3.8, 3.8, 10, 14)
    stolen = [dataclasses.replace(r, io=dataclasses.replace(busy, machine_steal_s=0.5))
              for r in ranks]  # fmt: skip
    assert "stole 0.50 s" in disturbance.disturbed(record_of(stolen, case))


def test_the_proof_of_the_cache_adds_up_all_ranks(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(8192))
    case = case_of()

    ranks = [
        rank_of(r, loop([(0.0, 0.5)]), case, io=IoCounters(read_bytes=5 + r, rchar=70 + r))
        for r in (0, 1)
    ]
    begun = CacheProof(label="data-cold")
    crossed = Crossed(cache_proof.io_of(ranks).read_bytes, "counter")
    proof = cache_proof.after_here(begun, ranks, [data], agent.LOCAL, crossed)
    assert proof.bytes_needed == sum(r.bytes_needed for r in ranks) == 10 * SAMPLES
    assert (proof.bytes_storage, proof.bytes_read) == (11, 141)
    by_fio = cache_proof.after_here(begun, ranks, [data], agent.LOCAL, crossed, by_fio=9)
    assert (by_fio.bytes_storage, by_fio.bytes_read, by_fio.bytes_needed) == (11, 0, 9)


# -- contrasts -------------------------------------------------------------------------------------


def pair_of(arm: Case, base: Case) -> tuple[Plan, list[Record]]:
    contrast = Contrast("c01", arm.label, base.label, "load", "-", pairs=1)
    trials = [
        Trial(f"{i}", c, "load", "-", contrast="c01", arm=c.label, block=1)
        for i, c in enumerate((arm, base))
    ]
    records = []
    for trial in trials:
        steps = loop([(0.5, 0.0)] * 6)
        ranks = [rank_of(r, steps, trial.case) for r in range(trial.case.world_size)]
        records.append(dataclasses.replace(record_of(ranks, trial.case), trial=trial))
    plan_ = Plan("s", "now", 1, 60.0, DATASET, (arm, base), tuple(trials), (contrast,), 2)
    return plan_, records


def test_ranks_as_the_factor_compare_the_samples_of_all_ranks() -> None:
    one, two = case_of(label="one", world_size=1), case_of(label="two")
    pairs = complete_pairs(evidence(*(found := pair_of(two, one))), found[0].contrasts[0])
    assert equal_order(pairs) == (True, "")
    assert to_json(confounders(pairs)) == {"status": "PASS", "differences": []}
    odd = case_of(label="odd", world_size=5, batch=4)  # 80 of 96 samples
    pairs = complete_pairs(evidence(*(found := pair_of(odd, one))), found[0].contrasts[0])
    same, why = equal_order(pairs)
    assert not same
    assert "samples differ" in why
    assert "batch x ranks" in why


def test_sharing_as_the_factor_compares_the_samples_of_all_ranks() -> None:
    found = pair_of(case_of(label="d", sharing="disjoint"), case_of(label="s"))
    pairs = complete_pairs(evidence(*found), found[0].contrasts[0])
    assert equal_order(pairs) == (True, "")


def test_order_as_the_factor_compares_the_samples_of_all_ranks() -> None:
    """Which samples a rank of several gets depends on the order."""

    def same(size: int, **arm: Any) -> tuple[bool, str]:
        orders = (
            case_of(label="a", world_size=size, order="stored"),
            case_of(label="b", world_size=size, **{"order": "shuffled", **arm}),
        )
        plan_, records = pair_of(*orders)
        told = [
            dataclasses.replace(
                r, ranks=tuple(dataclasses.replace(k, ids_digest=seen_by(k)) for k in r.ranks)
            )
            for r in records
        ]
        return equal_order(complete_pairs(evidence(plan_, told), plan_.contrasts[0]))

    assert same(2) == (True, "")
    assert same(1) == (True, "")
    assert same(2, sharing="disjoint") == (True, "")
    apart, why = same(2, batch=5)  # 90 of 96 samples
    assert not apart
    assert "samples differ" in why


@pytest.mark.parametrize(("order", "equal"), [("shards:8", True), ("shuffled", False)])
def test_an_order_that_the_loader_draws_is_of_the_same_samples(order: str, equal: bool) -> None:
    plan_, records = pair_of(case_of(label="a", workers=2, order=order),
                             case_of(label="b", order=order))  # fmt: skip
    drawn = [
        dataclasses.replace(r, ranks=tuple(
            dataclasses.replace(k, ids_digest="same", order_digest=r.trial.arm) for k in r.ranks
        ))
        for r in records
    ]  # fmt: skip
    pairs = complete_pairs(evidence(plan_, drawn), plan_.contrasts[0])
    assert equal_order(pairs)[0] is equal


def test_equal_ranks_must_read_in_equal_order_rank_by_rank() -> None:
    plan_, records = pair_of(case_of(label="a", workers=2), case_of(label="b"))
    (whole,) = judged(evidence(plan_, records)).values()
    assert whole.equal_order
    crossed = dataclasses.replace(records[0], ranks=records[0].ranks[::-1])
    (found,) = judged(evidence(plan_, [crossed, records[1]])).values()
    assert not found.equal_order


def test_a_confounder_of_one_rank_alone_is_seen() -> None:
    plan_, records = pair_of(case_of(label="two"), case_of(label="one", world_size=1))
    other = {**fixture.FINGERPRINT, "libc": "glibc 2.31"}
    arm = records[0]
    ranks = (arm.ranks[0], dataclasses.replace(arm.ranks[1], fingerprint=other))
    found = evidence(plan_, [dataclasses.replace(arm, ranks=ranks), records[1]])
    seen = confounders(complete_pairs(found, plan_.contrasts[0]))
    assert seen.differences == ["libc: glibc 2.31 against glibc 2.36"]


def test_the_same_samples_are_seen_across_ranks_orders_and_sharing() -> None:
    cases = [
        case_of(label="one", world_size=1), case_of(label="two"),
        case_of(label="apart", sharing="disjoint"), case_of(label="any", order="shuffled"),
    ]  # fmt: skip
    trials = [Trial(f"t{i}", c, "load", "-", block=1) for i, c in enumerate(cases)]
    found = Plan("s", "now", 1, 60.0, DATASET, tuple(cases), tuple(trials), phase=2)
    records = [
        dataclasses.replace(
            record_of(
                [rank_of(r, loop([(0.5, 0.0)] * 6), t.case) for r in range(t.case.world_size)],
                t.case,
            ),
            trial=t,
        )
        for t in trials
    ]
    assert suite.analyse(found, records).checks.same_samples == CheckResult(True, "", 4, 1)
    twice = dataclasses.replace(records[1], ranks=(records[1].ranks[0],) * 2)  # both read the same
    seen = suite.analyse(found, [records[0], twice, *records[2:]]).checks.same_samples
    assert seen.ok is False


def test_the_twins_digest_is_found_for_several_ranks() -> None:
    case = case_of()
    twin = rank_of(0, Steps((), (), (), (), ()), case, world_size=1, samples_digest="f00")
    load = Trial("load", case, "load", "-", block=1)
    digest = Trial("digest", case, "digest", "-")
    found = Plan("s", "now", 1, 60.0, DATASET, (case,), (load, digest), phase=2)
    ranks = [rank_of(r, loop([(0.5, 0.0)] * 6), case) for r in (0, 1)]
    records = [
        dataclasses.replace(record_of(ranks, case), trial=load),
        dataclasses.replace(record_of([twin], case), trial=digest),
    ]
    frame = trials_frame(found, records)
    assert frame.loc[frame["stage"] == "load", "samples_digest"].tolist() == ["f00"]


# -- communication ---------------------------------------------------------------------------------


def test_communication_is_compute_on_n_ranks_minus_compute_on_one() -> None:
    case = case_of(label="two", trainer="emulated")
    trials, records = [], []
    for block in (1, 2, 3):
        several = [rank_of(r, loop([(0.0, 0.5)] * 6), case, comm_s=0.09 + 0.01 * r) for r in (0, 1)]
        alone = [rank_of(0, loop([(0.0, 0.375)] * 6), case, world_size=1)]
        for stage, ranks in (("compute", several), ("alone", alone)):
            trial = Trial(f"{stage}{block}", case, stage, "-", block=block)
            trials.append(trial)
            records.append(dataclasses.replace(record_of(ranks, case), trial=trial))
    found = Plan("s", "now", 1, 60.0, DATASET, (case,), tuple(trials), phase=2)
    document = to_json(suite.analyse(found, records))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    comm = document["pipelines"][0]["comm"]
    assert comm["value"] == pytest.approx(0.125)
    assert (comm["step_s"], comm["alone_step_s"]) == (0.5, 0.375)
    assert comm["exchange_s"] == pytest.approx(0.09)
    assert comm["efficiency"] == pytest.approx(0.75)
    assert comm["paired"]
    assert (comm["waited_s"], comm["peers_s"]) == (None, None), "the trainer does not part them"
    said = words.communication(suite.analyse(found, records).pipelines[0])
    assert said.startswith("a step takes 500.00 ms on 2 ranks and 375.00 ms on one")
    assert "efficiency 75 %; the exchange of gradients takes 90.00 ms" in said


def test_what_the_exchange_hides_and_waits_for_is_apart() -> None:
    case = case_of(trainer="emulated")
    trials, records = [], []
    steps = [
        dataclasses.replace(
            loop([(0.0, 0.5)] * 6), peers_s=[9.0] + [peers] * 5, exchange_s=[9.0] + [0.0625] * 5
        )
        for peers in (0.25, 0.0)
    ]
    for stage in ("compute", "alone"):
        several = [rank_of(r, steps[r], case, comm_s=0.09) for r in (0, 1)]
        ranks = several if stage == "compute" else [several[0]]
        trials.append(Trial(stage, case, stage, "-", block=1))
        records.append(dataclasses.replace(record_of(ranks, case), trial=trials[-1]))
    found = suite.analyse(
        Plan("s", "now", 1, 60.0, DATASET, (case,), tuple(trials), phase=2), records
    )
    comm = found.pipelines[0].comm
    assert isinstance(comm, CommunicationResult)
    assert (comm.exchange_s, comm.waited_s, comm.peers_s) == (0.09, 0.0625, 0.25)
    assert words.communication(found.pipelines[0]).endswith(
        "the exchange of gradients takes 90.00 ms of a step, 62.50 ms of them after the last rank "
        "has its gradients; for that rank the others wait up to 250.00 ms"
    )


def test_without_the_rung_on_one_rank_it_is_not_available() -> None:
    case = case_of(trainer="emulated")
    compute, alone = Trial("c", case, "compute", "-"), Trial("a", case, "alone", "-")
    several = [rank_of(r, loop([(0.0, 0.5)] * 6), case) for r in (0, 1)]
    ran = dataclasses.replace(record_of(several, case), trial=compute)
    broken = dataclasses.replace(ran, trial=alone, status="FAILED", reasons=("it fell",), ranks=())
    for trials, records, said in (
        ((compute,), [ran], "compute on one rank is not in the spec"),
        ((compute, alone), [ran], "compute on one rank has not run yet"),
        ((compute, alone), [ran, broken], "compute on one rank has no valid trial: it fell"),
    ):
        found = Plan("s", "now", 1, 60.0, DATASET, (case,), trials, phase=2)
        entry = suite.analyse(found, records).pipelines[0]
        assert words.communication(entry).startswith(f"communication n/a: {said}")
    nothing = Plan("s", "now", 1, 60.0, DATASET, (case,), (), phase=2)
    entry = suite.analyse(nothing, []).pipelines[0]
    assert getattr(entry.comm, "reason", "") == "compute is not in the spec"
    assert words.communication(entry) == "", "no rung is"
    assert words.communication(case_result()) == ""


def test_the_ladder_computes_on_one_rank_beside_the_others() -> None:
    document = {
        "name": "t",
        "case": {"pipeline": "null:null", "trainer": "emulated", "launcher": "mpirun"},
        "matrix": {"world_size": [1, 2]},
        "ladder": {"stages": ["compute", "train"], "repeats": 2},
    }
    parsed = spec.parse(document)
    cases = spec.expand(parsed)
    planned = ladder.ladder(parsed, cases)
    several = [t for t in planned if t.case.world_size == 2]
    assert sorted((t.stage, t.block) for t in several if t.stage != "train") == [
        ("alone", 1), ("alone", 2), ("compute", 1), ("compute", 2),
    ]  # fmt: skip
    assert not [t for t in planned if t.stage == "alone" and t.case.world_size == 1]


# -- what a spec may ask for -----------------------------------------------------------------------


def expanded(**keys: Any) -> Case:
    case = {"pipeline": "null:null", "trainer": "null", "launcher": "mpirun", **keys}
    return spec.expand(spec.parse({"name": "t", "case": case}))[0]


def test_labels_say_how_many_ranks() -> None:
    assert expanded(world_size=2).label == "null:null world_size=2"
    assert expanded().label == "null:null"


def test_launcher_options_are_checked() -> None:
    assert expanded(launcher_options={"bind_to": "core"}).launcher_options == {"bind_to": "core"}
    for options, said in (({"bnd_to": "core"}, "bind_to"), ({"bind_to": "shoe"}, "socket")):
        with pytest.raises(SpecError, match=said):
            expanded(launcher_options=options)


def test_a_trainer_that_exchanges_nothing_is_not_run_on_several_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = registry.load
    alone = dataclasses.replace(load("trainers", "torch"), ranks=False)
    monkeypatch.setattr(
        registry, "load", lambda a, n: alone if (a, n) == ("trainers", "torch") else load(a, n)
    )
    with pytest.raises(SpecError, match=r"trainer 'torch' exchanges no gradients.*emulated, null"):
        expanded(trainer="torch", world_size=2)


def test_a_container_must_hold_the_launcher_that_starts_in_it() -> None:
    with pytest.raises(SpecError, match="image 'torch' has none; those that have: caffe"):
        expanded(runtime="docker")
    assert expanded(runtime="docker", image="caffe").image == "caffe"
    assert expanded(runtime="unpacked").image == "torch"  # the host's is seen there


def test_a_loader_says_how_it_can_share(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"dali:lmdb cannot share .* it serves one rank only"):
        expanded(pipeline="dali:lmdb", order="stored", world_size=2)
    backend = registry.load("loaders", "null")
    only = dataclasses.replace(backend, sharings={"null": frozenset({"stride"})})
    load = registry.load
    monkeypatch.setattr(
        registry, "load", lambda a, n: only if (a, n) == ("loaders", "null") else load(a, n)
    )
    assert expanded(world_size=2).sharing == "stride"
    with pytest.raises(SpecError, match="by 'disjoint'; it shares by: stride"):
        expanded(world_size=2, sharing="disjoint")


def test_rank_and_world_size_are_no_options_of_a_trainer() -> None:
    from iobench.core.options import check_options

    def make(*, batch: int, rank: int = 0, world_size: int = 1, net: str = "") -> None: ...

    check_options("trainer t", make, {"net": "small"})
    for name in ("rank", "world_size", "sharers", "batch"):
        with pytest.raises(SpecError, match="allowed: net"):
            check_options("trainer t", make, {name: 1})


def test_ids_of_a_twin_are_those_of_all_ranks_together() -> None:
    ranks = [sample_order(100, "shuffled", seed=3, rank=r, world_size=3, batch=4) for r in range(3)]
    twin = sample_order(100, "shuffled", seed=3, batch=12)
    assert sorted(twin.tolist()) == sorted(np.concatenate(ranks).tolist())


def test_of_many_steps_each_rank_gives_some_of_its_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iobench.analysis.evidence.MOST_WAITS", 200)
    waits = [[0.001 * k for k in range(1, 1001)], [0.002 * k for k in range(1, 1001)]]
    case = Case(world_size=2, launcher="mpirun")
    ranks = []
    for number, own in enumerate(waits):
        begin = [10.0 * k for k in range(1000)]
        ready = [t + wait for t, wait in zip(begin, own, strict=True)]
        steps = Steps(begin, ready, ready, [1] * 1000, [1] * 1000)
        ranks.append(RankResult(number, 2, "n1", 7, steps))
    found = step_waits([record_of(ranks, case)])
    assert (found.count, len(found.seconds)) == (2000, 200)
    assert found.mean == pytest.approx(0.75075)
    assert found.seconds[-1] == pytest.approx(2.0), "the longest is among them"
    exact = sorted(waits[0] + waits[1])
    assert found.seconds[99] == pytest.approx(exact[999], rel=0.02)


def test_an_error_names_the_node_where_there_are_several() -> None:
    failed = RankResult(1, 2, "n2", 7, error="Traceback\nE: bad")
    fine = RankResult(0, 2, "n1", 7)
    assert world.errors([fine, failed], 2) == ("rank 1 of 2 on node n2: E: bad",)
    assert world.errors([fine, failed]) == ("rank 1 of 2: E: bad",)
