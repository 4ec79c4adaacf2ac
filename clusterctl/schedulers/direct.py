"""Our own supervisor: one sh process per job on the launcher, the truth in its `state` file.

queued TIME
running TIME ATTEMPT
placed TIME NODE:RANKS,…   (batch systems: nobody knew before)
retrying TIME ATTEMPT CODE [RANK NODE CODE]
ended TIME state=failed code=3 rank=1 node=worker-2 started=2 full=worker-1, survivors=worker-1:0,
swept TIME survivors=…
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from clusterctl import assets
from clusterctl.model import Cluster, Job, JobSpec, JobState, LaunchPlan, Placement, RankFailure

GRACE = 5
"""Seconds that programs have between SIGTERM and SIGKILL: all has to be gone within ten."""

START_LIMIT = 180
"""Seconds in which the first rank has to start. A launch that hangs on the wrong network would
hang for ever; what mpirun said until then goes with the error."""

CLEAN_LIMIT = 15
"""Seconds that a question after a job waits for the clean-up behind a dead supervisor. It goes on
without us, and the job is lost when it is done."""

NO_RANK = "no rank was started"
_FULL = "disk full on "
NO_SUPERVISOR = "its supervisor on the launcher is gone"

LATE = ("MASTER_PORT", "CLUSTERCTL_ATTEMPT")
"""Variables in a plan's argv that get their value when the job starts."""


class Direct:
    """Needs nothing on the launcher but sh, flock and ssh."""

    def check(self, spec: JobSpec) -> None:
        """It takes all values."""

    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        launcher = cluster.launcher
        tag = f"{cluster.id}/{job.id};"
        where = {node.name: f"{node.root}/jobs/{job.id}" for node in cluster.nodes}
        names = dict.fromkeys((launcher.name, *(place.node for place in job.placement)))
        involved = [cluster.node(name) for name in names]
        shared = {
            "id": job.id,
            "folder": where[launcher.name],
            "root": launcher.root,
            "grace": GRACE,
            "nodes": [
                {
                    "name": node.name,
                    "host": node.name,
                    "folder": where[node.name],
                    "here": node.name == launcher.name or cluster.one_host,
                }
                for node in involved
            ],
        }
        alloc = "".join(
            f"{place.node} {place.count} {cluster.node(place.node).slots}\n"
            for place in job.placement
        )
        return {
            "alloc": alloc,
            "launch.sh": assets.render(
                "job/launch.sh.j2",
                id=job.id,
                root=launcher.root,
                folder=where[launcher.name],
                container="" if launcher.job_port == launcher.ssh_port else launcher.name,
                tag=tag,
                command=command_line(plan.argv),
            ),
            "supervise.sh": assets.render(
                "job/supervise.sh.j2",
                start_limit=START_LIMIT,
                now=job.spec.now,
                timeout=f"{job.spec.timeout:g}" if job.spec.timeout else "",
                retries=job.spec.retries,
                ranks=job.ranks,
                first=cluster.node(job.placement[0].node),
                **shared,
            ),
            "clean.sh": assets.render("job/clean.sh.j2", **shared),
        }

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        script = (
            "setsid /bin/sh ./supervise.sh </dev/null >>supervise.log 2>&1 &"
            " i=0; until [ -s state ] || [ $i -ge 100 ]; do sleep 0.01; i=$((i+1)); done; cat state"
        )
        return ("/bin/sh", "-c", script)

    def parse_submit(self, text: str) -> str:
        return text.partition(" ")[0]

    def status_argv(self, job: Job) -> tuple[str, ...]:
        """A supervisor that is alive holds the lock; one that died has not written `ended`. Then
        clean.sh ends what is left of the job, and says that it is lost. The lock is looked at
        first: the supervisor may end, and say so, between the two."""
        return ("/bin/sh", "-c", assets.render("job/status.sh.j2", limit=CLEAN_LIMIT))

    def parse_status(self, job: Job, text: str) -> Job:
        for line in text.splitlines():
            job = apply(job, line)
        return job

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


def apply(job: Job, line: str) -> Job:
    """The job after one line of its state file. A line that means nothing, or that a full disk has
    cut off, changes nothing."""
    try:
        return _apply(job, line)
    except (ValueError, KeyError):
        return job


def _apply(job: Job, line: str) -> Job:
    words = line.split()
    if len(words) < 2 or (job.state.ended and words[0] != "swept"):
        return job
    word, when, rest = words[0], float(words[1]), words[2:]
    if word == "queued":
        return replace(job, state=JobState.QUEUED)
    if word == "running":
        attempt = int(rest[0]) if rest else 1
        started = job.started if attempt > 1 else when
        return replace(job, state=JobState.RUNNING, started=started, attempt=attempt)
    if word == "placed":
        return replace(job, placement=_placed(rest[0]) or job.placement)
    if word == "dead":
        return replace(job, state=JobState.LOST, finished=when, reason=NO_SUPERVISOR)
    if word == "absent":
        # A running job that loses its folder may still be running.
        lost = job.state is JobState.QUEUED
        reason = "its clusterctl ended before it was handed in"
        return replace(job, state=JobState.LOST, finished=when, reason=reason) if lost else job
    values = dict(item.split("=", 1) for item in rest if "=" in item)
    left = _survivors(values.get("survivors", ""))
    if word == "swept":
        return replace(job, survivors=left)
    if word != "ended":
        return job
    state = JobState(values.get("state", "failed"))
    failure = None
    if values.get("rank"):
        failure = RankFailure(
            rank=int(values["rank"]), node=values["node"], exit_code=int(values["code"])
        )
    ran = int(values.get("started") or 1) > 0 and values.get("code")
    return replace(
        job,
        state=state,
        finished=when,
        program_exit_code=int(values["code"]) if ran else None,
        failure=failure,
        survivors=left,
        reason=_reason(
            state,
            left,
            [name for name in values.get("full", "").split(",") if name],
            values.get("mpirun", "") if ran else None,
            failure,
        ),
    )


def _reason(
    state: JobState,
    survivors: dict[str, int],
    full: list[str],
    mpirun: str | None,
    failure: RankFailure | None,
) -> str:
    """Why a job is lost, or failed, where that is not the exit code of a rank. `full`: nodes whose
    disk is; `mpirun`: its exit code; None: no rank was started."""
    silent = [name for name, count in survivors.items() if count < 0]
    if state is JobState.LOST:
        more = f"; {', '.join(silent)} did not answer when it was found" if silent else ""
        return NO_SUPERVISOR + more
    if state is not JobState.FAILED:
        return ""
    if full:
        return f"{_FULL}{', '.join(full)}"
    if silent:
        return f"lost {', '.join(silent)}: no answer when the job ended"
    if mpirun is None:
        return NO_RANK
    if failure is None and mpirun not in ("", "0"):
        return (
            f"mpirun on the launcher ended with {mpirun} while no rank had failed: "
            "it or one of its daemons was lost"
        )
    return ""


def full(job: Job) -> bool:
    """Whether a job failed on a node whose disk is full."""
    return job.reason.startswith(_FULL)


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
    r"|slurmstepd: error: \*\*\* STEP .*)\n?",
    re.MULTILINE,
)


def unix_lines(text: str) -> str:
    """`text` without the carriage returns that ssh ends the lines of its own messages with."""
    return re.sub(r"\r+$", "", text, flags=re.MULTILINE)


def remarks(text: str) -> str:
    """Of what mpirun (or srun) wrote to its stderr: what a person cannot know from the exit codes
    of the ranks. That is how a failed MPI_Comm_spawn or MPI_Abort explains itself."""
    # PRRTE ends some of its messages with a byte 0.
    blocks = (_NOISE.sub("", block).strip("\0 \n") for block in _RULE.split(unix_lines(text)))
    return "\n".join(block for block in blocks if block and not _KNOWN.search(block))


def command_line(argv: tuple[str, ...]) -> str:
    """`argv` for sh: every word quoted, but for the variables that get their value at the start."""
    words = []
    for word in argv:
        name, _, value = word.partition("=")
        late = name in LATE and value == f"${name}"
        words.append(f'{name}="${name}"' if late else shlex.quote(word))
    return " ".join(words)


def _placed(text: str) -> tuple[Placement, ...]:
    """`node-1:2,node-2:1,` in rank order."""
    places: list[Placement] = []
    for item in text.split(","):
        node, _, count = item.rpartition(":")
        if node:
            first = sum(place.count for place in places)
            places.append(Placement(node=node, first=first, count=int(count)))
    return tuple(places)


def _survivors(text: str) -> dict[str, int]:
    """`worker-1:0,worker-2:?,`: -1 stands for a node that did not answer."""
    pairs = (item.split(":") for item in text.split(",") if item)
    return {name: -1 if count == "?" else int(count) for name, count in pairs}
