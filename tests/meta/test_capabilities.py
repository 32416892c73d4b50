"""A required capability that is missing fails a test; any other is skipped and counted."""

from __future__ import annotations

import pytest

from tests import capabilities


@pytest.fixture(autouse=True)
def two_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"here": lambda: "", "gone": lambda: "no such thing"}
    monkeypatch.setattr(capabilities, "CAPABILITIES", known)
    monkeypatch.setattr(capabilities, "_ANSWERS", {})
    monkeypatch.delenv("IOBENCH_REQUIRE", raising=False)


def test_what_is_here_is_neither_skipped_nor_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities.need("here")
    monkeypatch.setenv("IOBENCH_REQUIRE", "all")
    capabilities.need("here")


def test_what_is_gone_is_skipped_and_counted() -> None:
    with pytest.raises(pytest.skip.Exception, match="gone: no such thing") as found:
        capabilities.need("gone")
    of_pytest = ("test_a.py", 1, f"Skipped: {found.value}")
    others = ("test_a.py", 1, "Skipped: needs no introduction")
    reports = [
        pytest.TestReport("a", ("", 1, ""), {}, "skipped", reason, "call")
        for reason in (of_pytest, of_pytest, others)
    ]
    assert capabilities.skipped(reports) == {"gone": 2}


@pytest.mark.parametrize("required", ["gone", "here, gone", "all"])
def test_what_is_required_and_gone_fails(required: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOBENCH_REQUIRE", required)
    with pytest.raises(pytest.fail.Exception, match="no such thing"):
        capabilities.need("gone")


def test_what_is_made_beside_the_tests_is_for_those_of_the_system(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities, "MADE_BESIDE", ("here",))
    with pytest.raises(pytest.fail.Exception, match="what needs here is to be marked `system`"):
        capabilities.need("here")
    request.node.add_marker("system")
    capabilities.begin(request.node)
    capabilities.need("here")


def test_a_name_that_nothing_has_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError, match="there are: gone, here"):
        capabilities.need("elsewhere")
    monkeypatch.setenv("IOBENCH_REQUIRE", "here,elsewhere")
    assert capabilities.unknown_requirements() == ["elsewhere"]
