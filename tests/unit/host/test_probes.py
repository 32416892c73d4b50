"""Short commands answer, or it is said in words why they did not."""

from __future__ import annotations

from iobench.host.probes import ask


def test_what_a_command_says_is_returned() -> None:
    assert ask(["echo", "there"]) == (0, "there")
    assert ask(["sh", "-c", "echo first >&2; echo last >&2; exit 3"]) == (3, "last")


def test_one_that_is_not_there_or_does_not_answer_is_told_in_words() -> None:
    assert ask(["iobench-no-such-program"]) == (127, "no program iobench-no-such-program")
    assert ask(["sleep", "60"], 0.2) == (124, "sleep did not answer in 0.2 s")
