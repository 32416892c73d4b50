"""What a person reads of `iobench tune`, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Tuple
from unittest import mock

import pytest
from click.testing import CliRunner

from iobench.analysis.results import to_json
from iobench.cli import tune as command
from iobench.cli.console import _Console
from iobench.core.errors import SpecError
from iobench.report import tune_plot
from iobench.tune.answer import TuneResult, answer
from iobench.tune.settings import TuneSettings
from tests.build.tuned import DOCUMENT, begun, searched, world


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Tuple[TuneResult, TuneSettings]:
    folder = tmp_path_factory.mktemp("tune")
    plan, asked = begun(folder, DOCUMENT)
    after, records = searched(folder, plan, asked, world(2000, 150))
    return answer(after, records, asked), asked


def shown(function: Any, *given: Any) -> str:
    with mock.patch.object(command, "out", _Console(width=200)) as out, out.capture() as text:
        function(*given)
    return text.get()


def test_the_answer_has_the_gain_the_limit_and_the_code(
    found: Tuple[TuneResult, TuneSettings], tmp_path: Path
) -> None:
    result, asked = found
    text = shown(command._render, result, tmp_path)
    assert text.startswith("Change: ")
    for part in (
        f"gain over {asked.current}", f"gain over {asked.default}", "binds now", "queued batches",
        "winner", "ended early", "compute alone", "not tried", "paste this", "DataLoader(",
    ):  # fmt: skip
        assert part in text, part


def test_the_answer_is_json_and_a_picture(found: Tuple[TuneResult, TuneSettings]) -> None:
    document = json.loads(json.dumps(to_json(found[0])))
    assert document["verdict"] == "change"
    assert {"gains", "tried", "left_out", "code", "limits", "search_s", "wall_s"} <= {*document}
    assert all(g["times"]["low"] > 1 for g in document["gains"])
    plot = tune_plot.tried(found[0])
    assert plot.startswith("<svg")
    assert found[0].winner in plot


def test_a_dry_run_lists_the_space_and_its_cost(tmp_path: Path) -> None:
    plan, asked = begun(tmp_path, DOCUMENT)
    text = shown(command._dry, plan, asked)
    for part in (
        "workers",
        "decoder",
        "not tried: order, batch: it is tried only if asked for",
        "settings; about",
        "come first",
    ):
        assert part in text, part
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "reason"), [
    (["--batch", "32,big"], "--batch 'big'; allowed: whole numbers"),
    (["--formats", "lmdbb"], "unknown format 'lmdbb'"),
    (["--script", "python x.py", "--formats", "lmdb"], "--formats has no effect with --script"),
    (["--memory", "much"], "is no size"),
    (["--only", "workers"], "--only 'workers' is not KNOB=VALUE,VALUE"),
    (["--only", "worker=2"], "did you mean 'workers'"),
    (["--script", "python x.py", "--libraries"], "--libraries has no effect with --script"),
])  # fmt: skip
def test_what_cannot_be_asked_is_refused(options: list[str], reason: str) -> None:
    with mock.patch.object(command.LOCAL, "announced"), pytest.raises(SpecError, match=reason):
        CliRunner().invoke(command.tune, options, catch_exceptions=False)
