"""What every filesystem promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest

from iobench.core import registry
from iobench.core.members import FilesystemBackend
from iobench.core.records import IoCounters
from iobench.host.mounts import FALLBACK, MountInfo, mount_of

members = pytest.mark.parametrize("name", registry.names("filesystems"))
HERE = Path(__file__)


def mount_for(name: str) -> MountInfo:
    """A mount of the member's own kind, as its fstypes say; the test's own for the fallback."""
    fstypes = sorted(registry.load("filesystems", name).fstypes)
    if not fstypes:
        return mount_of(HERE)
    return MountInfo("0:99", "/nowhere", ("rw",), fstypes[0], "source", ("rw",))


@members
def test_it_is_a_filesystem_backend(name: str) -> None:
    backend = registry.load("filesystems", name)
    assert isinstance(backend, FilesystemBackend)
    assert backend.summary


def test_no_two_members_claim_one_fstype_and_the_fallback_claims_none() -> None:
    claims = collections.Counter(
        fstype
        for name in registry.names("filesystems")
        for fstype in registry.load("filesystems", name).fstypes
    )
    assert not [fstype for fstype, count in claims.items() if count > 1]
    assert not registry.load("filesystems", FALLBACK).fstypes


@members
def test_facts_and_counters_are_plain(name: str) -> None:
    filesystem = registry.load("filesystems", name).make(mount=mount_for(name))
    facts = dict(filesystem.describe(HERE))
    json.dumps(facts)
    assert {"fstype", "mount_point", "options", "device", "source"} <= set(facts)
    assert all(isinstance(v, int) and v >= 0 for v in filesystem.counters(HERE).values())


@members
def test_bytes_that_crossed_come_with_the_name_of_their_counter(name: str) -> None:
    filesystem = registry.load("filesystems", name).make(mount=mount_for(name))
    count, counter = filesystem.storage_bytes(IoCounters(read_bytes=7))
    assert count is None or (count >= 0 and counter)


@members
def test_cold_is_possible_or_the_reason_is_one_line(name: str) -> None:
    reason = registry.load("filesystems", name).make(mount=mount_for(name)).cold()
    assert isinstance(reason, str)
    assert "\n" not in reason
