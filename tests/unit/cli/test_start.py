"""Streams that are closed, full or unread, and signals from the first import on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "iobench.cli"]
#: Says that it is importing, and goes on importing.
SLOW = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "iobench.cli.main":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from iobench.cli.__main__ import main
main()
"""
STOPPED = """
import os, signal, time
from iobench.cli import start
start.begin()
start.interruptible()
def send():
    os.kill(os.getpid(), signal.{name})
    time.sleep(5)
try:
    send()
except KeyboardInterrupt:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        print("taken down")
    except KeyboardInterrupt:
        print("disturbed")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_are_imported_is_one_line(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == "iobench: interrupted; the same command goes on where it stopped\n"


def test_what_is_ignored_stays_so() -> None:
    words = ["nohup", sys.executable, "-c", SLOW.replace("60", "1")]
    with subprocess.Popen(
        [*words, "--version"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGHUP)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert shown.startswith("iobench, version")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_second_signal_does_not_disturb_what_is_taken_down(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(name=name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("taken down\n", 0), done.stderr


@pytest.mark.parametrize(
    ("streams", "status"),
    [
        ("<&-", 0),
        (">&-", 0),
        ("2>&-", 0),
        ("<&- >&- 2>&-", 0),
        ("2>/dev/full", 0),
        (">/dev/full", 2),
        (">/dev/full 2>&1", 2),
    ],
)
def test_streams_that_take_nothing(streams: str, status: int) -> None:
    shell = ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", *COMMAND, "list"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    if streams == ">/dev/full":
        assert done.stderr.startswith("iobench: standard output cannot be written")
        assert done.stderr.endswith("(No space left on device)\n")
        assert done.stderr.count("\n") == 1
    if streams in ("<&-", "2>/dev/full"):
        assert "formats" in done.stdout


def test_the_reader_of_standard_error_may_go_away() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [*COMMAND, "run", "no-such-spec"]
    done = subprocess.run(words, stderr=writer, stdout=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 2


LOST = """
import os, signal, time
from iobench.cli import start
start.begin()
start.interruptible()
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
try:
    Finalized()
    time.sleep(5)
    print("lost")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_in_a_finalizer_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
