"""Every row of the rules: a case that has the cause gets it, and its neighbour without it does not.

``CAUSES`` has one entry a rule; a rule without one fails the first test.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from iobench.advise.explain import RULES, advise, explain
from iobench.advise.findings import NOTHING, Finding
from iobench.analysis.case_results import (
    BytesResult,
    CaseResult,
    CommunicationResult,
    LimitResult,
    PrepStall,
    RateResult,
    StageResult,
    Surroundings,
    Validity,
    WaitResult,
)
from iobench.analysis.contrast_results import Outcome
from iobench.analysis.results import SuiteResult
from iobench.analysis.storage_results import FileTimes, MetadataResult
from iobench.analysis.suite import analyse
from iobench.equations import roofline
from iobench.equations.stats import Interval
from tests.build import report as fixture

SEEN = Surroundings(cpu_count=8, shm_bytes=1 << 33, fstype="ext4", load_cpu_s=1e-4)


@functools.cache
def whole() -> SuiteResult:
    return analyse(*fixture.suite())


@functools.cache
def nothing() -> CaseResult:
    return fixture.case_result()


def rated(rate: float) -> RateResult:
    found = Interval(rate, 0.98 * rate, 1.02 * rate, 0.95, 3, "t")
    return RateResult(3, found, found.inverse(), None, "VALID", ())


def job(cache: str = "warm", au: float = 1.0, **changes: Any) -> CaseResult:
    """Return a case that reads 9000, prepares 3000 and computes 1000 samples/s, with changes."""
    rates = {"storage": 9000.0, "read": 9000.0, "load": 3000.0, "compute": 1000.0}
    rates |= changes.pop("rates", {})
    roofs = {k: v for k, v in rates.items() if cache == "cold" or k not in ("storage", "load_cold")}
    limit = roofline.bind(roofs, cold=cache == "cold")
    assert limit
    found = LimitResult(roofs, limit.binding, limit.regime, limit.rate, limit.headroom, limit.next)
    stages = {
        "ceiling": StageResult({"cold": rated(rates["storage"])}),
        "read": StageResult({c: rated(rates["read"]) for c in ("cold", "warm")}),
        "load": StageResult({
            "warm": rated(rates["load"]), "cold": rated(rates.get("load_cold", rates["load"]))
        }),
        "compute": StageResult({"-": rated(rates["compute"])}),
        "train": StageResult({cache: rated(au * rates["compute"])}),
    }  # fmt: skip
    other = "warm" if cache == "cold" else "cold"
    made: dict[str, Any] = {
        "case": "torch:jpeg", "pipeline": "torch:jpeg", "format": "jpeg", "loader": "torch",
        "workers": 2, "cores": 8, "batch": 8, "world_size": 1, "runtime": "bare", "seen": SEEN,
        "stages": stages, "bytes": BytesResult(1e5, None, None, 1.0, ""),
        "limits": {cache: found, other: LimitResult({})},
        "au": {cache: Interval(au, 0.99 * au, 1.01 * au, 0.95, 3, "t")},
    }  # fmt: skip
    return dataclasses.replace(nothing(), **(made | changes))


def stall(wait: float, contention: float) -> PrepStall:
    def point(value: float) -> Interval:
        return Interval(value, value, value, 0.95, 3, "t")

    return PrepStall(
        **vars(point(wait + contention)), bound_s=0.0, paired=True, standing="VALID",
        wait_s=point(wait), contention_s=point(contention),
    )  # fmt: skip


def waits(p50: float, mean: float, longest: float, taken: float = 0) -> dict[str, WaitResult]:
    return {"warm": WaitResult(90, mean, p50, mean, longest, longest, taken)}


def exchanging(seconds: float) -> CommunicationResult:
    return CommunicationResult(0.1, 0.09, 0.11, 0.95, 3, "t", 2, "", True, "VALID", 0.2, 0.1,
                               seconds, 0.5)  # fmt: skip


def whole_files(open_s: float, read_s: float) -> MetadataResult:
    def point(value: float) -> Interval:
        return Interval(value, value, value, 0.95, 3, "t")

    times = FileTimes(2, point(200.0), 1e6, point(open_s), point(read_s), point(1e-4))
    return MetadataResult((), True, "", (times,), "")


def seen(**changes: Any) -> Surroundings:
    return dataclasses.replace(SEEN, **changes)


SLOW = {"rates": {"load": 300.0}}
DISK = {"cache": "cold", "rates": {"storage": 400.0, "read": 390.0}}
FILES = {"cache": "cold", "rates": {"storage": 5000.0, "read": 390.0}}
LMDB = {"case": "torch:lmdb", "pipeline": "torch:lmdb", "format": "lmdb"}

Make = Callable[[], list[CaseResult]]


def cases(*each: Mapping[str, Any]) -> Make:
    return lambda: [job(**dict(one)) for one in each]


#: Cause -> (cases of which the first has it, the same where the first has not).
CAUSES: dict[str, tuple[Make, Make]] = {
    "storage": (cases(DISK), cases({"cache": "cold"})),
    "turns": (
        cases({"cache": "cold", "rates": {"read": 1100.0, "load": 1200.0, "load_cold": 574.0}}),
        cases({"cache": "cold", "rates": {"read": 1100.0, "load": 1200.0}}),
    ),
    "requests": (cases(FILES), cases(DISK)),
    "files": (cases(FILES), cases({**FILES, **LMDB})),
    "cold metadata": (
        cases({**FILES, "metadata": whole_files(9e-3, 1e-3)}),
        cases({**FILES, "metadata": whole_files(1e-3, 9e-3)}),
    ),
    "mmap": (
        cases({**DISK, **LMDB, "seen": seen(fstype="nfs4", faults=3.0)}),
        cases({**DISK, **LMDB}),
    ),
    "amplified": (
        cases({**DISK, "bytes": BytesResult(1e5, 1e5, 3e5, 3.0, "")}),
        cases({**DISK, "bytes": BytesResult(1e5, 1e5, 1.1e5, 1.1, "")}),
    ),
    "format read": (
        cases(DISK, {**LMDB, "cache": "cold"}),
        cases(DISK, {**LMDB, **DISK}),
    ),
    "workers": (cases(SLOW), cases({**SLOW, "seen": seen(load_cpu_s=8 / 300)})),
    "cores": (cases({**SLOW, "seen": seen(load_cpu_s=8 / 300)}), cases(SLOW)),
    "one thread": (cases({**SLOW, "fixed_threads": True}), cases(SLOW)),
    "format": (cases(SLOW, LMDB), cases(SLOW, {**SLOW, **LMDB})),
    "decode score": (
        cases({"cache": "cold", "rates": {"load": 300.0}}),
        cases({"cache": "cold", "rates": {"load": 300.0, "read": 500.0, "storage": 500.0}}),
    ),
    "no overlap": (cases({"workers": 0}), cases({"workers": 1})),
    "contention": (
        cases({"au": 0.8, "prep_stall_s": stall(0, 2e-4), "step_wait_s": waits(1e-4, 1e-4, 2e-4)}),
        cases({"au": 0.8, "prep_stall_s": stall(2e-4, 0), "step_wait_s": waits(1e-4, 1e-4, 2e-4)}),
    ),
    "hand-over": (
        cases({"au": 0.8, "prep_stall_s": stall(1e-4, 0),
               "step_wait_s": waits(1e-3, 2e-3, 5e-3, 1.2e-3)}),
        cases({"au": 0.8, "prep_stall_s": stall(1e-4, 0),
               "step_wait_s": waits(1e-3, 2e-3, 5e-3, 8e-4)}),
    ),
    "slow sample": (
        cases({"au": 0.5, "prep_stall_s": stall(1e-3, 0), "step_wait_s": waits(0, 8e-3, 0.1)}),
        cases({"au": 0.5, "prep_stall_s": stall(1e-3, 0), "step_wait_s": waits(0, 8e-3, 0.016)}),
    ),
    "prefetch": (
        cases({"au": 0.8, "workers": 1, "prefetch": 1}),
        cases({"au": 0.8, "workers": 1, "prefetch": 4}),
    ),
    "queue": (
        cases({"au": 0.8, "prep_stall_s": stall(1e-4, 0), "step_wait_s": waits(1e-3, 2e-3, 5e-3)}),
        cases({"au": 0.98, "prep_stall_s": stall(1e-4, 0), "step_wait_s": waits(0, 1e-4, 2e-4)}),
    ),
    "oversubscribed": (
        cases({"seen": seen(threads={"torch": 32}, compute_cpu_s=4e-3)}),
        cases({"seen": seen(threads={"torch": 8}, compute_cpu_s=4e-3)}),
    ),
    NOTHING: (cases({}), cases(SLOW)),
    "cpuset": (
        cases({"cores": 2, "workers": 8, "seen": seen(cpu_count=64)}),
        cases({"cores": 64, "workers": 8, "seen": seen(cpu_count=64)}),
    ),
    "binding": (
        cases({"seen": seen(rank_cores=1, bound_rank="rank 1", core_share=4)}),
        cases({"seen": seen(rank_cores=3, bound_rank="rank 1", core_share=4)}),
    ),
    "shared memory": (
        cases({"validity": Validity(2, 2, {}, {"/dev/shm has 64 MiB free": 2})}),
        cases({"validity": Validity(2, 2, {}, {"a sample cannot be read": 2})}),
    ),
    "squashfuse": (
        cases({"seen": seen(mounted="squashfuse_ll")}),
        cases({"seen": seen(mounted="kernel squashfs")}),
    ),
    "udev": (
        cases({"seen": seen(container={"udev_hidden_from": "kvikio"})}),
        cases({"seen": seen(container={"lustre_users": "namespace of its own (0 7 1)"})}),
    ),
    "image store": (cases({"seen": seen(store="lustre")}), cases({"seen": seen(store="posix")})),
    "identity": (
        cases({"seen": seen(container={"lustre_users": "namespace of its own (0 7 1)"})}),
        cases({"seen": seen(fstype="lustre")}),
    ),
    "image in memory": (
        cases({"seen": seen(container={"image_on": "tmpfs", "image_mount_bytes": 3 << 30})}),
        cases({"seen": seen(fstype="tmpfs")}),
    ),
    "memory limit": (
        cases({"seen": seen(memory_bytes=1 << 20)}),
        cases({"seen": seen(memory_bytes=1 << 40)}),
    ),
    "single copy": (
        cases({"runtime": "apptainer", "comm": exchanging(0.05)},
              {"case": "b", "comm": exchanging(0.02)}),
        cases({"runtime": "apptainer", "comm": exchanging(0.021)},
              {"case": "b", "comm": exchanging(0.02)}),
    ),
}  # fmt: skip


def suite(pipelines: list[CaseResult], **changes: Any) -> SuiteResult:
    return dataclasses.replace(whole(), pipelines=pipelines, **({"contrasts": ()} | changes))


def found(make: Make) -> dict[str, Finding]:
    """Return what is found of the first case."""
    pipelines = make()
    return {f.cause: f for f in advise(suite(pipelines)) if f.case == pipelines[0].case}


def test_every_rule_has_an_entry_and_a_source() -> None:
    assert {rule.cause for rule in RULES} == {*CAUSES, "container"}
    assert len({rule.cause for rule in RULES}) == len(RULES)
    assert all(rule.source and rule.about for rule in RULES)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_found_where_it_is_and_not_beside(cause: str) -> None:
    there, beside = CAUSES[cause]
    here = found(there)
    assert cause in here
    assert cause not in found(beside)
    if cause != NOTHING:
        assert here[cause].evidence
        assert here[cause].remedy


def test_a_deeper_queue_is_not_advised_where_taking_a_batch_is_the_wait() -> None:
    for prefetch, workers in ((4, 2), (1, 1)):
        handed = {"au": 0.8, "prep_stall_s": stall(1e-4, 0), "prefetch": prefetch,
                  "workers": workers, "step_wait_s": waits(1e-3, 2e-3, 5e-3, 1.2e-3)}  # fmt: skip
        assert {*found(cases(handed))} == {"hand-over"}


def test_a_container_that_is_slower_is_told_with_its_stage() -> None:
    contrast = dataclasses.replace(
        whole().contrasts[0], over=("runtime",), arm="torch:jpeg", arm_name="docker",
        base_name="bare", stage="load", cache="warm", attribution=None,
        outcome=Outcome(1.2, verdict="SLOWER"),
    )  # fmt: skip
    made = suite([job()], contrasts=[contrast])
    (told,) = [f for f in advise(made) if f.cause == "container"]
    assert told.symptom.startswith("docker takes 1.20 x the time of bare at load")
    equal = dataclasses.replace(contrast, outcome=Outcome(1.01, verdict="EQUIVALENT"))
    none = advise(suite([job()], contrasts=[equal]))
    assert "container" not in {f.cause for f in none}


def test_most_to_gain_comes_first_and_what_needs_no_cure_last() -> None:
    slower = job(case="slower", rates={"load": 100.0})
    made = suite([job(case="fine"), job(case="slow", **SLOW), slower])
    assert [f.case for f in advise(made)] == ["slower", "slow", "fine"]
    first = advise(made)[0]
    assert first.gain is not None
    assert first.gain.value == pytest.approx(10)


def test_a_caution_about_figures_comes_after_causes() -> None:
    misread = {"cache": "cold", "rates": {"load": 300.0}}
    made = cases({**misread, "cores": 2, "workers": 8, "seen": seen(cpu_count=64)})()
    none_known = [f.cause for f in advise(suite(made)) if f.gain is None and f.cause != NOTHING]
    assert none_known[0] == "cpuset"
    assert none_known[-1] == "decode score"


def test_a_gain_that_is_not_seen_is_no_cause() -> None:
    wide = job(rates={"load": 985.0})
    assert [f.cause for f in advise(suite([wide]))] == [NOTHING]
    assert "no cure is shown to gain more than 5%" in advise(suite([wide]))[0].symptom


def test_what_was_not_measured_names_the_run_that_would_tell() -> None:
    bare = job()
    left = {k: v for k, v in bare.stages.items() if k not in ("train", "compute")}
    blind = dataclasses.replace(
        bare, stages=left, limits={"cold": LimitResult({}), "warm": LimitResult({"load": 3000.0})}
    )
    told = explain(suite([blind]))
    assert told.findings == []
    why = {u.cause: u.reason for u in told.unjudged if u.cache == "warm"}
    assert why["workers"] == "add compute to the ladder's stages"
    assert why["contention"] == "add train to the ladder's stages"
