"""What a machine lacks is left out of a suite with the reason, where the spec allows that."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection
from pathlib import Path

import pytest

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable
from iobench.core.protocols import ImageUse
from iobench.host import locks
from iobench.host.agent import Agent
from iobench.plan import rules
from iobench.run import availability
from iobench.run.nodes import Nodes
from iobench.spec import load
from iobench.spec.schema import Spec
from tests.capabilities import need

LIBRARIES = {
    "dali": "nvidia.dali",
    "spdl": "spdl.pipeline",
    "webdataset": "webdataset",
    "parquet": "pyarrow",
    "tfrecord": "google_crc32c",
}


def without(absent: Collection[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Spec, list[str]]:
    """Return the spec ``loaders`` as it runs where these members' libraries are absent."""
    lost = {LIBRARIES[name] for name in absent}
    monkeypatch.setattr(registry, "importable", lambda module: module not in lost)
    return availability.fitted(load.load("loaders"), {})


@pytest.mark.parametrize(
    "absent", [(), ("spdl",), ("dali",), ("dali", "spdl"), tuple(LIBRARIES)], ids="+".join
)
def test_loaders_without_their_libraries_are_left_out_of_the_spec_loaders(
    absent: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, notes = without(absent, monkeypatch)
    cases = load.expand(left)
    assert not {*absent} & {name for case in cases for name in (case.loader, case.format)}
    every = load.expand(load.load("loaders"))
    assert len(notes) == len(every) - len(cases)
    assert all(": left out: " in note and "run `make setup" in note for note in notes)
    rules.check(left)
    named = {case.label: case.workers for case in cases if case.name}
    assert set(named) == {f"{name} defaults" for name in ("torch", "dali", "spdl")
                          if name not in absent}  # fmt: skip
    assert len(left.contrasts) == (len(named) > 1)


def test_another_case_that_is_named_alone_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "importable", lambda module: not module.startswith("spdl"))
    cases = [{"name": "a", "pipeline": "spdl:jpeg"}]
    matrix = {"pipeline": ["torch:jpeg"]}
    with pytest.raises(BackendUnavailable, match="case a: loader 'spdl' cannot run here"):
        availability.fitted(load.parse({"name": "t", "matrix": matrix, "cases": cases}), {})


def test_workers_are_equal_but_for_the_defaults() -> None:
    cases = load.expand(load.load("loaders"))
    assert {case.workers for case in cases if not case.name} == {2}
    counts = {c.label: registry.load("loaders", c.loader).decoding_threads(c)
              for c in cases if c.name}  # fmt: skip
    assert counts == {"torch defaults": 1, "dali defaults": 4, "spdl defaults": 8}


def test_the_defaults_are_the_libraries_own() -> None:
    need("torch")
    need("dali")
    need("spdl")
    import spdl.dataloader
    import torch.utils.data
    from nvidia.dali.pipeline import Pipeline

    def defaults(function: object) -> dict[str, object]:
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
        return {name: parameter.default for name, parameter in parameters.items()}

    named = {case.label: case for case in load.expand(load.load("loaders")) if case.name}
    of_torch = defaults(torch.utils.data.DataLoader)
    assert named["torch defaults"].workers == of_torch["num_workers"]
    of_dali = defaults(Pipeline.__init__)
    assert named["dali defaults"].prefetch == of_dali["prefetch_queue_depth"]
    assert of_dali["num_threads"] is None, "its user must set them"
    of_spdl, spdl_case = defaults(spdl.dataloader.DataLoader), named["spdl defaults"]
    assert (spdl_case.workers, spdl_case.prefetch) == (
        of_spdl["num_threads"], of_spdl["buffer_size"]
    )  # fmt: skip
    order = "input" if spdl_case.loader_options["in_order"] else "completion"
    assert order == of_spdl["output_order"]


def test_readers_that_would_wait_for_a_lock_for_ever_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader has nobody to wait for; other options and formats are not concerned."""
    options = [{"lock": True}, {"lock": False}, {}]
    matrix = {"pipeline": ["torch:lmdb"], "format_options": options, "workers": [1, 2]}
    spec = load.parse({"name": "t", "matrix": matrix})
    availability._unshared.cache_clear()
    assert availability.fitted(spec, {}, tmp_path / "not made yet") == (spec, [])
    monkeypatch.setattr(locks, "unshared", lambda _: "5 of 8 that waited for it did not get it")
    availability._unshared.cache_clear()
    left, notes = availability.fitted(spec, {}, tmp_path)
    availability._unshared.cache_clear()
    assert len(load.expand(left)) == len(load.expand(spec)) - 1
    assert not [c for c in load.expand(left) if c.format_options.get("lock") and c.workers > 1]
    (note,) = notes
    assert note.endswith("a lock there is not shared: 5 of 8 that waited for it did not get it")


class Elsewhere(Agent):
    """The agent of this node under another name."""

    def __init__(self, node: str) -> None:
        self.node = node


def test_a_node_that_lacks_the_results_or_an_image_is_named_before_the_first_trial(
    tmp_path: Path,
) -> None:
    several = Nodes(["a", "b"], [Elsewhere("a"), Elsewhere("b")], "")  # type: ignore[list-item]
    image = tmp_path / "rootfs"
    images = {"torch": ImageUse("torch", "", {"rootfs": str(image)})}
    bare = Case(nodes=2, world_size=2, launcher="mpirun")
    unpacked = dataclasses.replace(bare, runtime="unpacked")
    alone = dataclasses.replace(unpacked, nodes=1)
    availability.on_nodes(None, [bare], {}, tmp_path / "none")
    with pytest.raises(BackendUnavailable, match="node a does not see the results: there is no"):
        availability.on_nodes(several, [bare], {}, tmp_path / "none")
    availability.on_nodes(several, [bare, alone], images, tmp_path)
    with pytest.raises(BackendUnavailable, match=f"node a: runtime 'unpacked' .*{image}"):
        availability.on_nodes(several, [alone, unpacked], images, tmp_path)
    image.mkdir()
    availability.on_nodes(several, [alone, unpacked], images, tmp_path)
