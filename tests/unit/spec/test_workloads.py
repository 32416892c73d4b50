"""Workload files of MLPerf Storage and DLIO are read as they are, to specs that say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.core.errors import SpecError
from iobench.plan.rules import check
from iobench.spec import load, workloads

UNET3D = """\
model: {name: unet3d, type: cnn, model_size: 499153191}
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: False}
dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length_bytes: 146600628
  record_length_bytes_stdev: 68341808
reader: {data_loader: pytorch, batch_size: 7, read_threads: 4, file_shuffle: seed,
         sample_shuffle: seed}
train: {epochs: 5, computation_time: 0.323}
metric: {au: 0.90}
"""
RESNET50 = """\
model: {name: resnet50}
framework: tensorflow
dataset: {num_files_train: 1024, num_samples_per_file: 1251, record_length_bytes: 114660.07,
          format: tfrecord}
train: {computation_time: 0.224, epochs: 5}
reader: {data_loader: tensorflow, read_threads: 8, computation_threads: 8, batch_size: 400,
         file_shuffle: off}
metric: {au: 0.90}
"""
COSMOFLOW = """\
model: {name: cosmoflow}
dataset: {num_files_train: 524288, num_samples_per_file: 1, record_length_bytes: 2828486,
          record_length_bytes_stdev: 71311, format: tfrecord}
reader: {read_threads: 4, batch_size: 1, file_shuffle: seed, sample_shuffle: seed}
train: {epochs: 5, computation_time: 0.00350}
metric: {au: 0.70}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "workload.yaml"
    path.write_text(text)
    return path


def test_unet3d_becomes_the_spec_of_its_files_and_steps(tmp_path: Path) -> None:
    spec = load.load(str(written(tmp_path, UNET3D)))
    (case,) = load.expand(spec)
    assert (case.pipeline, case.batch, case.workers, case.order) == ("torch:npz", 7, 4, "shuffled")
    assert case.trainer_options == {"step_s": 0.323}
    data = spec.dataset
    assert (data.samples, data.mean_bytes, data.sd_bytes) == (168, 146_600_628, 68_341_808)
    assert spec.mlperf is not None
    assert (spec.mlperf.workload, spec.mlperf.au) == ("unet3d", 0.9)
    assert spec.ladder.repeats == 5
    assert (spec.ladder.stages, spec.ladder.caches) == (("ceiling", "feed"), ("cold",))
    check(spec)


def test_resnet50_reads_its_shards_in_order(tmp_path: Path) -> None:
    spec = load.load(str(written(tmp_path, RESNET50)))
    (case,) = load.expand(spec)
    assert (case.pipeline, case.order, case.batch) == ("torch:tfrecord", "stored", 400)
    assert case.format_options == {"shard": 1251}
    assert (spec.dataset.samples, spec.dataset.mean_bytes) == (1024 * 1251, 114_660)


def test_accelerators_are_ranks_that_meet_after_each_step(tmp_path: Path) -> None:
    found = workloads.read(written(tmp_path, COSMOFLOW))
    text = workloads.spec_text(found, accelerators=4, samples=3000)
    spec = load.parse_text(text, "spec")
    (case,) = load.expand(spec)
    assert (case.world_size, case.launcher, case.batch) == (4, "torchrun", 1)
    assert case.trainer_options == {"step_s": 0.0035, "exchange_bytes": 4, "buckets": 1}
    assert case.format_options == {"shard": 1}
    assert spec.dataset.samples == 3000
    assert spec.mlperf is not None
    assert spec.mlperf.au == 0.7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (UNET3D.replace("npz", "csv"), ["'csv'", "npz, tfrecord, jpeg, png"]),
        (UNET3D.replace("batch_size: 7,", ""), ["reader.batch_size"]),
        (UNET3D.replace("0.323", "{mean: 0.3, stdev: 0.1}"), ["train.computation_time"]),
        (UNET3D.replace("au: 0.90", "au: 90"), ["metric.au", "90"]),
        ("just words", ["no table"]),
        ("a: [1", ["not valid YAML"]),
        ("!!python/object/apply:os.getcwd []", ["not valid YAML"]),
    ],
)
def test_what_is_no_workload_is_named_in_one_line(
    text: str, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        load.load(str(written(tmp_path, text)))
    assert "\n" not in str(caught.value)
    for word in ["workload.yaml", *words]:
        assert word in str(caught.value)
