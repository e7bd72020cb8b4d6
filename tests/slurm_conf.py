"""What the Slurm clusters of the tests are configured like: text only, nothing is started here.

Many daemons share one machine without systemd: everything is in one folder, on loopback, and virtual nodes are bigger
than the machine. Waits are short, so that faults show within seconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NAME_LEN_MAX = 12  # the names of Slurm's sockets hold the folder, the cluster and the node: 107 bytes in all
SOCKET_PATH_MAX = 107
CLIENTS = ("sbatch", "squeue", "scancel", "sinfo", "sacct", "scontrol", "srun", "sacctmgr", "sattach", "sdiag", "sstat")
MEMORY_CGROUP = Path("/sys/fs/cgroup/memory")
PARTITIONS = ("main", "short", "urgent", "spare")


@dataclass(frozen=True)
class Spec:
    """One cluster. `root` is a Debian tree with another version of Slurm; empty: the machine's own."""

    name: str
    nodes: int = 3
    cpus: int = 4  # per node, on two sockets
    memory_mb: int = 4096
    gpus: int = 0
    gpu_type: str = ""
    accounting: bool = False
    sample_s: int = 1  # how often a job's memory is looked at; Slurm's own default is 30
    root: str = ""
    extra: tuple[str, ...] = ()  # further lines of slurm.conf
    hosts: str = ""  # how the nodes' names begin. Two clusters on one machine may have one name, but not one cgroup

    @property
    def node_names(self) -> list[str]:
        return [f"{self.hosts or self.name}n{number + 1}" for number in range(self.nodes)]


@dataclass(frozen=True)
class Ports:
    """Where the daemons of one cluster listen."""

    controller: int
    database: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """Where one cluster lives, and what cannot be chosen: the machine's name, the user, the version of Slurm."""

    folder: Path
    host: str
    user: str
    version: tuple[int, int]

    @property
    def conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def has_memory_cgroup(self) -> bool:
        """Whether Slurm can hold a job to its memory by the kernel; else it looks every second and kills."""
        return self.version < (23, 2) and os.access(MEMORY_CGROUP / "tasks", os.W_OK)

    @property
    def munge_socket(self) -> Path:
        return self.folder / "run" / "munge.sock"


def slurm_conf(spec: Spec, site: Site, ports: Ports) -> str:
    here = site.folder
    lines = [
        f"ClusterName={spec.name}",
        f"SlurmctldHost={site.host}(127.0.0.1)",
        f"SlurmUser={site.user}",
        f"SlurmdUser={site.user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={site.munge_socket}",
        "CredType=cred/munge",
        "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",  # loopback only
        f"SlurmctldPort={ports.controller}",
        f"SlurmctldPidFile={here}/run/slurmctld.pid",
        f"SlurmctldLogFile={here}/log/slurmctld.log",
        f"StateSaveLocation={here}/state",
        f"SlurmdPidFile={here}/run/slurmd.%n.pid",
        f"SlurmdLogFile={here}/log/slurmd.%n.log",
        f"SlurmdSpoolDir={here}/spool/%n",
        "ProctrackType=proctrack/linuxproc",
        f"TaskPlugin={'task/cgroup' if site.has_memory_cgroup else 'task/none'}",
        "JobAcctGatherType=jobacct_gather/linux",
        f"JobAcctGatherParams={'NoOverMemoryKill' if site.has_memory_cgroup else 'OverMemoryKill'}",
        f"JobAcctGatherFrequency=task={spec.sample_s}",
        "MpiDefault=none",
        "PropagateResourceLimits=NONE",
        "MailProg=/bin/true",
        "SlurmdParameters=config_overrides",  # the declared sizes count, not the machine's
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        "DefMemPerCPU=64",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0",
        "MaxJobCount=40000",
        "MaxArraySize=20001",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=CANCEL",
        "Licenses=matlab:2",
        "ReturnToService=2",
        "SlurmctldTimeout=10",
        # Slurm's own is 300. With 10, a machine that stood still for so long lost all that ran. A test of a dead node
        # tells Slurm that it is dead.
        "SlurmdTimeout=120",
        "MessageTimeout=5",
        "BatchStartTimeout=10",
        "KillWait=2",
        "UnkillableStepTimeout=15",
        "EpilogMsgTime=0",
        *_accounting_lines(spec, site, ports),
        *_node_lines(spec, site, ports),
        "PartitionName=DEFAULT MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=OFF",
        f"PartitionName=main Nodes={','.join(spec.node_names)} Default=YES",
        f"PartitionName=short Nodes={spec.node_names[0]} MaxTime=5",
        f"PartitionName=urgent Nodes={','.join(spec.node_names)} PriorityTier=10",
        f"PartitionName=spare Nodes={','.join(spec.node_names)} PriorityTier=1 PreemptMode=CANCEL",
        *spec.extra,
    ]
    return "\n".join(lines) + "\n"


def _accounting_lines(spec: Spec, site: Site, ports: Ports) -> list[str]:
    if not spec.accounting:
        return ["JobCompType=jobcomp/none"]
    return [
        "JobCompType=jobcomp/none",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={ports.database}",
        f"AccountingStoragePass={site.munge_socket}",
        "AccountingStoreFlags=job_comment",
        *(["AccountingStorageTRES=gres/gpu"] if spec.gpus else []),
    ]


def _node_lines(spec: Spec, site: Site, ports: Ports) -> list[str]:
    """The first node is the odd one: it alone has the feature `fast`."""
    gres = f" Gres=gpu:{spec.gpu_type + ':' if spec.gpu_type else ''}{spec.gpus}" if spec.gpus else ""
    lines = ["GresTypes=gpu"] if spec.gpus else []
    for number, (name, port) in enumerate(zip(spec.node_names, ports.nodes, strict=True)):
        feature = "fast,plain" if number == 0 else "plain"
        lines.append(
            f"NodeName={name} NodeHostname={site.host} NodeAddr=127.0.0.1 Port={port} CPUs={spec.cpus} Sockets=2 "
            f"CoresPerSocket={spec.cpus // 2} ThreadsPerCore=1 RealMemory={spec.memory_mb} TmpDisk=20000 "
            f"Feature={feature}{gres} State=UNKNOWN"
        )
    return lines


def gres_conf(spec: Spec, site: Site) -> str:
    """A gpu must be a character device, or the node is invalid; nothing opens it."""
    kind = f" Type={spec.gpu_type}" if spec.gpu_type else ""
    return "".join(
        f"NodeName={','.join(spec.node_names)} Name=gpu{kind} File={site.folder}/gpu/gpu{number}\n"
        for number in range(spec.gpus)
    )


def cgroup_conf(site: Site) -> str:
    plugin = "disabled" if site.version >= (23, 2) else "cgroup/v1"
    limits = f"CgroupMountpoint={MEMORY_CGROUP.parent}\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n"
    return f"CgroupPlugin={plugin}\n{limits if site.has_memory_cgroup else ''}"


def slurmdbd_conf(spec: Spec, site: Site, ports: Ports, *, password: str) -> str:
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={site.munge_socket}",
        f"DbdHost={site.host}",
        "DbdAddr=127.0.0.1",
        f"DbdPort={ports.database}",
        f"SlurmUser={site.user}",
        f"PidFile={site.folder}/run/slurmdbd.pid",
        f"LogFile={site.folder}/log/slurmdbd.log",
        "CommunicationParameters=NoInAddrAny",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=slurm",
        f"StoragePass={password}",
        f"StorageLoc=slurm_{spec.name}",
    ]
    return "\n".join(lines) + "\n"


def client_script(program: str, site: Site, *, prefix: str) -> str:
    """A client that speaks to its own cluster in its own version, whatever the environment says."""
    return f'#!/bin/sh\nexport SLURM_CONF={site.conf}\nexec {prefix}{program} "$@"\n'


def check_names(spec: Spec, folder: Path) -> None:
    assert spec.name.isalnum(), spec.name
    assert spec.name.islower(), spec.name
    assert len(spec.name) <= NAME_LEN_MAX, spec.name
    assert spec.cpus % 2 == 0, "a node has two sockets"
    node = spec.node_names[-1]
    longest = len(f"{folder}/spool/{node}/{node}_4294967295.4294967295")
    assert longest <= SOCKET_PATH_MAX, f"{folder} is {longest - SOCKET_PATH_MAX} characters too long for Slurm"
