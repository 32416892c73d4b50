"""The line that announces the comparisons before the first pair."""

from __future__ import annotations

from iobench.report import plan_words
from tests.build import pairs as fixture

ARMS = fixture.cases("bare", "docker", "apptainer")


def test_groups_that_are_alike_are_told_together() -> None:
    bare, docker, apptainer = ARMS
    turns = {"cache": "warm", "slice_s": 0.1, "loop_s": 3.0, "looks": (12, 20), "pairs": 20}
    contrasts = [
        fixture.contrast(docker, bare, id="c01", group="g01", epochs=9, **turns),
        fixture.contrast(apptainer, bare, id="c02", group="g01", epochs=9, **turns),
        fixture.contrast(docker, bare, id="c03", group="g02", epochs=31, **turns),
        fixture.contrast(apptainer, bare, id="c04", group="g02", epochs=31, **turns),
        fixture.contrast(docker, bare, id="c05", group="g03", epochs=1),
    ]
    assert plan_words.comparisons(contrasts) == (
        "load warm: 2 groups of 3 arms, 12 pairs (up to 20), turns of 0.1 s in loops of 3 s (9 to "
        "31 epochs); load cold: 1 group of 2 arms, 10 pairs, one after the other (1 epoch)"
    )
    assert plan_words.comparisons(contrasts, counted=False) == (
        "load warm: 2 groups of 3 arms, 12 pairs (up to 20), turns of 0.1 s in loops of 3 s; "
        "load cold: 1 group of 2 arms, 10 pairs, one after the other"
    )
