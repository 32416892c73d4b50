"""Files spread over a real volume's bricks as a case asks: set before they are written, proven by
where the bricks have them."""

from __future__ import annotations

import contextlib
import dataclasses
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
    with gluster() as found:
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


def test_a_folder_keeps_what_is_set(volume: Gluster) -> None:
    for count in (1, 2):
        folder = volume.mount / f"folder{count}"
        folder.mkdir()
        stripe(folder, {"count": count})
        assert striping_of(folder) == Striping(count)
        for i in range(32):
            (folder / f"{i}.jpg").write_bytes(b"x")
        assert sum(n > 0 for n in on_bricks(volume, folder)) == count


def test_each_striping_is_a_copy_that_is_read_cold(volume: Gluster, data: Dataset) -> None:
    cases = [case_of(data, count=1), case_of(data, count=2)]
    prepare.forms(cases, data, lambda *_: None)
    for case in cases:
        copy = Path(data.root, case.folder)
        folders = {path.parent for path in copy.rglob("*.jpg")}
        assert {striping_of(folder) for folder in folders} == {
            Striping(int(case.striping["count"]))
        }
        assert sum(on_bricks(volume, copy)) == 48
        volume.evict_servers()
        record = run_trial(Trial("t", case, "read", "cold"), data, 1, TrialSettings())
        assert (record.status, record.reasons) == (VALID, ())
    one = [on_bricks(volume, folder) for folder in Path(data.root, cases[0].folder).iterdir()
           if folder.is_dir()]  # fmt: skip
    assert all(0 in counts for counts in one), "each folder's files are on one brick"
    facts = describe.info(data)["forms"]
    assert facts["jpeg+stripe_count-1"]["striping"] == {"count": 1}
    assert facts["jpeg+stripe_count-1"]["striping_found"]["count"] == 1
    assert prepare.notes(cases, data, Path("/")) is not None


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
    cases = [case_of(data), case_of(data, count=2), case_of(data, bytes=1 << 20)]
    root = volume.mount / "never-made"
    assert prepare.spreadable(cases, root, said.append) == cases[:2]
    (line,) = said
    assert "striping (bytes = 1048576) is not possible on fuse.glusterfs at" in line
    assert "it keeps whole files on bricks" in line
    with pytest.raises(DatasetError, match="it keeps whole files"):
        prepare.spreadable([dataclasses.replace(cases[2])], root, said.append)
    assert not root.exists()
    assert not list(volume.mount.glob(".iobench*"))
    with pytest.raises(DatasetError, match=r"is not possible on fuse\.glusterfs"):
        stripe(volume.mount / "set", {"count": 99})
