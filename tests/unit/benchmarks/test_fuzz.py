"""300 fuzzed specs; and the fuzzer finds what it is for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks import fuzz
from benchmarks.spec_mutations import Drawn
from benchmarks.spec_strategies import documents, toml
from iobench.cli import console
from iobench.core import options, registry, stages
from iobench.core.cases import STEADY
from iobench.core.errors import SpecError
from iobench.core.order import SHARINGS
from iobench.core.striping import striping
from iobench.plan import foresee, unused
from iobench.spec import schema


@pytest.mark.slow
def test_300_specs_plan_or_are_refused_in_one_plain_line() -> None:
    tally = fuzz.run(300, start=1, limit_s=1e9)
    assert tally.total == 300
    assert not tally.worst, "\n".join(f"{kind}: {seen}" for kind, seen in tally.worst.items())
    assert min(tally.kinds["valid"], tally.kinds["refused"]) > 50, tally.kinds


@pytest.mark.breadth
def test_every_100th_single_change_to_a_shipped_spec_is_named() -> None:
    tally = fuzz.sweep(every=101)
    assert tally.total > 300
    assert not tally.worst, "\n".join(f"{kind}: {seen}" for kind, seen in tally.worst.items())


def judged(document: dict[str, Any], folder: Path, **facts: Any) -> str:
    drawn = Drawn(toml(document).encode(), document, **facts)
    return fuzz.judge(drawn, folder).kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyError("batch"), "exception KeyError"),
        (SpecError("Input should be a valid integer"), "jargon Input should"),
        (SpecError("in \x1b[2J"), "not one short line"),
    ],
)
def test_what_must_not_be_is_found(
    error: Exception, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(foresee, "judged", broken)
    monkeypatch.setattr(console, "one_line", str)
    assert judged({"name": "x"}, tmp_path).startswith(kind)


def test_a_refusal_without_key_and_value_is_found(tmp_path: Path) -> None:
    document = {"name": "x", "case": {"batch": 0}}
    assert judged(document, tmp_path, changed=("case", "batch"), kind="odd") == "refused"
    before = {"before": b'name = "x"', "kind": "typo"}
    kind = judged(document, tmp_path, changed=("case", "order"), **before)
    assert kind == "does not name the key: case.order"


def test_a_refusal_that_does_not_say_what_is_allowed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(text: str, *_: object, **__: object) -> None:
        if "batch" in text:
            raise SpecError("batch is wrong")

    monkeypatch.setattr(foresee, "judged", refuse)
    kind = judged(
        {"name": "x", "case": {"batch": 0}}, tmp_path, changed=("case", "batch"), kind="odd",
        before=b'name = "x"',
    )  # fmt: skip
    assert kind == "does not name value or what is allowed: case.batch"


def test_accepted_nonsense_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = foresee.judged('name = "x"', "x.toml")
    monkeypatch.setattr(foresee, "judged", lambda *_: plan)
    assert judged({"name": "x", "limit_s": float("nan")}, tmp_path) == "accepted limit_s = nan"
    assert judged({"name": "x", "seed": "1"}, tmp_path) == "accepted seed = str"
    assert judged({"name": "x", "case": {"batch": True}}, tmp_path) == "accepted case.batch = bool"


def test_a_key_that_is_ignored_in_silence_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"name": "x", "case": {"batch": 4}, "matrix": {"batch": [8, 16]}}
    other = (("case", "batch"), 2)
    assert judged(document, tmp_path, other=other) == "valid"
    monkeypatch.setattr(unused, "notes", lambda *_: [])
    assert judged(document, tmp_path, other=other) == "ignored case.batch"


@pytest.mark.breadth
def test_every_key_and_member_is_drawn() -> None:
    models = (
        schema.Spec, schema.DatasetSpec, schema.ExtraCase, schema.LadderSpec, schema.MlperfSpec,
    )  # fmt: skip
    left = {key for model in (*models, schema.ContrastSpec) for key in model.model_fields}
    for axis in (
        "loaders", "formats", "decoders", "trainers", "runtimes", "launchers", "placements",
    ):  # fmt: skip
        left |= set(registry.names(axis))
    left |= {*stages.rungs(), "cold", "warm", STEADY, *SHARINGS, "rank", "node", "shards", "window"}
    left |= {*options.accepted(striping)}
    for number in range(1, 9):
        if not left:
            break

        @seed(number)
        @settings(
            max_examples=300, database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(documents())
        def draw(document: dict[str, Any]) -> None:
            left.difference_update(re.findall(r"[\w-]+", toml(document)))

        draw()
    assert left == set()
