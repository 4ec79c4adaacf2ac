"""`run --emit`: a job as a script that needs no clusterctl."""

from __future__ import annotations

import shlex

from clusterctl import assets
from clusterctl.actions.run import Prepared
from clusterctl.errors import UsageError
from clusterctl.job_model import ProgramKind
from clusterctl.jobs import systems


def emit(prepared: Prepared, kind: str = "sh") -> str:
    """The job as a script that needs no clusterctl. Secrets are left for the caller."""
    cluster, scheduler = prepared.cluster, systems.load(prepared.cluster).scheduler
    if kind != scheduler.emits:
        raise UsageError(
            f"--emit {kind} does not fit cluster {cluster.name!r} ({cluster.spec.provider})",
            hint=f"--emit {scheduler.emits}",
        )
    return scheduler.emit(prepared.job, cluster, prepared.plan, beside=make_copy_command(prepared))


def make_copy_command(prepared: Prepared) -> str:
    """The command that copies here what an emitted script does not hold of a bundled program; ""
    where the program is the user's own."""
    what = prepared.job.spec.program
    if not what.bundled:
        return ""
    library = ("trainlib", "data") if what.kind is ProgramKind.PYTHON else ()
    names = (what.source or what.target, *library)
    root = assets.find_folder("workloads")
    return shlex.join(("cp", "-r", *(str(root / name) for name in names), "."))
