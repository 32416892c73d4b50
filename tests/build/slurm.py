"""A Slurm on the hosts of a test: Debian's slurmctld, slurmd, slurm-client and munge."""

from __future__ import annotations

import os

from tests.build.hosts import Hosts, until

CONF = """
ClusterName=test
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge/sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool-%n
TmpFS=/tmp
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd-%n.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PlugStackConfig=/dev/null
KillWait=2
"""


def slurm(cluster: Hosts) -> None:
    """Start Slurm; ``cluster.environment`` finds it. It ends with the hosts."""
    at, (first, *_) = cluster.folder / "slurm", cluster.hosts
    (at / "munge").mkdir(parents=True)
    (at / "munge").chmod(0o711)
    key = at / "munge/key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    conf = CONF.format(at=at, first=first.name, address=first.address)
    for host in cluster.hosts:
        (at / f"spool-{host.name}").mkdir()
        row = f"NodeName={host.name} NodeAddr={host.address} CPUs=2 RealMemory=2000 State=UNKNOWN"
        conf += row + "\n"
    conf += "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    (at / "slurm.conf").write_text(conf)
    names = {"socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    own = [f"--{option}={at}/munge/{name}" for option, name in names.items()]
    first.run("munged", "--force", f"--key-file={key}", *own)
    cluster.environment["SLURM_CONF"] = str(at / "slurm.conf")
    keys = {"env": cluster.environment}
    first.run("slurmctld", "-f", str(at / "slurm.conf"), **keys)
    for host in cluster.hosts:
        host.run("slurmd", "-f", str(at / "slurm.conf"), "-N", host.name, **keys)
    asked = ("sinfo", "-h", "-N", "-o", "%T")
    idle = ["idle"] * len(cluster.hosts)
    until(lambda: first.run(*asked, check=False, **keys).stdout.split() == idle)
