"""What a suite would fail on, or ignore, is said from the spec alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.core.errors import BackendUnavailable, IobenchError
from iobench.data import make
from iobench.host import gpus
from iobench.plan import foresee
from iobench.spec import load

HEAD = 'name = "t"\n'


def notes(text: str, **others: Any) -> list[str]:
    return list(foresee.judged(HEAD + text, "t.toml", **others).notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[dataset]\nsamples = 10", ["batch = 64", "10 samples", "smaller batch"]),
        ("[case]\nsamples = 5000", ["samples = 5000", "at most 1280", "dataset.samples"]),
        ("[dataset]\nsamples = 900000000", ["samples = 900000000", "1 to 2534400"]),
        ("[dataset]\nrecipe = 'imagenet'", ["'imagenet'", "imagenet-like", "smoke"]),
        (
            "[dataset]\nrecipe = 'cifar-like'\n[case]\ntransform = 'crop224'",
            ["'crop224'", "32 pixels", "less than 224", "cifar32, rrc224"],
        ),
        (
            "[case]\npipeline = 'native:lmdb'\ntrainer = 'caffe'\ntransform = 'crop224'\n"
            "order = 'stored'\nloader_options = { rand_skip = 4 }",
            ["rand_skip", "ImageData"],
        ),
        ("[case]\npipeline = 'hdf5'\nformat_options = { shard = 4 }", ["shard = 4", "float"]),
        ("[case]\npipeline = 'threads:jpeg'\nloader_options = { walk = true }", ["walk", "lmdb"]),
        (
            "[case]\npipeline = 'threads:jpeg'\ntrainer = 'caffe'\ntransform = 'crop224'\n"
            "trainer_options = { solver = '/none/solver.prototxt' }",
            ["/none/solver.prototxt", "No such file"],
        ),
        (
            f"[matrix]\nbatch = [1, 2]\nworkers = [{', '.join(map(str, range(300)))}]",
            ["600", "500"],
        ),
        (
            "[case]\npipeline = 'null:null'\n[ladder]\nstages = ['ceiling']",
            ["ladder.stages = ['ceiling']", "nothing to run"],
        ),
        (
            "[[cases]]\npipeline = 'lmdb'\nstages = []",
            ["cases[0].stages", "the list is empty"],
        ),
        ("[ladder]\nrepeats = 1000000", ["ladder.repeats = 1000000", "at most 1000"]),
        (
            "[matrix]\npipeline = ['jpeg', 'lmdb']\n[[contrasts]]\nbase = '=1+1'",
            ["contrasts[0].base", "'=1+1'", "write loader:format"],
        ),
        ("[mlperf]\nworkload = 'unet3d'\nau = 2.0", ["mlperf.au = 2.0", "at most 1"]),
        ("[mlperf]\nworkload = 'unet3d'\naus = 0.9", ["mlperf: unknown key 'aus'", "'au'"]),
    ],
)
def test_what_would_fail_late_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(IobenchError) as caught:
        notes(text)
    assert str(caught.value).startswith("t.toml: ")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[case]\npipeline = 'dali'\nloader_options = { device = 'mixed' }", "loader_options.dev"),
        ("[case]\nloader_options = { pin_memory = true }", "loader_options.pin_memory = true"),
        ("[case]\ntrainer = 'torch'\ntrainer_options = { device = 'cuda' }", "trainer_options.dev"),
    ],
)
def test_a_gpu_that_is_not_here_is_said(
    text: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_DEVICES", ("/none/gpu",))
    with pytest.raises(BackendUnavailable, match=f"{key}.*no GPU is here .*/none/gpu"):
        notes(text)
    monkeypatch.setattr(gpus, "_DEVICES", ("/dev/null",))
    notes(text)


def test_fewer_gpus_than_ranks_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "_DEVICES", (str(tmp_path / "nvidia0"),))
    monkeypatch.setattr(gpus, "_NODES", str(tmp_path))
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    two = """
        [case]
        trainer = "torch"
        trainer_options = { device = "cuda" }
        launcher = "torchrun"
        world_size = 2
    """
    with pytest.raises(BackendUnavailable, match=r"2 ranks .*the node has 1: .*ranks_per_node = 1"):
        notes(two)
    (tmp_path / "nvidia1").touch()
    notes(two)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("stage_to = '/scratch'", "stage_to"),
        ("max_repeated_pairs = 3", "max_repeated_pairs"),
        ("[mlperf]\nworkload = 'unet3d'\nau = 0.9", "mlperf"),
        ("compute_s = 3\n[ladder]\nstages = ['read']", "compute_s"),
        (
            "allow_drop_caches = true\n[ladder]\ncaches = ['warm']\nstages = ['read']",
            "allow_drop_caches",
        ),
        ("first_touch = true\n[ladder]\ncaches = ['warm']\nstages = ['read']", "first_touch"),
        ("servers_cache = '1G'\n[ladder]\ncaches = ['warm']\nstages = ['read']", "servers_cache"),
        ("[case]\nbatch = 4\n[matrix]\nbatch = [8, 16]", "case.batch"),
        (
            "[case]\ntrainer_options = { step_s = 1 }\n[matrix]\ntrainer = ['null']",
            "case.trainer_options.step_s",
        ),
        ("exclude = [{ batch = [3] }]\n[matrix]\nbatch = [8, 16]", "exclude[0]"),
        (
            "[case]\nplacement = 'tmpfs'\n[ladder]\ncaches = ['cold', 'warm']",
            "ladder.caches",
        ),
        (
            "[case]\ntrainer = 'null'\n[ladder]\nstages = ['read', 'h2d']",
            "'h2d' in ladder.stages",
        ),
        ("[case]\npipeline = 'null:null'\n[ladder]\ndigest = false", "ladder.digest"),
        ("[case]\npipeline = 'null:null'\n[ladder]\nprobe = true", "ladder.probe"),
        ("[ladder]\ndigest = true\n[[cases]]\nbatch = 8", "ladder.digest"),
        ("[case]\nsharing = 'disjoint'", "sharing of torch:jpeg"),
        ("[case]\nworkers = 0\nprefetch = 4", "prefetch of torch:jpeg"),
        ("[case]\npipeline = 'null:null'\nprefetch = 4", "prefetch of null:null"),
        (
            "[case]\npipeline = 'native:jpeg'\ntrainer = 'caffe'\ntransform = 'crop224'\n"
            "workers = 4",
            "workers of native:jpeg",
        ),
        (
            "[case]\npipeline = 'dali'\nloader_options = { start_method = 'fork' }",
            "loader_options.start_method of dali:jpeg",
        ),
        (
            "[case]\npipeline = 'dali:lmdb'\norder = 'stored'\n"
            "format_options = { readahead = false }",
            "format_options.readahead of dali:lmdb",
        ),
        (
            "[matrix]\nbatch = [8, 16]\n[[contrasts]]\nover = 'batch'\nbase = 8\ncaches = ['cold']"
            "\nslice_s = 0.2",
            "contrasts[0].slice_s",
        ),
        (
            "[matrix]\nbatch = [8, 16]\n[[contrasts]]\nover = 'batch'\nbase = 8\ncaches = ['warm']"
            "\nslice_s = 0.2",
            "contrasts[0].slice_s",
        ),
        (
            "[matrix]\nbatch = [8, 16]\n[[contrasts]]\nover = 'batch'\nbase = 8\nafter = 5",
            "contrasts[0].after",
        ),
    ],
)
def test_what_has_no_effect_is_said(text: str, key: str) -> None:
    found = notes("budget = '9h'\n" + text)
    assert [note.partition(" has no effect: ")[0] for note in found] == [key]


def test_what_has_an_effect_is_not_remarked_on() -> None:
    for name in load.shipped():
        found = foresee.judged(*load.read(name)).notes
        assert not [note for note in found if not note.startswith("prefetch of native:hdf5-float")]


def test_tiers_holds_every_placement_against_the_data_in_place() -> None:
    plan = foresee.judged(*load.read("tiers")).plan
    placements = {(c.runtime, c.placement) for c in plan.cases}
    bare = {("bare", name) for name in ("bind", "staged", "tmpfs")}
    assert placements == bare | {("apptainer", "bind"), ("apptainer", "image")}
    cold = {t.case.placement for t in plan.trials if (t.stage, t.cache) == ("load", "cold")}
    assert cold == {"bind", "staged", "image"}, "memory is never cold"
    measured = {t.case.placement for t in plan.trials if t.stage == "requests"}
    assert "bind" in measured, "for the prediction at n nodes"
    assert {r.stage for r in plan.rules} == {"load"}


def test_a_budget_that_cannot_hold_the_ladder_is_said_with_what_would() -> None:
    text = "[matrix]\npipeline = ['jpeg', 'lmdb']\n[[contrasts]]\n"
    (note,) = notes(f"budget = '1m'\n{text}")
    assert note.startswith("budget = 60 s cannot hold the ladder")
    for way in ('budget = "', "ladder.repeats = 1", 'ladder.caches = ["warm"]'):
        assert way in note
    assert not notes(f"budget = '1m'\n{text}", budget="9h")


def test_a_note_names_pairs_too_few_for_the_comparisons_and_the_least_enough() -> None:
    def said(pairs: int, batches: str) -> list[str]:
        text = f"[matrix]\nbatch = [{batches}]\n[[contrasts]]\nover = 'batch'\nbase = 8\n"
        return list(notes(f"budget = '9h'\n{text}pairs = {pairs}\ncaches = ['warm']"))

    assert said(6, "8, 16") == []
    (note,) = said(6, "8, 16, 32, 64")
    assert note.startswith("pairs = 6: too few for 3 comparisons")
    assert "pairs = 7 or more" in note
    assert said(7, "8, 16, 32, 64") == []
    assert said(3, "8, 16, 32, 64") == [], "too few for any verdict, as its writer knows"


def test_the_users_dataset_counts_in_place_of_the_recipe(tmp_path: Path) -> None:
    made = make.make("smoke", tmp_path / "d", samples=8, workers=1)
    with pytest.raises(IobenchError, match="the dataset has 8"):
        notes("", data=Path(made.root))
    notes("[case]\nbatch = 4", data=Path(made.root))


def test_a_key_that_another_case_has_is_not_remarked_on() -> None:
    beside = "[[cases]]\npipeline = 'lmdb'\nprefetch = 3\n"
    idle = "[[cases]]\npipeline = 'jpeg'\nworkers = 0\n"
    assert not notes(beside + idle)
    (said,) = notes(beside + idle + "prefetch = 3\n")
    assert said.startswith("prefetch of torch:jpeg has no effect: ")


def test_keys_that_the_users_folder_replaces_are_said(tmp_path: Path) -> None:
    text = "[dataset]\nrecipe = 'smoke'\nsamples = 8\n[case]\nbatch = 4"
    assert not notes(text, data=tmp_path), "of a tree so many are drawn"
    made = make.make("smoke", tmp_path / "d", samples=8, workers=1)
    said = ["dataset.samples has no effect: --data names the samples"]
    assert notes(text, data=Path(made.root)) == said


@pytest.mark.parametrize("folder", ["~/scratch", "$TMPDIR", "/dev/null/x"])
def test_a_folder_that_nothing_can_be_copied_to_is_refused(folder: str) -> None:
    with pytest.raises(IobenchError, match=r"stage_to = .* a folder that can be written"):
        foresee.check_folder(folder)
    foresee.check_folder("/tmp")
