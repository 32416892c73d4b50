"""A case's settings as a user writes them: the code of its library, and a spec."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from iobench.core.cases import Case
from iobench.core.order import shard_buffer
from iobench.run.script import changed
from iobench.spec.schema import CaseSpec, Spec

#: Fields of a case that a spec has under the same name; the pipeline names content too.
_KEYS = [n for n in CaseSpec.model_fields if n in Case.__dataclass_fields__ and n != "content"]
#: Keys of a spec that hold whatever its case is.
_KEPT = (
    "seed", "limit_s", "compute_s", "allow_drop_caches", "first_touch", "servers_cache", "stage_to",
)  # fmt: skip
Ladder = Mapping[str, Any]


def code(case: Case) -> str:
    """Return code to paste for the case's loader; "" for one that users do not write."""
    write = WRITERS.get(case.loader)
    lines = [] if write is None else [write(case)]
    if lines and case.content == "jpeg" and case.loader in ("torch", "spdl"):
        lines.insert(0, f"# decode JPEGs by {_DECODE.get(case.decoder, case.decoder)}")
    if lines and case.format_options.get("readahead") is False:
        lines.insert(0, f"# open {case.format} without the kernel's read-ahead (readahead=False)")
    return "\n".join(lines)


def script_code(case: Case, usual: Case) -> str:
    """Return what a script changes: keywords of its DataLoader, and torch's threads.

    ``usual``: the script's own settings; what is as it was is not repeated.
    """
    words = changed(case, usual)
    threads = words.pop("threads", 0)
    lines = []
    if words:
        lines += [
            "# in your DataLoader(...): these arguments; all others stay as they are",
            _keywords(words),
        ]
    if threads:
        lines += ["# once, before the loop", f"torch.set_num_threads({threads})"]
    return "\n".join(lines)


def _torch(case: Case) -> str:
    words: dict[str, Any] = {"batch_size": case.batch}
    if case.order == "shuffled":
        words["shuffle"] = True
    words["num_workers"] = case.workers
    if case.workers:
        words["prefetch_factor"] = case.prefetch
        words["persistent_workers"] = True  # as measured
        if not case.loader_options.get("in_order", True):
            words["in_order"] = False
        if method := case.loader_options.get("start_method"):
            words["multiprocessing_context"] = method
    if (pin := case.loader_options.get("pin_memory")) is not None:
        words["pin_memory"] = pin
    lines = ["from torch.utils.data import DataLoader", ""]
    if (threads := int(str(case.loader_options.get("threads", 1)))) > 1:
        lines.append(
            f"# in the dataset's __getitems__, read the samples of a batch by {threads} threads "
            "(concurrent.futures.ThreadPoolExecutor)"
        )
    lines.append(f"loader = DataLoader(dataset, {_keywords(words)})")
    if case.trainer == "torch" and (threads := int(str(case.trainer_options.get("threads", 0)))):
        lines += ["", "import torch", "", f"torch.set_num_threads({threads})"]
    return "\n".join(lines)


_DECODE = {
    "simplejpeg": "simplejpeg.decode_jpeg(data)",
    "opencv": "cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR_RGB)",
    "pillow": "PIL.Image.open(file).convert('RGB')",
}


def _dali(case: Case) -> str:
    device = str(case.loader_options.get("device", "cpu"))
    words = {
        "batch_size": case.batch,
        "num_threads": max(case.workers, 1),
        "prefetch_queue_depth": case.prefetch,
        "device_id": None if device == "cpu" else 0,
    }
    external = "fn.external_source(source=samples, num_outputs=2, parallel=True, batch=False)"
    reader = {
        "jpeg": "fn.readers.file(file_root=folder, random_shuffle={}{})",
        "lmdb": "fn.readers.caffe(path=folder, random_shuffle={}{})",
        "tar": 'fn.readers.webdataset(paths=shards, ext=["jpg", "cls"], random_shuffle={}{})',
    }.get(case.format, external)
    if case.loader_options.get("reader") == "external":
        reader = external
        words["py_num_workers"] = words["num_threads"]
    mapped = "" if case.loader_options.get("mmap", True) else ", dont_use_mmap=True"
    return "\n".join(
        [
            "from nvidia.dali import fn, pipeline_def",
            "",
            "",
            f"@pipeline_def({_keywords(words)})",
            "def pipeline(folder):",
            f"    data, labels = {reader.format(case.order == 'shuffled', mapped)}",
            f'    images = fn.decoders.image_random_crop(data, device="{device}")',
            "    return fn.resize(images, size=224), labels",
        ]
    )


def _spdl(case: Case) -> str:
    order = "input" if case.loader_options.get("in_order", True) else "completion"
    workers = max(case.workers, 1)
    return "\n".join(
        [
            "from spdl.pipeline import PipelineBuilder",
            "",
            "pipeline = (",
            "    PipelineBuilder()",
            "    .add_source(sampler)  # yours: ids of samples in their order",
            f'    .pipe(load_sample, concurrency={workers}, output_order="{order}")  # yours',
            f"    .aggregate({case.batch})",
            "    .pipe(collate)  # yours: samples to a batch",
            f"    .add_sink({case.prefetch})",
            f"    .build(num_threads={workers + 1}, max_failures=0)",
            ")",
        ]
    )


def _webdataset(case: Case) -> str:
    words: dict[str, Any] = {"batch_size": None, "num_workers": case.workers}
    if case.workers:
        words |= {"prefetch_factor": case.prefetch, "persistent_workers": True}
    return "\n".join(
        [
            "import webdataset as wds",
            "",
            "dataset = (",
            "    wds.WebDataset(shards, shardshuffle=len(shards))  # yours: the list of tar files",
            f"    .shuffle({max(shard_buffer(case.order), 1)})",
            "    .map(load_sample)  # yours: decodes and transforms one sample",
            f"    .batched({case.batch})",
            ")",
            f"loader = wds.WebLoader(dataset, {_keywords(words)})",
        ]
    )


def _native(case: Case) -> str:
    kind = {"lmdb": "LMDB", "leveldb": "LEVELDB"}.get(case.format)
    if kind is None:
        return ""
    return "\n".join(
        [
            "layer {",
            '  name: "data"',
            '  type: "Data"',
            '  top: "data"',
            '  top: "label"',
            "  data_param {",
            '    source: "FOLDER"',
            f"    backend: {kind}",
            f"    batch_size: {case.batch}",
            f"    prefetch: {case.prefetch}",
            "  }",
            "}",
        ]
    )


#: Loaders whose settings a user can write down, and how.
WRITERS: Mapping[str, Callable[[Case], str]] = {
    "torch": _torch, "dali": _dali, "spdl": _spdl, "native": _native, "webdataset": _webdataset,
}  # fmt: skip


def _keywords(words: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in words.items())


def spec_text(case: Case, spec: Spec, name: str, about: str, ladder: Ladder) -> str:
    """Return a spec of this case alone, as TOML: what else it says is what ``spec`` says."""
    top = {"name": name, "about": about}
    top |= {key: getattr(spec, key) for key in _KEPT if key in spec.model_fields_set}
    rows: dict[str, Any] = {"pipeline": case.pipeline}
    usual = Case()
    for field in _KEYS:
        value = getattr(case, field)
        if value != getattr(usual, field):
            rows[field] = value
    if case.memory_bytes:
        rows["memory"] = str(case.memory_bytes)
    tables = {f"case.{k}": v for k, v in rows.items() if isinstance(v, Mapping)}
    plain = {k: v for k, v in rows.items() if not isinstance(v, Mapping)}
    dataset = spec.dataset.model_dump()
    every = {"dataset": dataset, "case": plain, **tables, "ladder": ladder}
    lines = [f"{k} = {json.dumps(v)}" for k, v in top.items()]
    for key, table in every.items():
        lines += ["", f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"
