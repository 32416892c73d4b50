"""Workload files of MLPerf Storage and DLIO (YAML), read as they are, to specs: docs/mlperf.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from iobench.core import explain
from iobench.core.errors import SpecError, shown
from iobench.data import toml_files

SUFFIXES = (".yaml", ".yml")
#: DLIO's names of formats -> iobench's.
FORMATS = {"npz": "npz", "tfrecord": "tfrecord", "jpeg": "jpeg", "png": "jpeg"}
#: What DLIO does where a file does not say: ``default.yaml`` of its workloads.
READ_THREADS, PREFETCH, EPOCHS = 1, 2, 1


class _Lenient(pydantic.BaseModel):
    """Keys that no spec can express (folders, checkpoints, evaluation) are left aside."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Model(_Lenient):
    name: str = "workload"


class _Data(_Lenient):
    format: str
    num_files_train: int = pydantic.Field(ge=1)
    num_samples_per_file: int = pydantic.Field(default=1, ge=1)
    record_length_bytes: float = pydantic.Field(ge=1)
    record_length_bytes_stdev: float = pydantic.Field(default=0, ge=0)


class _Reading(_Lenient):
    batch_size: int = pydantic.Field(ge=1)
    read_threads: int = pydantic.Field(default=READ_THREADS, ge=0)
    prefetch_size: int = pydantic.Field(default=PREFETCH, ge=0)
    file_shuffle: str | bool = False  # YAML takes ``off`` for false
    sample_shuffle: str | bool = False


class _Training(_Lenient):
    epochs: int = pydantic.Field(default=EPOCHS, ge=1)
    computation_time: float = pydantic.Field(ge=0)


class _Metric(_Lenient):
    au: float = pydantic.Field(gt=0, le=1)


class WorkloadFile(_Lenient):
    """The part of a workload file that says what is read, how, and how long a step takes."""

    model: _Model = _Model()
    dataset: _Data
    reader: _Reading
    train: _Training
    metric: _Metric

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self.dataset.num_files_train * self.dataset.num_samples_per_file

    @property
    def record_bytes(self) -> int:
        """Mean bytes of a sample; DLIO states a fraction of one for ResNet-50."""
        return round(self.dataset.record_length_bytes)


def read(path: Path) -> WorkloadFile:
    """Read a workload file; raises SpecError that names what is wrong with it."""
    import yaml

    text = toml_files.read(path, f"workload {path}", SpecError, "YAML")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SpecError(f"workload {path} is not valid YAML: {reason}") from None
    if not isinstance(document, Mapping):
        raise SpecError(f"workload {path}: it is no table of keys; give a workload file of DLIO")
    try:
        found = WorkloadFile.model_validate(dict(document))
    except pydantic.ValidationError as error:
        raise SpecError(f"workload {path}: {explain.first(error, WorkloadFile)}") from None
    if found.dataset.format not in FORMATS:
        raise SpecError(
            f"workload {path}: dataset.format {shown(found.dataset.format)} is not measured here; "
            f"allowed: {', '.join(FORMATS)}"
        )
    return found


def spec_text(workload: WorkloadFile, *, accelerators: int = 1, samples: int = 0) -> str:
    """Return the spec (TOML) of a workload.

    ``accelerators``: ranks, each a simulated accelerator.  ``samples``: of an epoch, in place of
    the file's number.  Each repeat is an epoch: of a fresh process, from a page cache proven cold.
    """
    data, reader, step_s = workload.dataset, workload.reader, workload.train.computation_time
    trainer: dict[str, Any] = {"step_s": step_s}
    if accelerators > 1:  # as DLIO's barrier after each step
        trainer |= {"exchange_bytes": 4, "buckets": 1}
    shuffled = any(s not in (False, "off") for s in (reader.file_shuffle, reader.sample_shuffle))
    case: dict[str, Any] = {
        "pipeline": f"torch:{FORMATS[data.format]}",
        "trainer": "emulated",
        "order": "shuffled" if shuffled else "stored",
        "batch": reader.batch_size,
        "workers": reader.read_threads,
        "prefetch": max(reader.prefetch_size, 1),
        "world_size": accelerators,
    }
    if accelerators > 1:
        case["launcher"] = "torchrun"
    tables: dict[str, dict[str, Any]] = {
        "dataset": {
            "recipe": "records",
            "samples": samples or workload.samples,
            "mean_bytes": workload.record_bytes,
            "sd_bytes": math.ceil(data.record_length_bytes_stdev),
        },
        "mlperf": {"workload": workload.model.name, "au": workload.metric.au},
        "case": case,
        "case.trainer_options": trainer,
    }
    if FORMATS[data.format] == "tfrecord":
        tables["case.format_options"] = {"shard": data.num_samples_per_file}
    tables["ladder"] = {
        "stages": ["ceiling", "feed"],
        "caches": ["cold"],
        "repeats": workload.train.epochs,
        "probe": False,
        "digest": False,
    }
    name = "".join(c if c.isalnum() else "-" for c in workload.model.name).strip("-") or "workload"
    about = (
        f"{workload.model.name} by MLPerf Storage's workload file: {accelerators} simulated "
        f"accelerator{'s' * (accelerators > 1)}, {step_s:g} s a step"
    )
    lines = [f"{k} = {json.dumps(v)}" for k, v in {"name": name, "about": about}.items()]
    lines.append(f"limit_s = {json.dumps(86_400.0)}")
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"
