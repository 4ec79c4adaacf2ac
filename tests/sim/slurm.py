"""A real Slurm: munge, slurmctld and one slurmd per node, on hosts of ours."""

from __future__ import annotations

import os

from tests.conftest import find, require
from tests.sim.batch import NODES, Batch
from tests.sim.machines import Machine, until

CPUS = 4
"""Per node, whatever this machine has."""
GPUS = ("/dev/null", "/dev/zero")
"""Devices of a node that Slurm counts and hands out. It only looks that they are devices."""

_CONF = """
ClusterName=sim
SlurmctldHost=login
AuthType=auth/munge
CredType=cred/munge
# A job that is requeued may not start again before its first credential has expired.
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=1,sched_interval=2
SwitchType=switch/none
GresTypes=gpu
MpiDefault=none
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=8
MinJobAge=300
# A busy test machine answers late; a node that did not would be left out for minutes.
MessageTimeout=60
# So long, and at least a minute, srun waits in silence if the first answer is that nodes are busy.
SlurmctldTimeout=60
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=c[1-2] Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=c[1-2] MaxTime=INFINITE PriorityTier=10 PreemptMode=off
"""


class Slurm(Batch):
    """Partitions `main` and, before it, `urgent`."""

    programs = (
        "munged",
        "slurmctld",
        "slurmd",
        "sbatch",
        "srun",
        "ip",
        "unshare",
        "sshd",
        "ps",
        "ss",
    )

    def _start(self) -> None:
        etc = self.folder / "slurm"
        etc.mkdir()
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(128))
        self.machines.start(["login", *NODES])
        nodes = "".join(
            f"NodeName={n} NodeAddr={self.machines.hosts[n].address} CPUs={CPUS} RealMemory=2000"
            f" Gres=gpu:t4:{len(GPUS)}\n"
            for n in NODES
        )
        # The nodes share /tmp, where all of them would make the same folder for PMIx.
        (etc / "mpi.conf").write_text("PMIxCliTmpDirBase=/run\n")
        (etc / "gres.conf").write_text(f"Name=gpu Type=t4 File={','.join(GPUS)}\n")
        (etc / "slurm.conf").write_text(_CONF.format(folder=self.folder, nodes=nodes))
        mounts = [(etc, "/etc/slurm"), (self.machines.shared_home(), "/etc/passwd")]
        self.machines.ready(dict.fromkeys(self.machines.hosts, mounts))
        for machine in self.machines.hosts.values():
            self._munge(machine)
        self.login.daemon(require("slurmctld"), "-D", "-c")
        for name in NODES:
            self.machines.hosts[name].daemon(require("slurmd"), "-D", "-N", name)
        until(self._idle, 150, f"Slurm did not start: {self.folder}/slurmctld.log")

    def _munge(self, machine: Machine) -> None:
        machine.run("mkdir", "-p", "-m", "755", "/run/munge")
        machine.daemon(
            str(find("munged")),
            *("--foreground", "--force", "--num-threads=2"),
            f"--key-file={self.folder}/munge.key",
            f"--seed-file={machine.folder}/munge.seed",
            f"--log-file={machine.folder}/munge.log",
            "--pid-file=/run/munge/munged.pid",
        )
        until(
            lambda: (
                "ENCODE" in machine.run("sh", "-c", "munge -n | unmunge", check=False)
                or "UID" in machine.run("sh", "-c", "munge -n | unmunge", check=False)
            ),
            60,
            f"no munge on {machine.name}",
        )

    def _idle(self) -> bool:
        said = self.login.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False)
        return said.split() == ["idle"] * len(NODES)
