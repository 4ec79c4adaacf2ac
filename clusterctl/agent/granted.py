"""How a job of Slurm or Grid Engine starts its ranks on the nodes that it was given, from the first
of them: by srun or mpirun. Or takes over a terminal there, with an mpirun for these nodes.
"""

import contextlib
import glob
import os
import shlex
import signal
import socket
import sys
from typing import Dict, List, Optional, Sequence, Tuple

from . import attend, messages, processes, queues
from .messages import Holder
from .processes import call

HOSTFILE = "hostfile"
"""The nodes, for mpirun: see `read_hosts`."""
PLACED = "placed"
"""The same for each rank, as lines of sh."""
FOR_RANKS = "MASTER_ADDR MASTER_ADDRESS MASTER_PORT WORLD_SIZE CLUSTERCTL_JOB CLUSTERCTL_ATTEMPT"
OF_GPUS = ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK")


class UnfitError(Exception):
    """Why nothing here can start the ranks."""


def place(slots: Dict[str, int], ranks: int) -> List[Holder]:
    """Fewer ranks than slots are spread as the slots are; the first node has one of them."""
    found: List[Holder] = []
    granted = first = 0
    total = sum(slots.values())
    for host, mine in slots.items():
        granted += mine
        count = int(min(ranks, total) * granted / total + 0.5) - first if total else 0
        count = count or int(total > 0 and not found)
        if count:
            found.append(Holder(host, first, count))
            first += count
    return found


def find_nodes(job: str, plan: messages.BatchPlan) -> List[Holder]:
    """Where the ranks run, also as files in the job's folder; []: the batch system does not say."""
    rows = queues.SYSTEMS[plan.system].list_nodes()
    processors = {host: count for host, _, count in rows}
    found = place({host: slots for host, slots, _ in rows}, plan.start.ranks)
    if not found:
        sys.stderr.write("the batch system reported no nodes\n")
    names = ",".join(one.name for one in found)
    lines = [f"cctl_hosts={names} cctl_nodes={len(found)}", "case $cctl_rank in"]
    for number, one in enumerate(found):
        ranks = "|".join(map(str, range(one.first, one.first + one.ranks)))
        threads = os.environ.get("SLURM_CPUS_PER_TASK", "")
        if not threads and processors[one.name]:
            threads = str(max(1, processors[one.name] // one.ranks))
        known = f"cctl_node={number} cctl_local_world={one.ranks} cctl_threads={threads}"
        lines.append(f"{ranks}) {known} ;;")
    processes.write(os.path.join(job, PLACED), "\n".join([*lines, "esac", ""]))
    text = "".join(f"{one.name} slots={one.ranks}\n" for one in found)
    processes.write(os.path.join(job, HOSTFILE), text)
    return found


def read_hosts(job: str) -> Dict[str, int]:
    """How many ranks each node has."""
    rows = processes.read_text(os.path.join(job, HOSTFILE)).splitlines()
    return {host: int(slots) for host, slots in (row.split(" slots=") for row in rows)}


def _find_address(host: str) -> str:
    """As others see it."""
    found: List[str] = []
    with contextlib.suppress(OSError):
        found = [str(row[4][0]) for row in socket.getaddrinfo(host, None, socket.AF_INET)]
    found = [address for address in found if not address.startswith("127.")]
    return [*found, *call("hostname", "-I").out.split(), host][0]


def _tell(hosts: Dict[str, int]) -> Dict[str, str]:
    """What ranks are told."""
    address, size = _find_address(next(iter(hosts))), str(sum(hosts.values()))
    return {"MASTER_ADDR": address, "MASTER_ADDRESS": address, "WORLD_SIZE": size}


# -------------------------------------------------------------------------------------------------


def choose_starter(
    job: str, start: messages.BatchStart, hosts: Dict[str, int]
) -> Tuple[List[str], Dict[str, str]]:
    """The program that starts the ranks, and its environment. Raises UnfitError. Warnings are for
    the supervisor alone."""
    environ = {**os.environ, **_tell(hosts)}
    ranks, rank = environ["WORLD_SIZE"], ["/bin/sh", os.path.join(job, "rank.sh")]
    ignores, words = "trap '' USR1 USR2", rank
    mpi = _choose_mpi(start) if start.starter not in ("once", "mpirun") else ""
    if mpi:
        words = [*_call_srun(start, mpi, ranks, environ), *rank]
    elif start.starter != "once":
        ignores += "; " + start.clean
        environ["PATH"] = f"{job}:{environ['PATH']}"
        passed = [word for name in FOR_RANKS.split() for word in ("-x", name)]
        size = ["-np", ranks, "--hostfile", HOSTFILE, "--wdir", "/"]
        words = [*_call_mpirun(start, environ["MASTER_ADDR"]), *size, *passed, *rank]
    return ["/bin/sh", "-c", ignores + '; exec "$@"', "sh", *words], environ


def _choose_mpi(start: messages.BatchStart) -> str:
    """Whether srun is to start the ranks, and with which MPI; "": mpirun is. PMIx is listed where
    its plug-in is, also when its library cannot be loaded."""
    if start.mpi:
        return start.mpi
    step = "srun --mpi=pmix --nodes=1 --ntasks=1 true"
    listed = call("srun", "--mpi=list", limit=None)
    if "pmix" in listed.out + listed.err and not os.system(step):
        return "pmix"
    if start.starter == "srun" and start.uses_mpi:
        raise UnfitError(
            "srun has no PMIx that works here, and the program may use MPI\n"
            "name an MPI of `srun --mpi=list` with --mpi, or leave out --launcher srun;"
            f" if it uses none: {start.without_mpi}"
        )
    starts = start.container or not (start.uses_mpi or _find_mpirun(start)[1])
    return "none" if starts or start.starter == "srun" else ""


def _call_srun(
    start: messages.BatchStart, mpi: str, ranks: str, environ: Dict[str, str]
) -> List[str]:
    # --gpus-per-task would hide from a rank all GPUs but its own, which then has number 0:
    # LOCAL_RANK counts those of the node. Without it ranks see all that the job has there.
    if not environ.get("SLURM_GPU_BIND"):
        for name in OF_GPUS:
            environ.pop(name, None)
    for name, value in start.variables.items():
        environ[name] = environ.get(name) or value
    words = f"srun --mpi={mpi} --kill-on-bad-exit=1 --ntasks={ranks} --distribution=block".split()
    # Since 22.05 srun does not read how many CPUs a task was given.
    each = environ.get("SLURM_CPUS_PER_TASK")
    return [*words, *([f"--cpus-per-task={each}"] if each else []), *start.container]


def _find_mpirun(start: messages.BatchStart) -> Tuple[str, Optional[messages.MpirunCall]]:
    """What the mpirun here says of itself, and how it is called; None: it is none that we know."""
    said = call("mpirun", "--version", limit=None).out
    known = (row for major, row in start.calls.items() if f"(Open MPI) {major}." in said)
    return said, next(known, None)


def _call_mpirun(start: messages.BatchStart, address: str, *, typed: bool = False) -> List[str]:
    """Its daemons come by clusterctl-agent, whatever this MPI knows of the batch system. `typed`:
    by a person, who says how ranks are placed."""
    said, known = _find_mpirun(start)
    if known is None:
        instead = f"; if the program uses no MPI, add {start.without_mpi}" * bool(start.without_mpi)
        lacks = "no mpirun on this node: load a module that provides one, or use --venv"
        other = f"this mpirun is not Open MPI {' or '.join(start.calls)}"
        raise UnfitError(f"{other if said else lacks}{instead}")
    words, (device, subnet) = [*known.words], _find_network(address)
    if device:
        listed = call("ip", "-o", "address", "show", "dev", device, "scope", "global").out
        route = known.by_subnet if listed.count("\n") == 1 else known.by_device
        late = {"$cctl_cidr": subnet, "$cctl_device": device}
        words += [late.get(word, word) for word in route]
    if not any(map(glob.glob, start.fast)):
        words += known.without_fabric
    words += () if typed else known.placed
    return [*words, "--allow-run-as-root"] if os.getuid() == 0 else words


def _find_network(address: str) -> Tuple[str, str]:
    """The device with that address, and its subnet; "": there is none."""
    for line in call("ip", "-o", "-4", "address", "show").out.splitlines():
        _, device, _, subnet, *_ = line.split()
        if subnet.startswith(address + "/"):
            return device, subnet
    return "", ""


# -------------------------------------------------------------------------------------------------
# `run --interactive`.


def open_terminal(job: str, *words: str) -> None:
    """From where the nodes were granted: takes the terminal over to the first of them."""
    os.chdir(job)
    plan = messages.load(messages.BatchPlan, "plan.json")
    found = find_nodes(job, plan)
    if not found:
        sys.exit(1)
    step = queues.SYSTEMS[plan.system].enter(found[0].name)
    _become([*step, "/bin/sh", "./env", "rank", "/bin/sh", "./job.sh", "inside", *words])


def enter(job: str, *words: str) -> None:
    """There, with the modules of the job: becomes that program, or a shell."""
    os.chdir(job)
    plan, hosts = messages.load(messages.BatchPlan, "plan.json"), read_hosts(job)
    os.environ.update(_tell(hosts), MASTER_PORT=str(attend.find_port()))
    ranks = os.environ.pop("WORLD_SIZE")  # that of each mpirun is its own
    try:
        _write_mpirun(job, _call_mpirun(plan.start, os.environ["MASTER_ADDR"], typed=True))
    except UnfitError as error:
        sys.stderr.write(f"{error}\n")
    said = f"{ranks} slots on {len(hosts)} nodes; mpirun starts ranks on all of them"
    os.environ["PATH"] = f"{job}/bin:{os.environ['PATH']}"
    script = f'cctl_job=$PWD cctl_rank=0; . ./surroundings; echo "{said}" >&2; cd "$0" && exec "$@"'
    words = words or (os.environ.get("SHELL") or "/bin/sh",)
    _become(["/bin/sh", "-c", script, os.path.join("work", plan.folder), *words])


def _become(words: Sequence[str]) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, programs do not
        signal.signal(number, signal.SIG_DFL)
    os.execvp(words[0], list(words))


def _write_mpirun(job: str, words: Sequence[str]) -> None:
    """As a command of its own, with what ours gets. PATH may have been changed by then."""
    passed = ("--hostfile", os.path.join(job, HOSTFILE), "-x", "MASTER_ADDR", "-x", "MASTER_PORT")
    own, command = shlex.quote(job), " ".join(map(shlex.quote, (*words, *passed)))
    rest = f"$(printf %s \":$PATH:\" | sed 's#:'{own}'/bin:#:#g; s/^://; s/:$//')"
    path = os.path.join(job, "bin", "mpirun")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    processes.write(path, f'#!/bin/sh\nexport PATH={own}:"{rest}"\nexec {command} "$@"\n')
    os.chmod(path, 0o755)
