"""Our own supervisor: one process per job on the launcher, which notes facts for `verdict`."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256

from msgspec.structs import replace

from clusterctl import __version__
from clusterctl.agent import messages
from clusterctl.agent.messages import (
    Holder,
    JobPlan,
    MirrorPlan,
    PlannedNode,
    ResumePlan,
)
from clusterctl.batch import verdict
from clusterctl.batch.system import BatchSystem, Preview, ask_agent
from clusterctl.core import assets
from clusterctl.core.job import Job, JobSpec, LaunchPlan, Placement
from clusterctl.core.model import Cluster, Node
from clusterctl.core.variables import write_unset
from clusterctl.errors import UsageError
from clusterctl.launch import launcher as launch_launcher
from clusterctl.launch.compiling import plan_compilation
from clusterctl.launch.hostfile import place, place_points
from clusterctl.options.values import SNAPSHOTS

STACK_LIMIT = 8
"""Seconds in which the Python stack of a rank is read; its C stack may take twice as long."""

LARGEST_NOTE = 100_000
"""Bytes that the note about a rank may have in the file `state`."""

OUTPUT = 4_000_000_000
"""Bytes of its ranks' output that a node keeps of a job, in equal parts for each stream of each
rank. A file that is more than a quarter larger loses its middle: a tenth at its beginning stays."""

LEAST_OUTPUT = 16_000_000
"""Bytes that such a part has at least."""

SMALL = 100_000_000
"""Bytes up to which outputs are copied to the launcher, whatever they are called."""

CLEAN_LIMIT = 15
"""Seconds that a question after a job waits for the clean-up behind a dead supervisor. It goes on
without us, and the job is lost when it is done."""
ASK_TIMEOUT = CLEAN_LIMIT + 10.0
"""Seconds that a node has to answer a question about a job."""

HANG_POLL = 15.0
"""Seconds between two looks whether a job with --hang-timeout has written anything, at most."""

INTERVAL, SYNC_INTERVAL = 30, 10
"""Seconds between two looks for outputs that are to be copied to the launcher, and with --sync."""

LATE = ("MASTER_PORT", "CLUSTERCTL_ATTEMPT")
"""Variables in a plan's argv that get their value when the job starts."""


class Direct(BatchSystem):
    """Needs nothing on the launcher but Python and ssh."""

    launchers = ("mpirun", "torchrun")
    asks_for_more = ("--disk",)
    emits = "sh"
    places_ranks = True
    start_limit = 60.0
    ask_limit = ASK_TIMEOUT
    poll = 0.1
    logs = ("mpirun.err", "mpirun.out", "supervise.log")

    def _place(self, spec: JobSpec, cluster: Cluster) -> tuple[JobSpec, tuple[Placement, ...]]:
        from clusterctl.project.program import check_program  # not for a job that is there

        placement = (place_points if spec.is_sweep else place)(cluster, spec)
        check_program(spec.program, cluster, tuple(item.node for item in placement))
        return replace(spec, notice=0), placement

    def plan(self, request: launch_launcher.Request) -> LaunchPlan:
        name = "points" if request.spec.is_sweep else request.spec.launcher
        return launch_launcher.plan_launch(name, request)

    def preview(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> Preview:
        texts = {
            "hostfile": plan.files.get("hostfile", ""),
            f"on {cluster.launcher.name}": f"{render_command_line(plan.argv)}\n",
            "torchrun, on each node": "".join(
                f"{name}: {line}\n" for name, line in plan.agents.items()
            ),
        }
        document = {
            "argv": plan.argv,
            "node_env": plan.node_env,
            "agents": plan.agents,
            "files": plan.files,
            "placement": {place.node: list(place.ranks) for place in job.placement},
        }
        return Preview(tuple((title, text) for title, text in texts.items() if text), document)

    def locate(self, job: Job, cluster: Cluster) -> tuple[str, ...]:
        return tuple(place.node for place in job.placement)

    def expect_hostname(self, node: Node, cluster: Cluster) -> str:
        return (cluster.launcher if cluster.one_host else node).facts.hostname

    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        found = {
            "alloc": "".join(
                f"{place.node} {place.count} {cluster.node(place.node).slots}\n"
                for place in job.placement
            ),
            "launch.sh": _write_launch(job, cluster, plan),
            "plan.json": render_plan(make_plan(job, cluster)),
        }
        if job.spec.is_sweep:  # not by agent.sh: it is one of the job's processes
            root = cluster.launcher.root
            words = (assets.locate_agent(root), "points", f"{root}/jobs/{job.id}")
            found["points.sh"] = f"#!/bin/sh\nexec /bin/sh {shlex.join(words)}\n"
        return found

    def emit(self, job: Job, cluster: Cluster, plan: LaunchPlan, *, beside: str) -> str:
        """A POSIX sh script that starts mpirun as the job would."""
        launcher = cluster.launcher
        if plan.agents:
            raise UsageError(
                "--launcher torchrun does not work with --emit sh, which supports only mpirun",
                hint="leave one of the two out",
            )
        wrapper = next(index for index, word in enumerate(plan.argv) if word == "/bin/sh")
        words = [
            '"$cctl_scratch/hostfile"' if word == "hostfile" else render_command_line((word,))
            for word in plan.argv[:wrapper]
        ]
        spec, what = job.spec, job.spec.program
        compiled = plan_compilation(what, spec.env)
        return assets.render(
            "job/emit.sh.j2",
            spec=spec,
            plan=plan,
            launcher=launcher,
            compile=compiled.line.replace("\n", " ") if compiled else "",
            beside=beside,
            title=" ".join((what.target, *what.args)),
            version=__version__,
            env=sorted({**plan.env, **spec.env}.items()),
            nodes=[
                {
                    "name": item.node,
                    "ranks": "|".join(map(str, item.ranks)),
                    "env": sorted(_list_own_env(job, cluster, plan, item.node).items()),
                    "program": plan.programs[item.node],
                }
                for item in job.placement
            ],
            delimiter=make_delimiter(job),
            command=" ".join(words),
        )

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        return ("/bin/sh", "./agent.sh", "submit")

    def status_argv(self) -> tuple[str, ...]:
        """In the job's folder."""
        return ("/bin/sh", "-c", ask_agent("status", str(CLEAN_LIMIT)))

    def status_commands(
        self, jobs: Sequence[Job], cluster: Cluster, age: float = 0.0
    ) -> Mapping[str, Sequence[Job]]:
        root = cluster.launcher.root
        found = {}
        for job in jobs:
            # There may be no folder, where its client died or the launcher was made anew.
            absent = assets.render("job/absent.sh.j2", root=root, id=job.id)
            folder = f"{shlex.quote(root)}/jobs/{job.id}"
            found[
                f"cd {folder} 2>/dev/null || {{\n{absent}\nexit; }};"
                f" {shlex.join(self.status_argv())}"
            ] = (job,)
        return found

    def parse_status(self, job: Job, text: str) -> Job:
        return verdict.judge(job, text)

    def describe_wait(self, job: Job) -> str:
        why = job.reason or "other jobs use the slots"
        return f"job {job.id} is waiting: {why} (--now skips the queue)"

    def limit_end(self, spec: JobSpec) -> float:
        return spec.save_time + 4.0

    def cancel_argv(self, job: Job) -> tuple[str, ...]:
        """Leaves word for the supervisor, also for one that is about to start, and returns. Where
        it is dead, the agent ends the job."""
        return ("/bin/sh", "-c", ask_agent("cancel"))


PROGRAMS = ("mpirun", "ranks", "ranks outside Slurm", "ranks outside Grid Engine")
"""What reads the environment of a job."""


def _write_launch(job: Job, cluster: Cluster, plan: LaunchPlan) -> str:
    """launch.sh, which starts the ranks, on the launcher. Its last line is their command."""
    launcher = cluster.launcher
    lines = ["#!/bin/sh", f"# Starts the ranks of job {job.id}."]
    if launcher.contained:
        folder = f"{launcher.root}/jobs/{job.id}"
        given = {"root": launcher.root, "folder": folder, "container": launcher.name}
        lines.append(assets.render("job/inside.sh.j2", **given))
    lines += map(write_unset, PROGRAMS)
    lines.append(f"PATH={shlex.quote(launcher.root)}/bin:$PATH")
    lines.append(f"CLUSTERCTL_JOB={shlex.quote(f'{cluster.id}/{job.id};')}")
    lines += ["export PATH CLUSTERCTL_JOB", f"exec {render_command_line(plan.argv)}", ""]
    return "\n".join(lines)


def make_plan(job: Job, cluster: Cluster, *, placed: bool = True) -> JobPlan:
    """What the supervisor of a job is told; not `placed`: its nodes are not known yet, and share a
    disk."""
    launcher, spec = cluster.launcher, job.spec
    # Nodes on one host can only be lost together.
    mirrored = placed and (bool(spec.sync) or not cluster.one_host)
    limit = spec.hang_timeout
    return JobPlan(
        id=job.id,
        tag=f"CLUSTERCTL_JOB={cluster.id}/{job.id};",
        root=launcher.root,
        launcher=launcher.name,
        nodes=_list_involved(job, cluster) if placed else [],
        holders=[
            Holder(place.node, place.first, place.count, _name_master(place.node, cluster))
            for place in job.placement
        ],
        ranks=len(job.processes),
        now=spec.now,
        timeout=spec.timeout or 0,
        retries=spec.retries,
        grace=math.ceil(spec.save_time),
        hang_timeout=limit or 0,
        hang_poll=min(HANG_POLL, limit / 4) if limit else 0,
        output=OUTPUT,
        least_output=LEAST_OUTPUT,
        kept=list(spec.keep_files or SNAPSHOTS),
        resume=_plan_resume(job) if spec.resume_args else None,
        restores=mirrored and not spec.is_sweep,
        rerun_of=job.rerun_of,
        # Another clusterctl that follows the job does it as well, and can start machines.
        shrinks=placed
        and spec.detach
        and spec.on_node_loss == "shrink"
        and spec.launcher == "mpirun"
        and not (spec.is_sweep or cluster.one_host),
        mirrored=mirrored,
        mirror=MirrorPlan(
            largest=0 if spec.keep_files else SMALL,
            interval=SYNC_INTERVAL if spec.sync else INTERVAL,
            always=bool(spec.sync),
        ),
    )


def _name_master(name: str, cluster: Cluster) -> str:
    return cluster.node(name).private_address if cluster.has(name) else ""


def render_plan(plan: JobPlan | messages.BatchPlan | messages.OwnScript) -> str:
    """The file plan.json, or own.json."""
    return json.dumps(messages.spell_out(plan), indent=1)


def _plan_resume(job: Job) -> ResumePlan:
    """How the snapshot is chosen that the ranks go on from, and what is said of it."""
    spec = job.spec
    said = ", ".join(spec.keep_files or SNAPSHOTS)
    said += "" if spec.keep_files else "; --keep-files names others"
    without, patterns = (
        text.replace("{", "{{").replace("}", "}}") for text in (spec.resume_args, said)
    )
    return ResumePlan(
        resumes=job.resumes,
        files="{snapshot}" in spec.resume_args,
        folders="{folder}" in spec.resume_args,
        nothing=f"starting without {without}: there is no {{whole}}snapshot among the outputs"
        f" ({patterns})",
        refusal="each rank has snapshots of its own, such as {path}, but no step of which all"
        f" {len(job.processes)} ranks have one; `clusterctl rerun {job.rerun_of or job.id} --resume"
        " -- ARGS` starts them with the arguments that you choose",
    )


def _list_involved(job: Job, cluster: Cluster) -> list[PlannedNode]:
    """The launcher, and the nodes with ranks."""
    launcher = cluster.launcher
    placed = (place.node for place in job.placement)
    involved = [cluster.node(name) for name in dict.fromkeys((launcher.name, *placed))]
    return [
        PlannedNode(
            name=node.name,
            aliases=[] if cluster.one_host else _list_aliases(node, involved),
            folder=f"{node.root}/jobs/{job.id}",
            here=node.name == launcher.name or cluster.one_host,
        )
        for node in involved
    ]


def _list_aliases(node: Node, nodes: Sequence[Node]) -> list[str]:
    """What mpirun and ssh may call a node, beside its name here, and call no other one."""
    others = (name for other in nodes if other.name != node.name for name in _list_names(other))
    return sorted(_list_names(node) - {"", node.name, *others})


def _list_names(node: Node) -> set[str]:
    return {node.name, node.facts.hostname, node.address, node.private_address}


def make_delimiter(job: Job) -> str:
    """A line that ends a text in an emitted script, and that no argument or variable holds."""
    what = job.spec.program
    text = "\0".join((what.target, *what.args, *job.spec.env.values()))
    return f"END_{sha256(text.encode(errors='surrogateescape')).hexdigest()[:16]}"


def _list_own_env(job: Job, cluster: Cluster, plan: LaunchPlan, node: str) -> dict[str, str]:
    """What is the node's own in an emitted script. What the user sets wins, as in a job."""
    data = {"CLUSTERCTL_DATA": f"{cluster.node(node).root}/data"}
    own = {**data, **plan.node_env[node]}
    return {name: value for name, value in own.items() if name not in job.spec.env}


_RULE = re.compile(r"^-{20,}$", re.MULTILINE)
_KNOWN = re.compile(
    r"(exited|returned a|terminated) (with a?|a)? ?non-zero|exiting improperly"
    r"|noticed that process rank|has exited due to process rank|on signal \d+ \("
    r"|Primary job\s+terminated normally|unable to reliably start one or more daemons"
)
"""Blocks that say no more than that a rank has ended, which its exit code has said better; or that
a daemon has not started, with reasons why not, as Open MPI 4 says of any that it has lost."""
_NOISE = re.compile(
    r"^(\[.*\] (plm:(ssh|rsh): Warning: setpgid|PMIX ERROR: PMIX_ERR_NOT_FOUND|\d+ more process).*"
    r"|srun: error: .*(Exited with exit code|Terminated|Killed|task launch failed).*"
    r"|srun: (Terminating|launch/slurm|Job step aborted|Force Terminated).*"
    # What ends `DUE TO …` is news. Where several slurmd share a machine, the node is named.
    r"|slurmstepd(-\S+)?: error: \*\*\* STEP \S+ ON \S+ (CANCELLED AT \S+|FAILED \(.*\)) \*\*\*"
    # A shell's word for what its exit code says too; bash puts more around it than dash.
    r"|(\S+: line \d+: +\d+ )?(Terminated|Killed|Aborted|Segmentation fault|Bus error|Hangup)"
    r"( \(core dumped\))?( {2,}.*)?$)\n?",
    re.MULTILINE,
)


def drop_carriage_returns(text: str) -> str:
    """`text` without the carriage returns that ssh ends the lines of its own messages with."""
    return re.sub(r"\r+$", "", text, flags=re.MULTILINE)


def drop_known_remarks(text: str) -> str:
    """Of what mpirun (or srun) wrote to its stderr: what a person cannot know from the exit codes
    of the ranks. That is how a failed MPI_Comm_spawn or MPI_Abort explains itself."""
    # PRRTE ends some of its messages with a byte 0.
    blocks = (
        _NOISE.sub("", block).strip("\0 \n") for block in _RULE.split(drop_carriage_returns(text))
    )
    return "\n".join(block for block in blocks if block and not _KNOWN.search(block))


def render_command_line(argv: tuple[str, ...]) -> str:
    """`argv` for sh: every word quoted, but for the variables that get their value at the start."""
    words = []
    for word in argv:
        name, _, value = word.partition("=")
        late = name in LATE and value == f"${name}"
        words.append(f'{name}="${name}"' if late else shlex.quote(word))
    return " ".join(words)
