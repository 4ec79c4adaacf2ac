"""Our own supervisor: one sh process per job on the launcher, which notes facts for `job_state`."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from clusterctl import __version__
from clusterctl.batch import verdict
from clusterctl.core import assets
from clusterctl.core.job import Job, LaunchPlan
from clusterctl.core.model import Cluster, Node
from clusterctl.errors import UsageError
from clusterctl.launch.compiling import plan_compilation
from clusterctl.options.resume_args import SNAPSHOTS, list_predicates, name_predicate

START_LIMIT = 180
"""Seconds in which the first rank has to start. A launch that hangs on the wrong network would
hang for ever; what mpirun said until then goes with the error."""

HANG_POLL = 15.0
"""Seconds between two looks whether a job with --hang-timeout has written anything, at most."""

HANG_SLACK = 10.0
"""Seconds beyond its own limit after which such a look, or the pause before it, says of the machine
that it was asleep or stood still, and nothing of the ranks."""

END_POLL = 20
"""Seconds between two looks whether mpirun still waits for ranks that have all ended."""

ANSWER_LIMIT = 25
"""Seconds beyond the grace of its programs that a node has to answer the supervisor: one whose disk
hangs never does."""

STACK_LIMIT = 8
"""Seconds in which the Python stack of a rank is read; its C stack may take twice as long."""

STACKS_LIMIT = 4 * STACK_LIMIT
"""Seconds that a node has for the stacks of its ranks, which are read at the same time."""

LARGEST_NOTE = 100_000
"""Bytes that the note about a rank may have in the file `state`."""

OUTPUT = 4_000_000_000
"""Bytes of its ranks' output that a node keeps of a job, in equal parts for each stream of each
rank. A file that is more than a quarter larger loses its middle: a tenth at its beginning stays."""

LEAST_OUTPUT = 16_000_000
"""Bytes that such a part has at least."""

RESUME_LIMIT = 1800
"""Seconds that a node has to send another one the snapshot that a job goes on from."""

MIRROR_INTERVAL = 30
"""Seconds between two looks for outputs that are to be copied to the launcher."""

SYNC_INTERVAL = 10
"""The same for a job with --sync."""

MIRROR_LONGEST = 600
"""Seconds between two copies at most, however long the last one seems to have taken: the machine
may have been asleep meanwhile."""

MIRROR_RESERVE = 1 << 20
"""KiB that copies of outputs leave free on a disk: on the launcher's, and on that of a node."""

SMALL = 100_000_000
"""Bytes up to which outputs are copied to the launcher, whatever they are called."""

CLEAN_LIMIT = 15
"""Seconds that a question after a job waits for the clean-up behind a dead supervisor. It goes on
without us, and the job is lost when it is done."""
ASK_TIMEOUT = CLEAN_LIMIT + 10.0
"""Seconds that a node has to answer a question about a job."""
STAGE_TIMEOUT = 600.0
"""Seconds that a node has to take what is sent to it."""

LATE = ("MASTER_PORT", "CLUSTERCTL_ATTEMPT")
"""Variables in a plan's argv that get their value when the job starts."""


class Direct:
    """Needs nothing on the launcher but sh, flock and ssh."""

    launchers = ("mpirun", "torchrun")
    emits = "sh"

    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        launcher = cluster.launcher
        tag = f"{cluster.id}/{job.id};"
        where = {node.name: f"{node.root}/jobs/{job.id}" for node in cluster.nodes}
        placed = [place.node for place in job.placement]
        shared = _list_common_values(job, cluster, where)
        mirror: dict[str, Any] = {
            "rank_nodes": [node for node in shared["nodes"] if node["name"] in placed],
            "interval": SYNC_INTERVAL if job.spec.sync else MIRROR_INTERVAL,
            "longest": MIRROR_LONGEST,
            "reserve": MIRROR_RESERVE,
        }
        # Nodes on one host can only be lost together.
        mirrored = bool(job.spec.sync) or not cluster.one_host
        alloc = "".join(
            f"{place.node} {place.count} {cluster.node(place.node).slots}\n"
            for place in job.placement
        )
        found = {
            "alloc": alloc,
            "launch.sh": assets.render(
                "job/launch.sh.j2",
                id=job.id,
                root=launcher.root,
                folder=where[launcher.name],
                container="" if launcher.job_port == launcher.ssh_port else launcher.name,
                tag=tag,
                system="direct",
                command=render_command_line(plan.argv),
            ),
            "supervise.sh": assets.render(
                "job/supervise.sh.j2",
                start_limit=START_LIMIT,
                now=job.spec.now,
                timeout=f"{job.spec.timeout:g}" if job.spec.timeout else "",
                retries=job.spec.retries,
                **list_watch_values(job),
                **list_resume_values(job),
                resume_limit=RESUME_LIMIT,
                holders=_list_holders(job, where),
                rerun_of=job.rerun_of,
                restores=mirrored and not job.spec.is_sweep,
                kept=shlex.join(list_predicates(job.spec.keep_files)),
                ranks=len(job.processes),
                first=cluster.node(job.placement[0].node),
                mirrored=mirrored,
                synced=bool(job.spec.sync),
                predicates=shlex.join(_list_predicates(job)),
                **mirror,
                **shared,
            ),
            "clean.sh": assets.render("job/clean.sh.j2", **shared),
        }
        if job.spec.is_sweep:
            found["points.sh"] = assets.render(
                "job/points.sh.j2", slots=_list_slots(job, where), **shared
            )
        if cluster.spec.cloud.idle is not None:
            found["save.sh"] = assets.render("job/save.sh.j2", predicates="", **mirror, **shared)
        return found

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        script = (
            "setsid /bin/sh ./supervise.sh </dev/null >>supervise.log 2>&1 &"
            " i=0; until [ -s state ] || [ $i -ge 100 ]; do sleep 0.01; i=$((i+1)); done; cat state"
        )
        return ("/bin/sh", "-c", script)

    def status_argv(self, job: Job) -> tuple[str, ...]:
        """A supervisor that is alive holds the lock; one that died has not written `ended`. Then
        clean.sh ends what is left of the job, and says that it is lost. The lock is looked at
        first: the supervisor may end, and say so, between the two."""
        return ("/bin/sh", "-c", assets.render("job/status.sh.j2", limit=CLEAN_LIMIT))

    def parse_status(self, job: Job, text: str) -> Job:
        return verdict.judge(job, text)

    def cancel_argv(self, job: Job) -> tuple[str, ...]:
        """Leaves word for the supervisor, also for one that is about to start, and returns. Where
        it is dead, clean.sh ends the job."""
        script = (
            "echo cancelled >stop; if ! flock -n alive true;"
            ' then kill -TERM "$(cat supervisor.pid)" 2>/dev/null;'
            " elif [ -s state ];"
            " then setsid /bin/sh ./clean.sh </dev/null >>clean.log 2>&1 & fi; :"
        )
        return ("/bin/sh", "-c", script)

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
        what = job.spec.program
        compiled = plan_compilation(what, job.spec.env)
        return assets.render(
            "job/emit.sh.j2",
            system="direct",
            once=job.spec.once,
            compile=compiled.line.replace("\n", " ") if compiled else "",
            beside=beside,
            title=" ".join((what.target, *what.args)),
            version=__version__,
            launcher=launcher.name,
            user=launcher.user,
            address=launcher.address,
            root=launcher.root,
            hostfile=plan.files["hostfile"],
            working=what.folder,
            env=sorted({**plan.env, **job.spec.env}.items()),
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
            secrets=job.spec.secret_names,
            reasons=plan.reasons,
            command=" ".join(words),
        )


def _list_slots(job: Job, where: Mapping[str, str]) -> list[dict[str, object]]:
    """Each slot that the job takes: its node, the job's folder there, its number on the node."""
    return [
        {"node": place.node, "folder": where[place.node], "slot": slot}
        for place in job.placement
        for slot in range(place.count)
    ]


def _list_holders(job: Job, where: Mapping[str, str]) -> list[dict[str, object]]:
    """The nodes that may have snapshots, that of rank 0 first, with the ranks that run there."""
    return [
        {
            "name": place.node,
            "folder": where[place.node],
            "first": place.first,
            "count": place.count,
        }
        for place in job.placement
    ]


def _list_common_values(job: Job, cluster: Cluster, where: Mapping[str, str]) -> dict[str, Any]:
    """What the templates of a job's scripts have in common. `where`: its folder on each node."""
    launcher = cluster.launcher
    placed = (place.node for place in job.placement)
    involved = [cluster.node(name) for name in dict.fromkeys((launcher.name, *placed))]
    return {
        "id": job.id,
        "folder": where[launcher.name],
        "root": launcher.root,
        "launcher": launcher.name,
        "grace": math.ceil(job.spec.save_time),
        "answer_limit": ANSWER_LIMIT,
        "stacks_limit": STACKS_LIMIT,
        "nodes": [
            {
                "name": node.name,
                "host": node.name,
                "aliases": [] if cluster.one_host else _list_aliases(node, involved),
                "folder": where[node.name],
                "here": node.name == launcher.name or cluster.one_host,
            }
            for node in involved
        ],
    }


def _list_aliases(node: Node, nodes: Sequence[Node]) -> list[str]:
    """What mpirun and ssh may call a node, beside its name here, and call no other one."""
    others = (name for other in nodes if other.name != node.name for name in _list_names(other))
    return sorted(_list_names(node) - {"", node.name, *others})


def _list_names(node: Node) -> set[str]:
    return {node.name, node.facts.hostname, node.address, node.private_address}


def list_watch_values(job: Job) -> dict[str, object]:
    """What templates/job/watch.sh.j2 needs."""
    limit = job.spec.hang_timeout
    return {
        "end_poll": END_POLL,
        "hang_timeout": f"{limit:g}" if limit else "",
        "hang_poll": f"{min(HANG_POLL, limit / 4):g}",
        "hang_slack": f"{HANG_SLACK:g}",
    }


def list_resume_values(job: Job) -> dict[str, object]:
    """What the scripts that start ranks need for --resume-args. `snapshots`: what `find` is to
    take for one; "": nothing is to be looked for."""
    spec = job.spec
    return {
        "snapshots": shlex.join(list_predicates(spec.keep_files)) if spec.resume_args else "",
        "resumes": job.resumes,
    }


def _list_predicates(job: Job) -> list[str]:
    """What `find` is to choose of the outputs for the copies on the launcher."""
    rows = [["-size", f"-{SMALL + 1}c"]] if not job.spec.keep_files else []
    rows += [[*name_predicate(glob)] for glob in job.spec.keep_files or SNAPSHOTS]
    return ["(", *[word for row in rows for word in ("-o", *row)][1:], ")"]


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
    r"|Primary job\s+terminated normally"
)
"""Blocks that say no more than that a rank has ended, which its exit code has said better."""
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
