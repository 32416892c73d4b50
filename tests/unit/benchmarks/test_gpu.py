"""The benchmark of a GPU's paths, as far as it goes without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu
from iobench.plan import ladder
from iobench.spec import load
from tests.capabilities import missing


def test_its_spec_plans_every_path() -> None:
    containers = {"apptainer": {"image": "./mine.sif"}, "docker": {}}
    spec = load.parse(gpu.document(gpu.cases(containers, count=1)))
    cases = load.expand(spec)
    planned = {(t.case.label, t.stage) for t in ladder.ladder(spec, cases)}
    assert len(cases) == 7
    assert [c.image for c in cases if c.runtime != "bare"] == ["./mine.sif", "torch"]
    both = load.expand(load.parse(gpu.document(gpu.cases({}, count=2))))
    assert [(c.label, c.world_size) for c in both if c.world_size > 1] == [(gpu.RANKS, 2)]
    copied = {label for label, stage in planned if stage == "h2d"}
    assert copied == {c.label for c in cases} - {"DALI on the GPU"} - _shared(cases)


def _shared(cases: list[gpu.Any]) -> set[str]:
    """Return the cases whose copy an earlier, equal one measures."""
    keys: dict[str, str] = {}
    for case in cases:
        keys.setdefault(repr(ladder.compute_key(case)), case.label)
    return {c.label for c in cases} - set(keys.values())


def test_without_a_gpu_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not missing("cuda"):
        pytest.skip("a GPU is here")
    monkeypatch.setattr("sys.argv", ["gpu", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    assert "nothing was tried: no GPU is here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
