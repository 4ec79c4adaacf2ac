"""A function as a program: it is sent to the nodes pickled, with the files of its project; what it
returns or raises on each rank is read back."""

from __future__ import annotations

import json
import os
import pickle
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl import assets
from clusterctl.errors import UsageError
from clusterctl.formats import format_bytes
from clusterctl.job_model import Job, Program, ProgramKind
from clusterctl.jobs import stage
from clusterctl.jobs.program import Resolved
from clusterctl.jobs.start import list_rank_nodes
from clusterctl.model import Cluster
from clusterctl.state import find_home
from clusterctl.transport.pool import Pool

FOLDER = ".clusterctl-call"
"""In the working tree; what is in it is no output of the job (templates/job/outputs.sh.j2)."""
MAX_RESULT = 100_000_000
"""Bytes that each rank may return."""
READ_TIMEOUT = 600.0
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """Of one rank. `data`: the pickled result or exception; b"" for one that cannot be pickled."""

    ok: bool
    data: bytes
    said: str
    """The exception in one line."""
    traceback: str


def resolve(
    function: Callable[..., Any], args: tuple[Any, ...], chosen: Path | None = None, limit: int = 0
) -> Resolved:
    """The call as a program. What the function's own modules import is staged as for a script:
    `chosen`, else the git work tree or folder of its module; nothing for one from a notebook, a
    prompt or a library. Raises UsageError for what cannot be sent."""
    import cloudpickle

    name = getattr(function, "__name__", type(function).__name__)
    try:
        data = cloudpickle.dumps((function, args), protocol=5)
    except Exception as error:
        raise UsageError(
            f"{name} cannot be sent to the nodes: {error}",
            hint="open files, locks and connections inside the function, and pass plain values",
        ) from error
    if len(data) > (limit or stage.MAX_BYTES):
        raise UsageError(
            f"{name} and its arguments are too large: {format_bytes(len(data))}",
            hint="read the data from a file in the function, or raise the limit with max_stage",
        )
    place = _find_folder(function)
    tree = stage.Tree(find_home().path, (), 0, False)
    if chosen or place:
        tree = stage.find_tree(place or Path.cwd(), chosen=chosen, limit=limit)
    folder = "."
    if place and place.is_relative_to(tree.root):
        folder = str(place.relative_to(tree.root))
    library = Path(cloudpickle.__file__).parent
    written = [(f"{FOLDER}/function.pickle", data)]
    written.append((f"{FOLDER}/limits.json", json.dumps([PYTHON, MAX_RESULT]).encode()))
    written.append(
        (f"{FOLDER}/call.py", (assets.find_folder("templates") / "job/call.py").read_bytes())
    )
    for path in sorted(library.glob("*.py")):  # nodes need not have it
        written.append((f"{FOLDER}/{library.name}/{path.name}", path.read_bytes()))
    program = Program(
        kind=ProgramKind.PYTHON,
        target=os.path.relpath(f"{FOLDER}/call.py", folder),
        args=(name,),
        folder=folder,
    )
    return Resolved(program, replace(tree, written=tuple(written)))


def _find_folder(function: Callable[..., Any]) -> Path | None:
    """The folder from which the function's module is imported here; None without a file, and for
    installed libraries."""
    function = getattr(function, "func", function)  # of a functools.partial
    name = getattr(function, "__module__", None) or type(function).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if not file:
        return None
    path = Path(file).resolve()
    paths = sysconfig.get_paths()
    installed = {Path(paths[key]).resolve() for key in ("stdlib", "purelib", "platlib", "scripts")}
    if installed & {*path.parents}:
        return None
    spec = getattr(module, "__spec__", None)
    dotted = spec.name if spec else "" if name == "__main__" else name
    levels = dotted.count(".") + (path.name == "__init__.py")
    return path.parents[levels]


def read_outcomes(job: Job, cluster: Cluster, pool: Pool) -> dict[int, RankOutcome]:
    """By rank, of those that have one."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as scratch:
        target = Path(scratch)
        names = list_rank_nodes(job, cluster)

        def get(name: str) -> Any:
            folder = f"{cluster.node(name).root}/jobs/{job.id}/work/{FOLDER}/results"
            return pool.find_transport(name).get(folder, target / name, timeout=READ_TIMEOUT)

        pool.call_each(get, names)  # what is missing is seen by its rank
        found = {}
        for path in target.glob("*/*"):
            if path.name.isdigit():
                found[int(path.name)] = RankOutcome(**pickle.loads(path.read_bytes()))
    return dict(sorted(found.items()))
