"""Files spread over a real volume's bricks, as its administrator has set it.

What a case asks for is held against that before data are written, and the bricks have them so.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterator, List

import pytest

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import DatasetError
from iobench.core.records import VALID
from iobench.core.striping import Striping
from iobench.data import describe, make
from iobench.host.striping import stripe, striping_of
from iobench.run import copies, prepare
from iobench.run.trial import TrialSettings, run_trial
from tests.build.gluster import Gluster, gluster
from tests.capabilities import need

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def volume() -> Iterator[Gluster]:
    need("gluster")
    with gluster(cluster__subvols_per_directory="1") as found:
        found.set("performance.quick-read", "off")
        yield found


@pytest.fixture(scope="module")
def data(volume: Gluster) -> Dataset:
    return make.make("imagenet-like", volume.mount / "set", samples=48, seed=1)


def case_of(data: Dataset, **striping: int) -> Case:
    return Case(
        label=str(striping), format="jpeg", loader="threads", trainer="null", batch=8, workers=1,
        location=data.root, striping=dict(striping),
    )  # fmt: skip


def on_bricks(volume: Gluster, folder: Path) -> List[int]:
    """Return how many of the pictures below a folder of the volume each brick has."""
    below = folder.relative_to(volume.mount)
    return [len(list((brick / below).rglob("*.jpg"))) for brick in volume.bricks]


def test_a_folder_has_what_the_volume_says(volume: Gluster) -> None:
    folder = volume.mount / "folder"
    folder.mkdir()
    stripe(folder, {"count": 1})
    assert striping_of(folder) == Striping(1)
    for i in range(32):
        (folder / f"{i}.jpg").write_bytes(b"x")
    assert sorted(on_bricks(volume, folder)) == [0, 32]


def test_a_striping_is_a_copy_that_is_read_cold(volume: Gluster, data: Dataset) -> None:
    case = case_of(data, count=1)
    prepare.forms([case], data, lambda *_: None)
    copy = Path(data.root, case.folder)
    folders = {path.parent for path in copy.rglob("*.jpg")}
    assert {striping_of(folder) for folder in folders} == {Striping(1)}
    assert all(0 in on_bricks(volume, folder) for folder in folders), "each is on one brick"
    assert sum(on_bricks(volume, copy)) == 48
    volume.evict_servers()
    record = run_trial(Trial("t", case, "read", "cold"), data, 1, TrialSettings())
    assert (record.status, record.reasons) == (VALID, ())
    facts = describe.info(data)["forms"]["jpeg+stripe_count-1"]
    assert (facts["striping"], facts["striping_found"]["count"]) == ({"count": 1}, 1)
    assert not [note for note in prepare.notes([case], data, Path("/")) if "stripe" in note]


def test_copies_for_cold_arms_have_it_as_well(volume: Gluster, data: Dataset) -> None:
    case = case_of(data, count=1)
    prepare.forms([case], data, lambda *_: None)
    settings = TrialSettings()
    trials = [
        Trial(f"t{i}", case, "load", "cold", contrast="c01", block=1, slice_s=0.05, copy=i)
        for i in (1, 2)
    ]
    with contextlib.ExitStack() as undo:
        copies.make(trials, data, settings, undo)
        for copy in settings.copies.values():
            folders = {path.parent for path in Path(copy.root, case.folder).rglob("*.jpg")}
            assert folders
            assert {striping_of(folder) for folder in folders} == {Striping(1)}


def test_what_it_cannot_do_is_left_out_or_ends_it(volume: Gluster, data: Dataset) -> None:
    said: List[str] = []
    cases = [case_of(data), case_of(data, count=1), case_of(data, bytes=1 << 20)]
    root = volume.mount / "never-made"
    assert prepare.spreadable(cases, root, said.append) == cases[:2]
    (line,) = said
    assert "striping (bytes = 1048576) is not possible on fuse.glusterfs at" in line
    assert "new folders have count = 1, by its option cluster.subvols-per-directory" in line
    with pytest.raises(DatasetError, match="files are whole"):
        prepare.spreadable(cases[2:], root, said.append)
    assert not root.exists()
    assert not list(volume.mount.glob(".iobench*"))
    with pytest.raises(DatasetError, match=r"is not possible on fuse\.glusterfs"):
        stripe(volume.mount / "set", {"count": 2})
