"""Prototxt by hand: text that reads back, nets with their papers' parameters, users' solvers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from iobench.backends.caffe import layers, library, nets, solver
from iobench.backends.caffe.prototxt import Message, Word, message, parse, render
from iobench.backends.trainers import _torch_nets as torch_nets
from iobench.core.errors import SpecError

DATA = layers.memory(2, (3, 224, 224))


# -- the text format -------------------------------------------------------------------------


def test_what_is_rendered_reads_back() -> None:
    made = message(
        name='a "quoted" \\ name\nof two lines',
        flag=True,
        count=3,
        rate=0.0005,
        pool=Word("MAX"),
        top=["data", "label"],
        left_out=None,
        inner=message(deep=message(value=-1.5)),
    )
    text = render(made)
    assert text.splitlines()[1:5] == ["flag: true", "count: 3", "rate: 0.0005", "pool: MAX"]
    found = parse(text, "x")
    assert found.get("name") == 'a "quoted" \\ name\nof two lines'
    assert found.all("top") == ["data", "label"]
    assert found.get("inner").get("deep").get("value") == "-1.5"
    assert render(found) == text


def test_all_spellings_of_the_format_are_read() -> None:
    text = """
    # a comment { with brackets
    net: "a" "b"   # strings side by side are one
    dim: [1, 2,3]; lr: 1e-3, mode: GPU
    one < two: { three: 'x\\x41\\102' } >
    include: { phase: TEST }
    """
    found = parse(text, "x")
    assert found.get("net") == "ab"
    assert found.all("dim") == ["1", "2", "3"]
    assert isinstance(found.get("mode"), Word)
    assert found.get("one").get("two").get("three") == "xAB"
    assert found.get("include").get("phase") == "TEST"
    assert found.get("nothing", 7) == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name: "x', ["line 1", "not closed"]),
        ("a: 1\nlayer {\n  b: 2\n", ["line 4", "'}' is missing"]),
        ("a: 1\n}", ["line 2", "closes nothing"]),
        ("a 1", ["line 1", "after 'a'"]),
        ("a: }", ["a value is missing"]),
        ("a: [1, 2", ["a value is missing"]),
        ("a: < b: 1 }", ["'>' is missing"]),
    ],
)
def test_what_is_no_prototxt_is_told_with_its_line(text: str, words: List[str]) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "my.prototxt")
    assert all(word in str(caught.value) for word in ["my.prototxt", *words])


# -- nets ------------------------------------------------------------------------------------

#: Trained values with 1000 classes.  CaffeNet's and GoogLeNet's are those of the models that BVLC
#: published (GoogLeNet without the two auxiliary classifiers), the others _torch_nets.
PUBLISHED = {
    "alexnet": 61_100_840,
    "caffenet": 60_965_224,
    "googlenet": 6_998_552,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
}


def test_nets_have_the_published_parameters() -> None:
    counted = {name: nets.describe(name, DATA)[1] for name in nets.NETS}
    assert counted == {name: net.parameters for name, net in nets.NETS.items()}
    assert {name: counted[name] for name in PUBLISHED} == PUBLISHED
    shared = set(torch_nets.NETS) & set(nets.NETS)
    assert {n: torch_nets.NETS[n].parameters for n in shared} == {n: counted[n] for n in shared}
    assert shared == {"alexnet", "resnet18", "resnet50"}


def by_hand(found: Message) -> int:
    """Count a net's parameters from its layers alone, following shapes as Caffe does."""
    shapes: Dict[str, Tuple[int, int, int]] = {}
    total = 0
    for layer in found.all("layer"):
        kind, tops, bottoms = layer.get("type"), layer.all("top"), layer.all("bottom")
        assert all(b in shapes or b == "label" for b in bottoms), layer
        if kind == "MemoryData":
            p = layer.get("memory_data_param")
            shapes["data"] = int(p.get("channels")), int(p.get("height")), int(p.get("width"))
            continue
        shape = shapes[bottoms[0]]
        if kind in ("Convolution", "Pooling"):
            p = layer.get("convolution_param") or layer.get("pooling_param")
            k, s, pad = (
                int(p.get(n, d)) for n, d in (("kernel_size", 0), ("stride", 1), ("pad", 0))
            )
            if kind == "Convolution":
                outputs, bias = int(p.get("num_output")), str(p.get("bias_term", "true")) == "true"
                total += outputs * (shape[0] // int(p.get("group", 1)) * k * k + bias)
                shape = (outputs, *((n + 2 * pad - k) // s + 1 for n in shape[1:]))
            else:
                sides = [-((n + 2 * pad - k) // -s) + 1 for n in shape[1:]]
                sides = [o - (pad > 0 and (o - 1) * s >= n + pad) for o, n in zip(sides, shape[1:])]
                shape = (shape[0], *sides)
        elif kind == "InnerProduct":
            outputs = int(layer.get("inner_product_param").get("num_output"))
            total += outputs * (shape[0] * shape[1] * shape[2] + 1)
            shape = (outputs, 1, 1)
        elif kind == "Scale":
            total += 2 * shape[0]
        elif kind == "Concat":
            assert len({shapes[b][1:] for b in bottoms}) == 1
            shape = (sum(shapes[b][0] for b in bottoms), *shape[1:])
        elif kind == "Eltwise":
            assert len({shapes[b] for b in bottoms}) == 1
        shapes[tops[0]] = shape
    return total


@pytest.mark.parametrize("name", sorted(nets.NETS))
def test_the_text_itself_has_them_too(name: str) -> None:
    found = parse(render(nets.describe(name, DATA, 7)[0]), name)
    assert by_hand(found) == nets.describe(name, DATA, 7)[1]
    kinds = [layer.get("type") for layer in found.all("layer")]
    assert kinds[0] == "MemoryData"
    assert kinds[-1] == "SoftmaxWithLoss"
    names = [layer.get("name") for layer in found.all("layer")]
    assert len(set(names)) == len(names)


def test_the_larger_nets_end_in_their_papers_shapes() -> None:
    for name, shape in (("googlenet", (1024, 7, 7)), ("resnet50", (2048, 7, 7))):
        builder = nets._Builder((3, 224, 224))
        nets.NETS[name].build(builder, 1000)
        assert shape in builder.shapes.values()


def test_an_unknown_net_is_told() -> None:
    with pytest.raises(SpecError, match=r"resnet51.*caffenet.*googlenet"):
        nets.net("resnet51")


# -- data layers -----------------------------------------------------------------------------


def test_data_layers() -> None:
    crop = layers.transform(crop=224, mirror=True, mean=(1.0, 2.0, 3.0), scale=0.5)
    assert crop is not None
    assert render(crop).splitlines() == [
        "crop_size: 224", "mirror: true", "mean_value: 1", "mean_value: 2", "mean_value: 3",
        "scale: 0.5",
    ]  # fmt: skip
    assert layers.transform() is None
    made = layers.database("/d", "lmdb", batch=8, prefetch=6, transform=crop)
    assert made.get("type") == "Data"
    assert made.all("top") == ["data", "label"]
    text = render(made.get("data_param"))
    assert text == 'source: "/d"\nbatch_size: 8\nbackend: LMDB\nprefetch: 6\n'
    listed = layers.images(
        "/l", batch=8, prefetch=6, transform=None, shuffle=True, new_height=256, new_width=9
    )
    assert not listed.all("transform_param")
    expected = 'source: "/l"\nbatch_size: 8\nshuffle: true\nnew_height: 256\nnew_width: 9\n'
    assert render(listed.get("image_data_param")) == expected
    assert render(listed.get("data_param")) == "prefetch: 6\n"
    assert (
        render(layers.hdf5("/h", batch=2).get("hdf5_data_param")) == 'source: "/h"\nbatch_size: 2\n'
    )
    dummy = layers.dummy(2, (3, 4, 5)).get("dummy_data_param")
    assert [s.all("dim") for s in dummy.all("shape")] == [[2, 3, 4, 5], [2]]


# -- solvers ---------------------------------------------------------------------------------

OWN_NET = """
name: "mine"
layer { name: "in" type: "Data" top: "img" top: "cls" include { phase: TRAIN }
        data_param { source: "x" batch_size: 256 backend: LMDB } }
layer { name: "in" type: "Data" top: "img" top: "cls" include { phase: TEST }
        data_param { source: "y" batch_size: 50 backend: LMDB } }
layer { name: "fc" type: "InnerProduct" bottom: "img" top: "fc"
        inner_product_param { num_output: 5 } }
layer { name: "acc" type: "Accuracy" bottom: "fc" bottom: "cls" top: "acc" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "cls" top: "loss" }
"""
OWN_SOLVER = """
net: "net.prototxt"
test_iter: 10 test_interval: 500
type: "Nesterov" base_lr: 0.1 lr_policy: "step" gamma: 0.1 stepsize: 10 momentum: 0.8
max_iter: 9 display: 20 snapshot: 100 snapshot_prefix: "x" solver_mode: GPU
"""


def own(folder: Path, net: str = OWN_NET, text: str = OWN_SOLVER) -> str:
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(text)
    return str(folder / "solver.prototxt")


def test_a_users_solver_keeps_its_rule_and_gets_our_data(tmp_path: Path) -> None:
    job = solver.users(own(tmp_path), DATA, solver.running(30, 4, display=1))
    net = parse(job.net, "net")
    first, *rest = net.all("layer")
    assert first.get("type") == "MemoryData"
    assert first.all("top") == ["img", "cls"]
    assert [layer.get("name") for layer in rest] == ["fc", "loss"]
    made = tmp_path / "out"
    made.mkdir()
    text = job.write(made).read_text()
    found = parse(text, "solver")
    assert found.get("net") == str(made / "net.prototxt")
    assert (found.get("type"), found.get("stepsize"), found.get("momentum")) == (
        "Nesterov",
        "10",
        "0.8",
    )
    assert (found.get("max_iter"), found.get("display")) == ("30", "1")
    assert (found.get("solver_mode"), found.get("random_seed")) == ("CPU", "4")
    for name in ("test_iter", "test_interval", "snapshot", "snapshot_prefix"):
        assert not found.all(name)
    assert job.name == "mine"


@pytest.mark.parametrize(("kind", "why"), [("Python", "runs"), ("HDF5Output", "writes a file")])
def test_a_users_net_computes_and_does_nothing_else(kind: str, why: str, tmp_path: Path) -> None:
    more = f'layer {{ name: "x" type: "{kind}" bottom: "fc" top: "x" }}'
    with pytest.raises(SpecError, match=f"layer of type {kind}, which {why}"):
        solver.users(own(tmp_path, OWN_NET + more), DATA, solver.running(30, 4))


@pytest.mark.parametrize(
    ("net", "text", "words"),
    [
        (OWN_NET, "base_lr: 1", ["names no net"]),
        (OWN_NET, 'net: "gone.prototxt"', ["cannot read the net", "gone.prototxt"]),
        (OWN_NET, "net: {", ["solver.prototxt, line"]),
        (OWN_NET.replace("layer", "layers"), OWN_SOLVER, ["older Caffe"]),
        (OWN_NET, f"{OWN_SOLVER} iter_size: 4", ["iter_size 4", "one is measured"]),
        (
            'layer { name: "r" type: "ReLU" bottom: "a" top: "a" }',
            OWN_SOLVER,
            ["one data layer", "none"],
        ),
        (
            OWN_NET.replace('top: "cls" include { phase: TRAIN }', ""),
            OWN_SOLVER,
            ["Data with 1 tops"],
        ),
    ],
)
def test_a_solver_that_does_not_fit_is_told(
    tmp_path: Path, net: str, text: str, words: List[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        solver.users(own(tmp_path, net, text), DATA, solver.running(1, 0))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_solver_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read the solver .*solver\.prototxt: No such file"):
        solver.users(str(tmp_path / "solver.prototxt"), DATA, solver.running(1, 0))


def test_our_solver() -> None:
    rates = {"base_lr": 0.02, "momentum": 0.5, "weight_decay": 0.001}
    job = solver.ours("small", DATA, 3, solver.running(12, 9), **rates)
    found: Dict[str, Any] = dict(job.solver.fields)
    assert (found["base_lr"], found["momentum"], found["weight_decay"]) == (0.02, 0.5, 0.001)
    assert (found["max_iter"], found["random_seed"], found["lr_policy"]) == (12, 9, "fixed")
    assert found["snapshot_after_train"] is False
    assert job.parameters == 16 * 3 * 64 + 16 + 14 * 14 * 16 * 3 + 3


def test_a_frozen_solver_learns_nothing(tmp_path: Path) -> None:
    """One batch that is replayed must not be learned by heart."""
    run = solver.running(5, 0, frozen=True)
    for job in (
        solver.users(own(tmp_path), DATA, run),
        solver.ours("small", DATA, 3, run, base_lr=0.01, momentum=0.9),
    ):
        assert [value for name, value in job.solver.fields if name == "base_lr"] == [0.0]
        assert float(job.solver.get("momentum")) > 0


def test_steps_that_learned_a_class_by_heart_are_told() -> None:
    assert solver.vanished([2.3, 0.01, float("nan")]) == ""
    assert solver.vanished([2.3, 0.0, 1e-9]).startswith("2 of 3 steps had a loss of 0")


def test_a_net_gets_as_many_classes_as_the_data_have() -> None:
    assert nets.classes("small", 0, 4) == 10, "the published number"
    assert nets.classes("small", 0, 1000) == 1000
    assert nets.classes("small", 20, 4) == 20
    with pytest.raises(SpecError, match="label 20 is beyond the 20 classes of net small"):
        nets.classes("small", 20, 21)


# -- threads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "parents", "ranks", "share"),
    [(8, 8, 1, 8), (8, 8, 2, 4), (1, 8, 2, 1), (4, 8, 2, 4), (8, 16, 4, 4), (1, 1, 2, 1)],
    ids=["alone", "shared", "core", "socket", "two a socket", "more than cores"],
)
def test_a_ranks_cores_are_divided_once(
    own: int, parents: int, ranks: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = {0: range(own), os.getppid(): range(parents)}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores[pid]))
    assert library.share_of_cores(ranks) == share
