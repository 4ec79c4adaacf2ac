"""Which rank am I? The answer of whichever launcher started this process.

The order matters. A torchrun that was itself started by mpirun leaves OMPI_COMM_WORLD_RANK=0 in
all of its ranks, and mpirun inside a Slurm allocation leaves SLURM_PROCID=0 in all of its ranks:
the innermost launcher is the one to believe.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainlib.errors import StartError

#: Set by a wrapper around each rank: how many ranks the job was meant to have.
MEANT_WORLD = "CLUSTERCTL_WORLD_SIZE"


@dataclass(frozen=True)
class Ranks:
    """Place of this process in the job: 0 <= rank < world, 0 <= local_rank < local_world."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    launcher: str
    """`torchrun`, `mpirun`, `srun` or `none`."""

    @property
    def one_host(self) -> bool:
        """True if all ranks of the job are on this host."""
        return self.local_world == self.world


def discover(env: Mapping[str, str] | None = None) -> Ranks:
    """Read the launcher's variables.

    Raises:
        StartError: A variable is missing or no number, the numbers contradict each other, or this
            process would be alone where the launcher meant several ranks (each of them would then
            train by itself and overwrite the others' files).
    """
    env = os.environ if env is None else env
    if "TORCHELASTIC_RUN_ID" in env:
        ranks = _read(env, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    elif "OMPI_COMM_WORLD_RANK" in env:
        prefix = "OMPI_COMM_WORLD"
        ranks = _read(
            env,
            "mpirun",
            f"{prefix}_RANK",
            f"{prefix}_SIZE",
            f"{prefix}_LOCAL_RANK",
            f"{prefix}_LOCAL_SIZE",
        )
    elif "SLURM_PROCID" in env:
        ranks = _read_slurm(env)
    else:
        ranks = Ranks(0, 1, 0, 1, "none")
    _check(ranks, env)
    return ranks


def guess_rank(env: Mapping[str, str] | None = None) -> int:
    """The rank for deciding who prints, also where `discover` would refuse to answer."""
    env = os.environ if env is None else env
    names = ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    for name in ("RANK", *names) if "TORCHELASTIC_RUN_ID" in env else names:
        if env.get(name, "").isdigit():
            return int(env[name])
    return 0


def expand_counts(text: str) -> list[int]:
    """Slurm's `2(x3),1` as `[2, 2, 2, 1]` (format of SLURM_TASKS_PER_NODE in `man sbatch`).

    Raises:
        StartError: The text has another form.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise StartError(
                f"SLURM_TASKS_PER_NODE is {text!r}, which is not a list of counts",
                "start the program with srun",
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    value = env.get(name)
    if value is None or not value.isdigit():
        state = "is not set" if value is None else f"is {value!r}, not a number"
        raise StartError(
            f"{launcher} seems to have started this process but {name} {state}",
            f"start it with {launcher} itself, or unset that launcher's variables",
        )
    return int(value)


def _read(env: Mapping[str, str], launcher: str, *names: str) -> Ranks:
    rank, world, local_rank, local_world = (_number(env, name, launcher) for name in names)
    return Ranks(rank, world, local_rank, local_world, launcher)


def _read_slurm(env: Mapping[str, str]) -> Ranks:
    rank = _number(env, "SLURM_PROCID", "srun")
    local_rank = _number(env, "SLURM_LOCALID", "srun")
    # Inside a step SLURM_STEP_NUM_TASKS is the step's own count, whatever the allocation has.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    world = _number(env, size, "srun")
    # A batch script has SLURM_PROCID=0 too, but belongs to no step: nobody starts the others.
    if "SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env and world > 1:
        raise StartError(
            f"this is the batch script's own process, but the Slurm job has {world} tasks",
            "start the program with srun or mpirun inside the script",
        )
    return Ranks(rank, world, local_rank, _count_slurm_local(env, world), "srun")


def _count_slurm_local(env: Mapping[str, str], world: int) -> int:
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE")
    nodes = env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES") or "1"
    if text:
        counts = expand_counts(text)
        node = int(env.get("SLURM_NODEID", "0"))
        if node < len(counts) and sum(counts) == world:
            return counts[node]
    return -(-world // max(1, int(nodes) if nodes.isdigit() else 1))


def _check(ranks: Ranks, env: Mapping[str, str]) -> None:
    if not (ranks.rank < ranks.world and ranks.local_rank < ranks.local_world <= ranks.world):
        raise StartError(
            f"{ranks.launcher} gave rank {ranks.rank} of {ranks.world} and local rank "
            f"{ranks.local_rank} of {ranks.local_world}, which cannot be",
            "unset the variables that another launcher program left behind",
        )
    # PMI_SIZE comes from MPICH's launchers, whose other variables are not read here.
    for name in (MEANT_WORLD, "WORLD_SIZE", "PMI_SIZE"):
        meant = env.get(name, "")
        if not meant.isdigit():
            continue
        # Under torchrun WORLD_SIZE is the answer itself, and the wrapper around each torchrun
        # (one per node) may have counted nodes: only fewer ranks than meant is wrong there.
        if int(meant) == ranks.world or (
            ranks.launcher == "torchrun" and int(meant) <= ranks.world
        ):
            continue
        by = "no launcher's variables are set"
        if ranks.launcher != "none":
            by = f"by {ranks.launcher}'s variables"
        raise StartError(
            f"{name} says {meant} ranks, but this process is rank {ranks.rank} of "
            f"{ranks.world} ({by})",
            "start all ranks with one mpirun, torchrun or srun, and unset the variable if it is "
            "left over",
        )
