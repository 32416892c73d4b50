"""Which trials, in which order: drawn from a seed, nothing run."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from iobench.core.cases import Case, Trial
from iobench.core.errors import SpecError
from iobench.plan import blocks as plan_blocks
from iobench.plan import contrasts, ladder, rules
from iobench.spec import load, schema

DOCUMENT = {
    "name": "t",
    "case": {"trainer": "emulated", "batch": 4},
    "matrix": {"pipeline": ["lmdb", "jpeg", "dali"]},
    "ladder": {"repeats": 3},
    "contrasts": [{"base": "fastest", "pairs": 10}],
}


def suite() -> tuple[schema.Spec, tuple]:
    parsed = load.parse(DOCUMENT)
    return parsed, load.expand(parsed)


def test_every_rung_has_its_repeats() -> None:
    parsed, cases = suite()
    counts = Counter((t.case.label, t.stage, t.cache) for t in ladder.ladder(parsed, cases))
    for stage, caches in [
        ("ceiling", ["cold"]),
        ("read", ["cold", "warm"]),
        ("decode", ["warm"]),
        ("load", ["cold", "warm"]),
        ("train", ["cold", "warm"]),
    ]:
        for cache in caches:
            assert counts["torch:lmdb", stage, cache] == 3
    assert counts["dali:jpeg", "decode", "warm"] == 0
    assert "decode" in ladder.rungs_missing(cases[2])
    assert counts["torch:lmdb", "compute", "-"] == 3
    assert counts["torch:jpeg", "compute", "-"] == 0, "one compute rung serves all pipelines"


def test_repeats_are_spread_over_time() -> None:
    parsed, cases = suite()
    blocks = [t.block for t in ladder.ladder(parsed, cases)]
    assert blocks == sorted(blocks)


def test_ids_are_unique_ordered_and_safe_as_file_names() -> None:
    parsed, cases = suite()
    ids = [t.id for t in ladder.ladder(parsed, cases)]
    assert ids == sorted(set(ids))
    assert not any("/" in i or ":" in i or " " in i for i in ids)


def pairs_of(trials: list[Trial]) -> list[tuple[Trial, Trial]]:
    return list(zip(trials[::2], trials[1::2], strict=True))


def test_blocks_are_pairs_back_to_back_in_drawn_orders() -> None:
    parsed, cases = suite()
    found = contrasts.contrasts(
        rules.rules(parsed, cases), {("load", "warm"): ["torch:jpeg", "torch:lmdb"]}
    )
    assert [(c.arm, c.base, c.cache) for c in found] == [
        ("torch:lmdb", "torch:jpeg", "warm"),
        ("dali:jpeg", "torch:jpeg", "warm"),
        ("torch:jpeg", "torch:lmdb", "cold"),
        ("dali:jpeg", "torch:lmdb", "cold"),
    ]
    trials = plan_blocks.blocks(found, cases, seed=3, start=50)
    assert trials[0].id.startswith("0050-")
    assert len(trials) == 2 * 10 * 4
    for first, second in pairs_of(trials):
        assert (first.contrast, first.block) == (second.contrast, second.block)
        assert (first.position, second.position) == (0, 1)
        contrast = next(c for c in found if c.id == first.contrast)
        assert {first.arm, second.arm} == {contrast.arm, contrast.base}
    for contrast in found:
        firsts = {t.block: t.arm for t in trials if t.contrast == contrast.id and t.position == 0}
        assert sorted(firsts) == list(range(1, 11))
        assert set(firsts.values()) == {contrast.arm, contrast.base}
    assert [t.contrast for t in trials] != sorted(t.contrast for t in trials), "shuffled"


def test_the_same_seed_draws_the_same_plan() -> None:
    parsed, cases = suite()
    found = contrasts.contrasts(rules.rules(parsed, cases), {})
    assert plan_blocks.blocks(found, cases, seed=3, start=1) == plan_blocks.blocks(
        found, cases, seed=3, start=1
    )
    assert plan_blocks.blocks(found, cases, seed=3, start=1) != plan_blocks.blocks(
        found, cases, seed=4, start=1
    )


def test_a_contrast_over_workers_stays_inside_its_pipeline() -> None:
    parsed = load.parse(
        {
            **DOCUMENT,
            "matrix": {"pipeline": ["lmdb", "jpeg"], "workers": [1, 2, 4]},
            "contrasts": [{"over": "workers", "base": 2, "caches": ["warm"]}],
        }
    )
    found = contrasts.contrasts(rules.rules(parsed, load.expand(parsed)), {})
    assert [(c.arm, c.base) for c in found] == [
        ("torch:lmdb workers=1", "torch:lmdb workers=2"),
        ("torch:lmdb workers=4", "torch:lmdb workers=2"),
        ("torch:jpeg workers=1", "torch:jpeg workers=2"),
        ("torch:jpeg workers=4", "torch:jpeg workers=2"),
    ]


@pytest.mark.parametrize(
    ("contrast", "words"),
    [
        (
            {"over": "batch", "base": 4},
            r"contrasts\[0\].*'batch'.*nothing to compare.*matrix.batch",
        ),
        ({"base": "torch:tar"}, r"contrasts\[0\].*'torch:tar'.*torch:lmdb"),
    ],
)
def test_a_contrast_that_compares_nothing_is_refused(
    contrast: dict[str, object], words: str
) -> None:
    parsed = load.parse({**DOCUMENT, "contrasts": [contrast]})
    with pytest.raises(SpecError, match=words):
        contrasts.contrasts(rules.rules(parsed, load.expand(parsed)), {})


def test_a_format_without_bytes_has_no_rung_that_decodes() -> None:
    parsed = load.parse({**DOCUMENT, "matrix": {"pipeline": ["torch:null"]}, "contrasts": []})
    missing = ladder.rungs_missing(load.expand(parsed)[0])
    of_files = {"ceiling", "requests", "reread", "metadata", "files"}
    assert set(missing) == {*of_files, "decode", "load", "roof", "train", "h2d"}
    null = load.parse({**DOCUMENT, "matrix": {"pipeline": ["null:null"]}, "contrasts": []})
    assert set(ladder.rungs_missing(load.expand(null)[0])) == {*of_files, "roof", "h2d"}


@pytest.mark.parametrize(
    ("runtime", "nodes", "missing"),
    [("docker", 1, False), ("docker", 2, True), ("podman", 2, True), ("bare", 2, False)],
)
def test_a_start_from_the_store_of_an_engine_is_measured_on_one_node(
    runtime: str, nodes: int, missing: bool
) -> None:
    case = Case(runtime=runtime, nodes=nodes, world_size=nodes, launcher="mpirun")
    assert ("start" in ladder.rungs_missing(case)) == missing


def test_on_a_gpu_only_the_same_loader_shares_a_compute_rung() -> None:
    """It decides whether batches lie on the host, pinned or not, or on the GPU."""

    def keys(device: str) -> set[str]:
        options = {"net": "resnet18", "device": device}
        cases = [
            Case(loader="torch", format="lmdb"),
            Case(loader="torch", format="jpeg"),
            Case(loader="torch", loader_options={"pin_memory": False}),
            Case(loader="dali"),
            Case(loader="dali", loader_options={"device": "mixed"}),
        ]
        cases = [dataclasses.replace(c, trainer="torch", trainer_options=options) for c in cases]
        return {repr(ladder.compute_key(c)) for c in cases}

    assert len(keys("cpu")) == 1
    assert len(keys("cuda")) == 4


def test_only_what_goes_to_a_gpu_is_copied() -> None:
    cuda = Case(loader="torch", trainer="torch", trainer_options={"device": "cuda"})
    assert "h2d" not in ladder.rungs_missing(cuda)
    mixed = dataclasses.replace(cuda, loader="dali", loader_options={"device": "mixed"})
    assert "on the GPU" in ladder.rungs_missing(mixed)["h2d"]
    there = dataclasses.replace(cuda, trainer_options={})
    assert "not on a GPU" in ladder.rungs_missing(there)["h2d"]
    emulated = dataclasses.replace(there, trainer="emulated")
    assert "has no 'copy'" in ladder.rungs_missing(emulated)["h2d"]


def test_the_mount_is_measured_once_where_a_spec_names_it() -> None:
    """Cases on the same files share it; those on another stored form have files of their own."""
    pipelines = {"pipeline": ["torch:jpeg", "torch:lmdb"], "workers": [1, 2]}
    document = {**DOCUMENT, "matrix": pipelines, "contrasts": []}
    usual = load.parse(document)
    assert "requests" not in usual.ladder.stages
    named = load.parse({**document, "ladder": {"stages": ["requests", "read"], "repeats": 2}})
    trials = [t for t in ladder.ladder(named, load.expand(named)) if t.stage == "requests"]
    assert sorted((t.case.label, t.cache) for t in trials) == [
        ("torch:jpeg workers=1", "cold"),
        ("torch:jpeg workers=1", "cold"),
        ("torch:lmdb workers=1", "cold"),
        ("torch:lmdb workers=1", "cold"),
    ]


def test_whole_files_are_timed_where_a_sample_is_one() -> None:
    pipelines = {"pipeline": ["torch:jpeg", "torch:lmdb"]}
    stages = {"stages": ["metadata", "files"], "repeats": 1}
    parsed = load.parse({**DOCUMENT, "matrix": pipelines, "ladder": stages, "contrasts": []})
    cases = load.expand(parsed)
    trials = [(t.case.label, t.stage, t.cache) for t in ladder.ladder(parsed, cases)]
    assert ("torch:jpeg", "files", "cold") in trials
    assert [t for t in trials if t[1] == "metadata"] == [("torch:jpeg", "metadata", "-")]
    assert not [t for t in trials if t[:2] == ("torch:lmdb", "files")]
    assert "several samples a file" in ladder.rungs_missing(cases[1])["files"]


def test_steady_is_measured_where_samples_are_read() -> None:
    pipelines = {"pipeline": ["torch:jpeg"]}
    rungs = {"stages": ["ceiling", "read", "decode", "load"], "caches": ["steady"], "repeats": 1}
    parsed = load.parse({**DOCUMENT, "matrix": pipelines, "ladder": rungs, "contrasts": []})
    trials = [t for t in ladder.ladder(parsed, load.expand(parsed)) if t.cache == "steady"]
    assert sorted(t.stage for t in trials) == ["load", "read"]
    assert {(t.epochs, t.all_epochs) for t in trials} == {(1, 3)}


def computing(document: dict[str, object]) -> list[str]:
    parsed = load.parse(document)
    trials = ladder.ladder(parsed, load.expand(parsed))
    return sorted({t.case.label for t in trials if t.stage == "compute"})


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"workers": 4, "stages": ["compute"]}, ["torch:jpeg workers=4"]),
        ({"workers": 4, "stages": ["read"]}, []),
    ],
)
def test_a_compute_rung_is_left_to_a_case_that_runs_it(
    extra: dict[str, object], expected: list[str]
) -> None:
    document = {
        **DOCUMENT,
        "ladder": {"stages": ["load", "train"]},
        "cases": [{"pipeline": "jpeg", **extra}],
    }
    assert computing(document) == expected
    assert computing({**document, "ladder": {"stages": ["load", "compute"]}}) == ["torch:lmdb"]
