"""Ranks inside a job of a batch system: which nodes run them is known only when it starts.

The plan holds what every rank needs; the batch script (`schedulers`) starts them with `srun` or
`mpirun`, by what the site has. Node names, MASTER_ADDR and MASTER_PORT are facts of the job.
"""

from __future__ import annotations

from clusterctl.errors import LaunchError
from clusterctl.launch import Request
from clusterctl.launch.mpirun import in_batch_job
from clusterctl.model import LaunchPlan, ProgramKind, Reason

_CONTAINER = """\
set -- --bind "$PWD" --pwd "$PWD" "$@"
# A bind of what is not there would end the job.
[ ! -d "${CLUSTERCTL_DATA-}" ] || set -- --bind "$CLUSTERCTL_DATA" "$@"
[ ! -e /dev/nvidiactl ] || set -- --nv "$@"
[ ! -e /dev/kfd ] || set -- --rocm "$@"
exec "$(command -v apptainer || command -v singularity || echo apptainer)" exec "$@"
"""


class BatchScript:
    """Fills the login node's job folder; the batch script starts the ranks when its turn comes."""

    def plan(self, request: Request) -> LaunchPlan:
        """Raises LaunchError where there is no Python for a script."""
        spec, login = request.spec, request.cluster.launcher
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
            mpirun=in_batch_job(),
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
