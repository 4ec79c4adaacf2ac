"""The verbs, in the order of `clusterctl --help`: each is a class with its options (see
`table`), in the module of its heading."""

from __future__ import annotations

from collections.abc import Collection

from clusterctl.options import batch_systems, bench, clusters, data, jobs, machine, run
from clusterctl.options.limits import Limit
from clusterctl.options.table import Verb

VERBS: dict[str, type[Verb]] = {
    "up": clusters.Up,
    "down": clusters.Down,
    "status": clusters.Status,
    "list": clusters.List,
    "verify": clusters.Verify,
    "drill": clusters.Drill,
    "attach": clusters.Attach,
    "detach": clusters.Detach,
    "extend": clusters.Extend,
    "stop": clusters.Stop,
    "start": clusters.Start,
    "cost": clusters.Cost,
    "allow": clusters.Allow,
    "gc": clusters.Gc,
    "run": run.Run,
    "launch": run.Launch,
    "rerun": run.Rerun,
    "jobs": jobs.Jobs,
    "logs": jobs.Logs,
    "cancel": jobs.Cancel,
    "fetch": jobs.Fetch,
    "doctor": jobs.Doctor,
    "diff": jobs.Diff,
    "top": jobs.Top,
    "report": jobs.Report,
    "bench allreduce": bench.BenchAllreduce,
    "bench scaling": bench.BenchScaling,
    "ssh": machine.Ssh,
    "cp": machine.Cp,
    "forward": machine.Forward,
    "ssh-config": machine.SshConfig,
    "init": machine.Init,
    "check": machine.Check,
    "data get": data.DataGet,
    "data push": data.DataPush,
    "data list": data.DataList,
    "data index": data.DataIndex,
    "image build": data.ImageBuild,
    "image lock": data.ImageLock,
}
FAMILIES = {
    "bench": "Measure all-reduces, and how a program scales.",
    "data": "Download, copy and list data sets.",
    "image": "Build node images.",
}
"""Words that verbs of two words begin with."""


def find_limit(verb: str, option: str, circumstances: Collection[str]) -> Limit | None:
    """Why the option (as it is written: `--spot`, `-pe`) has no effect there; None where it has.
    One that the verb does not have is srun's, and for a batch system."""
    options = (item.limits for item in VERBS[verb].options().values() if option in item.flags)
    limits = next(options, (batch_systems.ONLY,))
    return next((item for item in limits if not item.holds(circumstances)), None)
