"""One host of a cluster with a slower network or a slower disk than the others."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator

from benchmarks.throttle import ThrottledMount, throttled_device
from tests.build import relay
from tests.build.hosts import Host, Hosts, until

#: Large frames, of which headers are little: so many bytes of a frame are TCP's own payload.
MTU, FRAME, PAYLOAD = 9000, 9014, 8948
#: What a link that was idle lets through at once: more than it misses between two messages.
BURST = 128 << 10
_QUEUE = 16 << 20
#: Datagrams that a round trip is the median of.
_PINGS = 30
_ECHO = """
import socket, sys
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind((sys.argv[1], 7))
print("up", flush=True)
for _ in range(int(sys.argv[2])):
    here.sendto(*here.recvfrom(2048))
"""
_PING = """
import socket, statistics, sys, time
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.settimeout(10)
took = []
for _ in range(int(sys.argv[2])):
    begun = time.perf_counter()
    here.sendto(b"x" * 64, (sys.argv[1], 7))
    here.recv(2048)
    took.append(time.perf_counter() - begun)
    time.sleep(0.02)
print(statistics.median(took))
"""
#: Steps as the emulated trainer takes them, without iobench; the first one connects.
_STEPS = """
import sys, time
import torch
from torch import distributed
first, rank, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
nbytes, buckets, count = map(int, sys.argv[4:])
gloo = distributed.ProcessGroupGloo
options = gloo._Options()
options._devices = [gloo.create_device(interface="eth0")]
store = distributed.TCPStore(first, 7, 2, is_master=not rank)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, pg_options=options)
parts, took = [torch.zeros(nbytes // 4 // buckets) for _ in range(buckets)], []

def until(end):
    time.sleep(max(0.0, end - 2e-4 - time.perf_counter()))
    while time.perf_counter() < end:
        pass

for _ in range(count + 1):
    begun, sent = time.perf_counter(), []
    for i, part in enumerate(parts, 1):
        until(begun + step_s / 3 + step_s * 2 / 3 * i / buckets)
        work = distributed.all_reduce(part, async_op=True)
        sent.append(work.get_future().then(lambda done: done.value()[0].div_(2)))
    for mean in sent:
        mean.wait()
    took.append(time.perf_counter() - begun)
print(sum(took[1:]) / count - step_s)
"""
#: So many are timed, after one that is not.
STEPS = 30


@contextlib.contextmanager
def bandwidth(cluster: Hosts, host: Host, bytes_per_s: int) -> Iterator[Callable[[], int]]:
    """Let a host send and be sent so many bytes a second (tbf at both ends of its cable).

    Yield what returns the bytes that it was sent so far, headers too.
    """
    shaped = f"tbf rate {bytes_per_s}bps burst {BURST} limit {_QUEUE}".split()
    port = cluster.port(host)

    def set_mtu(nbytes: int) -> None:
        for each in cluster.hosts:
            cluster.at_switch("ip", "link", "set", cluster.port(each), "mtu", str(nbytes))
            each.run("ip", "link", "set", "eth0", "mtu", str(nbytes))

    def sent() -> int:
        shown = json.loads(cluster.at_switch("tc", "-s", "-j", "qdisc", "show", "dev", port))
        return int(next(q["bytes"] for q in shown if q["kind"] == "tbf"))

    with contextlib.ExitStack() as undo:
        set_mtu(MTU)
        undo.callback(set_mtu, 1500)
        host.run("tc", "qdisc", "add", "dev", "eth0", "root", *shaped)
        undo.callback(host.run, "tc", "qdisc", "del", "dev", "eth0", "root")
        cluster.at_switch("tc", "qdisc", "add", "dev", port, "root", *shaped)
        undo.callback(cluster.at_switch, "tc", "qdisc", "del", "dev", port, "root")
        yield sent


def round_trip_s(cluster: Hosts, host: Host) -> float:
    """Return what a datagram takes to a host and back, in seconds.

    The median of several: a step, too, is woken up as late as usual here.
    """
    words = [host.address, str(_PINGS)]
    echo = host.enter(sys.executable, "-I", "-S", "-c", _ECHO, *words)
    first = next(each for each in cluster.hosts if each is not host)
    with subprocess.Popen(echo, stdout=subprocess.PIPE, text=True) as there:
        assert there.stdout is not None
        assert there.stdout.readline() == "up\n"
        try:
            found = first.run(sys.executable, "-I", "-S", "-c", _PING, *words).stdout
        except subprocess.CalledProcessError:
            there.kill()
            raise
    return float(found)


def exchange_s(cluster: Hosts, step_s: float, nbytes: int, buckets: int) -> float:
    """Return what exchanging so many bytes adds to a step between the first two hosts, in seconds.

    The mean over steps that a loop without iobench takes, by gloo.  Needs torch.
    """
    words = [sys.executable, "-c", _STEPS, cluster.hosts[0].address]
    sizes = [str(step_s), str(nbytes), str(buckets), str(STEPS)]
    ranks = [
        subprocess.Popen(
            host.enter(*words, str(rank), *sizes),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for rank, host in enumerate(cluster.hosts[:2])
    ]  # fmt: skip
    added = [rank.communicate()[0] for rank in ranks]
    return float(added[0])


@contextlib.contextmanager
def latency(cluster: Hosts, host: Host, delay_s: float) -> Iterator[Callable[[], float]]:
    """Hold every frame to and from a host for so long: a relay in place of its cable.

    Yield what returns the seconds that a datagram takes there and back now: twice the delay, and
    what the relay and the wake-ups around it take themselves.
    """

    def ip(*words: str) -> str:
        return str(host.run("ip", *words).stdout)

    def cable_back() -> None:
        ip("link", "set", "cable", "name", "eth0")
        ip("addr", "add", f"{host.address}/24", "dev", "eth0")
        ip("link", "set", "eth0", "up")

    mac = json.loads(ip("-j", "link", "show", "eth0"))[0]["address"]
    taps = [str(host.pid), "eth0", str(cluster.switch), "relay"]
    with contextlib.ExitStack() as undo:
        ip("link", "set", "eth0", "down")
        ip("addr", "flush", "dev", "eth0")
        ip("link", "set", "eth0", "name", "cable")
        undo.callback(cable_back)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", relay.__file__, *taps, str(delay_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        undo.callback(process.communicate)  # closes its standard input, and waits for its end
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        ip("link", "set", "eth0", "address", mac)
        ip("addr", "add", f"{host.address}/24", "dev", "eth0")
        ip("link", "set", "eth0", "up")
        cluster.at_switch("ip", "link", "set", "relay", "master", "br0", "up")
        remote = cluster.environment["OMPI_MCA_plm_rsh_agent"].split()
        first = next(each for each in cluster.hosts if each is not host)
        until(lambda: not first.run(*remote, host.name, "true", check=False).returncode)
        yield lambda: round_trip_s(cluster, host)


@contextlib.contextmanager
def disk(host: Host, folder: Path, read_bps: int) -> Iterator[ThrottledMount]:
    """Let all processes of a host read so many bytes a second from the device below a folder."""
    device = os.stat(f"/proc/{host.pid}/root{folder}").st_dev
    with throttled_device(folder, device, [host.pid, *host.processes()], read_bps) as mount:
        yield mount
