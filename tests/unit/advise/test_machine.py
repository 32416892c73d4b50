"""The doctor's checks on this machine, and what they say of machines that lack something."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Dict

import pytest

from iobench.advise import software
from iobench.advise.machine import examine
from iobench.advise.software import Check
from iobench.core import registry
from iobench.host import fio, page_cache
from tests.capabilities import need

HERE = Path(__file__).parent
NAMES = {
    "byte counter",
    "clock",
    "cold",
    "cores",
    "cpu frequency",
    "drop_caches",
    "/dev/shm",
    "fio",
    "strace",
    "locked memory",
    "locks",
    "memory",
    "mount",
    "other drivers",
    "proactive reclaim",
    "python",
    "read-ahead",
    "residency proof",
    "stolen time",
    "user namespaces",
    "/dev/fuse",
    *(f"stack {name}" for name in registry.names("stacks")),
    *(f"runtime {name}" for name in registry.names("runtimes") if name != "bare"),
    *(f"launcher {name}" for name in registry.names("launchers") if name != "local"),
}


def by_name(path: Path) -> Dict[str, Check]:
    return {check.name: check for check in examine(path)}


def test_every_subject_is_examined_and_each_no_says_what_to_do() -> None:
    checks = by_name(HERE)
    assert set(checks) == NAMES
    json.dumps([dataclasses.asdict(check) for check in checks.values()])
    for check in checks.values():
        assert check.detail
        assert "\n" not in check.detail + check.remedy
        assert check.ok or check.remedy


def test_it_leaves_nothing_behind() -> None:
    before = sorted(HERE.iterdir())
    examine(HERE)
    assert sorted(HERE.iterdir()) == before


def test_a_folder_that_does_not_exist_yet_is_its_parents_mount() -> None:
    assert by_name(HERE / "not" / "yet")["mount"] == by_name(HERE)["mount"]


def test_tmpfs_cannot_be_cold() -> None:
    check = by_name(Path("/dev/shm"))["cold"]
    assert not check.ok
    assert "tmpfs" in check.detail


def test_a_mount_that_nothing_counts_is_said() -> None:
    check = by_name(Path("/proc"))["byte counter"]
    assert not check.ok
    assert "EXPLORATORY" in check.remedy


def test_no_fio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check = by_name(HERE)["fio"]
    assert not check.ok
    assert fio.INSTALL in check.remedy


def test_what_cannot_run_here_is_no_ok(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\necho asleep >&2\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    found = by_name(HERE)
    docker, podman, hydra = (
        found[name] for name in ("runtime docker", "runtime podman", "launcher hydra")
    )
    assert [docker.ok, podman.ok, hydra.ok] == [False] * 3
    assert docker.detail == "the docker daemon does not answer (asleep)"
    assert docker.remedy == "start it (`systemctl start docker`)"
    assert podman.remedy.startswith("install it (Debian: podman)")


def test_a_dataset_larger_than_memory_cannot_be_warm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dataset.json").write_text("{}")
    (tmp_path / "jpeg").mkdir()
    (tmp_path / "jpeg" / "big").write_bytes(bytes(2 << 20))
    assert by_name(tmp_path)["memory"].ok
    monkeypatch.setattr(page_cache, "effective_memory_bytes", lambda: 1 << 20)
    check = by_name(tmp_path)["memory"]
    assert not check.ok
    assert "cannot be warm" in check.detail


def test_an_absent_library_names_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "importable", lambda module: module != "lmdb")
    check = by_name(HERE)["stack torch"]
    assert not check.ok
    assert check.detail.startswith("lmdb (not installed): no format lmdb; Python 3")
    assert "`make setup`" in check.remedy


@pytest.mark.system
def test_a_caffe_of_another_recipe_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need("caffe")
    monkeypatch.setattr(software.prefix, "wanted", lambda name: "another")
    found = by_name(tmp_path)["stack caffe"]
    assert not found.ok
    assert "`make caffe` renews it" in found.remedy
