"""Groups that share their blocks: who is compared with whom, and orders that balance."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from iobench.core.cases import Case, Contrast, Dataset
from iobench.core.errors import SpecError
from iobench.plan import blocks as plan_blocks
from iobench.plan import contrasts as pairing
from iobench.plan import ladder as plan
from iobench.plan import rules
from iobench.plan.resolve import Here, resolve
from iobench.spec import load, schema

DECODERS = ["simplejpeg", "pillow", "opencv"]
NAMES = ("bare", "unpacked", "docker", "apptainer")


def document(**contrast: Any) -> dict[str, Any]:
    return {
        "name": "t",
        "case": {"trainer": "null", "batch": 4},
        "matrix": {"pipeline": ["lmdb", "jpeg"], "prefetch": [1, 2, 3, 4]},
        "contrasts": [
            {"over": "prefetch", "base": 1, "caches": ["warm"], "shared": True, **contrast}
        ],
    }


def of_spec(spec: schema.Spec, cases: Sequence[Case]) -> list[Contrast]:
    """Return the contrasts before the ladder has run."""
    return pairing.contrasts(rules.rules(spec, cases), {})


def found(fastest: pairing.Ranking | None = None, **contrast: Any) -> list[Contrast]:
    parsed = load.parse(document(**contrast))
    return pairing.contrasts(rules.rules(parsed, load.expand(parsed)), fastest or {})


def short(contrasts: list[Contrast], form: str = "lmdb") -> list[str]:
    """Return ``2/1 primary`` of each contrast of one pipeline."""
    return [
        f"{c.arm[-1]}/{c.base[-1]}{' primary' if c.primary else ''}"
        for c in contrasts
        if form in c.arm
    ]


def test_entries_of_equal_base_and_loops_share_their_blocks() -> None:
    made = document(arms=[2], pairs=12)
    rest = {"over": "prefetch", "base": 1, "caches": ["warm"], "shared": True, "primary": False}
    made["contrasts"] += [
        {**rest, "arms": [3], "pairs": 12},
        {**rest, "arms": [4], "pairs": 3},
        {**rest, "arms": [3, 4], "pairs": 12, "shared": False},
    ]
    parsed = load.parse(made)
    groups = plan_blocks.groups(of_spec(parsed, load.expand(parsed)))
    of_lmdb = [short(together) for together in groups.values() if "lmdb" in together[0].arm]
    assert of_lmdb == [["2/1 primary", "3/1"], ["4/1"], ["3/1"], ["4/1"]]


def test_a_comparison_of_shared_blocks_is_made_once() -> None:
    made = document(arms=[2, 3], pairs=12)
    rest = {"over": "prefetch", "base": 1, "caches": ["warm"], "shared": True, "primary": False}
    made["contrasts"] += [
        {**rest, "arms": [2, 3], "also": [4], "pairs": 12},
        {**rest, "arms": [2], "pairs": 12, "margin": 0.1},
        {**rest, "arms": [3, 4], "pairs": 12, "primary": True},
    ]
    parsed = load.parse(made)
    contrasts = of_spec(parsed, load.expand(parsed))
    first, *others = plan_blocks.groups(contrasts).values()
    assert short(first) == ["2/1 primary", "3/1 primary", "4/1", "2/4", "3/4", "2/1", "4/1 primary"]
    assert len(others) == 1, "the other pipeline's"
    assert len({c.id for c in contrasts}) == len(contrasts)


def test_a_group_shares_its_base() -> None:
    contrasts = found(also=[2])
    assert short(contrasts) == ["2/1", "3/1 primary", "4/1 primary", "3/2", "4/2"]
    assert len(plan_blocks.groups(contrasts)) == 2
    assert {len(plan_blocks.members(g)) for g in plan_blocks.groups(contrasts).values()} == {4}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"first": 2}, ["2/1 primary", "3/1 primary"]),
        ({"after": 2}, ["4/1 primary"]),
        ({"after": 3}, []),
        ({"also": [2], "first": 1}, ["2/1", "3/1 primary", "3/2"]),
        ({"also": [2], "after": 1}, ["2/1", "4/1 primary", "4/2"]),
        ({"arms": [4]}, ["4/1 primary"]),
        ({"arms": [4], "primary": False}, ["4/1"]),
    ],
)
def test_arms_are_chosen(keys: dict[str, Any], expected: list[str]) -> None:
    assert short(found(**keys)) == expected


def test_two_arms_are_no_group() -> None:
    assert {c.group for c in found(arms=[2])} == {""}


def test_only_the_fastest_pipeline() -> None:
    ranking = {("load", "warm"): ["torch:jpeg prefetch=1", "torch:lmdb prefetch=1"]}
    assert not short(found(ranking, only="fastest"))
    assert short(found(ranking, only="fastest"), "jpeg")
    assert short(found(only="fastest")), "the first one where the ladder has not run"


def test_where_limits_the_cases() -> None:
    contrasts = found(where={"pipeline": ["lmdb"], "prefetch": [1, 4]})
    assert short(contrasts) == ["4/1 primary"]
    assert not short(contrasts, "jpeg")


def test_a_block_holds_every_arm_once_back_to_back_in_an_order_drawn_for_it() -> None:
    parsed = load.parse(document(also=[2], pairs=12))
    cases = load.expand(parsed)
    contrasts = of_spec(parsed, cases)
    trials = plan_blocks.blocks(contrasts, cases, seed=5, start=1)
    assert len(trials) == 2 * 12 * 4
    blocks = [trials[i : i + 4] for i in range(0, len(trials), 4)]
    for block in blocks:
        assert len({(t.contrast, t.block) for t in block}) == 1
        assert [t.position for t in block] == [0, 1, 2, 3]
        assert len({t.arm for t in block}) == 4
    orders = Counter(tuple(t.arm for t in block) for block in blocks)
    assert len(orders) > 12, "drawn of 2 x 24 possible orders"
    follows = [a == b[::-1] for a, b in pairwise(tuple(t.arm for t in block) for block in blocks)]
    assert sum(follows) < 6, "an order is no reverse of the one before but by chance"


def test_arms_that_take_turns_cold_read_a_copy_each() -> None:
    made = {**document(), "matrix": {"pipeline": ["lmdb", "jpeg"], "decoder": DECODERS}}
    both = {"caches": ["warm", "cold"], "pairs": 30, "shared": True}
    made["contrasts"] = [
        {"over": "decoder", "base": DECODERS[0], **both},
        {"over": "pipeline", "base": "lmdb", "caches": ["cold"], "pairs": 2},
    ]
    parsed = load.parse(made)
    cases = load.expand(parsed)
    trials = plan_blocks.blocks(of_spec(parsed, cases), cases, seed=5, start=1)
    assert {t.copy for t in trials if t.cache == "warm"} == {0}
    blocks: dict[tuple[str, int], dict[str, int]] = {}
    for trial in trials:
        if trial.cache == "cold":
            blocks.setdefault((trial.contrast, trial.block), {})[trial.arm] = trial.copy
    numbers = Counter(tuple(sorted(block.values())) for block in blocks.values())
    assert numbers == {(1, 2, 3): 2 * 30, (0, 0): 3 * 2}, "those of different forms take no turns"
    drawn = Counter(tuple(block.items()) for block in blocks.values() if len(block) == 3)
    assert len(drawn) > 12, "drawn of 2 x 6 x 6 possible ones"


def test_copies_end_with_the_turns() -> None:
    both = {"caches": ["warm", "cold"], "pairs": 6, "shared": True}
    made = {**document(), "matrix": {"pipeline": ["lmdb", "jpeg"], "decoder": DECODERS}}
    parsed = load.parse({**made, "contrasts": [{"over": "decoder", "base": DECODERS[0], **both}]})
    cases = load.expand(parsed)
    whole = resolve(parsed, Here(Dataset("r", "n", 64, 64, 1, 1, "d", "s")), 60.0, "now")
    made = of_spec(parsed, cases)
    trials = tuple(plan_blocks.blocks(made, cases, seed=5, start=1))
    plan = dataclasses.replace(whole, trials=trials, contrasts=tuple(made))
    left = pairing.without_turns(plan, "no room", "cold")
    assert {(t.cache, t.slice_s, t.copy) for t in left.trials} == {
        ("warm", 0.1, 0),
        ("cold", 0.0, 0),
    }
    cells = [cell for rule in left.rules for cell in rule.cells]
    assert {(c.cache, c.slice_s) for c in [*left.contrasts, *cells]} == {
        ("warm", 0.1), ("cold", 0.0)
    }  # fmt: skip
    assert left.notes == ("cold arms run one after the other, not in turns: no room",)


def test_probes_of_arms_that_train_take_turns_until_one_cannot_be_stopped() -> None:
    parsed = load.parse(document(stage="train", caches=["warm"], pairs=6, probes=8))
    plan = resolve(parsed, Here(Dataset("r", "n", 64, 64, 1, 1, "d", "s")), 60.0, "now")
    plan = dataclasses.replace(plan, contrasts=tuple(of_spec(parsed, load.expand(parsed))))
    assert pairing.without_turns(plan, "no room") is plan
    ended = pairing.without_probe_turns(plan, "another user's")
    assert ended.notes == ("serial probes run one after the other, not in turns: another user's",)
    assert pairing.without_probe_turns(ended, "again") is ended
    for found, turns in ((plan, 0.1), (ended, 0.0)):
        cells = [cell for rule in found.rules for cell in rule.cells]
        both = [*found.contrasts, *cells]
        assert {(c.slice_s, c.probe_slice_s) for c in both} == {(0.0, turns)}


def test_probes_of_a_group_take_turns_where_all_of_it_may_be_stopped() -> None:
    parsed = load.parse(document(probes=8, caches=["warm"]))
    cases = load.expand(parsed)
    one, other = of_spec(parsed, cases)[:2]
    both = [one, dataclasses.replace(other, probe_slice_s=0.0)]
    for together in (both, both[::-1]):
        trials = plan_blocks.probe_blocks(together, cases, seed=5, start=7, samples=100)
        assert {t.slice_s for t in trials} == {0.0}


@pytest.mark.parametrize(
    ("matrix", "over", "cold", "warm"),
    [
        ({"decoder": DECODERS}, {"over": "decoder", "base": "pillow"}, 0.3, 0.1),
        ({"workers": [1, 2]}, {"over": "workers", "base": 1}, 0.0, 0.3),
        ({"pipeline": ["lmdb", "jpeg"]}, {"over": "pipeline", "base": "jpeg"}, 0.0, 0.3),
    ],
)
def test_arms_that_load_unlike_take_no_turns_cold_and_longer_ones_warm(
    matrix: dict[str, Any], over: dict[str, Any], cold: float, warm: float
) -> None:
    """What a stopped arm has asked for comes in during the turn of the next one, at its cost, and
    what it costs an arm to go on depends on how it loads.
    """
    made = {**document(), "matrix": {"pipeline": ["jpeg"], **matrix}}
    parsed = load.parse({**made, "contrasts": [{**over, "caches": ["cold", "warm"]}]})
    found = of_spec(parsed, load.expand(parsed))
    assert {(c.cache, c.slice_s) for c in found} == {("cold", cold), ("warm", warm)}
    assert {c.loop_s for c in found} == {3.0 if warm == 0.1 else 6.0}


@pytest.mark.parametrize(
    ("case", "wanted", "slice_s"),
    [
        ({}, {}, 0.1),
        ({}, {"slice_s": 0.2, "loop_s": 6.0}, 0.2),
        ({}, {"loop_s": 1.0}, 0.05),  # twenty turns at least
        ({"cpus": 1.0}, {}, 0.0),
        ({"trainer": "torch", "trainer_options": {"device": "cuda"}}, {}, 0.0),
    ],
)
def test_how_long_a_turn_is(case: dict[str, Any], wanted: dict[str, Any], slice_s: float) -> None:
    parsed = load.parse({**document(caches=["warm"], **wanted), "case": case})
    found = of_spec(parsed, load.expand(parsed))
    assert {contrast.slice_s for contrast in found} == {slice_s}


def test_turns_of_arms_that_load_unlike_are_a_twentieth_of_a_short_loop() -> None:
    made = {**document(), "matrix": {"workers": [1, 2]}}
    for loop_s, slice_s in ((1.0, 0.05), (3.0, 0.15), (9.0, 0.3)):
        wanted = {"over": "workers", "base": 1, "caches": ["warm"], "loop_s": loop_s}
        parsed = load.parse({**made, "contrasts": [wanted]})
        (found,) = of_spec(parsed, load.expand(parsed))
        assert found.slice_s == pytest.approx(slice_s)


def test_later_looks_go_on_with_the_same_orders() -> None:
    parsed = load.parse(document(looks=[6, 12]))
    cases = load.expand(parsed)
    contrasts = of_spec(parsed, cases)
    assert {(c.pairs, c.looks) for c in contrasts} == {(12, (6, 12))}
    first = plan_blocks.blocks(contrasts, cases, seed=5, start=1)
    assert {t.block for t in first} == set(range(1, 7))
    group = contrasts[0].group
    later = plan_blocks.blocks(contrasts, cases, seed=5, start=100, spans={group: (6, 12)})
    assert {t.block for t in later} == set(range(7, 13))
    assert {t.contrast for t in later} == {group}
    once = load.parse(document(pairs=12))
    whole = plan_blocks.blocks(of_spec(once, cases), cases, seed=5, start=1)
    place = {(t.contrast, t.block, t.arm): t.position for t in whole}
    assert all(place[t.contrast, t.block, t.arm] == t.position for t in (*first, *later))


def test_probes_are_interleaved_and_stand_in_the_contrasts_cache_state() -> None:
    parsed = load.parse(document(probes=8))
    cases = load.expand(parsed)
    contrasts = of_spec(parsed, cases)[:1]
    trials = plan_blocks.probe_blocks(contrasts, cases, seed=5, start=7, samples=64)
    assert len(trials) == 16
    assert {(t.stage, t.cache, t.contrast) for t in trials} == {
        ("probe", "warm", contrasts[0].group)
    }
    assert Counter(t.arm for t in trials if t.position == 0) == dict.fromkeys(
        (contrasts[0].arm, contrasts[0].base), 4
    )


def test_probes_of_data_in_memory_take_turns_where_the_arms_do() -> None:
    for stage, cache, keys, slice_s, epochs in (
        ("load", "warm", {}, 0.1, 11),  # 1,024 of 100 samples
        ("load", "warm", {"loop_s": 1.0}, 0.05, 11),
        ("load", "cold", {}, 0.0, 1),
        ("train", "warm", {}, 0.1, 11),
        ("load", "warm", {"slice_s": 0}, 0.0, 1),
    ):
        parsed = load.parse(document(probes=8, stage=stage, caches=[cache], **keys))
        cases = load.expand(parsed)
        together = of_spec(parsed, cases)[:1]
        trials = plan_blocks.probe_blocks(together, cases, seed=5, start=7, samples=100)
        assert {(t.slice_s, t.epochs, t.copy) for t in trials} == {(slice_s, epochs, 0)}


@pytest.fixture
def runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Plug in runtimes that start a command as it is, under the names of the containers."""
    folder = tmp_path / "runtimes"
    folder.mkdir()
    for name in ("arm1", "arm2", "arm3"):
        (folder / f"{name}.py").write_text(
            "from iobench.core.members import RuntimeBackend\n"
            "from iobench.backends.runtimes.bare import Bare\n"
            f"BACKEND = RuntimeBackend(Bare, 'test {name}')\n"
        )
    monkeypatch.setenv("IOBENCH_PLUGINS", str(tmp_path))
    return "arm1", "arm2", "arm3"


def test_runtimes_share_blocks_and_are_probed_unless_said_otherwise(
    runtimes: tuple[str, ...],
) -> None:
    parsed = load.parse(
        {
            "name": "t",
            "case": {"trainer": "null", "batch": 4},
            "matrix": {"pipeline": ["lmdb"], "runtime": ["bare", *runtimes]},
            "ladder": {"only": {"runtime": ["bare"]}},
            "contrasts": [{"over": "runtime", "base": "bare", "also": ["arm1"], "looks": [10, 20]}],
        }
    )
    cases = load.expand(parsed)
    contrasts = of_spec(parsed, cases)
    assert len(plan_blocks.groups(contrasts)) == 2
    assert {c.probes for c in contrasts} == {schema.PROBES}
    labels = [(c.arm.split("=")[1], c.base.split("=")[1], c.primary) for c in contrasts[:5]]
    assert labels == [
        ("arm1", "bare", False),
        ("arm2", "bare", True),
        ("arm3", "bare", True),
        ("arm2", "arm1", False),
        ("arm3", "arm1", False),
    ]
    ladder = plan.ladder(parsed, cases)
    assert {t.case.runtime for t in ladder} == {"bare"}, "container cases climb no rung"
    assert {t.stage for t in ladder} > {"digest", "read", "load", "compute"}


def test_runtimes_that_are_not_here_are_left_out(runtimes: tuple[str, ...]) -> None:
    parsed = load.parse(
        {
            "name": "t",
            "case": {"trainer": "null", "batch": 4},
            "matrix": {"pipeline": ["lmdb"], "runtime": ["bare", *runtimes]},
            "contrasts": [{"over": "runtime", "base": "bare", "also": ["arm1"]}],
        }
    )
    cases: list[Case] = [c for c in load.expand(parsed) if c.runtime == "bare"]
    assert of_spec(parsed, cases) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"looks": [20, 10]}, ["contrasts[0].looks", "[20, 10]", "[10, 20, 30]"]),
        ({"looks": [3, 10]}, ["looks", "[3, 10]", "6"]),
        ({"looks": [10, 20], "pairs": 15}, ["pairs", "15", "[10, 20]"]),
        ({"arms": [9]}, ["contrasts[0].arms", "9", "1, 2, 3, 4"]),
        ({"arms": []}, ["arms", "empty"]),
        ({"also": [7]}, ["also", "7", "1, 2, 3, 4"]),
        ({"also": [1]}, ["also", "1", "base"]),
        ({"also": [2], "shared": False}, ["also", "2", "shared"]),
        ({"first": 0}, ["first", "0"]),
        ({"first": 1, "after": 1}, ["after", "1", "first"]),
        ({"only": "slowest"}, ["only", "slowest", "fastest"]),
        ({"probes": 3}, ["probes", "3", "7"]),
        ({"where": {"runtim": ["bare"]}}, ["where", "runtim", "runtime"]),
        ({"where": {"runtime": []}}, ["where.runtime", "empty"]),
    ],
)
def test_errors_teach(keys: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        load.parse(document(**keys))
    for word in words:
        assert word in str(caught.value)


def test_the_ladders_filter_is_judged() -> None:
    with pytest.raises(SpecError, match=r"ladder\.only: unknown key 'runtim'.*runtime"):
        load.parse({**document(), "ladder": {"only": {"runtim": ["bare"]}}})


def test_a_contrast_of_an_old_plan_has_its_own_blocks() -> None:
    old = Contrast("c01", "a", "b", "load", "warm")
    assert plan_blocks.group_of(old) == "c01"
    assert plan_blocks.group_of(dataclasses.replace(old, group="g01")) == "g01"


def test_limits_are_compared_like_any_other_key() -> None:
    wanted = load.parse(
        {
            "name": "t",
            "case": {"pipeline": "jpeg", "trainer": "null", "batch": 4},
            "matrix": {"memory": ["4G", "512M"]},
            "contrasts": [{"over": "memory", "base": "4G", "caches": ["warm"]}],
        }
    )
    (found,) = of_spec(wanted, load.expand(wanted))
    assert (found.base, found.arm) == (
        "torch:jpeg memory_bytes=4294967296", "torch:jpeg memory_bytes=536870912",
    )  # fmt: skip


# -- judged whole, before anything is made ---------------------------------------------------


def checked(**changes: Any) -> None:
    """Judge a suite of LMDB, JPEG files and DALI, as `iobench run` does."""
    given = {
        "name": "t",
        "case": {"trainer": "null", "batch": 4},
        "matrix": {"pipeline": ["lmdb", "jpeg", "dali"]},
        **changes,
    }
    rules.check(load.parse(given))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contrasts": [{"stage": "decode"}]},
         ["contrasts[0].stage", "dali:jpeg", "'decode'", "fused", "read, load, feed, train"]),
        ({"contrasts": [{"stage": "decode", "base": "dali"}]}, ["dali:jpeg", "'decode'"]),
        ({"contrasts": [{"stage": "decode", "base": "lmdb", "arms": ["dali"]}]}, ["dali:jpeg"]),
        ({"contrasts": [{"stage": "decode", "only": "fastest"}]}, ["dali:jpeg", "'decode'"]),
        ({"matrix": {"pipeline": ["torch:null", "lmdb"]}, "contrasts": [{}]},
         ["torch:null", "'load'", "no bytes to decode", "allowed for it: read"]),
        ({"matrix": {"pipeline": ["native:lmdb", "native:leveldb"]},
          "case": {"trainer": "caffe", "transform": "crop224", "order": "stored"},
          "contrasts": [{"stage": "read"}]}, ["native:lmdb", "'read'", "load, train"]),
        ({"ladder": {"only": {"pipeline": ["lmbd"]}}},
         ["ladder.only.pipeline", "'lmbd'", "lmdb, jpeg, dali"]),
        ({"ladder": {"only": {"pipeline": ["lmdb", "hdf5"]}}}, ["'hdf5'", "lmdb, jpeg, dali"]),
        ({"ladder": {"only": {"workers": [4]}}}, ["ladder.only.workers", "4", "allowed: 2"]),
        ({"matrix": [{"pipeline": "lmdb", "batch": [4, 8]}, {"pipeline": "jpeg"}],
          "ladder": {"only": {"pipeline": ["jpeg"], "batch": [8]}}}, ["ladder.only", "together"]),
        ({"contrasts": [{"where": {"pipeline": ["lmdb", "jepg"]}}]},
         ["contrasts[0].where.pipeline", "'jepg'", "lmdb, jpeg, dali"]),
        ({"contrasts": [{"caches": [0.35]}]},
         ["contrasts[0].base", "'fastest'", "load 0.35", "ladder.caches"]),
        ({"ladder": {"stages": ["read"]}, "contrasts": [{}]}, ["'fastest'", "load warm"]),
        ({"ladder": {"only": {"pipeline": ["lmdb"], "runtime": ["docker"]}}, "contrasts": [{}]},
         ["'fastest'", "load warm", "torch:lmdb"]),
        ({"ladder": {"stages": ["read"]}, "matrix": {"pipeline": ["lmdb", "jpeg"], "batch": [4, 8]},
          "contrasts": [{"over": "batch", "base": 4, "only": "fastest"}]},
         ["contrasts[0].only", "load warm"]),
        ({"contrasts": [{"base": "torch:tar"}]}, ["'torch:tar'", "torch:lmdb"]),
    ],
)  # fmt: skip
def test_what_would_fail_late_is_refused_first(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        checked(**changes)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"contrasts": [{}]},
        {"contrasts": [{"stage": "decode", "base": "lmdb", "arms": ["jpeg"], "caches": ["warm"]}]},
        {"contrasts": [{"stage": "decode", "caches": ["warm"],
                        "where": {"pipeline": ["lmdb", "torch:jpeg"]}}]},
        {"contrasts": [{"caches": [0.35]}], "ladder": {"caches": [0.35]}},
        {"contrasts": [{"caches": [0.35], "base": "lmdb"}]},
        {"ladder": {"only": {"pipeline": ["torch:lmdb", "dali"], "runtime": ["docker"]}}},
        {"ladder": {"only": {"pipeline": ["lmdb"]}}, "contrasts": [{}]},
        {"ladder": {"only": {"memory": ["4G"]}}, "matrix": {"memory": ["4G", "2G"]}},
        {"matrix": {"pipeline": ["lmdb", "jpeg"], "placement": ["bind", "tmpfs"]},
         "contrasts": [{}, {"over": "placement", "base": "bind", "caches": ["warm"]}]},
    ],
)  # fmt: skip
def test_what_can_run_passes(changes: dict[str, Any]) -> None:
    checked(**changes)


def test_a_contrast_instead_is_for_the_runtime_that_is_left(runtimes: tuple[str, ...]) -> None:
    given = {
        "matrix": {"pipeline": ["lmdb", "jpeg"], "runtime": ["bare", *runtimes]},
        "ladder": {"only": {"runtime": ["bare"]}},
    }
    checked(**given, contrasts=[{"instead": True}])
    with pytest.raises(SpecError, match=r"does not run load warm for torch:lmdb runtime=arm1"):
        checked(**given, contrasts=[{}])


NAMED = {
    "name": "named",
    "case": {"pipeline": "lmdb"},
    "matrix": {"workers": [1, 2]},
    "cases": [
        {"name": "framework defaults", "workers": 0},
        {"name": "more", "workers": 4, "prefetch": 8, "batch": 16},
        {"workers": 3},
    ],
    "contrasts": [{"over": "name", "base": "framework defaults", "caches": ["warm"]}],
}


def test_named_cases_are_compared_whatever_differs() -> None:
    spec = load.parse(NAMED)
    cases = load.expand(spec)
    labels = [case.label for case in cases]
    assert labels[2:4] == ["framework defaults", "more"]
    (rule,) = rules.rules(spec, cases)
    (cell,) = rule.cells
    assert (cell.cases, cell.base) == (("framework defaults", "more"), "framework defaults")
    rules.check(spec)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cases": [*NAMED["cases"][:2], {"name": "more"}]}, ["'more'", "two cases"]),
        ({"cases": NAMED["cases"][:1]}, ["[[cases]].name", "two values"]),
        ({"cases": [{"name": "a\tb"}]}, ["cases[0].name"]),
        ({"contrasts": [{"over": "name", "base": "nobody"}]}, ["'nobody'", "no case"]),
        ({"contrasts": [{"over": "name", "base": "more", "arms": ["x"]}]},
         ["'x'", "framework defaults"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_names_is_said(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        rules.check(load.parse({**NAMED, **changes}))
    for word in words:
        assert word in str(caught.value)
