"""Contrasts of runtimes in the terminal, in HTML and in the table: the same words everywhere."""

from __future__ import annotations

import dataclasses
import io
import random
from typing import List

import pytest

from iobench.analysis.results import SuiteResult
from iobench.analysis.suite import analyse
from iobench.core.cases import Plan
from iobench.core.records import Record
from iobench.report import csv, html, terminal
from iobench.report.screen import Screen
from tests.build import pairs as fixture
from tests.unit.report.test_html import well_formed

BARE, UNPACKED, DOCKER = fixture.cases("bare", "unpacked", "docker")


@pytest.fixture(scope="module")
def suite() -> tuple[Plan, List[Record]]:
    """Docker is 10 % slower than the other two, in reading."""
    contrasts = [
        fixture.contrast(UNPACKED, BARE, id="c01", primary=False),
        fixture.contrast(DOCKER, BARE, id="c02"),
        fixture.contrast(DOCKER, UNPACKED, id="c03", primary=False),
    ]
    contrasts = [
        dataclasses.replace(c, group="g01", looks=(10, 20, 30), pairs=30) for c in contrasts
    ]
    plan = fixture.plan([BARE, UNPACKED, DOCKER], contrasts, upto=10, probes=True)
    rng = random.Random(3)
    records = []
    for trial in plan.trials:
        slow = 1.1 if trial.arm == DOCKER.label else 1.0
        parts = {"read_s": 1e-3 * slow, "decode_s": 1e-3, "transform_s": 1e-3}
        parts = {k: v * rng.gauss(1, 0.002) for k, v in parts.items()}
        ready = rng.gauss(3.0, 0.01) + (0.41 if trial.arm == DOCKER.label else 0.0)
        made = fixture.record(trial, 1e-3 * slow * rng.gauss(1, 0.002), ready_s=ready, probe=parts)
        image = {"digest": "sha256:abc"} if trial.arm != BARE.label else {}
        records.append(dataclasses.replace(made, runtime=image))
    return plan, records


@pytest.fixture(scope="module")
def document(suite: tuple[Plan, List[Record]]) -> SuiteResult:
    return analyse(*suite)


def test_one_block_gives_every_ratio(document: SuiteResult) -> None:
    found = {(c.arm_name, c.base_name): c for c in document.contrasts}
    assert found["unpacked", "bare"].outcome.verdict == "EQUIVALENT"
    for base in ("bare", "unpacked"):
        assert found["docker", base].outcome.verdict == "SLOWER"
        assert found["docker", base].attribution.stage == "read"
        assert found["docker", base].startup_s.value == pytest.approx(0.41, abs=0.01)
    assert [c.family for c in document.contrasts] == [2, 1, 2]
    blocks = {c.pairs for c in document.contrasts}
    assert blocks == {10}


def test_the_terminal_prints_a_row_each(document: SuiteResult) -> None:
    out = io.StringIO()
    terminal.render(document, Screen(file=out, width=140, force_terminal=False))
    text = out.getvalue()
    rows = {line.split()[0]: line for line in text.splitlines() if " / bare" in line}
    assert set(rows) == {"docker", "unpacked"}
    assert rows["docker"].split()[3].startswith("1.10")
    assert "SLOWER" in rows["docker"]
    assert "EQUIVALENT" in rows["unpacked"]
    assert "+0.4" in rows["docker"]
    assert "attributed to read (+0.1" in text
    assert "confounders of all arms: PASS" in text


def test_html_says_the_same(suite: tuple[Plan, List[Record]], document: SuiteResult) -> None:
    page = html.render(*suite, document)
    assert well_formed(page)
    assert "docker / bare = 1.10" in page
    assert "attributed to read" in page
    assert "look 1 of 10, 20, 30 pairs" in page
    assert "digest <code>sha256:abc</code>" in page


def test_the_table_has_start_up_and_probes(suite: tuple[Plan, List[Record]]) -> None:
    frame = csv.trials_frame(*suite)
    probes = frame[frame.stage == "probe"]
    assert probes.probe_read_s.astype(float).between(0.9e-3, 1.2e-3).all()
    assert frame[frame.stage == "load"].probe_read_s.isna().all()
    assert frame.ready_s.astype(float).between(2.9, 3.6).all()
    assert set(frame[frame.runtime == "bare"].image.isna()) == {True}


def test_without_the_unpacked_arm_both_say_what_is_not_separated() -> None:
    plan = fixture.plan([BARE, DOCKER], [fixture.contrast(DOCKER, BARE)])
    records = [fixture.record(t) for t in plan.trials]
    document = analyse(plan, records)
    out = io.StringIO()
    terminal.render(document, Screen(file=out, width=100, force_terminal=False))
    for text in (out.getvalue(), html.render(plan, records, document)):
        assert text.count("stack and container not separated") == 1
