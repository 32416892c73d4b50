"""One of two real hosts has a slower network, or a slower disk: the report says which it is.

How exact the figures are is not asserted here: benchmarks/slowed_node.py has them, with intervals.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Tuple

import pytest

from iobench.core.records import Steps
from iobench.run import store
from tests.build import clusters, slowed
from tests.build.hosts import Host, Hosts
from tests.capabilities import need

pytestmark = pytest.mark.slow

#: A rate of arithmetic, and one that was measured beside other work: not more than so far apart.
RATIO = 2.0


@pytest.fixture
def slow(cluster: Hosts) -> Host:
    return cluster.hosts[1]


def ran(cluster: Hosts, *caches: str, stage: str, repeats: int = 1, **case: Any) -> Dict[str, Any]:
    """Run a suite with success; return its analysis."""
    words = clusters.command(
        cluster, caches, "--hosts", "h1,h2", stage=stage, repeats=repeats, launcher="mpirun",
        pipeline="torch:jpeg", **case,
    )  # fmt: skip
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    clusters.check_nothing_left(cluster)
    return dict(json.loads((cluster.folder / "results/latest/analysis.json").read_text()))


def steps(cluster: Hosts, stage: str, cache: str) -> Tuple[Steps, Steps]:
    """Return the steps of both ranks in the last trial of a rung."""
    found = store.find(cluster.folder / "results").records()
    record = [r for r in found if (r.trial.stage, r.trial.cache) == (stage, cache)][-1]
    one, other = (rank.steps for rank in record.ranks)
    return one, other


def mean(column: Any) -> float:
    return float(sum(column) / len(column))


def check_communication(cluster: Hosts, analysis: Dict[str, Any], expected_s: float) -> None:
    """What the exchange takes is the network's, and no rank waits for the other."""
    (case,) = analysis["pipelines"]
    for seconds in (case["comm"]["value"], case["comm"]["waited_s"]):
        assert expected_s / RATIO < seconds < expected_s * RATIO
    check_nobody_waits(cluster, analysis)


def check_nobody_waits(cluster: Hosts, analysis: Dict[str, Any]) -> None:
    for rank in steps(cluster, "compute", "-"):
        assert mean(rank.peers_s) < mean(rank.exchange_s) / RATIO
    assert analysis["stragglers"] == []


@pytest.mark.breadth
def test_less_bandwidth_of_one_host_is_communication(cluster: Hosts, slow: Host) -> None:
    need("tbf")
    rate, nbytes = 20_000_000, 2_000_000
    options = {"step_s": 0.03, "exchange_bytes": nbytes, "buckets": 1}
    with slowed.bandwidth(cluster, slow, rate):
        analysis = ran(cluster, "warm", stage="compute", trainer_options=options)
    check_communication(cluster, analysis, nbytes / rate)


@pytest.mark.breadth
def test_latency_of_one_host_is_communication(cluster: Hosts, slow: Host) -> None:
    """Each of the two phases of a ring asks for a part, and gets it."""
    need("tun")
    delay_s = 0.02
    options = {"step_s": 0.03, "exchange_bytes": 16_000, "buckets": 1}
    with slowed.latency(cluster, slow, delay_s):
        analysis = ran(cluster, "warm", stage="compute", trainer_options=options)
    check_communication(cluster, analysis, 4 * delay_s)


@pytest.mark.system
def test_latency_of_one_host_is_communication_of_caffes_ranks_too(
    cluster: Hosts, slow: Host
) -> None:
    """How often MPI crosses the link for its gradients is its own affair: once at least."""
    need("tun")
    need("caffe")
    delay_s = 0.02
    keys = {"transform": "crop224", "order": "stored", "trainer_options": {"net": "small"}}
    with slowed.latency(cluster, slow, delay_s):
        analysis = ran(cluster, "warm", stage="compute", trainer="caffe", **keys)
    for rank in steps(cluster, "compute", "-"):
        assert mean(rank.exchange_s) > delay_s
    check_nobody_waits(cluster, analysis)


def test_a_slow_disk_of_one_host_is_its_fetch_stall_and_the_others_wait(
    cluster: Hosts, slow: Host
) -> None:
    need("blkio")
    rate = 2_000_000
    options = {"step_s": 0.03, "exchange_bytes": 16_000, "buckets": 1}
    with slowed.disk(slow, cluster.folder / "set", rate):
        analysis = ran(
            cluster, "cold", "warm", stage="train", repeats=3, trainer_options=options
        )  # fmt: skip
    prompt, late = steps(cluster, "train", "cold")
    waits = [ready - asked for asked, ready in zip(late.request_s, late.ready_s, strict=True)]
    loads_s = late.bytes[0] / rate
    assert loads_s / RATIO < mean(waits) + 0.03 < loads_s * RATIO
    assert mean(prompt.peers_s) > mean(waits) / RATIO, "the other waits for it"
    for column in (prompt.exchange_s, late.exchange_s, late.peers_s):
        assert mean(column) < mean(prompt.peers_s) / RATIO
    (case,), (found,) = analysis["pipelines"], analysis["stragglers"]
    assert (found["rank"], found["node"], found["cause"]) == (1, "h2", "read")
    assert found["others_wait_s"] > 0
    assert case["fetch_stall_s"]["low"] > 0
    page = (cluster.folder / "results/latest/report.html").read_text()
    assert "rank 1 on h2 takes" in page
    assert "to read; the others wait up to" in page
