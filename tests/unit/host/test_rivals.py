"""Other drivers on this node: seen without a file, by every user, and named by the kernel."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.core.errors import DatasetError
from iobench.host import rivals
from tests.capabilities import need

DRIVER = """
import sys
from pathlib import Path
from iobench.host import rivals
rivals.PREFIX = sys.argv[1]
with rivals.announced(), rivals.alone_with(map(Path, sys.argv[2:])):
    print("there", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def driver(*folders: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", DRIVER, rivals.PREFIX, *map(str, folders)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process
        if process.poll() is None:
            process.communicate()


def test_another_driver_is_seen_until_it_ends_however(tmp_path: Path) -> None:
    assert rivals.seen() == []
    with rivals.announced(), driver(tmp_path) as other:
        (rival,) = rivals.seen()
        user = pwd.getpwuid(os.getuid()).pw_name
        assert (rival.pid, rival.user) == (other.pid, user)
        assert f"of user {user}, pid {other.pid}, since 20" in str(rival)
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert rivals.seen() == []


def test_two_drivers_do_not_measure_the_same_files(tmp_path: Path) -> None:
    data, others = tmp_path / "data", tmp_path / "others"
    data.mkdir()
    others.mkdir()
    (tmp_path / "link").symlink_to(data)
    with driver(data) as other:
        for name in ("data", "link"):  # whatever it is called
            with (
                pytest.raises(DatasetError, match=f"{name} is being measured.* pid {other.pid}"),
                rivals.alone_with([others, tmp_path / name]),
            ):
                pass
        with rivals.alone_with([others]):  # what was taken before the refusal is free again
            pass
        other.kill()
        other.wait()
        with rivals.alone_with([data]):
            pass


def test_every_user_of_the_node_sees_it(tmp_path: Path) -> None:
    need("root")
    with driver(tmp_path) as other:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.setuid(65534)
            os.write(writer, "; ".join(f"{r.user} {r.pid}" for r in rivals.seen()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 1000).decode() == f"root {other.pid}"


def test_a_name_of_no_driver_is_not_believed() -> None:
    for name in ("run/now", "run/2026\x1b[31m/00", "data/1:2", "x"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
            own.bind(f"\0{rivals.PREFIX}/{name}")
            assert rivals.seen() == []


def test_a_name_whose_owner_does_not_answer_is_still_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
        own.bind(f"\0{rivals.PREFIX}/run/2026-01-01T00:00:00+00:00/0a")  # and nobody listens
        assert [*map(str, rivals.seen())] == ["`iobench`, since 2026-01-01T00:00:00+00:00"]


def test_a_driver_behind_a_network_namespace_is_not_seen(tmp_path: Path) -> None:
    """A limit that docs/hpc.md names."""
    need("root")
    with driver(tmp_path):
        code = f"from iobench.host import rivals; rivals.PREFIX = {rivals.PREFIX!r}; "
        code += "raise SystemExit(len(rivals.seen()))"
        asked = [sys.executable, "-c", code]
        assert subprocess.run(asked).returncode == 1
        assert subprocess.run(["unshare", "--net", *asked]).returncode == 0
