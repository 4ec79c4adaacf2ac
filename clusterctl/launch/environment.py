"""What every rank finds in its environment, and the command line it becomes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from clusterctl.core.job import ProgramKind, Reason
from clusterctl.core.model import Node
from clusterctl.launch.hostfile import YIELD, choose_binding, choose_waiting
from clusterctl.launch.launcher import Request
from clusterctl.launch.network import Variable

_KEEP_MEMORY = ":".join(
    (
        "glibc.malloc.hugetlb=1",
        f"glibc.malloc.mmap_threshold={32 * 2**20}",
        f"glibc.malloc.trim_threshold={2**30}",
    )
)
"""malloc reuses the memory of a step's gradients in the next one, in huge pages where the kernel
gives them. By itself it hands arrays of megabytes back, and every step pays for the pages anew.
32 MiB is the largest threshold that glibc takes; what does not know these names ignores them."""


OF_RANKS = ("MASTER_ADDR", "MASTER_ADDRESS", "CLUSTERCTL_WORLD_SIZE")
"""What only processes need that are to meet others."""

AS_ROOT = {
    f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")
}
"""What lets an mpirun that root starts start ranks: Open MPI 4 and 5, PRRTE's own prterun."""


def build_environment(
    request: Request, more: Sequence[Variable] = ()
) -> tuple[dict[str, str], tuple[Reason, ...]]:
    """Variables that are the same on all nodes, with reasons: ours, those of the transport
    (`more`), and the user's own, which come last and win."""
    first = request.cluster.node(request.placement[0].node)
    master = "127.0.0.1" if request.cluster.one_host else first.private_address
    own = [
        ("OMP_NUM_THREADS", str(_count_threads(request)), "cores ÷ ranks of a machine"),
        ("GLIBC_TUNABLES", _KEEP_MEMORY, "freed arrays are reused, not handed back to the kernel"),
        ("MASTER_ADDR", master, f"the first worker, {first.name}"),
        ("MASTER_ADDRESS", master, "the same, as some programs call it"),
    ]
    if request.spec.launcher == "mpirun":
        yields, why = choose_waiting(request)
        own.append((YIELD, str(int(yields)), why))
    return build_variables(request, own, more)


def build_variables(
    request: Request, own: Sequence[Variable] = (), more: Sequence[Variable] = ()
) -> tuple[dict[str, str], tuple[Reason, ...]]:
    """What every launcher sets, with a launcher's own variables and those of its transport, and
    then the user's."""
    rows: list[Variable] = [
        ("PYTHONUNBUFFERED", "1", "output appears while the program runs"),
        ("PYTHONFAULTHANDLER", "1", "a rank that crashes in a library prints its Python lines"),
        *own,
        (
            "CLUSTERCTL_GRACE",
            f"{request.spec.notice or request.spec.save_time:g}",
            "seconds to save after SIGTERM",
        ),
        (
            "CLUSTERCTL_WORLD_SIZE",
            str(sum(place.count for place in request.placement)),
            "programs check that they see as many ranks as were started",
        ),
    ]
    if request.cluster.shared:
        rows.append(("CLUSTERCTL_SHARED", request.cluster.shared, "the folder of all nodes"))
    if request.spec.backend != "auto":
        rows.append(("CLUSTERCTL_BACKEND", request.spec.backend, "--backend"))
    if request.spec.allow_cpu:
        rows.append(("CLUSTERCTL_ALLOW_CPU", "1", "--allow-cpu"))
    rows += more
    if request.spec.once:
        rows = [row for row in rows if row[0] not in OF_RANKS]
    env = {name: value for name, value, _ in rows}
    env.update(request.spec.env)
    return env, tuple(Reason(item=f"{name}={env[name]}", why=why) for name, _, why in rows)


def list_program(request: Request, node: Node) -> tuple[str, ...]:
    """The argv of a rank on that node; relative paths start at the rank's working directory."""
    wanted = request.spec.program
    starts = {ProgramKind.PYTHON: (node.python,), ProgramKind.MODULE: (node.python, "-m")}
    if start := starts.get(wanted.kind):
        if not wanted.local_rank:
            return (*start, wanted.target, *wanted.args)
        own = f'exec {shlex.join((*start, wanted.target))} {wanted.local_rank}="$LOCAL_RANK" "$@"'
        return ("/bin/sh", "-c", own, wanted.target, *wanted.args)
    if wanted.needs_python:
        return (node.python, *wanted.args)
    return (wanted.target, *wanted.args)


def _count_threads(request: Request) -> int:
    """Threads per rank so that all ranks of one machine together use its cores once; no more than
    the hardware threads that a rank is bound to.

    Nodes with one boot id are one machine, whatever their names say.
    """
    ranks: dict[str, int] = {}
    cores: dict[str, int] = {}
    binding = choose_binding(request)
    bound: list[int] = []
    for place in request.placement:
        facts = request.cluster.node(place.node).facts
        machine = facts.boot_id or place.node
        ranks[machine] = ranks.get(machine, 0) + place.count
        cores[machine] = facts.cores
        if binding.cores:
            bound.append(binding.cores * facts.cores // facts.physical_cores)
    shares = [cores[machine] // count for machine, count in ranks.items()]
    return max(1, min(shares + bound))
