"""Scripts of others: each has a cause, a change by hand that fits, and takes what tune prints."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from benchmarks import strangers
from iobench.core.cases import Case
from iobench.tune.code import script_code

CAUSES = strangers.causes()


def keywords(text: str) -> dict[str, Any]:
    """Return the keywords of the script's DataLoader."""
    calls = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call))
    (call,) = (c for c in calls if strangers._name(c) == "DataLoader")
    return {k.arg or "": ast.unparse(k.value) for k in call.keywords}


def test_every_script_has_a_cause_and_every_cause_a_script() -> None:
    assert {path.stem for path in strangers.HERE.glob("*.py")} == {*CAUSES}
    assert len(CAUSES) >= 10


@pytest.mark.parametrize("name", CAUSES)
def test_it_can_be_changed_by_hand_and_from_outside(name: str) -> None:
    text, cause = (strangers.HERE / f"{name}.py").read_text(), CAUSES[name]
    assert "iobench.watch(loader)" in text
    assert cause["gain"] > 1
    assert cause["outside"].partition(":")[0] in ("yes", "no", "partly")
    ast.parse(strangers.by_hand(text, cause["hand"]))
    found = Case(workers=5, prefetch=7, batch=99, trainer="torch",
                 loader_options={"in_order": False}, trainer_options={"threads": 3})  # fmt: skip
    new = strangers.pasted(text, script_code(found, Case(workers=0)))
    wanted = {"num_workers": "5", "prefetch_factor": "7", "persistent_workers": "True",
              "in_order": "False"}  # fmt: skip
    assert keywords(new) == {**keywords(text), **wanted}
    assert "set_num_threads(3)" in new


def test_a_change_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not in the script"):
        strangers.by_hand("a = 1", [["b", "c"]])
