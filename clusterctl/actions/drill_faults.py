"""The faults of a drill, and which of them is injected where and when: the seed alone decides."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterctl.core.errors import UsageError
from clusterctl.machines.protocol import LAUNCHER, Harm

HANG = 15
"""Seconds of silence after which an attempt with a frozen rank ends."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done, and what has to follow. One of `harm`, `names`, `file` and `client` is the
    target."""

    reason: str = ""
    """A pattern of the reason that clusterctl has to report."""
    harm: Harm | None = None
    launcher: bool = False
    """The target is the launcher, not a worker."""
    names: tuple[str, ...] = ()
    """Processes of the job, by name."""
    file: str = ""
    """Files in the job's folder with process ids."""
    signal: str = "KILL"
    client: bool = False
    passes: bool = False
    """The fault ends after BREAK, and the job continues."""
    options: tuple[str, ...] = ()
    """Of `run`."""


_RETRY = ("--retries", "1")
FAULTS: Mapping[str, Fault] = {
    "kill-rank": Fault(r"was killed by SIGKILL", file="out/rank-*.pid", options=_RETRY),
    "freeze-rank": Fault(
        r"hung: no rank printed",
        file="out/rank-*.pid",
        signal="STOP",
        options=("--hang-timeout", str(HANG), *_RETRY),
    ),
    "kill-daemon": Fault(r"{node}|daemon", names=("prted", "orted"), options=_RETRY),
    "kill-mpirun": Fault(
        r"mpirun", launcher=True, names=("mpirun", "prterun", "orterun"), options=_RETRY
    ),
    "kill-supervisor": Fault(r"supervisor", launcher=True, file="supervisor.pid"),
    "kill-client": Fault(client=True),
    "kill-node": Fault(r"lost {node}|{node} restarted", Harm.KILL),
    "lose-node": Fault(r"lost {node}", Harm.LOSE),
    "kill-launcher": Fault(r"lost {node}|supervisor", Harm.KILL, launcher=True),
    "lose-launcher": Fault(r"lost {node}", Harm.LOSE, launcher=True),
    "freeze-node": Fault(r"lost {node}", Harm.FREEZE),
    "partition": Fault(r"lost {node}", Harm.CUT),
    "outage": Fault(harm=Harm.CUT, passes=True),
    "reboot-node": Fault(r"{node} restarted", Harm.REBOOT),
    "reboot-launcher": Fault(r"{node} restarted", Harm.REBOOT, launcher=True),
}
"""By name, in the order of a drill."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One round of a plan: the fault, the node and the step at which it is injected."""

    fault: str
    node: str
    step: int


def plan(
    faults: Sequence[str], rounds: int, seed: int, workers: Sequence[str], steps: int
) -> tuple[Strike, ...]:
    """The same for the same arguments. Raises UsageError for an unknown fault."""
    if unknown := [name for name in faults if name not in FAULTS]:
        raise UsageError(
            f"--faults: unknown fault {unknown[0]!r}", hint=f"choose from {', '.join(FAULTS)}"
        )
    chance = random.Random(seed)
    strikes = []
    for name in [name for _ in range(rounds) for name in faults or FAULTS]:
        node, step = chance.choice(workers), chance.randrange(steps // 5, steps * 4 // 5 + 1)
        strikes.append(Strike(name, LAUNCHER if FAULTS[name].launcher else node, step))
    return tuple(strikes)
