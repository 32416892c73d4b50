"""What is judged of two versions' runs: widths, verdicts, coverage, contradictions."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

from benchmarks import versions
from benchmarks.versions import Seen


def contrast(name: str, ratio: float, half: float, verdict: str) -> Dict[str, Any]:
    interval = {"low": ratio - half, "high": ratio + half}
    return {
        "id": name, "primary": True, "cache": "warm", "base_name": "bare", "ratio": ratio,
        "verdict": verdict, "interval": interval, "simultaneous": interval,
        "ratios": [ratio] * 12,
    }  # fmt: skip


def seen(*contrasts: Dict[str, Any], quiet: bool = True) -> Seen:
    return Seen("2020-01-01T00:00:00Z", contrasts, quiet)


def six(half: float, **kw: Any) -> List[Seen]:
    return [seen(contrast("a", 1.0, half, "EQUIVALENT"), **kw) for _ in range(6)]


def test_narrow_intervals_that_agree_meet_the_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert versions.judge(six(0.08), six(0.01))
    assert "median half-width 1.00%, of the old 8.00%: 0.13 of it" in capsys.readouterr().out


def test_a_side_of_too_few_pairs_is_compared_by_single_intervals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = [seen({**contrast("a", 1.0, 0.08, "INCONCLUSIVE"), "simultaneous": None})] * 6
    assert versions.judge(few, six(0.01))
    said = capsys.readouterr().out
    assert "simultaneous intervals: median half-width 1.00%, of the old no limits: no ratio" in said
    assert "single intervals: median half-width 1.00%, of the old 8.00%: 0.13 of it" in said
    wide = [seen({**contrast("a", 1.0, 0.03, "INCONCLUSIVE"), "simultaneous": None})] * 6
    assert not versions.judge(wide, six(0.01))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (six(0.03), six(0.01)),  # not a quarter
        (six(0.08), six(0.02)),  # too wide for a quiet hour
        (six(0.08), six(0.01)[:5]),  # too few
        (six(0.08), [*six(0.01)[:4], *[seen(contrast("a", 1.0, 0.01, "INCONCLUSIVE"))] * 2]),
        (six(0.08), [*six(0.01), seen(contrast("a", 1.05, 0.01, "SLOWER"))] * 3),  # not covered
    ],
)
def test_what_is_not_good_enough(old: List[Seen], new: List[Seen]) -> None:
    assert not versions.judge(old, new)


def test_what_a_run_said_is_kept_and_judged_without_it(tmp_path: Path) -> None:
    of_run = {**contrast("a", 1.0, 0.01, "EQUIVALENT"), "arm": "docker", "base": "bare"}
    kept = versions.keep(tmp_path, "new", [seen({**of_run, "work": "much else"})])
    assert [path.name for path in tmp_path.iterdir()] == ["20200101T000000Z-new.json"]
    assert kept[0].half_width == pytest.approx(0.01)
    assert "work" not in kept[0].contrasts[0]
    assert versions.keep(tmp_path, "new", []) == kept
    assert versions.keep(tmp_path, "old", []) == []


def test_the_time_until_seven_of_eight_are_decided() -> None:
    look = {"planned": [12, 20], "taken": 1}
    eight = [{"id": f"c{i}", "group": f"c{i}", "verdict": "EQUIVALENT", "look": look}
             for i in range(8)]  # fmt: skip
    records: List[Any] = [
        SimpleNamespace(
            trial=SimpleNamespace(contrast=f"c{i}", block=block), wall_s=5.0, at_once=1,
            started=f"2026-01-01T00:{i:02}:{block:02}+00:00",
        )
        for i in range(8) for block in (1, 12, 13)
    ]  # fmt: skip
    assert versions.decided_after(eight, records) == 6 * 60 + 12 + 5.0 - 1
    eight[2]["verdict"] = "INCONCLUSIVE"
    assert versions.decided_after(eight, records) == 7 * 60 + 12 + 5.0 - 1
    eight[3]["verdict"] = "INCONCLUSIVE"
    assert versions.decided_after(eight, records) is None


def test_faster_here_and_slower_there_is_a_contradiction() -> None:
    runs = [seen(contrast("a", 0.9, 0.2, "FASTER")), seen(contrast("a", 1.1, 0.2, "SLOWER"))]
    assert versions.contradictions(runs) == ["a"]
    assert versions.coverage(runs) == (2, 2)


def test_a_contrast_without_a_pair_is_infinitely_wide(tmp_path: Path) -> None:
    folder = tmp_path / "20200101T000000Z-bench-io"
    folder.mkdir()
    none = {**contrast("a", 1.0, 0.0, "none"), "ratio": None, "simultaneous": None,
            "interval": None, "ratios": []}  # fmt: skip
    other = {**contrast("b", 1.0, 0.1, "EQUIVALENT"), "cache": "cold"}
    document = {"created": "2020-01-01", "contrasts": [none, other]}
    (folder / "analysis.json").write_text(json.dumps(document))
    (run,) = versions.runs(tmp_path)
    assert (len(run.contrasts), run.decided, run.half_width) == (1, 0, float("inf"))
    assert run.quiet is None
