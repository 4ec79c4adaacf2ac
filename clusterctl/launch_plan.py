"""How a job is started, as a value: what `launch` plans and `schedulers` turn into scripts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One flag or variable of a plan, and why it is there."""

    item: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMpirun:
    """How a job of a batch system calls an mpirun. `$NAME` is filled in when the job starts, and
    what its nodes can do decides among the rest, in the words of `launch.mpi_transport`."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    by_subnet: tuple[str, ...]
    """Where the first node's device has one address; `by_device` where it has more."""
    by_device: tuple[str, ...]
    engines: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...]
    """What an engine needs, its own word, and its flags: the first row that fits."""
    more: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    """Flags for each row that fits, the engine's word included."""
    placed: tuple[str, ...] = ()
    """How ranks are placed and bound, and what the user adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
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
    mpirun: dict[int, BatchMpirun] = field(default_factory=dict)
    """On a batch system: by Open MPI's major version, which is known when the job starts."""
    device_env: dict[str, str] = field(default_factory=dict)
    """On a batch system: of every rank, `$cctl_device` being its node's network device."""
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What may go wrong: said with --quiet, too."""
