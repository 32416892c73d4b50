"""What a container does to I/O: each fault is found from its own fact, and from no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iobench.analysis.confounders import differences
from iobench.core.cases import Scalar
from iobench.host import container_io, engines, fingerprint
from iobench.host.container_io import View, faults
from tests.capabilities import need

ROOT = Path(__file__).parents[3]
OWN = "0 1000 1"


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (View(), {}),
        (View(direct="kvikio", udev=False), {"udev_hidden_from": "kvikio"}),
        (View(direct="kvikio"), {}),
        (View(udev=False), {}),
        (
            View(fstype="lustre", uid_map=OWN),
            {"lustre_users": "namespace of its own (0 1000 1)"},
        ),
        (View(fstype="lustre"), {}),
        (View(fstype="lustre", uid_map=""), {}),
        (View(fstype="ext4", uid_map=OWN), {}),
        (
            View(inside=True, system="tmpfs", system_bytes=5),
            {"image_on": "tmpfs", "image_mount_bytes": 5},
        ),
        (View(system="tmpfs"), {}),
        (View(inside=True, system="overlay"), {}),
    ],
)
def test_faults(view: View, found: dict[str, Scalar]) -> None:
    assert faults(view) == found


def test_this_process_is_in_no_container_of_ours(tmp_path: Path) -> None:
    view = container_io.look(tmp_path)
    assert not view.inside
    assert view.system
    assert view.direct == ""
    assert "container" not in fingerprint.collect(tmp_path)


def test_a_user_namespace_is_seen_from_inside() -> None:
    need("userns")
    code = (
        "from iobench.host.container_io import look; print(look(__import__('pathlib').Path('/')))"
    )
    for prefix, own in (([], False), (["unshare", "--user", "--map-root-user"], True)):
        done = subprocess.run(
            [*prefix, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        )
        assert ("uid_map='0 0 4294967295'" in done.stdout) is not own, done.stderr


def test_a_fault_of_one_arm_is_a_confounder_whatever_the_runtime() -> None:
    one = {"image_on": "tmpfs", "image_mount_bytes": 7}
    lines = differences({"container": one}, {}, across_runtimes=True)
    assert lines == ["container image on: tmpfs against absent"]
    other = {"container": {**one, "image_mount_bytes": 8}}
    assert differences({"container": one}, other) == []


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_store_is_where_the_engine_says(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"folder": (0, f"{tmp_path}/not-there"), "nothing": (1, "no daemon")}
    monkeypatch.setattr(engines, "asked_once", lambda *words: answers["folder"])
    assert engines.store(engine) == tmp_path
    assert engines.store_filesystem(engine)
    monkeypatch.setattr(engines, "asked_once", lambda *words: answers["nothing"])
    assert engines.store(engine) is None
    assert engines.store_filesystem(engine) == ""
    assert engines.store("bare") is None
