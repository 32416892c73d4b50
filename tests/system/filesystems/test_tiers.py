"""Where the data lie, in one suite on a real mount: in place, on a local disk, in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomllib

from iobench.analysis import suite
from iobench.analysis.results import to_json
from iobench.core.records import VALID
from iobench.data import make
from iobench.plan.resolve import Here, resolve
from iobench.report import contrast_words
from iobench.run import placed_folders, placing, requests, store
from iobench.run import suite as scheduler
from iobench.run.trial import TrialSettings
from iobench.spec import load
from tests.build.containers import say
from tests.build.gluster import gluster
from tests.build.servers import Evicting
from tests.capabilities import need

pytestmark = pytest.mark.slow


def shipped(folder: Path) -> dict[str, Any]:
    """Return the shipped spec, shortened: no container, one pair, a loader that starts at once."""
    document = tomllib.loads((load.SPECS / "tiers.toml").read_text())
    bare, _ = document["matrix"]
    short = {"repeats": 1, "stages": ["requests", "ceiling", "load"]}
    (rule,) = document["contrasts"]
    return {
        **document,
        "matrix": bare,
        "stage_to": str(folder),
        "max_repeated_pairs": 0,
        "case": {**document["case"], "pipeline": "threads:jpeg", "batch": 8},
        "ladder": {**document["ladder"], **short},
        "contrasts": [{**rule, "pairs": 1, "caches": ["cold"]}],
    }


def test_copies_are_held_against_the_mount_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gluster", "fio"):
        need(name)
    monkeypatch.setattr(requests, "POINT_MS", 100)
    monkeypatch.setattr(requests, "LARGEST_MS", 200)
    with gluster() as volume:
        volume.set("performance.quick-read", "off")
        data = make.make("imagenet-like", volume.mount / "set", samples=32, seed=1)
        plan = resolve(load.parse(shipped(tmp_path / "local")), Here(data), 600.0, "now")
        results = store.create(tmp_path, "tiers")
        results.save_plan(placing.placed(plan, str(tmp_path / "local"), {}, say))
        with placing.present(results.plan(), {}, say) as there:
            results.save_plan(there)
            settings = TrialSettings(placements=placing.by_location(there), agent=Evicting(volume))
            scheduler.Suite(results, settings, lambda *_: None).run()
        assert not [p for p in volume.mount.iterdir() if p.name.startswith(placed_folders.PREFIX)]
    found = suite.analyse(results.plan(), results.records())
    assert found.checks.same_samples.ok is True
    colds = [r for r in results.records() if r.trial.stage == "load" and r.trial.cache == "cold"]
    assert {r.trial.case.placement for r in colds} == {"bind", "staged"}
    assert all(r.status == VALID for r in colds), [r.reasons for r in colds]
    (cold,) = found.contrasts
    assert (cold.base_name, cold.arm_name) == ("bind", "staged")
    assert cold.staging.seconds > 0
    assert cold.staging.bytes == data.bytes
    assert [each.nodes for each in cold.staging.at_nodes] == [2, 8, 32]
    assert "predicted for 2, 8, 32 nodes" in contrast_words.sentence(cold)
    (memory,) = (c for c in found.pipelines if c.placement == "tmpfs")
    assert [text for text in memory.remarks if "against placement bind, cold, at load" in text]
    assert to_json(found)
