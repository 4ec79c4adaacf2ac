"""Ranks inside a job of a batch system: which nodes run them is known only when it starts.

The plan holds what every rank needs; the batch script (`schedulers`) starts them with `srun` or
`mpirun`, by what the site has. Node names, MASTER_ADDR and MASTER_PORT are facts of the job.
"""

from __future__ import annotations

from clusterctl.errors import LaunchError, UsageError
from clusterctl.launch import Request
from clusterctl.model import UNPLACED, Cluster, JobSpec, LaunchPlan, Placement, ProgramKind, Reason

LAUNCHERS = ("auto", "mpirun", "srun")

_CONTAINER = """\
set -- --bind "$PWD" --pwd "$PWD" "$@"
# A bind of what is not there would end the job.
[ ! -d "${CLUSTERCTL_DATA-}" ] || set -- --bind "$CLUSTERCTL_DATA" "$@"
[ ! -e /dev/nvidiactl ] || set -- --nv "$@"
[ ! -e /dev/kfd ] || set -- --rocm "$@"
exec "$(command -v apptainer || command -v singularity || echo apptainer)" exec "$@"
"""


def sized(cluster: Cluster, spec: JobSpec) -> JobSpec:
    """The spec with its numbers of ranks filled in: one per GPU that was asked for, else one per
    node. Raises UsageError where the numbers contradict each other."""
    from dataclasses import replace

    if cluster.spec.provider == "sge":
        return replace(spec, ranks=_slots(spec))
    if spec.ranks and not (spec.nodes or spec.ranks_per_node):
        return spec
    if not (spec.ranks or spec.ranks_per_node) and (total := _gpus(spec, "gpus")):
        return _one_per_gpu(spec, total)
    nodes = spec.nodes or 1
    if spec.ranks and not spec.ranks_per_node:
        if spec.ranks < nodes:
            raise UsageError(
                f"--ranks {spec.ranks} on --nodes {nodes}: a node would have none",
                hint="at least one rank per node",
            )
        return replace(spec, nodes=nodes)
    each = spec.ranks_per_node or _gpus_per_node(spec) // _gpus_per_rank(spec) or 1
    if spec.ranks and spec.ranks != nodes * each:
        if spec.nodes or spec.ranks % each:
            raise UsageError(
                f"--ranks {spec.ranks} is not --ranks-per-node {each} x {nodes} nodes",
                hint="give one of them, or add --nodes",
            )
        nodes = spec.ranks // each
    return replace(spec, nodes=nodes, ranks_per_node=each, ranks=0)


def place(spec: JobSpec) -> tuple[Placement, ...]:
    """Where the ranks of a sized spec are before the queue has spoken."""
    count = spec.ranks or spec.nodes * spec.ranks_per_node
    return (Placement(node=UNPLACED, first=0, count=count),)


def plan(request: Request) -> LaunchPlan:
    """What the login node's job folder needs. Raises LaunchError without a Python for a script."""
    spec, login = request.spec, request.cluster.launcher
    alone = request.cluster.spec.provider == "sge" and spec.launcher == "srun"
    if spec.launcher not in LAUNCHERS or alone:
        raise UsageError(
            f"--launcher {spec.launcher} does not work in a job of {request.cluster.spec.provider}",
            hint="leave it out, or choose mpirun" + ("" if alone else " or srun"),
        )
    rows: list[tuple[str, str, str]] = [
        ("PYTHONUNBUFFERED", "1", "output appears while the program runs"),
        (
            "CLUSTERCTL_WORLD_SIZE",
            str(sum(item.count for item in request.placement)),
            "programs check that they see as many ranks as were started",
        ),
    ]
    if spec.backend != "auto":
        rows.append(("CLUSTERCTL_BACKEND", spec.backend, "--backend"))
    if spec.allow_cpu:
        rows.append(("CLUSTERCTL_ALLOW_CPU", "1", "--allow-cpu"))
    env = {name: value for name, value, _ in rows}
    env.update(spec.env)
    late = "MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, OMP_NUM_THREADS"
    return LaunchPlan(
        argv=("/bin/sh", "rank.sh"),
        env=env,
        node_env={login.name: {}},
        programs={login.name: program(request)},
        files={},
        path=_path(request),
        reasons=(
            *(Reason(item=f"{name}={env[name]}", why=why) for name, _, why in rows),
            Reason(item=late, why="known when the job starts: the script sets them"),
        ),
    )


def program(request: Request) -> tuple[str, ...]:
    """The argv of a rank, on whichever node it runs."""
    spec = request.spec
    wanted = spec.program
    words: tuple[str, ...] = (wanted.target, *wanted.args)
    if wanted.kind is ProgramKind.PYTHON:
        words = (python(request), *words)
    elif wanted.kind is ProgramKind.MODULE:
        words = (python(request), "-m", *words)
    if spec.container:
        return ("/bin/sh", "-c", _CONTAINER, "container", spec.container, *words)
    return words


def python(request: Request) -> str:
    """Which Python runs the ranks: the venv's, whatever a module or an image brings, else the one
    found on the login node."""
    spec, login = request.spec, request.cluster.launcher
    if spec.venv:
        return f"{_venv(request)}/bin/python"
    if spec.modules or spec.container:
        return "python3"
    if not login.python:
        raise LaunchError(
            f"no Python on {login.name}",
            hint="name one with --venv or --container, or load one with --module",
        )
    return login.python


def _venv(request: Request) -> str:
    """Its folder; a `~` is the home on the login node."""
    folder, home = request.spec.venv.rstrip("/"), request.cluster.traits.get("home", "")
    return f"{home}{folder[1:]}" if home and folder[:2] in ("~", "~/") else folder


def _path(request: Request) -> str:
    """Where the mpirun is that belongs to the ranks' Python."""
    spec, login = request.spec, request.cluster.launcher
    if spec.venv:
        return f"{_venv(request)}/bin"
    if spec.modules or spec.container or not login.mpi_prefix:
        return ""
    return f"{login.mpi_prefix}/bin"


def _one_per_gpu(spec: JobSpec, gpus: int) -> JobSpec:
    """`--gpus 4`, for the whole job: told to Slurm by rank, for it might put more ranks than GPUs
    on a node."""
    from dataclasses import replace

    per_rank = _gpus_per_rank(spec)
    kind, colon, _ = spec.native["gpus"].rpartition(":")
    ranks, nodes = gpus // per_rank, spec.nodes
    if "," in kind or not ranks or gpus % per_rank or (nodes and ranks % nodes):
        raise UsageError(
            f"--gpus {spec.native['gpus']} cannot be dealt out evenly"
            + (f" to --nodes {nodes}" if nodes else ""),
            hint="--gpus-per-node says how many each node gives, --ranks how many ranks there are",
        )
    others = {name: text for name, text in spec.native.items() if name != "gpus"}
    native = {"gpus-per-task": f"{kind}{colon}{per_rank}", **others}
    if nodes:
        return replace(spec, ranks_per_node=ranks // nodes, native=native)
    return replace(spec, ranks=ranks, native=native)


def _gpus(spec: JobSpec, option: str) -> int:
    """`2` or `a100:2`; several types add up."""
    counts = [item.rpartition(":")[2] for item in spec.native.get(option, "").split(",")]
    return sum(int(count) for count in counts if count.isdigit())


def _gpus_per_node(spec: JobSpec) -> int:
    """By --gpus-per-node, or by --gres: `gpu`, `gpu:2`, `gpu:a100:2`, among other things."""
    if "gpus-per-node" in spec.native:
        return _gpus(spec, "gpus-per-node")
    found = 0
    for item in spec.native.get("gres", "").split(","):
        name, *rest = item.removeprefix("gres/").split(":")
        if name == "gpu":
            found += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return found


def _gpus_per_rank(spec: JobSpec) -> int:
    return max(1, _gpus(spec, "gpus-per-task"))


def _slots(spec: JobSpec) -> int:
    """Grid Engine counts slots: one rank each."""
    _, _, count = spec.native.get("pe", "").rpartition(" ")
    slots = int(count) if count.isdigit() else 1
    if spec.ranks > slots:
        raise UsageError(
            f"--ranks {spec.ranks} do not fit into {slots} slots",
            hint=f"ask for them with -pe NAME {spec.ranks}",
        )
    return spec.ranks or slots
