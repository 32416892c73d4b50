"""Executable page-ins: judged and shown without, recorded with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from iobench.analysis import page_ins
from iobench.core.cases import Case, Trial, to_json
from iobench.core.records import INVALID, VALID, CacheProof, Record
from iobench.run import cache_state
from iobench.run.store import Store

WARM = CacheProof(
    "warm", "cachestat", 1.0, 1.0, bytes_needed=1000, bytes_storage=4096, counter="read_bytes",
    programs="the image's own files",
)  # fmt: skip


@pytest.mark.parametrize(
    ("cache", "changes", "left"),
    [
        ("warm", {}, 0),
        ("warm", {"programs": ""}, 4096),
        ("warm", {"resident_after": 0.9995}, 4096),
        ("warm", {"resident_before": None}, 4096),
        ("warm", {"resident_before": None, "resident_after": None}, 4096),
        ("warm", {"bytes_storage": None}, None),
        ("cold", {}, 4096),
        ("0.5", {}, 4096),
    ],
)
def test_only_those_of_wholly_resident_data_are_excluded(
    cache: str, changes: dict[str, object], left: int | None
) -> None:
    proof = dataclasses.replace(WARM, **changes)  # type: ignore[arg-type]
    assert page_ins.without_programs(cache, proof) == left


def test_the_judgement_excludes_them() -> None:
    assert cache_state.judge("warm", "load", WARM) == (VALID, ())
    status, (reason,) = cache_state.judge("warm", "load", dataclasses.replace(WARM, programs=""))
    assert status == INVALID
    assert "4096 bytes crossed the mount" in reason


def test_a_record_of_schema_1_gets_its_counted_bytes_back(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    record = Record(Trial("t", Case(), "load", "warm"), 1, VALID, (), "2026", 1.0, WARM)
    document = to_json(record)
    old = {**document["cache"], "bytes_storage": 0}
    old["counter"] = "read_bytes, without 4096 of the image's own files"
    del old["programs"]
    path = tmp_path / "runs" / "t.1.json"
    path.write_text(json.dumps({**document, "cache": old, "schema": 1}))
    (found,) = Store(tmp_path).records()
    assert found.cache == WARM
    assert page_ins.data_bytes(found) == 0
    path.write_text(json.dumps({**document, "cache": {**old, "counter": "c"}, "schema": 1}))
    (found,) = Store(tmp_path).records()
    assert (found.cache.bytes_storage, found.cache.counter, found.cache.programs) == (0, "c", "")
