"""Break-even of a copy: the formula on one node, and what several nodes make of it."""

from __future__ import annotations

import pytest

from iobench.equations.staging import Staging

#: 100 MB in 4 s; an epoch takes 3 s from the mount and 1 s from the copy.
ONE = Staging(4.0, 100e6, 3.0, 1.0)


def test_one_node_pays_by_its_time_over_what_an_epoch_saves() -> None:
    assert ONE.epochs == 2.0
    assert Staging(4.0, 100e6, 1.0, 1.0).epochs is None
    assert ONE.at(1, 1e12) == (4.0, 2.0)


def test_a_wide_mount_stages_as_one_node_and_epochs_are_shared_out() -> None:
    """An epoch of n nodes saves an n-th of what it saved, and the copy takes as long."""
    assert ONE.at(4, 1e12) == (4.0, pytest.approx(8.0))


def test_a_narrow_mount_is_shared_by_copies_and_by_epochs() -> None:
    """At 50 MB/s eight copies take 16 s; an epoch from the mount takes 2 s, locally 1/8 s."""
    seconds, epochs = ONE.at(8, 50e6)
    assert seconds == 16.0
    assert epochs == pytest.approx(16 / (2 - 1 / 8))


def test_what_never_paid_on_one_node_can_on_several() -> None:
    """The copy's own disk is slower than the mount, which several nodes share."""
    slow = Staging(4.0, 100e6, 3.0, 3.5)
    assert slow.epochs is None
    assert slow.at(8, 50e6)[1] == pytest.approx(16 / (2 - 3.5 / 8))
