"""Programs, jobs and their records, as frozen values. Standard library only."""

from __future__ import annotations

import time
from enum import Enum

from msgspec import Struct, field

from clusterctl.core.sweep import Point, list_points
from clusterctl.core.text import describe_exit, format_seconds


class JobState(str, Enum):
    """QUEUED → RUNNING → one of the ends. LOST: its supervisor vanished without a word."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


PYTHONS = ("python", "python3")
"""Commands that mean the Python of a node that runs scripts."""
SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
"""Commands that run scripts of a project, whose programs may be in Python."""


class ProgramKind(str, Enum):
    """What SCRIPT is, which decides how it is started."""

    PYTHON = "python"
    MODULE = "module"
    SOURCE = "source"
    BINARY = "binary"
    COMMAND = "command"
    """A program of the nodes, found there on PATH."""
    BATCH = "batch"
    """A batch script of the user's own, for the queue as it is."""


class Program(Struct, frozen=True, kw_only=True):
    """What every rank runs: a path inside the staged tree, the name of a module or of a command,
    and its arguments."""

    kind: ProgramKind
    target: str
    args: tuple[str, ...] = ()
    bundled: bool = False
    folder: str = "."
    """Working directory of the ranks, relative to the staged tree."""
    source: str = ""
    """For ProgramKind.SOURCE: the file that is compiled to `target`, relative to `folder`."""
    sources: tuple[str, ...] = ()
    """Further files that are compiled with it."""
    interpreter: str = ""
    """What the first line of a script names to run it, where not every node has that: a path, or a
    command. Of a command with an absolute path, that path."""
    directives: str = ""
    """What those of a batch script begin with: `#SBATCH`, `#$`, `#$ or #SBATCH`; "": none."""
    local_rank: str = ""
    """`--local_rank`: the option by which a Python program gets its number on the node, first."""

    @property
    def words(self) -> tuple[str, ...]:
        """As it was given to `run`."""
        return *(("-m",) if self.kind is ProgramKind.MODULE else ()), self.target, *self.args

    @property
    def needs_python(self) -> bool:
        """Whether the Python of each node starts it."""
        python = self.kind is ProgramKind.COMMAND and self.target in PYTHONS
        return python or self.kind in (ProgramKind.PYTHON, ProgramKind.MODULE)


GRACE = 5.0
"""Seconds that ranks have to save between SIGTERM and SIGKILL, unless the job says otherwise."""


class JobSpec(Struct, frozen=True, kw_only=True):
    """What a person asked to run."""

    program: Program
    ranks: int = 0
    """0: let the facts decide (one per GPU, else one per worker)."""
    ranks_per_node: int = 0
    nodes: int = 0
    """0: all workers."""
    once: bool = False
    """One process by itself, which is no rank."""
    hosts: tuple[str, ...] = ()
    """Nodes that were chosen, in the order of the ranks; (): any. One that stands here several
    times gets as many ranks."""
    uses_mpi: bool = True
    """Whether the program may call MPI."""
    backend: str = "auto"
    launcher: str = "mpirun"
    """`auto`: the usual one of whatever runs the cluster's jobs."""
    sweep: tuple[str, ...] = ()
    """`lr=0.1,0.01`: values of which every combination is a point of its own."""
    array: str = ""
    """`0-99%8`: the points by their numbers."""
    only: tuple[int, ...] = ()
    """Those that run, of the points; (): all."""
    mpirun_args: tuple[str, ...] = ()
    """Options for mpirun beside ours, each with its values."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that are no secret. Secrets have no place in a record: only their names do."""
    secret_names: tuple[str, ...] = ()
    env_files: tuple[str, ...] = ()
    now: bool = False
    timeout: float = 0.0
    """Seconds; 0: none."""
    hang_timeout: float = 0.0
    """Seconds without output after which an attempt is ended; 0: none."""
    grace: float = 0.0
    """Seconds that ranks have to save after SIGTERM, before they are killed; 0: it does not say."""
    notice: int = 0
    """Seconds that they have when a batch system announces the job's end; 0: none announces it."""
    pass_signal: bool = False
    """Whether they get the batch system's own signal then, and not SIGTERM."""
    retries: int = 0
    on_node_loss: str = ""
    """`replace`, `shrink` or `fail`; "": the first where nodes cost nothing, else the last."""
    resume_args: str = ""
    """`--resume {snapshot}`: added to the program's arguments where it has a snapshot to go on
    from."""
    detach: bool = False
    """Whether nobody follows it: its supervisor shrinks it then, where that is wanted."""
    keep_files: tuple[str, ...] = ()
    """Patterns of outputs to copy to the launcher meanwhile; (): snapshots and small ones."""
    sync: str = ""
    """A folder of this machine, to which outputs are brought while the job is followed."""
    allow_cpu: bool = False
    native: dict[str, str] = field(default_factory=dict)
    """Options of a batch system, under the names that it has for them."""
    modules: tuple[str, ...] = ()
    """Environment modules to load on the nodes of a batch system."""
    venv: str = ""
    container: str = ""
    """A virtual environment there, or an image that ranks run in."""
    packages: str = ""
    """Digest of the packages that it asks for; their list lies in the state home."""
    python: str = ""
    """The version of another Python than that of the nodes, for its packages: `3.12`."""
    setup: str = ""
    """Lines of shell that complete its packages, once per node and tree."""
    in_place: str = ""
    """The folder of the login node in which a batch script of the user's own starts; "":
    in the job's copy of the tree."""
    import_paths: tuple[str, ...] = ()
    """Folders of the staged tree with packages of the project itself."""

    @property
    def save_time(self) -> float:
        """Seconds that ranks have to save after SIGTERM."""
        return self.grace or GRACE

    @property
    def is_sweep(self) -> bool:
        return bool(self.sweep or self.array)

    @property
    def points(self) -> tuple[Point, ...]:
        """The points that run; () for a job of ranks. Raises UsageError."""
        found = list_points(self.sweep, self.array) if self.is_sweep else ()
        return tuple(point for point in found if not self.only or point.number in self.only)

    @property
    def particular(self) -> tuple[str, ...]:
        """The options of `run` that it was given and that only some clusters know."""
        native = (f"-{name}" if len(name) < 3 else f"--{name}" for name in self.native)
        given = {
            "--sweep": self.sweep,
            "--array": self.array,
            "--module": self.modules,
            "--venv": self.venv,
            "--container": self.container,
            "--now": self.now,
            "--pass-signal": self.pass_signal,
            "--keep-files": self.keep_files,
            "--sync": self.sync,
            "--on-node-loss": self.on_node_loss,
            "--mpirun-arg": self.mpirun_args,
            "--nodes": self.nodes or self.hosts,
            "--ranks-per-node": self.ranks_per_node,
        }
        return (*native, *(option for option, value in given.items() if value))


IN_A_TERMINAL = "open in a terminal"
"""The reason of a job of `run --interactive` that has not ended."""
UNPLACED = "(queue)"
"""Stands for the nodes of a job that waits in the queue of a batch system."""


class Placement(Struct, frozen=True, kw_only=True):
    """Which ranks run on which node: `first` … `first + count - 1`, in hostfile order."""

    node: str
    first: int
    count: int

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)


class RankFailure(Struct, frozen=True, kw_only=True):
    """The first rank that failed: the one a person should look at."""

    rank: int
    node: str
    exit_code: int

    @property
    def text(self) -> str:
        return f"rank {self.rank} on {self.node} {describe_exit(self.exit_code)}"


class HungRanks(Struct, frozen=True, kw_only=True):
    """Ranks that stood at the same place. `note`: what the node of the first showed of it, for
    `hangs.read`."""

    ranks: tuple[int, ...]
    note: str


class Hang(Struct, frozen=True, kw_only=True):
    """An attempt that was ended because no rank had written anything for `seconds`."""

    attempt: int
    seconds: float
    places: tuple[HungRanks, ...] = ()
    """The most common one first; (): no node has shown any."""


class Job(Struct, frozen=True, kw_only=True):
    """The record of a job. Outlives its cluster."""

    id: int
    cluster: str
    cluster_id: str
    spec: JobSpec
    scheduler: str
    placement: tuple[Placement, ...]
    stage: str
    """Digest of the staged tree; the archive of that name lies in the state home."""
    created: float
    state: JobState = JobState.QUEUED
    started: float | None = None
    finished: float | None = None
    program_exit_code: int | None = None
    """That of the rank that failed first. None: the program never started, has not ended, or was
    killed with its launcher, whose own exit code is none of the program's."""
    failure: RankFailure | None = None
    survivors: dict[str, int] = field(default_factory=dict)
    """Processes of the job that were still there at the last look, per node. Empty: not looked."""
    reason: str = ""
    start_code: int = 0
    """What `run` exited with where it could not submit the job; 0: it could, or was interrupted."""
    native_id: str = ""
    attempt: int = 1
    hangs: tuple[Hang, ...] = ()
    never_met: bool = False
    """Its ranks used torch, and none has joined another one."""
    points_ended: dict[str, int] = field(default_factory=dict)
    """Of a sweep: the exit codes of the points that have ended, by their numbers."""
    fetched: bool = False
    purpose: str = ""
    """The verb that has started it for itself, to measure or test; "": a person has."""
    rerun_of: int | None = None
    resumes: bool = False
    """Its first attempt, too, gets the spec's `resume_args`: the job goes on with another's
    files."""

    def __repr__(self) -> str:
        code = "" if self.program_exit_code is None else f", exit code {self.program_exit_code}"
        return (
            f"<Job {self.id} on {self.cluster!r}: {self.spec.program.target!r},"
            f" {self.state.value}{code}>"
        )

    @property
    def ranks(self) -> int:
        return sum(place.count for place in self.placement)

    def find_node(self, rank: int) -> str:
        """The node that the rank was placed on; "" where that is not known yet."""
        return next((place.node for place in self.placement if rank in place.ranks), "")

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of its ranks, or of its points."""
        if self.spec.is_sweep:
            return tuple(point.number for point in self.spec.points)
        return tuple(range(self.ranks))

    @property
    def unfinished_points(self) -> tuple[int, ...]:
        """Points of a sweep that have not ended well."""
        return tuple(n for n in self.processes if self.points_ended.get(str(n)) != 0)

    @property
    def seconds(self) -> float | None:
        """How long it has run; None: it has not, or nobody knows when it ended."""
        end = self.finished or (None if self.state.ended else time.time())
        if self.started is None or end is None:
            return None
        return max(0.0, end - self.started)  # clocks may differ


class Machine(Struct, frozen=True, kw_only=True):
    """A node as a job found it. `packages`: versions of those that matter to a training."""

    name: str
    ranks: int
    address: str = ""
    instance_type: str = ""
    arch: str = ""
    cores: int = 0
    gpus: tuple[str, ...] = ()
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)


class Provenance(Struct, frozen=True, kw_only=True):
    """What a job was made from. Lies beside its record, which is read more often."""

    commit: str = ""
    """Of the git work tree that was staged; "" outside a repository."""
    branch: str = ""
    patch: str = ""
    """What its tracked files differed by, cut at a limit."""
    patch_bytes: int = 0
    """The size of the whole patch; 0: the files were those of the commit."""
    typed: tuple[str, ...] = ()
    """The command line of clusterctl, without secrets; (): Python code started it."""
    command: tuple[str, ...] = ()
    """What started the ranks; `$NAME` was filled in on the launcher."""
    machines: tuple[Machine, ...] = ()
    images: dict[str, str] = field(default_factory=dict)
    """Of containers, by kind of node, with digests where they are known."""
    site: dict[str, str] = field(default_factory=dict)
    """What a batch system had told of itself."""
    requirements: tuple[str, ...] = ()
    """The packages that were installed for the job, with their versions."""


def format_duration(job: Job) -> str:
    return "-" if job.seconds is None else format_seconds(job.seconds)


# -------------------------------------------------------------------------------------------------
# How a job is started, as a value: what `launch` plans and `batch` turns into scripts.


class Reason(Struct, frozen=True, kw_only=True):
    """One flag or variable of a plan, and why it is there."""

    item: str
    why: str


class LaunchPlan(Struct, frozen=True, kw_only=True):
    """Everything needed to start a job, as a value: printed by --dry-run, shipped by run.

    `argv` starts the ranks, on the launcher; `$NAME` in it is filled in when the job starts.
    `env` reaches every rank through the 0600 file, `node_env` adds what differs from node to node.
    `programs` is what a rank runs, by node; where `agents` has a line of sh for a node, it runs
    there first and starts the ranks itself (torchrun). `files` go to the launcher's job folder.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    node_env: dict[str, dict[str, str]]
    programs: dict[str, tuple[str, ...]]
    files: dict[str, str]
    agents: dict[str, str] = field(default_factory=dict)
    path: str = ""
    """A folder to put in front of PATH for what starts the ranks, on a batch system."""
    device_env: dict[str, str] = field(default_factory=dict)
    """On a batch system: of every rank, `$cctl_device` being its node's network device."""
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What may go wrong: said with --quiet, too."""
