"""The agent of another node for real: a process that connects by TCP and does what it is asked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing import connection
from pathlib import Path
from typing import Any, Iterator

import psutil
import pytest

from iobench.core.channel import AgentHello
from iobench.core.errors import CacheStateError, TrialFailed
from iobench.core.records import IoCounters
from iobench.host import mounts, page_cache
from iobench.host.agent import LOCAL
from iobench.host.remote_agent import INVITATION, Invited, RemoteAgent
from iobench.run.door import Door

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def started(tmp_path: Path, key: str = "", limit_s: float = 60.0) -> Iterator[Any]:
    """Yield (agent, its process); ``key``: instead of the right one."""
    door = Door(tmp_path, "127.0.0.1")
    env = {INVITATION: Invited(door.address, key or door.key).text(), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "iobench.host.agent_process", "local"],
        env={**os.environ, **env}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        come = None
        while come is None and process.poll() is None:
            connection.wait([door], 0.1)
            come = next(door.admit(), come)
        if come is None:
            yield None, process
            return
        line, hello = come
        assert isinstance(hello, AgentHello)
        with contextlib.closing(RemoteAgent("n17", line, limit_s)) as agent:
            yield agent, process
    finally:
        door.close()
        process.wait(20)
        assert process.stderr is not None
        process.stderr.close()


def test_it_does_what_the_agent_of_this_node_does(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"x" * 100_000)
    with started(tmp_path) as (agent, process):
        agent.evict([file])
        assert page_cache.residency([file]).fraction == 0.0
        assert agent.residency([file]) == LOCAL.residency([file])
        agent.warm([file])
        assert page_cache.residency([file]).fraction == 1.0
        assert agent.mount(tmp_path) == LOCAL.mount(tmp_path)
        assert agent.cold(tmp_path) == LOCAL.cold(tmp_path)
        first, seen, last = (a.counters(tmp_path) for a in (LOCAL, agent, LOCAL))
        assert seen.keys() == first.keys()
        assert all(first[name] <= seen[name] <= last[name] for name in seen), "others read too"
        io = IoCounters(read_bytes=7)
        moved = dict.fromkeys(LOCAL.counters(tmp_path), 5)
        assert agent.crossed(tmp_path, io, moved) == LOCAL.crossed(tmp_path, io, moved)
        assert agent.others(tmp_path) == LOCAL.others(tmp_path)
        assert agent.caches(tmp_path) == LOCAL.caches(tmp_path)
        agent.check_warmable(1)
        agent.drop_caches(allowed=False)
        with agent.lock([file]) as reason:
            assert reason == ""
            (holder,) = psutil.Process(process.pid).children()
            agent.evict([file])
            assert page_cache.residency([file]).fraction == 1.0, "locked pages stay"
        assert not holder.is_running()


def test_a_work_folder_is_made_for_its_owner_alone_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    with started(tmp_path) as (agent, _):
        with agent.work_folder(folder, {"invitation.json": "{}"}, {"code/iobench": "/nowhere"}):
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (folder / "invitation.json").stat().st_mode & 0o777 == 0o600
            assert os.readlink(folder / "code/iobench") == "/nowhere"
        assert not folder.exists()
        folder.mkdir(mode=0o700)  # the driver's, on a filesystem that both nodes see
        (folder / "invitation.json").write_text("[]")
        with agent.work_folder(folder, {"invitation.json": "{}"}, {}):
            assert (folder / "invitation.json").read_text() == "[]"
        assert folder.exists()
        folder.chmod(0o755)
        with (
            pytest.raises(TrialFailed, match=r"node n17: .*not this user's own folder"),
            agent.work_folder(folder, {}, {}),
        ):
            pass


def test_a_node_says_what_it_lacks(tmp_path: Path) -> None:
    image = tmp_path / "torch"
    with started(tmp_path) as (agent, _):
        assert agent.absent(str(tmp_path)) == ""
        assert str(image) in agent.absent(str(image))
        assert str(image) in agent.lacks("unpacked", {}, str(image))
        image.mkdir()
        assert agent.lacks("unpacked", {}, str(image)) == ""
        agent.stop("unpacked", {}, "iobench-1")  # all of it are its own children


def test_errors_of_the_other_node_name_it(tmp_path: Path) -> None:
    with started(tmp_path) as (agent, _):
        with pytest.raises(CacheStateError, match="node n17: cannot open /nowhere"):
            agent.evict([Path("/nowhere")])
        with pytest.raises(CacheStateError, match=r"node n17: .*cannot be warm"):
            agent.check_warmable(1 << 60)
        agent.evict([])  # it goes on


def test_an_agent_that_was_killed_fails_every_further_call(tmp_path: Path) -> None:
    with started(tmp_path) as (agent, process):
        os.kill(process.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(TrialFailed, match="node n17: its agent closed its connection"):
                agent.evict([])


def test_an_agent_that_does_not_answer_fails_the_trial_in_time(tmp_path: Path) -> None:
    with started(tmp_path, limit_s=0.3) as (agent, process):
        os.kill(process.pid, signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(TrialFailed, match=r"n17: its agent did not answer 'evict' within"):
                agent.evict([])
        os.kill(process.pid, signal.SIGCONT)


def test_when_the_driver_goes_agent_and_locked_pages_go(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"x" * 100_000)
    with (
        started(tmp_path) as (agent, process),
        contextlib.suppress(TrialFailed),
        agent.lock([file]),
    ):
        holder = psutil.Process(process.pid).children()
        agent.close()
    assert len(holder) == 1
    gone, _ = psutil.wait_procs(holder, timeout=5)
    assert gone or holder[0].status() == psutil.STATUS_ZOMBIE


def test_who_has_another_key_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, key="00" * 32) as (agent, process):
        assert agent is None
        assert process.wait(20) != 0


def test_paths_are_described_as_the_node_sees_them(tmp_path: Path) -> None:
    with started(tmp_path) as (agent, _):
        assert agent.mount(Path("/proc"))["fstype"] == mounts.mount_of(Path("/proc")).fstype
