"""What a user pastes: it is valid, says the case's settings, and a spec comes back as its case."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any

import pytest

from iobench.core.cases import Case
from iobench.spec import load
from iobench.spec.load import expand
from iobench.tune.code import WRITERS, code, script_code, spec_text

TORCH = Case(workers=2, prefetch=4, batch=32, loader_options={"in_order": False, "threads": 4},
             trainer="torch", trainer_options={"threads": 2})  # fmt: skip


def test_dataloader_keywords_make_a_dataloader() -> None:
    import torch.utils.data

    text = code(TORCH)
    call = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)
                and getattr(n.func, "id", "") == "DataLoader")  # fmt: skip
    words: dict[str, Any] = {k.arg or "": ast.literal_eval(k.value) for k in call.keywords}
    loader: Any = torch.utils.data.DataLoader(list(range(64)), **words)  # type: ignore[arg-type]
    assert (loader.num_workers, loader.prefetch_factor, loader.batch_size) == (2, 4, 32)
    assert loader.in_order is False
    assert loader.persistent_workers is True
    assert "by 4 threads" in text
    assert "torch.set_num_threads(2)" in text
    assert "simplejpeg.decode_jpeg" in text
    alone = code(dataclasses.replace(TORCH, workers=0))
    assert "prefetch_factor" not in alone
    assert "persistent_workers" not in alone


@pytest.mark.parametrize("case", [
    TORCH, Case(loader="dali", workers=3, prefetch=4), Case(loader="dali", format="lmdb"),
    Case(loader="spdl", workers=5, loader_options={"in_order": False}),
    Case(loader="webdataset", format="tar", order="shards:500", workers=3, prefetch=7),
], ids=lambda c: c.pipeline)  # fmt: skip
def test_code_is_python_with_the_case_s_numbers(case: Case) -> None:
    text = code(case)
    ast.parse(text)
    assert str(case.workers) in text
    assert str(case.prefetch) in text


def test_webdataset_s_pipeline_has_the_buffer_and_the_workers_that_were_measured() -> None:
    case = Case(loader="webdataset", format="tar", order="shards:500", workers=3, batch=48)
    text = code(case)
    assert ".shuffle(500)" in text
    assert ".batched(48)" in text
    assert "batch_size=None, num_workers=3, prefetch_factor=2, persistent_workers=True" in text
    assert "prefetch_factor" not in code(dataclasses.replace(case, workers=0))


def test_a_script_is_told_what_changes_and_nothing_else() -> None:
    import torch.utils.data

    text = script_code(TORCH, dataclasses.replace(TORCH, workers=0, prefetch=2, loader_options={}))
    words, threads = [line for line in text.splitlines() if not line.startswith("#")]
    assert words == "num_workers=2, prefetch_factor=4, in_order=False, persistent_workers=True"
    assert threads == "torch.set_num_threads(2)"
    pasted = f"DataLoader(data, batch_size=8, shuffle=True, {words})"
    loader = eval(pasted, {"DataLoader": torch.utils.data.DataLoader, "data": [1, 2, 3]})
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)
    assert (loader.num_workers, loader.batch_size, loader.prefetch_factor) == (2, 8, 4)
    deeper = dataclasses.replace(TORCH, prefetch=7)
    assert "prefetch_factor=7" in script_code(deeper, TORCH)
    assert "num_workers" not in script_code(deeper, TORCH)


def test_dali_s_reader_is_the_one_that_was_measured() -> None:
    case = Case(loader="dali", loader_options={"mmap": False})
    assert "random_shuffle=True, dont_use_mmap=True)" in code(case)
    assert "dont_use_mmap" not in code(dataclasses.replace(case, loader_options={}))
    text = code(dataclasses.replace(case, loader_options={"reader": "external"}))
    ast.parse(text)
    assert "fn.external_source" in text
    assert "py_num_workers=2" in text
    lmdb = Case(format="lmdb", format_options={"readahead": False})
    assert "open lmdb without the kernel's read-ahead" in code(lmdb)


def test_caffe_s_layer_is_prototxt_with_the_case_s_numbers() -> None:
    text = code(Case(loader="native", format="lmdb", batch=48, prefetch=7))
    assert "batch_size: 48" in text
    assert "prefetch: 7" in text
    assert text.count("{") == text.count("}")
    assert set(WRITERS) == {"torch", "dali", "spdl", "native", "webdataset"}
    assert code(Case(loader="null", format="null")) == ""


@pytest.mark.parametrize("changes", [
    {}, {"workers": 0}, {"loader": "dali", "prefetch": 7}, {"format": "lmdb", "batch": 16},
    {"loader_options": {"in_order": False, "threads": 2}, "decoder": "opencv"},
    {"cpus": 2.0, "memory_bytes": 1 << 30, "trainer_options": {"step_s": 0.01}},
])  # fmt: skip
def test_a_spec_comes_back_as_its_case(changes: Any) -> None:
    case = dataclasses.replace(Case(seed=7), **changes)
    document = {"name": "x", "seed": 7, "limit_s": 33.0, "dataset": {"samples": 99}}
    spec = load.parse(document)
    text = spec_text(case, spec, "tuned", 'a "quoted" text', {"repeats": 2})
    found = load.parse_text(text, "t")
    (back,) = expand(found)
    assert dataclasses.replace(back, label="") == case
    assert (found.limit_s, found.dataset.samples, found.ladder.repeats) == (33.0, 99, 2)
