"""What every filesystem promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iobench.core import registry
from iobench.core.errors import DatasetError
from iobench.core.members import FilesystemBackend
from iobench.core.records import IoCounters
from iobench.core.striping import Striping
from iobench.host.filesystems import FALLBACK, member_of
from iobench.host.mounts import MountInfo, mount_of
from iobench.host.stacked import caches_of

members = pytest.mark.parametrize("name", registry.names("filesystems"))
HERE = Path(__file__)


def mounts_for(name: str) -> list[MountInfo]:
    """Mounts of the member's own kinds, as its patterns say; the test's own for the fallback."""
    member = registry.load("filesystems", name)
    source = member.source.replace("*", "server:/source")
    return [
        MountInfo("0:99", "/nowhere", ("rw",), fstype.replace("*", "x"), source, ("rw",))
        for fstype in sorted(member.fstypes)
    ] or [mount_of(HERE)]


def mount_for(name: str) -> MountInfo:
    return mounts_for(name)[0]


@members
def test_it_is_a_filesystem_backend(name: str) -> None:
    backend = registry.load("filesystems", name)
    assert isinstance(backend, FilesystemBackend)
    assert backend.summary


@members
def test_its_mounts_are_its_own_and_the_fallback_claims_none(name: str) -> None:
    assert {member_of(mount) for mount in mounts_for(name)} == {name}
    assert bool(registry.load("filesystems", name).fstypes) == (name != FALLBACK)


@members
def test_facts_and_counters_are_plain(name: str) -> None:
    filesystem = registry.load("filesystems", name).make(mount=mount_for(name))
    facts = dict(filesystem.describe(HERE))
    json.dumps(facts)
    assert {"fstype", "mount_point", "options", "device", "source"} <= set(facts)
    assert all(isinstance(v, int) and v >= 0 for v in filesystem.counters(HERE).values())


@members
def test_bytes_that_crossed_come_with_the_name_of_their_counter_or_why_none_are(name: str) -> None:
    for mount in mounts_for(name):
        filesystem = registry.load("filesystems", name).make(mount=mount)
        for moved in ({}, dict.fromkeys(filesystem.counters(HERE), 7)):
            crossed = filesystem.crossed(IoCounters(read_bytes=7), moved)
            assert crossed.nbytes in (None, 0, 7)
            assert crossed.counter
            assert not (crossed.whole and crossed.nbytes is None)


@members
def test_a_counter_that_began_again_proves_nothing(name: str) -> None:
    filesystem = registry.load("filesystems", name).make(mount=mount_for(name))
    moved = dict.fromkeys(filesystem.counters(HERE), -7)
    assert (filesystem.crossed(IoCounters(), moved).nbytes or 0) >= 0


@members
def test_what_a_client_keeps_is_named_in_bytes(name: str) -> None:
    filesystem = registry.load("filesystems", name).make(mount=mount_for(name))
    assert all(n >= 0 for n in caches_of(filesystem).values())


@members
def test_files_are_spread_or_the_reason_is_one_line(name: str, tmp_path: Path) -> None:
    """Where nothing of the kind is mounted, none can be."""
    filesystem = registry.load("filesystems", name).make(mount=mount_for(name))
    with pytest.raises((DatasetError, OSError)) as error:
        filesystem.stripe(tmp_path, Striping(count=2))
    assert "\n" not in str(error.value)
    assert filesystem.striping(tmp_path) == Striping()
    assert not list(tmp_path.iterdir())


@members
def test_cold_is_possible_or_the_reason_is_one_line(name: str) -> None:
    reason = registry.load("filesystems", name).make(mount=mount_for(name)).cold()
    assert isinstance(reason, str)
    assert "\n" not in reason
