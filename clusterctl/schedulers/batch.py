"""What Slurm and Grid Engine have in common: one script per job, one survey for all jobs.

The script writes the same `state` file as our own supervisor does; the queue is asked for what the
file cannot say: that a job still waits, and how it ended when nobody was left to write that down.
`survey` (on the login node, templates/batch/survey.sh.j2) prints both.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from clusterctl import assets
from clusterctl.errors import UsageError
from clusterctl.model import Cluster, Job, JobState, LaunchPlan, ProgramKind
from clusterctl.schedulers import direct

GRACE = direct.GRACE
QUEUE_AGE = 5
"""Seconds for which an answer of the queue is good for everybody."""
LEAD = 60
"""Seconds between the warning and the time limit."""

_SAFE = re.compile(r"[\w.,:@%+=/\[\]&|*()!^~-]+", re.ASCII)


def value(name: str, text: str) -> str:
    """A value for a directive in a script's head, where nothing can be quoted reliably."""
    if not _SAFE.fullmatch(text):
        raise UsageError(
            f"{name} {text!r}: a value in the head of a batch script cannot hold this",
            hint="leave out blanks, quotes and the like",
        )
    return text


def job_name(job: Job) -> str:
    """The program's name and the job's number, in letters that every queue takes."""
    stem = job.spec.program.target.rpartition("/")[2].partition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9_-]", "", stem).strip("-") or "job"
    return f"{plain[:20]}-{job.id}"


def script(
    job: Job,
    cluster: Cluster,
    plan: LaunchPlan,
    *,
    system: str,
    directives: Sequence[str],
    signals: Sequence[tuple[str, str]],
    warn_after: float = 0.0,
    requeue_code: int = 0,
) -> str:
    """The batch script. `directives` are whole lines of its head; `signals` are the warnings that
    the system sends to it, and what each means: `checkpoint` or `stopped`. Where the system does
    not warn of its time limit, the script does so itself, `warn_after` seconds."""
    root = cluster.launcher.root
    timers = []
    if job.spec.timeout:
        timers.append((f"{job.spec.timeout:g}", "echo timeout >stop && kill -TERM $$"))
    if warn_after:
        timers.append((f"{warn_after:g}", "kill -USR1 $$"))
    return assets.render(
        "batch/job.sh.j2",
        system=system,
        directives=directives,
        signals=signals,
        requeue="requeue" in job.spec.native,
        requeue_code=requeue_code,
        id=job.id,
        tag=f"{cluster.id}/{job.id};",
        folder=f"{root}/jobs/{job.id}",
        root=root,
        ranks=job.ranks,
        grace=GRACE,
        timers=timers,
        retries=job.spec.retries,
        modules=job.spec.modules,
        path=plan.path,
        launcher=job.spec.launcher,
        **_source(job, "work"),
    )


def _source(job: Job, tree: str) -> dict[str, object]:
    """What the script has to compile before it starts ranks; `tree` is where the files lie, as
    the script sees it."""
    what = job.spec.program
    if what.kind is not ProgramKind.SOURCE:
        return {"source": ""}
    return {
        "source": what.source,
        "target": what.target,
        "compilers": what.compilers,
        "tree": f"{tree}/{what.folder}",
    }


def emit(
    job: Job,
    plan: LaunchPlan,
    *,
    system: str,
    directives: Sequence[str],
    submit: str,
    version: str,
    secrets: Sequence[str],
) -> str:
    """A script to hand in by hand: no state, no clean-up, no second attempt."""
    what = job.spec.program
    text = "\0".join((what.target, *what.args, *job.spec.env.values()))
    return assets.render(
        "batch/emit.sh.j2",
        system=system,
        directives=directives,
        submit=submit,
        title=" ".join((what.target, *what.args)),
        version=version,
        secrets=secrets,
        # An argument may hold any line, also one that would end the text that it stands in.
        delimiter=f"END_{sha256(text.encode(errors='surrogateescape')).hexdigest()[:16]}",
        env=sorted(plan.env.items()),
        working=what.folder,
        program=next(iter(plan.programs.values())),
        agent=assets.render(f"{system}/agent.sh.j2"),
        ranks=job.ranks,
        modules=job.spec.modules,
        path=plan.path,
        launcher=job.spec.launcher,
        **_source(job, ".."),
    )


def survey(system: str) -> str:
    """The script that says what is known about jobs, with one question to the queue."""
    return assets.render("batch/survey.sh.j2", system=system, age=QUEUE_AGE)


def status_argv(jobs: Sequence[int]) -> tuple[str, ...]:
    """Runs in the folder of one of the jobs."""
    return ("/bin/sh", "../../bin/survey", *map(str, jobs))


def submit_argv(command: str) -> tuple[str, ...]:
    """The job is on record as queued before the queue has it: nothing comes too late. `native` is
    what the command prints, or, where it fails, gone."""
    script = (
        'echo "queued $(date +%s.%N)" >>state;'
        f" {command} >native.new 2>submit.err </dev/null ||"
        " { grep -v '^Exiting' submit.err | tr '\\n' ' ' >&2; exit 1; };"
        f' mv native.new native; exec {shlex.join(status_argv(()))} "$(basename "$PWD")"'
    )
    return ("/bin/sh", "-c", script)


def cancel_argv(command: str) -> tuple[str, ...]:
    """`command` gets the batch system's number of the job. What the queue said before is void."""
    script = (
        "echo cancelled >stop; rm -f ../../queue; n=$(cat native 2>/dev/null); n=${n%%;*};"
        f' [ -z "$n" ] || {command} "$n" 2>&1; :'
    )
    return ("/bin/sh", "-c", script)


def sections(text: str) -> dict[int, tuple[str, list[str]]]:
    """A survey's answers by job: the batch system's number, and the lines."""
    found: dict[int, tuple[str, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["@@job"] and len(words) > 1 and words[1].isdigit():
            lines = []
            found[int(words[1])] = (words[2] if len(words) > 2 else "", lines)
        else:
            lines.append(line)
    return found


def parse_status(
    job: Job,
    text: str,
    in_queue: Callable[[str], tuple[JobState, str]],
    gone: Mapping[str, JobState],
) -> Job:
    """The job after a survey. An answer that means nothing changes nothing. `in_queue` reads the
    queue's word for a state, and why the job waits if the word says that; a way to be `gone` that
    the table does not have is taken for lost."""
    native, lines = sections(text).get(job.id, ("", []))
    if job.state.ended:
        return job
    if native:
        job = replace(job, native_id=native)
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "queue":
            word, _, reason = rest.partition("|")
            state, why = in_queue(word)
            job = _waiting(job, state, why or reason)
        elif word == "gone":
            job = _gone(job, rest, gone)
        else:
            job = direct.apply(job, line)
    return job


def _waiting(job: Job, state: JobState, reason: str) -> Job:
    """The job after the queue's word for it. It runs when its script says so: before that there
    may be a prolog, or a node that has yet to wake up."""
    if job.state.ended:
        return job
    if state is JobState.RUNNING and job.started is None:
        return replace(job, state=JobState.QUEUED, reason="starting")
    return replace(job, state=state, reason="" if reason == "None" else reason)


def _gone(job: Job, rest: str, gone: Mapping[str, JobState]) -> Job:
    """The job has left the queue and has not written down how it ended."""
    if job.state.ended:
        return job
    state, _, more = rest.partition("|")
    ended = gone.get(state.split()[0] if state.split() else "", JobState.LOST)
    code, reason, when = [*more.split("|"), "", ""][:3]
    why = f"{state}: {reason}" if reason not in ("", "None") else state
    reasons = {
        JobState.LOST: "it left the queue without a word",
        JobState.FAILED: f"the batch system ended it ({why})",
    }
    number = code.partition(":")[0]
    failed = ended is JobState.FAILED and number.isdigit() and job.started is not None
    return replace(
        job,
        state=ended,
        finished=float(when) if when.isdigit() else None,
        reason=reasons.get(ended, ""),
        program_exit_code=(int(number) or 1) if failed else job.program_exit_code,
    )
