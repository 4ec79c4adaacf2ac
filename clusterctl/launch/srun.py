"""Ranks inside a job of a batch system: which nodes run them is known only when it starts.

The plan holds what every rank needs; the batch script (`batch`) starts them with `srun` or
`mpirun`, by what the site has. Node names, MASTER_ADDR and MASTER_PORT are facts of the job.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from clusterctl.core.job import JobSpec, LaunchPlan, Reason
from clusterctl.errors import LaunchError
from clusterctl.launch import environment, torchrun
from clusterctl.launch.environment import build_variables
from clusterctl.launch.launcher import Request
from clusterctl.launch.mpirun import IN_BATCH_JOB

_CONTAINER = """\
set -- --bind "$PWD" --pwd "$PWD" "$@"
# A bind of what is not there would end the job.
[ ! -d "${CLUSTERCTL_DATA-}" ] || set -- --bind "$CLUSTERCTL_DATA" "$@"
[ ! -e /dev/nvidiactl ] || set -- --nv "$@"
[ ! -e /dev/kfd ] || set -- --rocm "$@"
exec "$(command -v apptainer || command -v singularity || echo apptainer)" exec "$@"
"""


def plan_batch_script(request: Request) -> LaunchPlan:
    """Fills the login node's job folder; the batch script starts the ranks when its turn comes.
    Raises LaunchError where there is no Python for a script."""
    login = request.cluster.launcher
    env, reasons = build_variables(request)
    files = {}
    if request.spec.is_sweep:
        env = torchrun.list_own_variables(env, request.spec)
        reasons = tuple(item for item in reasons if item.item.partition("=")[0] in env)
        files = {torchrun.TODO: torchrun.render_todo(request.spec)}
    late = "OMP_NUM_THREADS"
    if not request.spec.once:
        late = f"MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, {late}"
    return LaunchPlan(
        argv=("/bin/sh", "rank.sh"),
        env=env,
        node_env={login.name: {}},
        programs={login.name: list_program(request)},
        files=files,
        path=_find_mpirun(request),
        device_env={
            **IN_BATCH_JOB.build_node_env()[""],
            "OMPI_MCA_btl_tcp_if_include": IN_BATCH_JOB.devices[""],
        },
        reasons=(
            *reasons,
            Reason(item=late, why="known when the job starts: the script sets them"),
        ),
    )


def is_in_pyxis(spec: JobSpec, site_info: Mapping[str, str]) -> bool:
    """Whether srun itself starts ranks in their container: https://github.com/NVIDIA/pyxis"""
    return bool(spec.container and not spec.modules and site_info.get("pyxis"))


def list_program(request: Request) -> tuple[str, ...]:
    """The argv of a rank, on whichever node it runs."""
    spec, login = request.spec, request.cluster.launcher
    if spec.program.needs_python:
        login = replace(login, python=choose_python(request))
    words = environment.list_program(request, login)
    if spec.container and not is_in_pyxis(spec, request.cluster.site_info):
        return ("/bin/sh", "-c", _CONTAINER, "container", spec.container, *words)
    return words


def choose_python(request: Request) -> str:
    """Which Python runs the ranks: the venv's, whatever a module or an image brings, else the one
    found on the login node."""
    spec, login = request.spec, request.cluster.launcher
    if spec.venv:
        return f"{_find_venv(request)}/bin/python"
    if spec.modules or spec.container:
        return "python3"
    if not login.python:
        raise LaunchError(
            f"no Python on {login.name}",
            hint="name one with --venv or --container, or load one with --module",
        )
    return login.python


def _find_venv(request: Request) -> str:
    """Its folder; a `~` is the home on the login node."""
    folder, home = request.spec.venv.rstrip("/"), request.cluster.site_info.get("home", "")
    return f"{home}{folder[1:]}" if home and folder[:2] in ("~", "~/") else folder


def _find_mpirun(request: Request) -> str:
    """Where the mpirun is that belongs to the ranks' Python."""
    spec, login = request.spec, request.cluster.launcher
    if spec.venv:
        return f"{_find_venv(request)}/bin"
    if spec.modules or spec.container or not login.mpi_prefix:
        return ""
    return f"{login.mpi_prefix}/bin"
