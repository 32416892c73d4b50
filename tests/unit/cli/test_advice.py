"""What a person reads of `iobench explain` and `predict`, and what a script does."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

from click.testing import CliRunner

from iobench.analysis.suite import analyse
from iobench.cli import advice
from iobench.cli.console import _Console
from tests.build import report as fixture


def invoked(*argv: str) -> str:
    suite = analyse(*fixture.suite())
    command = advice.explain if argv[0] == "explain" else advice.predict
    with (
        mock.patch.object(advice, "_suite", return_value=suite),
        mock.patch.object(advice, "out", _Console(width=200)),
    ):
        done = CliRunner().invoke(command, ["results", *argv[1:]], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_explain_shows_every_part_of_a_finding() -> None:
    text = invoked("explain")
    for part in ("symptom", "evidence", "remedy", "gain", "source", "Nothing to cure"):
        assert part in text
    document = json.loads(invoked("explain", "--json"))
    assert {"cause", "symptom", "remedy", "evidence", "gain", "source", "text"} <= {
        *document["findings"][0]
    }
    gains = [f["gain"]["value"] for f in document["findings"] if f["gain"]]
    assert gains == sorted(gains, reverse=True)


def test_predict_answers_how_many_are_fed_in_one_command(tmp_path: Path) -> None:
    plot = tmp_path / "feeds.svg"
    text = invoked("predict", "accelerator=h100", "--plot", str(plot))
    assert "accelerator=h100" in text
    assert "h100 of resnet50" in text
    assert "a100" not in text
    assert plot.read_text().startswith("<svg")
    document = json.loads(invoked("predict", "--json"))
    assert {"predictions", "feeds", "not_known"} == {*document}
    assert all(p["rate"]["value"] > 0 for p in document["predictions"])
