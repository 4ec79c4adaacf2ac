"""A site that runs Slurm: what to ask its login node, and what the answers mean."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import ClassVar

from clusterctl.machines.attached import BatchSite
from clusterctl.machines.protocol import Queue


class SlurmProvider(BatchSite):
    """Commands of Slurm's own clients, which any version since 20.11 has."""

    name = "slurm"
    title = "Slurm"
    required: ClassVar = dict.fromkeys(
        ("sbatch", "squeue", "scancel", "scontrol", "srun"), "slurm-client"
    )

    def list_questions(self) -> dict[str, str]:
        return {
            "version": "sbatch --version",
            "mpi_plugins": "srun --mpi=list 2>&1",
            "sacct": "command -v sacct",
        }

    def parse_site_info(self, answers: Mapping[str, str]) -> dict[str, str]:
        """`version`, `pmix` and `sacct`, empty where the site has none."""
        plugins = re.findall(r"[a-z]\w+", answers.get("mpi_plugins", ""))
        return {
            "version": answers.get("version", "").strip(),
            "pmix": "yes" if "pmix" in plugins else "",
            "sacct": "yes" if answers.get("sacct", "").strip() else "",
        }

    def build_node_command(self, words: Sequence[str], seconds: int) -> str:
        return (
            f"srun --immediate={seconds} --nodes=1 --ntasks=1 --time=1 --job-name=clusterctl-check"
            f" {shlex.join(words)} </dev/null"
        )

    def build_status_command(self) -> str:
        return (
            "sinfo -h -e -O 'PartitionName:|,StateCompact:|,Nodes:|,CPUsState:|,Gres:|,GresUsed:|'"
        )

    def parse_queues(self, text: str) -> tuple[Queue, ...]:
        """Partitions with their nodes, free ones and GPUs. A row per partition and kind of node:
        `main|idle|2|0/8/0/8|gpu:a100:4|gpu:a100:0|`."""
        found: dict[str, Queue] = {}
        for line in text.splitlines():
            fields = line.split("|")
            if len(fields) < 6 or not fields[2].strip().isdecimal():
                continue
            name, state, count = fields[0].strip(), fields[1].strip(), int(fields[2])
            gpus = _count_gpus(fields[4]) * count
            up = not re.match(r"down|drain|drng|fail|maint|unk|boot|pow|inval", state)
            used = _count_gpus(fields[5]) * count
            old = found.get(name, Queue(name=name))
            found[name] = Queue(
                name=name,
                nodes=old.nodes + count,
                free_nodes=old.free_nodes + (count if state.startswith("idle") else 0),
                slots=old.slots + _count_total(fields[3]),
                free_slots=old.free_slots + (_count_idle(fields[3]) if up else 0),
                gpus=old.gpus + gpus,
                free_gpus=old.free_gpus + (max(0, gpus - used) if up else 0),
                down=old.down + (0 if up else count),
            )
        return tuple(found.values())


def _count_gpus(text: str) -> int:
    """GPUs of one node: `gpu:a100:4(S:0-1),gpu:t4:2`."""
    return sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", text))


def _count_idle(text: str) -> int:
    """Of `allocated/idle/other/total`."""
    parts = text.strip().split("/")
    return int(parts[1]) if len(parts) == 4 and parts[1].isdecimal() else 0


def _count_total(text: str) -> int:
    parts = text.strip().split("/")
    return int(parts[3]) if len(parts) == 4 and parts[3].isdecimal() else 0
