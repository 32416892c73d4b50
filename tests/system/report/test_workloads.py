"""Real runs: a workload file's AU, and a trainer's roofline, from processes to words."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.analysis.results import SuiteResult
from iobench.analysis.suite import analyse
from iobench.core.cases import Dataset
from iobench.core.records import VALID
from iobench.data import convert, make
from iobench.plan.resolve import Here, resolve
from iobench.report import html, trainer_words
from iobench.run import store
from iobench.run.suite import Suite
from iobench.run.trial import TrialSettings
from iobench.spec import load
from iobench.spec.schema import Spec
from tests.build import containers
from tests.capabilities import need

pytestmark = pytest.mark.slow

STEP_S = 0.05
WORKLOAD = f"""\
model: {{name: unet3d}}
dataset: {{format: npz, num_files_train: 24, num_samples_per_file: 1,
          record_length_bytes: 50000, record_length_bytes_stdev: 9000}}
reader: {{batch_size: 2, read_threads: 1, file_shuffle: seed, sample_shuffle: seed}}
train: {{epochs: 2, computation_time: {STEP_S}}}
metric: {{au: 0.70}}
"""


def ran(spec: Spec, data: Dataset, folder: Path) -> tuple[SuiteResult, str]:
    plan = resolve(spec, Here(data), 60.0, "now")
    found = store.create(folder, plan.name)
    found.save_plan(plan)
    Suite(found, TrialSettings(compute_s=0.3), lambda *_: None).run()
    suite = analyse(found.plan(), found.records())
    assert suite.validity.statuses[VALID] == len(plan.trials)
    return suite, html.render(found.plan(), found.records(), suite)


def test_a_workload_file_gives_its_au(tmp_path: Path) -> None:
    need("torch")
    (tmp_path / "unet3d.yaml").write_text(WORKLOAD)
    spec = load.load(str(tmp_path / "unet3d.yaml"))
    spec = spec.model_copy(update={"ladder": spec.ladder.model_copy(update={"stages": ("feed",)})})
    wanted = spec.dataset
    sizes = wanted.mean_bytes, wanted.sd_bytes
    data = make.make(wanted.recipe, tmp_path / "data", samples=wanted.samples, sizes=sizes)
    assert data.bytes / data.samples == pytest.approx(50_000, rel=0.05)
    convert.convert(data, "npz")
    suite, page = ran(spec, data, tmp_path / "results")
    found = suite.pipelines[0].mlperf
    assert found is not None
    assert (found.steps, found.epochs, found.samples) == (12, 2, 24)
    assert 0.3 < found.au.value < 1.05  # a slept step, on whatever else runs here
    assert len(found.short) == 2
    assert "Not an MLPerf result" in page


def test_a_trainer_is_below_its_roofs(tmp_path: Path) -> None:
    need("torch")
    data = containers.small_dataset(tmp_path / "data", samples=32)
    spec = load.parse({
        "name": "roof", "compute_s": 0.3,
        "case": {"pipeline": "jpeg", "trainer": "torch", "batch": 4, "workers": 1,
                 "trainer_options": {"net": "resnet18", "threads": 1}},
        "ladder": {"stages": ["compute", "roof"], "repeats": 1, "digest": False, "probe": False},
    })  # fmt: skip
    suite, page = ran(spec, data, tmp_path / "results")
    roof = suite.pipelines[0].compute_roof
    assert roof is not None
    assert roof.flop_per_sample == 10_648_412_160
    assert roof.threads == 1
    assert roof.compute_flops is not None
    assert 0 < roof.compute_flops < 1.5 * roof.peak_flops  # other programs slow either
    assert roof.memory_bytes_per_s > 1e8
    assert 'id="plot-compute-roof"' in page
    assert "GFLOP a sample" in trainer_words.compute_roof(suite.pipelines[0])
