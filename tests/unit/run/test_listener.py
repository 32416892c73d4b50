"""The control channel for real: whatever a rank does, one error in the stated time, nothing left.

``tests.build.ranks.started`` asserts at its end that no process is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.core import channel
from iobench.core.cases import Case, Dataset, Task, Trial
from iobench.core.channel import Agree, Challenge, Hello, Prepared, Ready, Refused, Result
from iobench.core.errors import TrialFailed
from iobench.run import worker_process
from iobench.run.listener import Listener
from tests.build.ranks import HEAD, JOIN, RESULT, started

SLEEP = "\ntime.sleep(60)\n"
FINE = f"{JOIN}{RESULT}driver.send(Ready())\ndriver.expect(Go)\nresult()\n"
#: Room for a busy machine, beside the time that is stated.
SLACK_S = 10.0


@contextlib.contextmanager
def fails(match: str, within_s: float) -> Iterator[None]:
    """The body raises TrialFailed with one line that matches, in time."""
    begun = time.monotonic()
    with pytest.raises(TrialFailed) as caught:
        yield
    assert time.monotonic() - begun < within_s + SLACK_S
    assert "\n" not in str(caught.value)
    assert re.search(match, str(caught.value)), caught.value


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MESSAGE_S", 0.5)
    monkeypatch.setattr(worker_process, "GRACE_S", 0.5)


def test_a_rank_runs_to_its_end(tmp_path: Path) -> None:
    with started(tmp_path, [FINE]) as worker:
        assert 0 < worker.wait_ready() < 30
        worker.release()
        (result,) = worker.results()
        assert (result.rank, result.world_size, result.error) == (0, 1, "")
        assert worker.results() == (result,)
    assert (tmp_path / channel.INVITATION).stat().st_mode & 0o777 == 0o600


def test_a_rank_that_never_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "HELLO_S", 0.7)
    with (
        started(tmp_path, [f"import time{SLEEP}"], limit_s=1.0) as worker,
        fails(r"^worker did not connect to the driver within 0.7 s of the start; raise", 0.7),
    ):
        worker.wait_ready()


def test_one_of_several_that_never_connects_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "HELLO_S", 5.0)
    with (
        started(tmp_path, [FINE, f"import time{SLEEP}"], limit_s=6.0) as worker,
        fails(r"^rank 1 of 2 did not connect", 5.0),
    ):
        worker.wait_ready()


def test_a_rank_that_connects_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "HELLO_S", 3.0)
    silent = f"{HEAD}line = channel.connect(path.parent, ''){SLEEP}"
    with started(tmp_path, [silent], limit_s=4.0) as worker, fails("^worker did not connect", 3.0):
        worker.wait_ready()


RUBBISH = {
    "another protocol": (b"GET / HTTP/1.1\\r\\n\\r\\n", "no message of the protocol"),
    "no JSON": (b"\\0\\0\\0\\4rubb", "no message of the protocol"),
    "another kind": (b'\\0\\0\\0\\x13{\"message\": \"Evil\"}', "no message of the protocol"),
    "deep nesting": (b"\\0\\0\\x0f\\xff" + b"[" * 0x0FFF, "no message of the protocol"),
    "half a message": (b"\\0\\0", "a part of a message and no more for 0.5 s"),
    "out of turn": (b'\\0\\0\\0\\x14{\"message\": \"Ready\"}', "sent Ready before Hello"),
}  # fmt: skip


@pytest.mark.parametrize("sent", RUBBISH)
def test_a_rank_that_sends_rubbish(tmp_path: Path, sent: str) -> None:
    data, match = RUBBISH[sent]
    text = data.decode("latin-1").replace('"', '\\"')
    script = f"""{HEAD}
line = socket.socket(socket.AF_UNIX)
line.connect(str(path.parent / sockets.SOCKET))
line.sendall(b"{text}"){SLEEP}"""
    with (
        started(tmp_path, [script]) as worker,
        fails(f"^a process that connected to the driver .*{match}", channel.MESSAGE_S),
    ):
        worker.wait_ready()


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("driver._line._socket.sendall(b'GET / HTTP/1.1')", "worker sent no message of the proto"),
        ("driver.send(Go())", "worker sent Go where none was due"),
        ("driver.send(Hello(0, 0, 1, 'n', 1, 'p'))", "worker sent Hello where none was due"),
        ("driver.send(Extents({}))", r"worker sent a wrong Extents.rows"),
        ("driver.send(Ready()); driver.send(Ready())", "worker sent Ready where none was due"),
    ],
)
def test_a_rank_that_sends_rubbish_later(tmp_path: Path, line: str, match: str) -> None:
    with started(tmp_path, [f"{JOIN}{line}{SLEEP}"]) as worker, fails(match, channel.MESSAGE_S):
        worker.wait_ready()
        worker.results()


def test_a_rank_with_the_wrong_key_is_refused_and_says_so(tmp_path: Path) -> None:
    wrong = f"""{HEAD}
document = json.loads(path.read_text())
path.write_text(json.dumps(dict(document, key="00" * 32)))
try:
    rendezvous.join(path)
except Exception as error:
    (path.parent / "said").write_text(str(error)){SLEEP}"""
    with started(tmp_path, [wrong]) as worker:
        with fails("^a process that connected to the driver has the wrong key$", 0.0):
            worker.wait_ready()
        while not (tmp_path / "said").exists():
            time.sleep(0.01)
    assert (tmp_path / "said").read_text() == "the driver refused this rank: has the wrong key"


@pytest.mark.parametrize("when", ["driver.send(Ready())", "pass"])
def test_a_killed_rank(tmp_path: Path, when: str) -> None:
    with (
        started(tmp_path, [f"{JOIN}{when}\nos.kill(os.getpid(), 9)"]) as worker,
        fails(r"^worker killed by SIGKILL \((by another program|out of memory\? the kernel)", 0.0),
    ):
        worker.wait_ready()
        worker.results()


def test_a_rank_whose_launcher_goes_on_without_it(tmp_path: Path) -> None:
    with (
        started(tmp_path, [f"{JOIN}driver._line.close(){SLEEP}", FINE]) as worker,
        fails("^rank 0 of 2 closed its connection and sent no result$", 0.5),
    ):
        worker.wait_ready()
        worker.results()


def test_when_one_rank_fails_the_others_are_not_waited_for(tmp_path: Path) -> None:
    broken = f"{JOIN}{RESULT}driver.send(Ready())\nresult('Traceback\\nE: bad file')\n"
    waiting = f"{JOIN}driver.send(Ready())\ndriver.meet()\n"
    with started(tmp_path, [broken, waiting]) as worker:
        worker.wait_ready()
        with fails("^rank 0 of 2: E: bad file$", 0.5):
            worker.results()
        assert [r.error for r in worker.finished()] == ["Traceback\nE: bad file"]


def test_a_rank_that_ends_without_a_result(tmp_path: Path) -> None:
    with (
        started(tmp_path, [f"{JOIN}sys.exit('the lens is dirty')"]) as worker,
        fails("^worker ended with status 1 and no result: the lens is dirty$", 0.0),
    ):
        worker.wait_ready()


def test_a_rank_that_runs_too_long(tmp_path: Path) -> None:
    with (
        started(tmp_path, [f"{JOIN}driver.send(Ready()){SLEEP}"], limit_s=3.0) as worker,
        fails("^ran longer than limit_s = 3; raise it in the spec", 3.0),
    ):
        worker.wait_ready()
        worker.release()
        worker.results()


def test_a_rank_that_waits_for_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock.mdb"
    waits = f"import fcntl\nfcntl.lockf(open({str(path)!r}, 'r+'), fcntl.LOCK_EX)\n"
    with (
        open(path, "w") as held,
        started(tmp_path, [f"{JOIN}driver.send(Ready())\n{waits}"], limit_s=3.0) as worker,
        fails(
            r"^ran longer than limit_s = 3; 1 of .* waited for a lock of \S*/lock\.mdb, which ", 3.0
        ),
    ):
        fcntl.lockf(held, fcntl.LOCK_EX)
        worker.wait_ready()
        worker.release()
        worker.results()


def test_two_processes_that_say_they_are_one_rank(tmp_path: Path) -> None:
    claim = f"{HEAD}os.environ['OMPI_COMM_WORLD_RANK'] = '1'\nrendezvous.join(path){SLEEP}"
    with (
        started(tmp_path, [claim, claim]) as worker,
        fails("^two processes say that they are rank 1$", 0.0),
    ):
        worker.wait_ready()


def test_ranks_that_do_not_know_each_other(tmp_path: Path) -> None:
    claim = f"{HEAD}del os.environ['OMPI_COMM_WORLD_SIZE']\nrendezvous.join(path){SLEEP}"
    with (
        started(tmp_path, [claim, claim]) as worker,
        fails("^launcher 'mpirun' was asked for 2 ranks, and this one knows of 1", 0.0),
    ):
        worker.wait_ready()


def test_a_folder_whose_path_does_not_fit_in_an_address(tmp_path: Path) -> None:
    work = tmp_path / ("long" * 40)
    work.mkdir()
    with started(work, [FINE]) as worker:
        worker.wait_ready()
        worker.release()
        assert len(worker.results()) == 1


def test_a_folder_that_can_hold_no_socket(tmp_path: Path) -> None:
    match = r"no socket can be made in .*set TMPDIR to a folder"
    with pytest.raises(TrialFailed, match=match), started(tmp_path / "gone", [FINE]):
        pass


def test_between_nodes_strangers_are_refused_and_the_trial_goes_on(tmp_path: Path) -> None:
    with started(tmp_path, [FINE], host="127.0.0.1") as worker:
        address = json.loads((tmp_path / channel.INVITATION).read_text())["address"]
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 10) as stranger,
            contextlib.closing(channel.connect(tmp_path, address)) as forger,
        ):
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            forger.send(Hello(0, 0, 1, "n", 1, "00"))
            worker.wait_ready()
            worker.release()
            assert len(worker.results()) == 1
            assert isinstance(forger.receive(), Challenge)
            assert forger.receive() == Refused("has the wrong key")
            stranger.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass


HOSTILE = [
    '{"message": "Hello", "rank": 0, "local_rank": 0, "world_size": 1, "node": "n", "pid": 1,'
    ' "proof": "\\ud800"}',
    '{"message": "Lifeline", "rank": 0, "proof": "\\udfff\\u0000"}',
    '{"message": "Hello", "rank": 1e999, "local_rank": NaN, "world_size": [], "node": {}}',
    '{"message": ["Hello"]}', '{"message": "__init__"}', '{"message": "ControlMessage"}',
    '{"message": "Hello", "__class__": "os.system"}', "[" * 4000, "9" * 4000, "cos\nsystem\n(S'id'",
    '{"message": "Result", "result": {}}', '{"message": "Ready"}', "null", "",
]  # fmt: skip


def test_no_stranger_ends_a_trial_between_nodes(tmp_path: Path) -> None:
    """Nothing that one sends before it has proven to be a rank is more than refused."""
    with started(tmp_path, [FINE], host="127.0.0.1") as worker, contextlib.ExitStack() as opened:
        address = json.loads((tmp_path / channel.INVITATION).read_text())["address"]
        host, _, port = address.rpartition(":")
        for body in HOSTILE:
            made = socket.create_connection((host, int(port)), 10)
            stranger = opened.enter_context(made)
            stranger.sendall(len(body).to_bytes(4, "big") + body.encode())
        for size in (b"\xff\xff\xff\xff", b"\0"):  # far too long; cut short
            opened.enter_context(socket.create_connection((host, int(port)), 10)).sendall(size)
        worker.wait_ready()
        worker.release()
        assert len(worker.results()) == 1


@pytest.mark.parametrize(
    "sent",
    [
        "Result({'rank': 'no number'})", "Result({})", "Result({'steps': {'samples': 3}})",
    ],
)  # fmt: skip
def test_a_result_that_is_none_fails_one_trial(sent: str, tmp_path: Path) -> None:
    """The rank may be a program in a stranger's image."""
    script = f"{JOIN}from iobench.core.channel import Result\ndriver.send(Ready())\n"
    script += f"driver.expect(Go)\ndriver.send({sent})\n"
    with started(tmp_path, [script]) as worker, fails("^a rank sent a wrong result: ", 5.0):
        worker.wait_ready()
        worker.release()
        worker.results()


@pytest.mark.parametrize("rows", ["[3]", "[['/etc/shadow']]", "[[['/x', 'a', 1]]]", "[[[1, 2]]]"])
def test_extents_that_are_none_fail_one_trial(rows: str, tmp_path: Path) -> None:
    script = f"{JOIN}from iobench.core.channel import Extents\n"
    script += f"driver.send(Extents({rows}))\ndriver.send(Ready())\n{SLEEP}"
    with started(tmp_path, [script]) as worker, fails("^a rank sent no extents", 5.0):
        worker.wait_ready()
        worker.extents()


@pytest.fixture
def never() -> Iterator[int]:
    """A descriptor that is never ready."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


def test_strangers_that_hold_every_file_are_dropped(tmp_path: Path, never: int) -> None:
    """The kernel says so when the next one is accepted."""
    with contextlib.closing(Listener(tmp_path, Case(), "local", 1, "127.0.0.1")) as listener:
        address = json.loads((tmp_path / channel.INVITATION).read_text())["address"]
        with (
            contextlib.closing(channel.connect(tmp_path, address)) as stranger,
            contextlib.closing(channel.connect(tmp_path, address)),
        ):
            listener.serve(never, 1.0)
            assert isinstance(stranger.receive(), Challenge)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (8, hard))  # enough to poll
            try:
                listener.serve(never, 1.0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            with pytest.raises(channel.ChannelClosed):
                stranger.receive()
            listener.serve(never, 1.0)  # the other one's turn has come


def test_a_rank_that_dies_before_it_has_its_task_fails_one_trial(
    tmp_path: Path, never: int
) -> None:
    """Not the suite: what stops that is any other error."""
    with contextlib.closing(Listener(tmp_path, Case(), "local", 1)) as listener:
        listener.task = Task(trial=Trial("t", Case(), "load", "-"), dataset=dataset(), seconds=0.0)
        line = channel.connect(tmp_path, "")
        listener.serve(never, 1.0)
        challenge = line.receive()
        assert isinstance(challenge, Challenge)
        key = json.loads((tmp_path / channel.INVITATION).read_text())["key"]
        line.send(Hello(0, 0, 1, "n", 1, channel.prove(key, challenge.nonce)))
        line.close()
        for _ in range(3):
            listener.serve(never, 0.2)
        assert listener.failing == "worker"


def dataset() -> Dataset:
    return Dataset("/nowhere", "t", 1, 1, 1, 1, "", "test")


def test_ranks_meet_and_agree(tmp_path: Path) -> None:
    script = f"""{JOIN}{RESULT}
driver.send(Ready())
driver.expect(Go)
time.sleep(0.2 * driver.rank)
came = time.monotonic()
begin_at = driver.meet()
result(began_s=begin_at, notes=dict(came=came, agreed=driver.agree(10 + driver.rank)))
"""
    with started(tmp_path, [script] * 3) as worker:
        worker.wait_ready()
        worker.release()
        results = worker.results()
    assert [r.notes["agreed"] for r in results] == [10, 10, 10]
    (begin_at,) = {r.began_s for r in results}
    assert begin_at > max(r.notes["came"] for r in results)


def test_each_node_sends_its_own_proof(tmp_path: Path) -> None:
    script = f"""{JOIN}
driver.send(Ready())
driver.expect(Prepare)
driver.send(Prepared(f"node{{driver.rank}}", [0.5, None][driver.rank], "mincore"))
driver.expect(Go)
"""
    with started(tmp_path, [script] * 2) as worker:
        worker.wait_ready()
        assert worker.prepared() == [
            Prepared("node0", 0.5, "mincore"), Prepared("node1", None, "mincore"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    "message", [Ready(), Agree(3), Hello(1, 0, 2, "n", 7, "p"), Result({"a": 1})]
)
def test_a_message_survives_its_way(message: channel.ControlMessage) -> None:
    assert channel.decode(channel.encode(message)[4:]) == message


def test_a_proof_is_of_one_challenge_and_one_key() -> None:
    proof = channel.prove("aa" * 32, "bb" * 32)
    assert channel.proven("aa" * 32, "bb" * 32, proof)
    assert not channel.proven("aa" * 32, "bc" * 32, proof)
    assert not channel.proven("ab" * 32, "bb" * 32, proof)
    assert not channel.proven("aa" * 32, "bb" * 32, "Ä")


def test_large_messages_of_several_ranks(tmp_path: Path) -> None:
    rows = "[[['/data/' + 'x' * 60, i, 1]] for i in range(200000)]"
    script = f"{JOIN}driver.send(Extents({rows}))\ndriver.send(Ready())\ndriver.expect(Go)\n"
    with started(tmp_path, [script] * 2) as worker:
        worker.wait_ready()
        extents = worker.extents()
    assert len(extents) == 400000
    assert extents[0] == [("/data/" + "x" * 60, 0, 1)]
