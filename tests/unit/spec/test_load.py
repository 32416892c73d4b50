"""A spec is judged whole, and every error names the key, the value and what is allowed."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from iobench.core import units
from iobench.core.errors import SpecError
from iobench.plan import rules
from iobench.spec import load

BASE: dict[str, Any] = {
    "name": "t",
    "case": {"trainer": "null", "batch": 4},
    "matrix": {"pipeline": ["jpeg", "lmdb"]},
}

SEVERAL: dict[str, Any] = {"trainer": "null", "launcher": "mpirun", "nodes": 2}


def changed(**changes: Any) -> dict[str, Any]:
    return {**BASE, **changes}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (changed(nmae="x"), ["nmae", "'x'", "matrix"]),
        (changed(case={"trainer": "emulatd"}), ["emulatd", "emulated", "null", "torch"]),
        (changed(case={"batch": 0}), ["case.batch", "0"]),
        (changed(case={"wrokers": 2}), ["wrokers", "2", "workers"]),
        (changed(matrix={"pipeline": ["jpg"]}), ["jpg", "lmdb", "dali"]),
        (changed(matrix={"pipeline": ["torch:jpgg"]}), ["jpgg", "jpeg"]),
        (changed(matrix={"pipelines": ["jpeg"]}), ["pipelines", "pipeline"]),
        (changed(matrix={"pipeline": []}), ["matrix.pipeline", "empty"]),
        (changed(case={"nodes": 2, "world_size": 2}), ["nodes = 2", "'local'", "mpirun", "srun"]),
        (
            changed(case={**SEVERAL, "world_size": 3}),
            ["world_size = 3", "nodes = 2", "ranks_per_node"],
        ),
        (
            changed(case={**SEVERAL, "world_size": 3, "ranks_per_node": 2}),
            ["world_size = 3", "make 4", "leave one"],
        ),
        (changed(case={**SEVERAL, "ranks_per_node": 1, "cpus": 1}), ["nodes = 2 with cpus"]),
        (
            changed(case={**SEVERAL, "ranks_per_node": 1, "placement": "tmpfs"}),
            ["nodes = 2 with placement 'tmpfs'", "'bind'"],
        ),
        (
            changed(case={**SEVERAL, "ranks_per_node": 1, "runtime": "charliecloud"}),
            ["'charliecloud'", "does not show a rank who it is", "apptainer", "bare", "unpacked"],
        ),
        (
            changed(case={**SEVERAL, "ranks_per_node": 1, "runtime": "docker"}),
            ["'docker'", "keeps each from the others", "{ network = 'host' }", "apptainer"],
        ),
        (
            changed(
                case={
                    **SEVERAL,
                    "ranks_per_node": 2,
                    "runtime": "podman",
                    "runtime_options": {"network": "host"},
                }
            ),
            ["'podman'", "{ network = 'host', ipc = 'host', pid = 'host' }"],
        ),
        (
            changed(case={"runtime": "docker", "runtime_options": {"network": "bridge"}}),
            ["network", "'bridge'", "none, host"],
        ),
        (
            changed(case={"runtime": "podman", "runtime_options": {"ipc": "host", "shm_mb": 64}}),
            ["shm_mb has no effect with ipc = 'host'"],
        ),
        (
            changed(case={**SEVERAL, "ranks_per_node": 1, "runtime": "apptainer", "scope": "node"}),
            ["scope = 'node'", "'mpirun' starts each rank on several nodes", "torchrun"],
        ),
        (
            changed(
                case={
                    "trainer": "null",
                    "launcher": "srun",
                    "world_size": 2,
                    "runtime": "apptainer",
                    "scope": "node",
                }
            ),
            ["scope = 'node'", "'srun' starts each rank by itself", "torchrun"],
        ),
        (
            changed(
                case={
                    "trainer": "null",
                    "launcher": "torchrun",
                    "world_size": 2,
                    "runtime": "docker",
                }
            ),
            [
                "starts a container a rank",
                "{ network = 'host', ipc = 'host', pid = 'host' }",
                "or set scope = 'node'",
            ],
        ),
        (changed(case={"scope": "socket"}), ["case.scope", "rank", "node"]),
        (changed(case={"order": "random"}), ["random", "shuffled", "window:N"]),
        (changed(case={"order": "window:1"}), ["'window:1'", "window:N", "at least 2"]),
        (changed(case={"order": "window:1234567890"}), ["1234567890", "at most 999999999"]),
        (changed(case={"transform": "rrc225"}), ["rrc225", "rrc224"]),
        (
            changed(case={"trainer": "torch", "trainer_options": {"net": "resnet44cifar"}}),
            ["'rrc224'", "'resnet44cifar'", "3x32x32", "cifar32"],
        ),
        (
            changed(case={"trainer": "torch", "transform": "cifar32"}),
            ["'cifar32'", "usual net", "3x224x224", "crop224, rrc224"],
        ),
        (
            changed(
                case={
                    "trainer": "caffe",
                    "transform": "cifar32",
                    "trainer_options": {"net": "small"},
                },
                matrix={"pipeline": ["threads:lmdb"]},
            ),
            ["'cifar32'", "'small'", "caffe", "crop224, rrc224"],
        ),
        (
            changed(
                case={"trainer": "caffe", "trainer_options": {"net": "vgg"}},
                matrix={"pipeline": ["threads:lmdb"]},
            ),
            ["vgg", "caffenet"],
        ),
        (
            changed(
                matrix={"trainer_options": [{"step_s": 0.1}, {"step_s": 0.2}]},
                case={"pipeline": "jpeg"},
                contrasts=[{"over": "trainer_options", "arms": [{"step_s": 0.3}]}],
            ),
            ["contrasts[0].arms", "{'step_s': 0.3}", "{'step_s': 0.1}, {'step_s': 0.2}"],
        ),
        (
            changed(case={"trainer_options": {"net": "resnet18"}}, matrix={"trainer": ["torch"]}),
            ["case.trainer_options of trainer emulated", "'net'", "step_s"],
        ),
        (changed(ladder={"stages": ["raed"]}), ["raed", "read"]),
        (changed(ladder={"caches": ["hot"]}), ["hot", "cold", "warm"]),
        (changed(ladder={"caches": [1.5]}), ["1.5", "fraction"]),
        (changed(contrasts=[{"over": "pipline"}]), ["pipline", "pipeline"]),
        (changed(contrasts=[{"stage": "fly"}]), ["contrasts[0].stage", "fly", "load"]),
        (changed(budget="soon"), ["soon", "15m"]),
        (changed(case={"image": "troch"}), ["troch", "torch", "caffe"]),
        (changed(case={"cpus": float("inf")}), ["case.cpus", "inf"]),
        (changed(case={"cpus": 0}), ["case.cpus", "0"]),
        (changed(case={"memory": "4 apples"}), ["4 apples", "4G"]),
        (changed(servers_cache="4 racks"), ["servers_cache = '4 racks'", "4G"]),
        (changed(servers_cache=64), ["servers_cache", "64"]),
        (changed(case={"memory": "99999999999T"}), ["99999999999T", "4G"]),
        (changed(case={"placement": "staged"}), ["staged", "stage_to"]),
        (
            changed(case={"runtime": "docker", "runtime_options": {"shm_mb": -1}}),
            ["shm_mb = -1", "at least 0"],
        ),
        (changed(ladder={"only": {"runtime": ["dokcer"]}}), ["dokcer", "docker"]),
        (changed(contrasts=[{"where": {"runtime": ["dokcer"]}}]), ["dokcer", "docker"]),
        (changed(contrasts=[{"caches": []}]), ["contrasts[0].caches", "empty"]),
        (changed(contrasts=[{"pairs": 10**9}]), ["contrasts[0].pairs", "1000000000"]),
        (changed(contrasts=[{"looks": [10, 10**9]}]), ["looks", "100000"]),
        (
            changed(case={"trainer": "emulated", "trainer_options": {"acelerator": "v100"}}),
            ["acelerator", "accelerator", "step_s"],
        ),
        (
            changed(case={"trainer": "emulated", "trainer_options": {"step_s": "fast"}}),
            ["step_s", "fast"],
        ),
        (changed(matrix={"pipeline": ["dali:lmdb"]}), ["dali:lmdb", "shuffled", "stored"]),
        (
            changed(matrix={"pipeline": ["jpeg", "jpeg"]}),
            ["matrix.pipeline", "'jpeg' is named twice"],
        ),
        (changed(case={"batch": 4, "world_size": 2}), ["world_size = 2", "local"]),
        (
            changed(case={"trainer": "emulated", "trainer_options": {"step_s": -1}}),
            ["step_s = -1", "at least 0"],
        ),
        (
            changed(case={"trainer": "emulated", "trainer_options": {"batch": 8}}),
            ["'batch'", "step_s"],
        ),
        (
            changed(case={"trainer": "emulated", "trainer_options": {"step_s": "0.1"}}),
            ["step_s", "'0.1'", "number"],
        ),
        (changed(seed=-1), ["seed", "-1"]),
        (changed(ladder={"stages": []}), ["ladder.stages", "empty"]),
        (changed(ladder={"caches": []}), ["ladder.caches", "empty"]),
        ({"case": {}}, ["name", "missing"]),
        (changed(case={"batch": "64"}), ["case.batch = '64'", "a whole number, at least 1"]),
        (changed(case={"batch": 64.0}), ["case.batch = 64.0", "a whole number"]),
        (changed(case={"batch": True}), ["case.batch = true", "a whole number"]),
        (changed(case={"batch": 10**30}), ["case.batch = 1000000000000", "at most 1000000000"]),
        (changed(case=[]), ["case = []", "a table"]),
        (changed(about=datetime.date(1979, 5, 27)), ["about = 1979-05-27", "text"]),
        (changed(limit_s=float("nan")), ["limit_s = nan", "more than 0, at most 86400"]),
        (changed(contrasts=[{"loop_s": float("inf")}]), ["contrasts[0].loop_s = inf", "a number"]),
        (changed(seed=2**63), ["seed = 9223372036854775808", "less than 9223372036854775808"]),
        (
            changed(case={"trainer": "emulated", "trainer_options": {"step_s": float("nan")}}),
            ["step_s = nan", "a finite number"],
        ),
        (changed(ladder={"stages": ["read", "read"]}), ["ladder.stages", "'read' is named twice"]),
        (changed(about="a\nb"), ["about = 'a\\nb'", "control characters"]),
        (changed(exclude=[{"batch": [float("nan")]}]), ["exclude[0].batch[0] = nan", "finite"]),
        (changed(budget="9" * 400), ["budget = '999", "15m"]),
        (changed(budget="\u0661\u0665m"), ["budget", "15m"]),
        (changed(case={"x\x1b[2J": 1}), ["'x\\x1b[2J'", "allowed"]),
        (changed(case={"trianer": "null"}), ["'trianer'", "did you mean 'trainer'?"]),
        (
            changed(case={"content": "jpeg"}, matrix={"pipeline": ["lmdb-raw", "torch:lmdb-raw"]}),
            ["lmdb-raw"],
        ),
        (
            changed(case={"content": "jpeg"}, matrix={"pipeline": ["torch:lmdb-raw"]}),
            ["content = 'jpeg'", "'torch:lmdb-raw'", "leave one"],
        ),
        (
            changed(case={"placement": "staged"}, contrasts=[{}] * 501),
            ["contrasts", "at most 500"],
        ),
    ],
)
def test_errors_teach(document: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        load.parse(document, where="my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_matrix_crosses_and_labels_tell_cases_apart() -> None:
    found = load.expand(
        load.parse(changed(matrix={"pipeline": ["jpeg", "lmdb"], "workers": [1, 2]}))
    )
    assert [c.label for c in found] == [
        "torch:jpeg workers=1",
        "torch:jpeg workers=2",
        "torch:lmdb workers=1",
        "torch:lmdb workers=2",
    ]
    assert {c.batch for c in found} == {4}


def test_extra_cases_have_their_own_trainer_and_options() -> None:
    parsed = load.parse(
        changed(
            case={"trainer": "emulated", "trainer_options": {"accelerator": "v100"}},
            cases=[
                {"pipeline": "jpeg", "trainer": "torch", "trainer_options": {"net": "resnet18"}}
            ],
        )
    )
    cases = load.expand(parsed)
    assert [c.trainer for c in cases] == ["emulated", "emulated", "torch"]
    assert cases[-1].trainer_options == {"net": "resnet18"}
    assert list(load.extra_cases(parsed, cases)) == [cases[-1].label]
    assert [c.label for c in cases] == [
        "torch:jpeg",
        "torch:lmdb",
        "torch:jpeg trainer=torch trainer_options=net:resnet18",
    ]


def test_options_of_a_trainer_that_is_not_named_are_the_usual_ones() -> None:
    options = {"accelerator": "a100"}
    document = {
        "name": "t",
        "case": {"trainer_options": options, "batch": 4},
        "matrix": {"pipeline": ["jpeg"], "trainer": ["null", "emulated"]},
        "cases": [{"pipeline": "lmdb", "trainer": "null"}, {"pipeline": "lmdb", "batch": 8}],
    }
    for case in (document["case"], {**document["case"], "trainer": "emulated"}):
        found = load.expand(load.parse({**document, "case": case}))
        assert [(c.trainer, c.trainer_options) for c in found] == [
            ("null", {}), ("emulated", options), ("null", {}), ("emulated", options),
        ]  # fmt: skip


def test_a_contrast_may_be_over_options() -> None:
    values = [{"step_s": 0.1}, {"step_s": 0.2}]
    contrast = {"over": "trainer_options", "arms": values[1:]}
    document = {"name": "t", "case": {"pipeline": "jpeg"}, "matrix": {"trainer_options": values}}
    assert load.parse({**document, "contrasts": [contrast]}).contrasts[0].arms == ({"step_s": 0.2},)


@pytest.mark.parametrize(
    ("trainer", "options", "transform"),
    [
        ("torch", {"net": "resnet44cifar"}, "cifar32"),
        ("torch", {}, "rrc224"),
        ("caffe", {"net": "small"}, "crop224"),
        ("null", {}, "cifar32"),
        ("emulated", {}, "cifar32"),
    ],
)
def test_a_transform_that_fits_the_net_is_taken(
    trainer: str, options: dict[str, Any], transform: str
) -> None:
    case = {"pipeline": "threads:jpeg", "trainer": trainer, "trainer_options": options}
    load.parse({"name": "t", "case": {**case, "transform": transform}})


@pytest.mark.parametrize("name", sorted(load.shipped()))
def test_shipped_specs_are_valid_and_say_what_they_are_for(name: str) -> None:
    shipped = load.load(name)
    assert shipped.about
    rules.check(shipped)


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("15m", 900), ("4h", 14400), ("1.5h", 5400), ("30", 30)]
)
def test_durations(text: str, expected: float) -> None:
    assert units.seconds(text) == expected


def test_unknown_spec_lists_the_shipped_ones() -> None:
    with pytest.raises(SpecError, match=r"bench-io.*smoke"):
        load.load("benchio")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"name = 'x\xff'", "byte 10 is not UTF-8"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"a = " + b"9" * 5000, "too many digits"),
        (b"#" * (1 << 20) + b"#", "longer than 1048576 bytes"),
        (b"a = \0", "line 1, column 5"),
    ],
)
def test_what_is_no_toml_is_said_in_one_line(tmp_path: Any, data: bytes, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=words) as caught:
        load.load(str(path))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"spec {path} is ")


@pytest.mark.parametrize("name", [".", "/dev/zero", "x\0.toml", f"{'x' * 5000}.toml", "x" * 5000])
def test_what_is_no_file_is_said(name: str) -> None:
    with pytest.raises(SpecError, match=r"give a \.toml file"):
        load.load(name)


def test_a_content_of_the_defaults_counts_for_every_pipeline() -> None:
    document = {"name": "t", "case": {"content": "raw"}, "matrix": {"pipeline": ["lmdb", "hdf5"]}}
    found = load.expand(load.parse(document))
    assert [c.pipeline for c in found] == ["torch:lmdb-raw", "torch:hdf5-raw"]


def test_broken_toml_names_the_line(tmp_path: Any) -> None:
    path = tmp_path / "x.toml"
    path.write_text("name = 'x'\nbudget = \n")
    with pytest.raises(SpecError, match=r"x\.toml is not valid TOML.*line 2"):
        load.load(str(path))


def test_several_tables_vary_one_factor_after_the_other() -> None:
    tables = [
        {"pipeline": ["jpeg", "lmdb"]},
        {"pipeline": "jpeg", "workers": [1, 2]},
        {"pipeline": "jpeg", "batch": [2, 4]},
    ]
    found = load.expand(load.parse(changed(case={"workers": 2, "batch": 4}, matrix=tables)))
    assert [(c.format, c.workers, c.batch) for c in found] == [
        ("jpeg", 2, 4),
        ("lmdb", 2, 4),
        ("jpeg", 1, 4),
        ("jpeg", 2, 2),
    ]


@pytest.mark.parametrize("keys", [("pipeline", "content"), ("content", "pipeline")])
def test_content_counts_after_the_pipeline_that_does_not_say_it(keys: tuple[str, str]) -> None:
    values = {"pipeline": "torch:lmdb", "content": "raw"}
    (case,) = load.expand(load.parse({"name": "t", "case": {key: values[key] for key in keys}}))
    assert case.pipeline == "torch:lmdb-raw"


def test_ranks_a_node_make_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = load.expand(
        load.parse(changed(case={**SEVERAL, "ranks_per_node": 2, "batch": 4},
                           matrix={"pipeline": ["jpeg"], "nodes": [1, 2]}))
    )  # fmt: skip
    assert [(c.nodes, c.world_size, c.ranks_per_node) for c in cases] == [(1, 2, 2), (2, 4, 2)]
    assert "nodes=2" in cases[1].label


def test_nodes_are_compared_with_as_many_ranks_on_each() -> None:
    spec = load.parse(changed(case={**SEVERAL, "ranks_per_node": 2, "batch": 4},
                              matrix={"pipeline": ["jpeg"], "nodes": [1, 2]},
                              contrasts=[{"over": "nodes", "base": 1}]))  # fmt: skip
    (rule,) = rules.rules(spec, load.expand(spec))
    assert len(rule.groups) == 1
    assert {cell.slice_s for cell in rule.cells} == {0.0}, "ranks of several nodes take no turns"
