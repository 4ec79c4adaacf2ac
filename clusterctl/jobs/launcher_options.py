"""The options of other launcher programs, as far as they say something to clusterctl: tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLauncher:
    """Its options, spelled with dashes. `does`: what clusterctl does by itself instead."""

    ranks: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    retries: tuple[str, ...] = ()
    does: tuple[str, ...] = ()
    does_flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Options that its programs find as variables."""
    env_flags: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The same for options without a value."""
    variables: tuple[str, ...] = ()
    """Options whose values are variables: `-x NAME=VALUE`, or `-x NAME` for one of this shell."""
    mpirun: Mapping[str, int] = field(default_factory=dict)
    """Options that our mpirun gets as they are, by the number of their values."""
    native: Mapping[str, str] = field(default_factory=dict)
    """Options that a batch system with this launcher gets, by its names for them."""
    local_rank: str = ""
    """The option by which it tells a program its number on the node."""
    no_local_rank: tuple[str, ...] = ()
    """Its options that leave this out."""
    config: tuple[str, ...] = ()
    """Options that name a file in which its options are keys."""
    python: bool = True
    """It starts a Python script or, with -m, a module; else any command."""


_MEETING = ("--master-addr", "--master-port")
_SLURM = (
    *("account", "constraint", "cpus-per-task", "exclude", "gpu-bind", "gpus", "gpus-per-node"),
    *("gpus-per-task", "gres", "job-name", "mem", "mem-per-cpu", "mem-per-gpu", "nodelist"),
    *("partition", "qos", "reservation", "time"),
)
_MPIRUN = OtherLauncher(
    ranks=("-np", "--np", "-n"),
    per_node=("-N", "--npernode", "-npernode", "-ppn"),
    does=("--hostfile", "-hostfile", "--machinefile", "-machinefile", "--host", "-host", "-H"),
    does_flags=(
        *("--allow-run-as-root", "--oversubscribe", "-oversubscribe"),
        *("--tag-output", "-tag-output"),
    ),
    variables=("-x",),
    mpirun={"--map-by": 1, "--bind-to": 1, "--rank-by": 1, "--report-bindings": 0, "--mca": 2},
    python=False,
)
LAUNCHERS: dict[str, OtherLauncher] = {
    # https://docs.pytorch.org/docs/stable/elastic/run.html
    "torchrun": OtherLauncher(
        per_node=("--nproc-per-node",),
        nodes=("--nnodes",),
        does=(
            *(*_MEETING, "--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
            *("--rdzv-conf", "--local-addr", "--monitor-interval", "--start-method"),
            *("-r", "--redirects", "-t", "--tee", "--log-dir", "--role", "--local-ranks-filter"),
        ),
        retries=("--max-restarts",),
        does_flags=("--standalone",),
    ),
    # https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-launch
    "accelerate launch": OtherLauncher(
        ranks=("--num-processes",),
        nodes=("--num-machines",),
        does=(
            *("--machine-rank", "--main-process-ip", "--main-process-port", "--rdzv-backend"),
            "--gpu-ids",
        ),
        does_flags=("--multi-gpu", "--same-network"),
        config=("--config-file",),
        env={
            "--mixed-precision": "ACCELERATE_MIXED_PRECISION",
            "--num-cpu-threads-per-process": "OMP_NUM_THREADS",
            "--dynamo-backend": "ACCELERATE_DYNAMO_BACKEND",
            "--gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        },
        env_flags={
            "--cpu": ("ACCELERATE_USE_CPU", "true"),
            "--debug": ("ACCELERATE_DEBUG_MODE", "true"),
        },
    ),
    # https://www.deepspeed.ai/getting-started/#launching-deepspeed-training
    "deepspeed": OtherLauncher(
        per_node=("--num-gpus",),
        nodes=("--num-nodes",),
        does=(*_MEETING, "-H", "--hostfile", "--launcher", "--node-rank"),
        does_flags=("--no-ssh", "--force-multi"),
        local_rank="--local_rank",
        no_local_rank=("--no-local-rank",),
    ),
    "mpirun": _MPIRUN,
    "mpiexec": _MPIRUN,
    "horovodrun": _MPIRUN,
    "srun": OtherLauncher(
        ranks=("-n", "--ntasks"),
        per_node=("--ntasks-per-node",),
        nodes=("-N", "--nodes"),
        does=("--mpi", "--cpu-bind", "--export", "--kill-on-bad-exit"),
        does_flags=("-l", "--label", "-u", "--unbuffered", "-K"),
        native={
            **{f"--{name}": name for name in _SLURM},
            **{"-p": "partition", "-t": "time", "-A": "account", "-J": "job-name"},
            **{"-c": "cpus-per-task", "-w": "nodelist", "-x": "exclude", "-q": "qos"},
        },
        python=False,
    ),
}
LAUNCHERS["torch.distributed.launch"] = replace(
    LAUNCHERS["torchrun"], local_rank="--local-rank", no_local_rank=("--use-env",)
)
