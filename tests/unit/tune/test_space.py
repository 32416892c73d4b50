"""What a search may try: knobs that can bind, settings that are allowed, each once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from iobench.core.cases import Case
from iobench.core.errors import ResultsError
from iobench.spec.case_rules import check_case
from iobench.tune.bounds import Bounds
from iobench.tune.knobs import KNOBS
from iobench.tune.settings import TuneSettings, load
from iobench.tune.space import Space, defaults, key, queue_bytes, space

CURRENT = Case(label="torch:jpeg", workers=2)


#: Knob -> a case that has it, where the current one has not.
OWNERS: dict[str, dict[str, Any]] = {
    "loader_options.pin_memory": {"trainer_options": {"device": "cuda"}},
    "loader_options.reader": {"loader": "dali"},
    "loader_options.mmap": {"loader": "dali"},
    "format_options.readahead": {"format": "lmdb"},
}


def asked(**changes: Any) -> TuneSettings:
    return TuneSettings(**{"minutes": 1.0, "cache": "warm", "current": "x", "cores": 4, **changes})


def bounds(compute: float = 500.0, **roofs: float) -> Bounds:
    parts = {"read": 5000.0, "decode": 400.0, "load": 300.0, **roofs}
    return Bounds(compute, 250.0, parts, workers=2, cores=4, trains_here=False)


def fields(found: Space) -> set[str]:
    return {knob.field for knob in found.knobs}


def test_what_cannot_bind_is_left_out_with_its_figures() -> None:
    found = space(CURRENT, asked(formats=("lmdb",)), bounds())
    assert "decoder" in fields(found)
    assert "loader_options.threads" not in fields(found)
    assert "torch:lmdb" not in found.pipelines
    assert found.left_out["torch:lmdb"] == "reading gives 5,000 samples/s, the compute takes 500"
    assert "does not compute on the loader's cores" in found.left_out["trainer_options.threads"]


def test_slow_reading_brings_formats_and_threads_in() -> None:
    found = space(CURRENT, asked(formats=("lmdb",)), bounds(read=200.0))
    assert "torch:lmdb" in found.pipelines
    assert "loader_options.threads" in fields(found)


def test_preparing_that_is_fast_enough_leaves_the_queue_alone_to_be_tried() -> None:
    found = space(CURRENT, asked(), bounds(load=1500.0, decode=2000.0))
    assert {"workers", "prefetch", "loader_options.in_order"} <= fields(found)
    assert "decoder" not in fields(found)
    assert list(found.pipelines) == ["torch:jpeg"]


def test_a_queue_that_is_always_empty_has_no_depth_to_try() -> None:
    found = space(CURRENT, asked(), bounds(compute=5000.0))
    assert not {"prefetch", "loader_options.in_order"} & fields(found)
    assert "the queue is always empty" in found.left_out["prefetch"]


def waits() -> Bounds:
    """Two workers that wait for their data: 40 ms for a sample, 2 ms of it on a core."""
    return dataclasses.replace(bounds(compute=2500.0, load=50.0), cpu_s=0.002)


def test_workers_that_wait_are_as_many_as_their_waits_ask_for() -> None:
    found = space(CURRENT, asked(), waits())
    (workers,) = (knob for knob in found.knobs if knob.field == "workers")
    assert waits().useful_workers() == 80
    assert max(workers.values(CURRENT, asked())) == 96
    assert [case.workers for case in found.starts()][-1] == workers.start == 64
    assert {"prefetch", "loader_options.in_order"} <= fields(found), "they can fill the queue"


@pytest.mark.parametrize(
    ("limits", "changes"),
    [
        (None, {}),
        (dataclasses.replace(waits(), cpu_s=0.03), {}),  # 133 samples/s on four cores
        (dataclasses.replace(waits(), cpu_s=0.0), {}),
        (waits(), {"only": {"prefetch": (2, 4)}}),
        (waits(), {"only": {"workers": (2, 16)}}),
    ],
)
def test_no_more_workers_than_usual(limits: Bounds | None, changes: dict[str, Any]) -> None:
    found = space(CURRENT, asked(**changes), limits)
    assert all(knob.start is None for knob in found.knobs)
    assert max(case.workers for case in found.points()) <= 32
    assert len({key(case) for case in found.starts()}) == len(found.starts())


def test_a_loader_of_threads_has_no_workers_to_begin_with() -> None:
    found = space(dataclasses.replace(CURRENT, loader="spdl"), asked(), waits())
    assert len({key(case) for case in found.starts()}) == len(found.starts())


def test_batch_and_order_are_tried_only_if_asked_for() -> None:
    assert not {"batch", "order"} & fields(space(CURRENT, asked(), None))
    wanted = asked(batches=(32, 64), any_order=True)
    found = space(CURRENT, wanted, bounds(compute=3000.0, decode=9000.0, load=9000.0))
    assert {"batch", "order"} <= fields(found)
    assert {case.order for case in found.points()} == {"shuffled", "stored"}


def test_points_are_allowed_and_each_comes_once() -> None:
    limits = bounds(compute=400.0)
    found = space(CURRENT, asked(memory_bytes=400 << 20), limits)
    points = list(found.points())
    keys = [key(case) for case in points]
    assert len(keys) == len(set(keys))
    assert all(queue_bytes(case) <= 400 << 20 for case in points)
    assert len(points) < len(list(space(CURRENT, asked(), limits).points()))


def test_it_begins_on_all_cores_with_every_pipeline_and_decoder() -> None:
    found = space(CURRENT, asked(), bounds(compute=3000.0))
    starts = found.starts()
    assert {case.workers for case in starts} == {4}
    assert {case.loader for case in starts} == {c.loader for c in found.pipelines.values()}
    points = {key(case) for case in found.points()}
    assert {key(case) for case in starts} <= points


def test_only_what_is_named_may_change_and_to_these_values() -> None:
    only = {"workers": (1, 5), "prefetch": (2,), "pipeline": ("torch:lmdb",)}
    found = space(CURRENT, asked(formats=("lmdb",), only=only), None)
    assert list(found.pipelines) == ["torch:jpeg", "torch:lmdb"]
    points = list(found.points())
    assert {(c.workers, c.prefetch, c.format) for c in points} == {
        (w, 2, form) for w in (1, 5) for form in ("jpeg", "lmdb")
    }
    assert len(points) == found.count(600) == 4
    assert found.count(3) == 3
    assert found.left_out["decoder"] == "it is not among what may be changed"
    assert list(space(CURRENT, asked(only={"workers": (1, 2)}), None).pipelines) == ["torch:jpeg"]


def test_steps_change_one_knob_each_the_farthest_first() -> None:
    only = {"workers": (1, 2, 3, 4, 8), "prefetch": (1, 2, 4),
            "loader_options.in_order": (True, False)}  # fmt: skip
    found = space(CURRENT, asked(only=only), None)
    ranks = found.steps(CURRENT)
    assert list(map(len, ranks)) == [3, 2, 1]
    steps = [case for rank in ranks for _, case in rank]
    assert [(c.workers, c.prefetch, c.loader_options) for c in steps] == [
        (4, 2, {}), (2, 4, {}), (2, 2, {"in_order": False}), (3, 2, {}), (2, 1, {}), (1, 2, {}),
    ]  # fmt: skip
    assert found.steps(steps[0])[0][0][1].workers == 8


def test_threads_of_loader_and_trainer_are_two_parameters() -> None:
    case = dataclasses.replace(CURRENT, trainer="torch")
    names = {knob.name(case) for knob in KNOBS if knob.field.endswith(".threads")}
    assert len(names) == 2


def test_the_defaults_of_other_libraries_are_cases_of_their_own() -> None:
    case = dataclasses.replace(CURRENT, workers=7, prefetch=9)
    for other in defaults(case, asked()):
        assert other.loader != "torch"
        assert other.format == "jpeg"
        check_case(other, "a library's defaults")
        assert other.prefetch != 9 or other.loader == "spdl"
        assert other.label != case.label
    tar = dataclasses.replace(case, format="tar", label="torch:tar")
    everything = [*defaults(case, asked()), *defaults(tar, asked(any_order=True))]
    assert all(other.stored_form == "tar" for other in everything if other.loader == "webdataset")


def test_webdataset_comes_in_with_an_order_of_its_own_where_any_may_be_tried() -> None:
    case = dataclasses.replace(CURRENT, format="tar", label="torch:tar")
    strict = space(case, asked(), None)
    assert "webdataset:tar" in strict.left_out
    free = space(case, asked(any_order=True), None)
    if found := free.pipelines.get("webdataset:tar"):
        assert found.order == "shards:1000"
        (order,) = (k for k in free.knobs if k.field == "order")
        assert not order.values(found, free.asked)


def test_core_hours_end_a_search_before_its_minutes() -> None:
    assert asked(minutes=10, core_hours=0.5, cores=4).limit_s == 450
    assert asked(minutes=5, core_hours=0.5, cores=4).limit_s == 300
    assert asked(minutes=5).limit_s == 300


def test_knobs_of_another_loader_or_format_have_no_values() -> None:
    by_field = {knob.field: knob for knob in KNOBS}
    for field in OWNERS:
        assert not by_field[field].values(CURRENT, asked())
    dali = dataclasses.replace(CURRENT, loader="dali", loader_options={"reader": "external"})
    assert by_field["loader_options.reader"].values(dali, asked()) == ("native", "external")
    assert not by_field["loader_options.mmap"].values(dali, asked())  # no reader of DALI's own


@pytest.mark.parametrize("knob", KNOBS, ids=lambda k: k.field)
def test_a_knob_sets_what_it_says(knob: Any) -> None:
    case = dataclasses.replace(CURRENT, trainer="torch", **OWNERS.get(knob.field, {}))
    values = list(knob.values(case, asked(batches=(32, 64), any_order=True)))
    assert len(values) > 1
    owner, _, option = knob.field.partition(".")
    for value in values:
        got = getattr(knob.set(case, value), owner)
        assert (got.get(option, knob.usual) if option else got) == value
        assert not option or option not in got or value != knob.usual


def test_settings_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    wanted = asked(formats=("lmdb",), batches=(32,), memory_bytes=5, libraries=True,
                   only={"workers": (1, 2), "loader_options.in_order": (False,)})  # fmt: skip
    wanted.save(tmp_path)
    assert load(tmp_path) == wanted
    with pytest.raises(ResultsError, match=r"no search of `iobench tune`"):
        load(tmp_path / "elsewhere")
