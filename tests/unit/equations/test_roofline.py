"""Which roof binds, and how far the next one is."""

from __future__ import annotations

import pytest

from iobench.equations.roofline import COMPUTE_BOUND, FETCH_BOUND, PREP_BOUND, Roofs, bind

ROOFS = {"storage": 2600.0, "read": 1500.0, "decode": 1300.0, "load": 780.0, "compute": 328.0}


def test_compute_binds_with_headroom_to_preparing() -> None:
    limit = bind(ROOFS, cold=True)
    assert limit is not None
    assert (limit.binding, limit.regime, limit.next) == ("compute", COMPUTE_BOUND, PREP_BOUND)
    assert limit.headroom == 780 / 328


@pytest.mark.parametrize(
    ("read", "roof", "said"), [(240.0, "storage", "what fio gets"), (130.0, "read", "50% of")]
)
def test_slow_reading_is_the_storages_only_near_fio(read: float, roof: str, said: str) -> None:
    limit = bind({**ROOFS, "storage": 260.0, "read": read}, cold=True)
    assert limit is not None
    assert (limit.binding, limit.regime) == (roof, FETCH_BOUND)
    assert limit.rate == read
    assert said in limit.words


def test_without_a_ceiling_the_words_claim_none() -> None:
    roofs = {k: v for k, v in ROOFS.items() if k != "storage"} | {"read": 100.0}
    limit = bind(roofs, cold=True)
    assert limit is not None
    assert limit.binding == "read"
    assert "no storage ceiling" in limit.words


@pytest.mark.parametrize(("load", "roof"), [(260.0, "decode"), (150.0, "load")])
def test_preparing_is_decoding_when_it_runs_at_its_rate(load: float, roof: str) -> None:
    limit = bind({**ROOFS, "decode": 300.0, "load": load}, cold=True)
    assert limit is not None
    assert (limit.binding, limit.regime, limit.rate) == (roof, PREP_BOUND, load)


def test_warm_leaves_the_storage_out() -> None:
    limit = bind({**ROOFS, "storage": 1.0, "read": 9000.0}, cold=False)
    assert limit is not None
    assert limit.regime == COMPUTE_BOUND


def test_a_tie_is_said() -> None:
    limit = bind({**ROOFS, "load": 330.0, "decode": 330.0}, cold=True)
    assert limit is not None
    assert "prep is as tight" in limit.words


@pytest.mark.parametrize(
    ("read", "load", "regime"), [(600.0, 500.0, FETCH_BOUND), (1500.0, 250.0, PREP_BOUND)]
)
def test_reading_and_preparing_in_turn_bind_below_every_roof(
    read: float, load: float, regime: str
) -> None:
    together = 1 / (1 / read + 1 / load)
    roofs = {"read": read, "load": load, "compute": 328.0, "load_cold": together}
    limit = bind(roofs, cold=True)
    assert limit is not None
    assert (limit.regime, limit.rate) == (regime, together)
    assert "takes turns" in limit.words
    warm = bind(roofs, cold=False)
    assert warm is not None
    assert warm.rate == min(load, 328.0)


def test_a_cold_load_rung_slower_than_turns_explain_is_noise() -> None:
    roofs = {"read": 11_000.0, "load": 254.0, "compute": 525.0}
    assert bind({**roofs, "load_cold": 160.0}, cold=True) == bind(roofs, cold=True)


def test_a_cold_load_rung_at_its_roof_changes_nothing() -> None:
    assert bind({**ROOFS, "load_cold": 760.0}, cold=True) == bind(ROOFS, cold=True)


@pytest.mark.parametrize("missing", [{"compute"}, {"load", "decode"}])
def test_nothing_is_guessed(missing: set[str]) -> None:
    assert bind({k: v for k, v in ROOFS.items() if k not in missing}, cold=True) is None


def test_williams_roofs_meet_at_the_ridge() -> None:
    # 100 GFLOP/s and 20 GB/s: the ridge lies at 5 FLOP a byte
    roofs = Roofs(peak=100e9, bandwidth=20e9)
    assert roofs.ridge == 5.0
    assert roofs.attainable(1.0) == 20e9
    assert roofs.attainable(5.0) == roofs.attainable(50.0) == 100e9
    assert roofs.least_intensity(60e9) == 3.0
