"""Slurm: sbatch, squeue, scancel. https://slurm.schedmd.com/sbatch.html"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from signal import Signals

from msgspec.structs import replace

from clusterctl.agent import queues
from clusterctl.batch import queue
from clusterctl.batch.queue import (
    QueueSystem,
    call_mpirun,
    check_value,
    choose_lead,
    list_arguments,
    make_job_name,
)
from clusterctl.core.job import Job, JobSpec, JobState
from clusterctl.core.model import Cluster
from clusterctl.core.sweep import parse_concurrency
from clusterctl.core.text import count, fold_runs
from clusterctl.errors import UsageError
from clusterctl.launch.srun import is_in_pyxis

SIZES = re.compile(r"^#SBATCH\s+--(gpus-per-node|ntasks-per-node)[=\s]+([\w:]+)", re.M)
"""Of a script."""
SIGNAL = re.compile(r"(?:[BR]+:)?(?:SIG)?([A-Z]+\d?|\d+)(?:@(\d+))?", re.I | re.A)
"""What --signal takes: https://slurm.schedmd.com/sbatch.html#OPT_signal"""
TAKEN = ("USR1", "TERM")
"""Its signals that may stand for a warning, on which ranks get SIGTERM."""
UNCAUGHT = ("KILL", "STOP")
ARGUMENT = "sbatch-arg"
WAITS = "-W|--wait|--test-only"
UNFIT = f"{WAITS}|-Q|--quiet|-h|--help|--usage|-V|--version"

WAITING = re.compile("PENDING|CONFIGURING|REQUEUE(D|_FED|_HOLD)|RESV_DEL_HOLD|SPECIAL_EXIT")
"""Every other state of a job that squeue lists is some kind of running."""

ADVICE = {
    r"BadConstraints|PartitionConfig|PartitionTimeLimit|Invalid(Account|QOS)|MaxMemPerLimit"
    r"|(Account|QOS)NotAllowed|DependencyNeverSatisfied|ReservationDeleted"
    r"|(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?": queue.HOPELESS,
    "Partition(Down|Inactive)": "closed by the site: `scontrol show partition` shows what is open",
    "PartitionNodeLimit": "more nodes than its partition has up or allows: if it never has that"
    " many, waiting does not help; `scontrol show partition` shows them",
    "JobHeld(Admin|User)|JobHoldMaxRequeue": "held: `scontrol release` on the login node"
    " releases it",
}
"""What to do about reasons for which a job waits that no free node will end.
https://slurm.schedmd.com/job_reason_codes.html"""

GONE: dict[str, JobState] = {
    "CANCELLED": JobState.CANCELLED,
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), JobState.TIMEOUT),
    **dict.fromkeys(("FAILED", "BOOT_FAIL", "LAUNCH_FAILED", "NODE_FAIL"), JobState.FAILED),
    **dict.fromkeys(("OUT_OF_MEMORY", "PREEMPTED", "REVOKED"), JobState.FAILED),
}

FENCE = "srun: PMIx barriers wait for all nodes; without it, MPI_Init may crash"
"""By default, Slurm's PMIx plug-in runs fences that carry data as a ring and all others as a tree.
The tree has no branches in a step with fewer nodes than TreeWidth (50): every node takes itself for
the root (`width > num_nodes` in src/slurmd/common/reverse_tree_math.c) and lets its own ranks go at
once. Open MPI 5 ends MPI_Init with such a fence. A rank that is through sends its first message to
one that still waits for the fence before it, and that one dies by SIGSEGV: its MPI_COMM_WORLD has
no data for the message yet (ompi/runtime/ompi_mpi_init.c, open-mpi/ompi#12495). Seen with 22.05:
always where the word that a fence is over is late on one node. A ring waits for all nodes. What the
plug-in reads: src/plugins/mpi/pmix/pmixp_info.c."""


class Slurm(QueueSystem):
    system = "slurm"
    prefix = "#SBATCH"
    emits = "sbatch"
    asks_for_more = ("--mem",)
    hands_in = queues.SlurmQueue.HAND_IN
    waits = WAITS
    end = queues.SlurmQueue.END
    example_size = "--nodes 2"
    down = queues.SlurmQueue.DOWN
    unconfigured = "Could not establish a configuration source"
    gone = GONE
    signals = (("USR1", "checkpoint"), ("TERM", "stopped"))
    ours = ("--output=", "--open-mode=", "--signal=", "--no-requeue")
    number = queues.SlurmQueue.NUMBER
    puts_back = 'scontrol requeue "$SLURM_JOB_ID"'
    warns = 'scancel --signal=TERM "$SLURM_JOB_ID"'
    rank_variables = (
        "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS",
        'LOCAL_WORLD_SIZE=$(echo "$SLURM_GTIDS" | tr , "\\n" | wc -l)',
    )
    threads = ("OMP_NUM_THREADS=$((SLURM_CPUS_ON_NODE / LOCAL_WORLD_SIZE))",)
    launchers = ("auto", "mpirun", "srun")
    native_env = (("SLURM_PMIX_FENCE", "ring", FENCE),)
    without_mpi = "--mpi none"

    def check(self, spec: JobSpec) -> None:
        for name, text in spec.native.items():
            if text and name != ARGUMENT:
                check_value(f"--{name}", text)
        if "mpi" in spec.native and spec.launcher == "mpirun":
            raise UsageError(
                "--mpi works only where srun starts the ranks", hint="leave out --launcher mpirun"
            )
        seconds = self.read_notice(spec)
        passed = self.name_passed(spec, "USR1")
        if seconds and not passed and seconds < spec.grace:
            raise UsageError(
                f"--grace {spec.grace:g}s is longer than the {seconds} s of --signal",
                hint="leave one of the two out: each alone sets how early the job is warned",
            )

    def resolve_size(self, spec: JobSpec) -> JobSpec:
        """One rank per GPU that was asked for, else one per node."""
        if spec.ranks and not (spec.nodes or spec.ranks_per_node):
            return spec
        if not (spec.ranks or spec.ranks_per_node) and (total := _count_gpus(spec, "gpus")):
            return _place_one_per_gpu(spec, total)
        nodes = spec.nodes or 1
        if spec.ranks and not spec.ranks_per_node:
            if spec.ranks < nodes:
                raise UsageError(
                    f"--ranks {spec.ranks} on --nodes {nodes}: some nodes would have none",
                    hint="at least one rank per node",
                )
            return replace(spec, nodes=nodes)
        each = spec.ranks_per_node or _count_gpus_per_node(spec) // _count_gpus_per_rank(spec) or 1
        if spec.ranks and spec.ranks != nodes * each:
            if spec.nodes or spec.ranks % each:
                raise UsageError(
                    f"--ranks {spec.ranks} is not --ranks-per-node {each} x {count(nodes, 'node')}",
                    hint="give one of them, or add --nodes",
                )
            nodes = spec.ranks // each
        return replace(spec, nodes=nodes, ranks_per_node=each, ranks=0)

    def warn_of_sharing(self, spec: JobSpec, site_info: Mapping[str, str]) -> str:
        total, each = _count_gpus(spec, "gpus"), _count_gpus_per_node(spec)
        if total and spec.ranks > total:
            return f"{count(total, 'GPU')} for {spec.ranks} ranks: several share one"
        if each and spec.ranks_per_node > each:
            return (
                f"{count(each, 'GPU')} for {spec.ranks_per_node} ranks per node: several share one"
            )
        if spec.ranks_per_node and each > spec.ranks_per_node * _count_gpus_per_rank(spec):
            return (
                f"{count(each, 'GPU')} for {count(spec.ranks_per_node, 'rank')} per node: programs"
                f" that use one each leave the others idle; --ntasks-per-node {each} uses all"
            )
        return ""

    def warn_of_script(self, spec: JobSpec, text: str) -> str:
        sizes = dict(SIZES.findall(text))
        each = sizes.pop("ntasks-per-node", "")
        return self.warn_of_sharing(
            replace(
                spec,
                native={**sizes, **spec.native},
                ranks_per_node=int(each) if each.isdecimal() else 0,
            ),
            {},
        )

    def directives(self, spec: JobSpec, number: int) -> list[str]:
        lines = [
            f"--job-name={make_job_name(spec, number)}",
            "--output=batch.out",
            "--open-mode=append",
        ]
        lines += _list_array(spec) if spec.is_sweep else list_size(spec)
        for option, text in spec.native.items():
            if option in ("job-name", "mpi", "requeue", "signal", ARGUMENT):
                continue
            value = f"={check_value(f'--{option}', text)}" if text else ""
            lines.append(f"--{option}{value}")
        lines += list_arguments(spec, ARGUMENT, UNFIT)
        lines.append("--requeue" if "requeue" in spec.native else "--no-requeue")
        lines.append(f"--signal=B:USR1@{self.read_notice(spec) or choose_lead(spec)}")
        return lines

    def list_container(self, job: Job, cluster: Cluster) -> list[str]:
        """The image as pyxis names it: a path, or REGISTRY#IMAGE."""
        spec, root = job.spec, cluster.launcher.root
        if not is_in_pyxis(spec, cluster.site_info):
            return []
        if spec.once or spec.is_sweep or spec.launcher == "mpirun":
            raise UsageError(
                "srun starts containers at this site: --container cannot be combined with --once,"
                " --sweep, --array or --launcher mpirun",
                hint="leave that out, or --module loads apptainer",
            )
        image = spec.container.removeprefix("docker://")
        registry, slash, name = image.partition("/")
        if image == spec.container and not image.startswith("/"):
            image = f"{root}/jobs/{job.id}/work/{spec.program.folder}/{image}"
        elif slash and registry and re.search("[.:]|^localhost$", registry):
            image = f"{registry}#{name}"
        return [f"--container-image={image}", f"--container-mounts={root}:{root}"]

    def choose_starter(self, spec: JobSpec, cluster: Cluster) -> str:
        if is_in_pyxis(spec, cluster.site_info):
            return "srun"
        if spec.launcher != "auto":
            return spec.launcher
        knows = "mpi" in spec.native or cluster.site_info.get("pmix")
        return "srun" if knows or not spec.uses_mpi else "mpirun"

    def is_warned(self, spec: JobSpec, starter: str) -> bool:
        limited = "time" in spec.native or "signal" in spec.native
        return "requeue" in spec.native or (limited and starter != "srun")

    def adapt_directives(self, lines: list[str], spec: JobSpec, warned: bool) -> list[str]:
        """srun's ranks are signalled by Slurm itself."""
        signal = lines[-1]
        kept = [line for line in lines if not line.startswith(self.ours)]
        if warned:
            return [*kept, signal, *["--open-mode=append"] * ("requeue" in spec.native)]
        limited = "time" in spec.native or "signal" in spec.native
        return [*kept, signal.replace("B:USR1", "TERM")] if limited else kept

    def write_start(self, job: Job, starter: str) -> str:
        spec = job.spec
        if starter == "mpirun":
            return call_mpirun(str(job.ranks), spec)
        mpi = spec.native.get("mpi", "pmix" if spec.uses_mpi else "")
        return f"srun {f'--mpi={mpi} ' if mpi else ''}--kill-on-bad-exit=1"

    def list_options(self, spec: JobSpec) -> list[str]:
        words = list_size(spec)
        for name, text in spec.native.items():
            if name != ARGUMENT:
                words.append(f"--{name}={text}" if text else f"--{name}")
        return [*words, *shlex.split("\n".join(list_arguments(spec, ARGUMENT, UNFIT)))]

    def read_notice(self, spec: JobSpec) -> int:
        return read_signal(spec)[1]

    def name_passed(self, spec: JobSpec, signal: str) -> str:
        return super().name_passed(spec, read_signal(spec)[0] if signal == "USR1" else "TERM")

    def read_queue_state(self, state: str, reason: str) -> tuple[JobState, str]:
        advice = [text for pattern, text in ADVICE.items() if re.fullmatch(pattern, reason)]
        why = f"{reason} ({advice[0]})" if advice else reason
        return (JobState.QUEUED if WAITING.fullmatch(state) else JobState.RUNNING), why

    def interactive_argv(
        self, spec: JobSpec, cluster: Cluster, words: Sequence[str]
    ) -> tuple[str, ...]:
        spec, _ = self.resolve(spec, cluster)
        return ("salloc", *self.list_options(spec), *words)


def read_signal(spec: JobSpec) -> tuple[str, int]:
    """The name of the signal that --signal asks for, and how many seconds before the time limit; 0:
    it does not say. Slurm always sends the script USR1: without `B:` it would warn the ranks
    alone, and only the script can put the job back into the queue."""
    given = spec.native.get("signal", "USR1")
    match = SIGNAL.fullmatch(given)
    name = _name_signal(match[1]) if match else ""
    if match is None or not name or name in UNCAUGHT:
        raise UsageError(
            f"--signal {given} is not a signal that a program can handle",
            hint="NAME@SECONDS, for example --signal USR1@120",
        )
    if name not in TAKEN and not spec.pass_signal:
        raise UsageError(
            f"--signal {given}: programs get SIGTERM, not SIG{name}",
            hint=f"--pass-signal gives them SIG{name}; --signal TERM@SECONDS sets how early they"
            " are warned",
        )
    return name, int(match[2] or 0)


def _name_signal(text: str) -> str:
    """`USR1`, also for `usr1` and 10; "" for none."""
    try:
        found = Signals(int(text)) if text.isdecimal() else Signals[f"SIG{text.upper()}"]
    except (KeyError, ValueError):
        return ""
    return found.name.removeprefix("SIG")


def _list_array(spec: JobSpec) -> list[str]:
    """A task for each point, under its number: programs that are written for arrays read that."""
    most = parse_concurrency(spec.array)
    runs = fold_runs([point.number for point in spec.points])
    numbers = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return ["--ntasks=1", f"--array={numbers}{f'%{most}' if most else ''}"]


def list_size(spec: JobSpec) -> list[str]:
    """How many nodes and tasks. Instead of hosts, a script of the user's own has `1-3`."""
    nodes = spec.nodes or ",".join(spec.hosts)
    lines = [f"--nodes={nodes}"] if nodes else []
    if spec.ranks_per_node:
        lines.append(f"--ntasks-per-node={spec.ranks_per_node}")
    if spec.ranks:
        lines.append(f"--ntasks={spec.ranks}")
    return lines


def _place_one_per_gpu(spec: JobSpec, gpus: int) -> JobSpec:
    """`--gpus 4`, for the whole job: told to Slurm by rank, for it might put more ranks than GPUs
    on a node."""
    per_rank = _count_gpus_per_rank(spec)
    kind, colon, _ = spec.native["gpus"].rpartition(":")
    ranks, nodes = gpus // per_rank, spec.nodes
    if "," in kind or not ranks or gpus % per_rank or (nodes and ranks % nodes):
        raise UsageError(
            f"--gpus {spec.native['gpus']} cannot be divided evenly"
            + (f" to --nodes {nodes}" if nodes else ""),
            hint="use --gpus-per-node, and --ranks for the number of ranks",
        )
    others = {name: text for name, text in spec.native.items() if name != "gpus"}
    native = {"gpus-per-task": f"{kind}{colon}{per_rank}", **others}
    if nodes:
        return replace(spec, ranks_per_node=ranks // nodes, native=native)
    return replace(spec, ranks=ranks, native=native)


def _count_gpus(spec: JobSpec, option: str) -> int:
    """`2` or `a100:2`; several types add up."""
    counts = [item.rpartition(":")[2] for item in spec.native.get(option, "").split(",")]
    return sum(int(count) for count in counts if count.isdecimal())


def _count_gpus_per_node(spec: JobSpec) -> int:
    """By --gpus-per-node, or by --gres: `gpu`, `gpu:2`, `gpu:a100:2`, among other things."""
    if "gpus-per-node" in spec.native:
        return _count_gpus(spec, "gpus-per-node")
    found = 0
    for item in spec.native.get("gres", "").split(","):
        name, *rest = item.removeprefix("gres/").split(":")
        if name == "gpu":
            found += int(rest[-1]) if rest and rest[-1].isdecimal() else 1
    return found


def _count_gpus_per_rank(spec: JobSpec) -> int:
    return max(1, _count_gpus(spec, "gpus-per-task"))
