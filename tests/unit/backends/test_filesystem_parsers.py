"""What clients of parallel filesystems print and show, read back as facts and counters.

The documents, and where each is from: filesystem_outputs/README.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.backends.filesystems import (
    _network,
    beegfs,
    cephfs,
    glusterfs,
    gpfs,
    lustre,
    moosefs,
    nfs,
)
from iobench.core import registry
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.host import filesystems, mounts
from iobench.host.mounts import MountInfo

OUTPUTS = Path(__file__).parent / "filesystem_outputs"


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


MOUNTS = recorded("mountinfo")
MEMBERS = {
    "/gl": "glusterfs",
    "/mfs": "moosefs",
    "/home/me/far": "sshfs",
    "/sq": "fuse",
    "/win": "fuse",
    "/scratch": "lustre",
    "/gpfs/fs1": "gpfs",
    "/beegfs": "beegfs",
    "/home": "nfs",
    "/old": "nfs",
    "/ceph": "cephfs",
    "/cf": "cephfs",
}


def mount_at(point: str) -> MountInfo:
    return next(m for m in mounts.parse(MOUNTS) if m.mount_point == point)


@pytest.mark.parametrize(("point", "member"), MEMBERS.items())
def test_every_mount_has_its_member(point: str, member: str) -> None:
    assert filesystems.member_of(mount_at(point)) == member


# -- GlusterFS ------------------------------------------------------------------------------------

VOLFILE = recorded("gluster.volfile")
CLIENT = recorded("gluster.client.private")
IO_CACHE = recorded("gluster.io-cache.private")
QUICK_READ = recorded("gluster.quick-read.private")


@pytest.fixture
def volume(tmp_path: Path) -> glusterfs.Glusterfs:
    """A client that is in its second graph; it shows itself below .meta."""
    graphs = tmp_path / ".meta" / "graphs"
    for graph, received in (("vm-1-a", 1000), ("vm-1-b", 70)):
        for name, text in {
            "vx-client-0": CLIENT.format(received),
            "vx-client-1": CLIENT.format(received + 5),
            "vx-io-cache": IO_CACHE,
            "vx-quick-read": QUICK_READ,
        }.items():
            (graphs / graph / name).mkdir(parents=True)
            (graphs / graph / name / "private").write_text(text)
        (graphs / graph / "volfile").write_text(VOLFILE)
    (graphs / "active").symlink_to("vm-1-b")
    (tmp_path / ".meta" / "version").write_text('{ \n  "Package Version": "10.3"\n}')
    return glusterfs.Glusterfs(
        mount=MountInfo("0:70", str(tmp_path), ("rw",), "fuse.glusterfs", "10.77.91.1:vx", ())
    )


def test_gluster_counts_what_its_client_received_in_all_graphs(
    volume: glusterfs.Glusterfs, tmp_path: Path
) -> None:
    assert volume.counters(tmp_path) == {glusterfs.RECEIVED: 1000 + 1005 + 70 + 75}
    crossed = volume.crossed(IoCounters(read_bytes=5), {glusterfs.RECEIVED: 12})
    assert (crossed.nbytes, crossed.whole) == (12, True)


def test_gluster_names_what_its_client_keeps(volume: glusterfs.Glusterfs, tmp_path: Path) -> None:
    assert volume.caches() == {"io-cache": 15314536, "quick-read": 1500000}
    facts = volume.describe(tmp_path)
    assert (facts["volume_type"], facts["bricks"]) == ("distribute", 2)
    assert facts["servers"] == "10.77.91.1,10.77.91.2"
    assert facts["client_translators"] == "io-cache,quick-read,md-cache"
    assert facts["client_version"] == "10.3"


def test_gluster_without_its_meta_folder_counts_nothing(tmp_path: Path) -> None:
    mount = MountInfo("0:70", str(tmp_path), ("rw",), "fuse.glusterfs", "10.77.91.1:vx", ())
    found = glusterfs.Glusterfs(mount=mount)
    assert found.counters(tmp_path) == {}
    assert ".meta" in found.crossed(IoCounters(), {}).counter
    assert found.caches() == {}


# -- MooseFS --------------------------------------------------------------------------------------

FILEINFO = recorded("moosefs.mfsfileinfo")


def test_moosefs_chunks() -> None:
    assert moosefs.chunks(FILEINFO) == "2 chunks, 3 valid copies on 10.77.93.1, 10.77.93.2"


# -- Lustre ---------------------------------------------------------------------------------------

OSC = recorded("lustre.osc.stats")
UNREAD = recorded("lustre.osc-unread.stats")
PLAIN = recorded("lustre.getstripe-plain.yaml")
COMPOSITE = recorded("lustre.getstripe-composite.yaml")
LISTED = recorded("lustre.getstripe-listed.yaml")
TABLE = recorded("lustre.getstripe.txt")
DF = recorded("lustre.df")


def test_lustre_counts_what_targets_sent() -> None:
    assert lustre.read_sum(OSC) == 452705124352
    assert lustre.read_sum(UNREAD) == 0
    assert lustre.read_sum(OSC + OSC + UNREAD) == 2 * 452705124352  # lctl prints them in a row


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PLAIN, {"stripe_count": 2, "stripe_size": 2097152, "osts_of_file": 2}),
        (
            COMPOSITE,
            {
                "stripe_count": 4,
                "osts_of_file": 2,
                "pool": "flash",
                "layout_components": 3,
                "data_on_mdt_bytes": "65536",
                "extent_end": "1073741824",
            },
        ),
        (LISTED, {"stripe_count": 1, "osts_of_file": 1, "layout_components": 1}),
        (TABLE, {"stripe_count": 1, "osts_of_file": 1}),
        (
            recorded("lustre.getstripe-compressed.txt"),
            {"stripe_count": 1, "osts_of_file": 1, "stripe_pattern": "raid0,compress"},
        ),
        (
            recorded("lustre.getstripe-parity.txt"),
            {"stripe_count": 2, "osts_of_file": 2, "layout_components": 2},
        ),
        ("lfs: unknown command", {}),
    ],
)
def test_lustre_layouts(text: str, found: dict[str, object]) -> None:
    facts = lustre.striped(text)
    assert {key: facts.get(key) for key in found} == found
    assert bool(facts) == bool(found)


def test_lustre_fill_of_the_targets() -> None:
    assert lustre.fill(DF) == {"osts": 2, "osts_inactive": 1, "ost_fullest_percent": 84}
    assert lustre.fill("lfs df: no such command") == {}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lustre.Lustre:
    """A client with two mounts; the other one's counters are not this one's."""
    for name, text in (
        ("osc/work-OST0000-osc-ffff8c4d/stats", OSC),
        ("osc/work-OST0001-osc-ffff8c4d/stats", UNREAD),
        ("mdc/work-MDT0000-mdc-ffff8c4d/stats", "read_bytes 1 samples [bytes] 5 5 5 25\n"),
        ("osc/home-OST0000-osc-ffff0000/stats", OSC),
        ("llite/work-ffff8c4d/max_read_ahead_mb", "64\n"),
        ("llite/home-ffff0000/max_read_ahead_mb", "32\n"),
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    monkeypatch.setattr(lustre, "TREES", (tmp_path,))
    monkeypatch.setenv("PATH", "")  # no lfs
    return lustre.Lustre(mount=mount_at("/scratch"))


def test_lustre_counts_the_targets_of_its_own_mount(client: lustre.Lustre, tmp_path: Path) -> None:
    assert client.counters(tmp_path) == {lustre.READ: 452705124352 + 5}
    assert client.crossed(IoCounters(), {lustre.READ: 9}) == Crossed(9, lustre.WORDS, whole=True)
    facts = client.describe(tmp_path)
    assert facts["llite_max_read_ahead_mb"] == "64"
    assert facts["locks"] == "shared by all clients"
    assert str(facts["layout"]).startswith("not known: no program lfs")


def program(folder: Path, name: str, *lines: str) -> None:
    """Put a program into ``folder`` that runs these lines of a shell."""
    (folder / name).write_text("\n".join(("#!/bin/sh", *lines, "")))
    (folder / name).chmod(0o755)


def test_lustre_of_several_mounts_is_the_one_that_lfs_names(
    client: lustre.Lustre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One filesystem mounted twice: `lfs getname` says which instance is at the mount point."""
    (tmp_path / "llite/work-ffff0001").mkdir()
    assert lustre.READ not in client.counters(tmp_path)  # no lfs
    mine = recorded("lustre.getname").replace("myth-ffff880428703400 /myth", "work-ffff8c4d $2")
    assert mine == "work-ffff8c4d $2\n"
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "lfs", f'[ "$1 $2" = "getname /scratch" ] && echo "{mine.strip()}"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert client.counters(tmp_path) == {lustre.READ: 452705124352 + 5}


# -- the node's interfaces ------------------------------------------------------------------------


def test_where_nothing_else_counts_the_nodes_interfaces_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hardware alone: no bridge, and IP over InfiniBand is in its port's count."""
    for name, kind, nbytes, hardware in (
        ("eth0", "1", 100, True),
        ("br0", "1", 100, False),
        ("ib0", "32", 40, True),
    ):
        folder = tmp_path / "net" / name
        (folder / "statistics").mkdir(parents=True)
        (folder / "statistics" / "rx_bytes").write_text(f"{nbytes}\n")
        (folder / "type").write_text(kind)
        if hardware:
            (folder / "device").mkdir()
    counters = tmp_path / "ib" / "mlx5_0" / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("1000\n")
    monkeypatch.setattr(_network, "SYS_NET", tmp_path / "net")
    monkeypatch.setattr(_network, "SYS_INFINIBAND", tmp_path / "ib")
    assert _network.interfaces() == {_network.RECEIVED: 100 + 4 * 1000}
    found = beegfs.Beegfs(mount=mount_at("/beegfs"))
    crossed = found.crossed(IoCounters(), {_network.RECEIVED: 7})
    assert (crossed.nbytes, crossed.whole) == (7, True)
    assert "everybody's" in crossed.counter


# -- BeeGFS ---------------------------------------------------------------------------------------

ENTRY_7 = recorded("beegfs-7.entryinfo")
ENTRY_8 = recorded("beegfs-8.entryinfo")
FOLDER = recorded("beegfs-7.entryinfo-folder")


def test_beegfs_entries() -> None:
    found = beegfs.striped(ENTRY_7)
    assert (found["stripe_count"], found["stripe_size"]) == (2, "512K")
    assert (found["targets_of_file"], found["servers"]) == ("1203,2101", "oss-4-1,oss-4-2")
    assert beegfs.striped(ENTRY_8)["targets_of_file"] == "101,201"
    folder = beegfs.striped(FOLDER)
    assert (folder["stripe_count"], folder["pool"]) == (8, "1 (Default)")
    assert "targets_of_file" not in folder
    assert beegfs.striped("Unable to connect to the management daemon") == {}


def test_beegfs_client_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1A-628B").mkdir()
    (tmp_path / "1A-628B" / "config").write_text(
        "cfgFile = /etc/beegfs/beegfs-client.conf\ntuneFileCacheType = buffered\n"
        "tuneUseGlobalFileLocks = 0\n"
    )
    monkeypatch.setattr(beegfs, "PROC", tmp_path)
    facts = beegfs.Beegfs(mount=mount_at("/beegfs")).describe(tmp_path)
    assert facts["client_cache_type"] == "buffered"
    assert facts["locks"] == "of this host alone"


# -- GPFS -----------------------------------------------------------------------------------------

MMLSATTR = recorded("gpfs.mmlsattr")


def test_gpfs_attributes() -> None:
    found = gpfs.attributes(MMLSATTR)
    assert (found["pool"], found["fileset"], found["offline"]) == ("DATA", "csg", True)
    online = gpfs.attributes(MMLSATTR.replace(" OFFLINE", ""))
    assert "offline" not in online
    assert "not understood" in str(gpfs.attributes("mmlsattr: no such file")["layout"])


def test_gpfs_attributes_of_a_folder() -> None:
    found = gpfs.attributes(recorded("gpfs.mmlsattr-folder"))
    assert (found["pool"], found["fileset"]) == ("system", "project-hpc")
    assert "data_replication" not in found
    assert "offline" not in found


def test_gpfs_block_size_is_what_mmlsfs_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several pools the first; without the program there is none."""
    found = gpfs.Gpfs(mount=mount_at("/gpfs/fs1"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "stripe_size" not in found.describe(tmp_path)
    device = found.mount.source.rpartition("/")[2]
    output = Path(OUTPUTS, "gpfs.mmlsfs")
    program(tmp_path, "mmlsfs", f'[ "$*" = "{device} -B" ] && exec /bin/cat {output}')
    assert found.describe(tmp_path)["stripe_size"] == 262144


def test_gpfs_is_never_cold_and_counts_nothing() -> None:
    found = gpfs.Gpfs(mount=mount_at("/gpfs/fs1"))
    assert "pagepool" in found.cold()
    assert found.crossed(IoCounters(read_bytes=5), {}).nbytes is None


# -- NFS ------------------------------------------------------------------------------------------

MOUNTSTATS = recorded("nfs.mountstats")


def test_nfs_counts_each_mount_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountstats").write_text(MOUNTSTATS)
    monkeypatch.setattr(nfs, "MOUNTSTATS", tmp_path / "mountstats")
    home = nfs.Nfs(mount=mount_at("/home"))
    assert home.counters(tmp_path)[nfs.READ] == 1210214218
    assert home.describe(tmp_path)["nfs_pnfs"] == "LAYOUT_FLEX_FILES"
    assert home.locks == "shared by all clients"
    assert nfs.section(MOUNTSTATS, "/old one").endswith("bytes:\t1 2 3 4 5 6 7 8\n")
    old = nfs.Nfs(mount=mount_at("/old"))
    assert old.counters(tmp_path) == {}  # not in the document
    assert old.locks == "of this host alone: all"
    assert "FS-Cache" in str(old.describe(tmp_path)["client_cache_on_disk"])


def test_nfs_over_rdma_has_another_transport_and_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = recorded("nfs.mountstats-rdma")
    (tmp_path / "mountstats").write_text(text.replace("mounted on /data", "mounted on /home"))
    monkeypatch.setattr(nfs, "MOUNTSTATS", tmp_path / "mountstats")
    home = nfs.Nfs(mount=mount_at("/home"))
    assert home.counters(tmp_path)[nfs.READ] == 2013200952170479


# -- CephFS ---------------------------------------------------------------------------------------

METRICS = recorded("ceph.metrics-size")


def test_ceph_kernel_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cephfs.metrics_read(METRICS) == 12582912
    assert cephfs.metrics_read("") is None
    monkeypatch.setattr(cephfs, "DEBUG", tmp_path)
    found = cephfs.Cephfs(mount=mount_at("/ceph"))
    for number, client in enumerate(("fsid.client1", "fsid.client2")):
        assert cephfs.READ not in found.counters(tmp_path) or number == 1
        (tmp_path / client / "metrics").mkdir(parents=True)
        (tmp_path / client / "metrics" / "size").write_text(METRICS)
        if not number:
            assert found.counters(tmp_path) == {cephfs.READ: 12582912}
    assert cephfs.READ not in found.counters(tmp_path)  # whose of the two is this mount?


def test_what_a_daemon_of_another_user_read_is_not_known() -> None:
    for point in ("/mfs", "/cf", "/home/me/far"):
        name = filesystems.member_of(mount_at(point))
        found = registry.load("filesystems", name).make(mount=mount_at(point))
        crossed = found.crossed(IoCounters(read_bytes=5), {})
        assert crossed.nbytes is None
        assert "only root, or who mounted" in crossed.counter
