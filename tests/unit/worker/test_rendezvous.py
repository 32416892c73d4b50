"""How a rank joins its driver: its lifeline ends it when the driver goes, and at no other time."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from iobench.analysis.results import to_json
from iobench.core import channel, sockets
from iobench.core.cases import Case, Dataset, Task, Trial
from iobench.core.channel import ControlChannel

KEY, NONCE = "00" * 32, "11" * 32
JOIN = """
import sys, time
from pathlib import Path
from iobench.worker import rendezvous
driver, task = rendezvous.join(Path(sys.argv[1]))
print("joined", flush=True)
time.sleep(60)
"""


def challenged(listening: socket.socket) -> ControlChannel:
    """Return the next connection, with the driver's first message sent."""
    end = ControlChannel(listening.accept()[0])
    end.send(channel.Challenge(NONCE))
    return end


def test_what_reaches_a_lifeline_before_the_task_ends_no_rank(tmp_path: Path) -> None:
    """A Unix socket's sender may be kept from its core when its message can be read, and wake the
    reader later: that wake-up would end a rank that had asked for SIGKILL meanwhile.
    """
    listening, address = sockets.listen(tmp_path)
    channel.invite(tmp_path, channel.Invitation(address, KEY, "local", {}))
    rank = subprocess.Popen(
        [sys.executable, "-c", JOIN, str(tmp_path / channel.INVITATION)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        listening.settimeout(20)
        line, lifeline = (challenged(listening) for _ in range(2))
        assert isinstance(line.receive(), channel.Hello)
        lifeline.send(channel.Challenge(NONCE))  # a reader is woken once more
        task = Task(Trial("t", Case(), "load", "-"), Dataset("r", "n", 1, 1, 1, 1, "d", "s"))
        line.send(channel.Assignment(to_json(task)))
        assert rank.stdout is not None
        assert rank.stdout.readline() == "joined\n"
        assert rank.poll() is None
        assert isinstance(lifeline.receive(), channel.Lifeline)
        lifeline.close()
        assert rank.wait(20) == -9, "from then on it ends with its driver"
        line.close()
    finally:
        rank.kill()
        rank.communicate()
        listening.close()
