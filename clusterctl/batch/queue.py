"""What Slurm and Grid Engine have in common: one script per job, one survey for all jobs.

The script writes the same `state` file as our own supervisor does; the queue is asked for what the
file cannot say: that a job still waits, and how it ended when nobody was left to write that down.
`survey` (on the login node, templates/batch/survey.sh.j2) prints both.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from clusterctl import __version__
from clusterctl.batch import direct, verdict
from clusterctl.core import assets
from clusterctl.core.catalog import FAST
from clusterctl.core.job import Job, JobSpec, JobState, LaunchPlan, Reason
from clusterctl.core.model import Cluster
from clusterctl.core.text import fold_runs
from clusterctl.core.variables import SBATCH, write_unset
from clusterctl.errors import UsageError
from clusterctl.launch.compiling import plan_compilation

# -------------------------------------------------------------------------------------------------
# Sweeps as arrays of a batch system: one task per point. Pure.
#
# Each task leaves two notes of its own, for a shared disk takes no lines from several nodes: where
# it began, and how it ended. The survey reads them; the queue says when there will be no more.


SAYS_LITTLE = ("COMPLETED", "FAILED", "UNKNOWN")
"""What a batch system may say of a job, or of a task, whose own notes say more."""


def render_ranges(numbers: Sequence[int]) -> str:
    """`0-4,7`: as sbatch takes them."""
    runs = fold_runs(numbers)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def describe_end(job: Job, facts: str, rest: str, gone: Mapping[str, JobState]) -> Job:
    """The job after its last task has left the queue. `rest` is what the survey says about that:
    `STATE|CODE|REASON|WHEN`."""
    said, _, more = rest.partition("|")
    word, when = said.partition(" ")[0], more.rpartition("|")[2]
    time = when if when.isdecimal() else "0"
    code = 1 if job.unfinished_points else 0
    began = sum(line.startswith("point ") for line in facts.splitlines())
    ends = f"launcher {time} {code}\nstarted {time} {began}\nended {time}\n"
    ended = verdict.judge(job, f"{facts}\n{ends}")
    if ended.state is not JobState.FAILED:
        return ended
    if gone.get(word) is JobState.CANCELLED:
        return replace(ended, state=JobState.CANCELLED, failure=None, reason="")
    if word in SAYS_LITTLE:
        return ended
    return replace(ended, reason=f"{ended.reason} (the batch system says {said})")


# -------------------------------------------------------------------------------------------------

QUEUE_AGE = 5
"""Seconds for which an answer of the queue is good for everybody, or its silence."""
ANSWER_LIMIT = 12
"""Seconds that the queue has to answer a question: Slurm's own limit is 10."""
ANSWER_MARGIN = 15
"""Seconds beyond the grace of its programs that a node of a job has to answer its script, which the
batch system may be about to end."""
HAND_IN = 120
"""Seconds that it has to take a job."""
LEAD = 60
"""Seconds between the warning and the time limit, where ranks need no more than that to save."""

_SAFE = re.compile(r"[\w.,:@%+=/\[\]&|*()!^~-]+", re.ASCII)


def check_value(name: str, text: str) -> str:
    """A value for a directive in a script's head, where nothing can be quoted reliably."""
    if not _SAFE.fullmatch(text):
        raise UsageError(
            f"{name} {text!r} contains characters that the header of a batch script cannot hold",
            hint="leave out spaces, quotes and similar characters",
        )
    return text


def make_job_name(job: Job) -> str:
    """The program's name and the job's number, in letters that every queue takes."""
    stem = job.spec.program.target.rpartition("/")[2].partition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9_-]", "", stem).strip("-") or "job"
    return f"{plain[:20]}-{job.id}"


def choose_lead(spec: JobSpec) -> int:
    """Seconds before its time limit at which a job is warned: what its ranks have to save."""
    return max(LEAD, math.ceil(spec.grace))


class Batch(ABC):
    """What all batch systems do alike. Commands run in the job's folder on the login node."""

    system: ClassVar[str]
    prefix: ClassVar[str]
    """What a directive begins with, in the head of a script."""
    submit: ClassVar[str]
    """The command that takes a script, and `receipt`, its options that make it print the number."""
    receipt: ClassVar[str]
    end: ClassVar[str]
    """The command that takes the number of a job to end."""
    down: ClassVar[str]
    """What it says, as a pattern of grep -E, when it could not even ask the queue."""
    example_size: ClassVar[str]
    """Options of `run` for a job of two ranks, as an example."""
    unconfigured: ClassVar[str] = ""
    """What it says, as a pattern, where it does not know whom to ask."""
    gone: ClassVar[Mapping[str, JobState]]
    """Ways to have left the queue; one that is not there is taken for lost. Success is not one:
    a script whose ranks all ended well has written that down before it ended."""
    signals: ClassVar[Sequence[tuple[str, str]]]
    """The warnings that the script gets, and what each means: `checkpoint` or `stopped`."""
    point: ClassVar[str]
    """In sh, the number of the point that a task of an array runs."""
    requeue_code: ClassVar[int] = 0
    """The exit code with which a script asks to be run again."""
    ours: ClassVar[tuple[str, ...]]
    """Beginnings of the directives that serve our job folder: no use in an emitted script."""
    launchers: ClassVar[tuple[str, ...]]
    native_env: ClassVar[Sequence[tuple[str, str, str]]] = ()
    """Variables for its own launcher: name, value unless the site sets one, and why."""
    without_mpi: ClassVar[str] = ""
    """The option of `run` with which its own launcher starts programs that call no MPI."""

    @property
    def emits(self) -> str:
        """A script for the command that takes one."""
        return self.submit

    @abstractmethod
    def directives(self, job: Job) -> list[str]:
        """Lines of the head, without `prefix`. Paths are relative to the job's folder."""

    @abstractmethod
    def read_queue_state(self, state: str, reason: str) -> tuple[JobState, str]:
        """From the queue's words for a state and its reason: the state, and why the job waits."""

    def warn_after(self, job: Job) -> float:
        """Seconds until the script warns itself of its time limit, where the system does not; 0:
        never."""
        return 0.0

    def read_notice(self, spec: JobSpec) -> int:
        """Seconds before its end at which the job asks to be warned, where it does."""
        return 0

    def give_time(self, spec: JobSpec) -> JobSpec:
        """The job with the seconds that its ranks have to save: as it says, or all of the warning
        that it asks for. Of one of our own choice the script needs a part."""
        announced = 0 if self.name_passed(spec, "USR1") else self.read_notice(spec)
        spec = replace(spec, grace=spec.grace or float(announced))
        notice = math.ceil(spec.grace) or LEAD - ANSWER_MARGIN
        return replace(spec, notice=notice)

    def name_passed(self, spec: JobSpec, signal: str) -> str:
        """The signal that ranks get with --pass-signal when the script gets that one; "": the
        script gives them SIGTERM."""
        return signal if spec.pass_signal and signal != "TERM" else ""

    def reasons(self, spec: JobSpec) -> tuple[Reason, ...]:
        if spec.launcher == "mpirun":
            return ()
        return tuple(Reason(item=f"{name}={text}", why=why) for name, text, why in self.native_env)

    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        if job.spec.is_sweep:
            return {"job.sh": self._render_array(job, cluster, plan)}
        root = cluster.launcher.root
        timers = []
        if job.spec.timeout:
            timers.append((f"{job.spec.timeout:g}", "echo timeout >stop"))
        if warn_after := self.warn_after(job):
            timers.append((f"{warn_after:g}", "kill -USR1 $$"))
        text = assets.render(
            "batch/job.sh.j2",
            directives=[f"{self.prefix} {line}" for line in self.directives(job)],
            traps=[(*row, self.name_passed(job.spec, row[0])) for row in self.signals],
            notice=job.spec.notice,
            requeue="requeue" in job.spec.native,
            requeue_code=self.requeue_code,
            id=job.id,
            tag=f"{cluster.id}/{job.id};",
            folder=f"{root}/jobs/{job.id}",
            root=root,
            grace=math.ceil(job.spec.save_time),
            answer_limit=ANSWER_MARGIN,
            stacks_limit=direct.STACKS_LIMIT,
            timers=timers,
            retries=job.spec.retries,
            **direct.list_watch_values(job),
            **direct.list_resume_values(job),
            **self._start(job, plan, "work"),
        )
        agent = assets.render(f"{self.system}/agent.sh.j2", folder=f"{root}/jobs/{job.id}")
        return {"job.sh": text, "clusterctl-agent": agent}

    def _render_array(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> str:
        return assets.render(
            "batch/points.sh.j2",
            directives=[f"{self.prefix} {line}" for line in self.directives(job)],
            signals=self.signals,
            notice=job.spec.notice,
            id=job.id,
            tag=f"{cluster.id}/{job.id};",
            folder=f"{cluster.launcher.root}/jobs/{job.id}",
            point=self.point,
            points=len(job.processes),
            **self._start(job, plan, "work"),
        )

    def emit(self, job: Job, cluster: Cluster, plan: LaunchPlan, *, beside: str) -> str:
        """A script to hand in by hand: no state, no clean-up, no second attempt."""
        what, secrets = job.spec.program, job.spec.secret_names
        lines = [line for line in self.directives(job) if not line.startswith(self.ours)]
        return assets.render(
            "batch/emit.sh.j2",
            directives=[
                f"{self.prefix} {line}" for line in (*lines, *self.pass_on(job.spec.secret_names))
            ],
            submit=self.submit,
            beside=beside,
            title=" ".join((what.target, *what.args)),
            version=__version__,
            secrets=secrets,
            delimiter=direct.make_delimiter(job),
            env=sorted(plan.env.items()),
            working=what.folder,
            program=next(iter(plan.programs.values())),
            agent=assets.render(f"{self.system}/agent.sh.j2", folder=""),
            **self._start(job, plan, ".."),
        )

    def pass_on(self, secrets: Sequence[str]) -> list[str]:
        """Directives that hand these variables on from whoever hands the script in."""
        return []

    def _start(self, job: Job, plan: LaunchPlan, tree: str) -> dict[str, object]:
        """What batch/start.sh.j2 needs; `tree` is where the script sees the program's files."""
        spec, what = job.spec, job.spec.program
        compiled = plan_compilation(what, spec.env)
        return {
            "system": self.system,
            "ranks": job.ranks,
            "modules": spec.modules,
            "path": plan.path,
            "mpirun": plan.mpirun,
            "launcher": spec.launcher,
            "once": spec.once,
            "mpi": spec.native.get("mpi", ""),
            "uses_mpi": spec.uses_mpi,
            "without_mpi": self.without_mpi,
            "native_env": self.native_env,
            "backend": spec.backend,
            "fast": FAST,
            "device_env": plan.device_env,
            "compile": compiled.script if compiled else "",
            "target": what.target,
            "tree": f"{tree}/{what.folder}",
            "built": os.path.normpath(f"{what.folder}/{what.target}"),
        }

    def survey(self) -> str:
        return assets.render(
            "batch/survey.sh.j2",
            system=self.system,
            submit=self.submit,
            age=QUEUE_AGE,
            limit=ANSWER_LIMIT,
            patience=HAND_IN,
        )

    def survey_argv(self, jobs: Sequence[Job]) -> tuple[str, ...]:
        return ("/bin/sh", "bin/survey", *(str(job.id) for job in jobs))

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        script = assets.render(
            "batch/submit.sh.j2",
            submit=self.submit,
            receipt=self.receipt,
            without=[name for name, option in SBATCH.items() if option in job.spec.native],
            end=self.end,
            down=self.down,
            name=job.spec.native.get("job-name", make_job_name(job)),
            patience=HAND_IN,
            status=shlex.join(self.status_argv(job)),
        )
        return ("/bin/sh", "-c", script)

    def status_argv(self, job: Job) -> tuple[str, ...]:
        return ("/bin/sh", "../../bin/survey", str(job.id))

    def parse_status(self, job: Job, text: str) -> Job:
        """The job after a survey. An answer that means nothing changes nothing."""
        native, lines = split_sections(text).get(job.id, ("", []))
        if job.state.ended:
            return job
        if native:
            job = replace(job, native_id=native)
        facts = "\n".join(lines)
        job = verdict.judge(job, facts)
        read = verdict.read_state(facts)
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "queue":
                word, _, reason = rest.partition("|")
                job = _mark_waiting(job, *self.read_queue_state(word, reason))
            elif word == "unsubmitted" and rest.isdecimal():
                job = verdict.mark_unsubmitted(job, read, float(rest))
            elif word == "gone" and job.spec.is_sweep:
                job = describe_end(job, facts, rest, self.gone)
            elif word == "gone":
                job = _end_lost(job, rest, self.gone, read.last.stop == "stopped")
        return job

    def cancel_argv(self, job: Job) -> tuple[str, ...]:
        """Leaves word for the script, which ends its ranks with grace and counts what is left of
        them; a job whose script does not run is taken from the queue at once."""
        if job.spec.is_sweep:  # each task gives its program time; those that wait never begin
            return ("/bin/sh", "-c", f"echo cancelled >stop; {self._end()}")
        waits = "'' | queued* | stop*stopped | stopped* | ended*"
        script = f"case $(tail -n 1 state 2>/dev/null) in {waits}) {self._end()} ;; esac"
        return ("/bin/sh", "-c", f"echo cancelled >stop; {script}")

    def is_silence(self, complaint: str) -> bool:
        patterns = ("^no answer from the queue", self.down, self.unconfigured)
        return re.search("|".join(filter(None, patterns)), complaint) is not None

    def end_argv(self, job: Job) -> tuple[str, ...]:
        return ("/bin/sh", "-c", self._end())

    def _end(self) -> str:
        """What the queue said before is void."""
        return (
            f"{write_unset(self.submit)}; rm -f ../../queue;"
            " n=$(cat native 2>/dev/null); n=${n%%;*};"
            f' [ -z "$n" ] || {self.end} "$n" 2>&1; :'
        )


def split_sections(text: str) -> dict[int, tuple[str, list[str]]]:
    """A survey's answers by job: the batch system's number, and the lines."""
    found: dict[int, tuple[str, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["@@job"] and len(words) > 1 and words[1].isdecimal():
            lines = []
            found[int(words[1])] = (words[2] if len(words) > 2 else "", lines)
        else:
            lines.append(line)
    return found


def describe_silence(text: str) -> str:
    """What a survey says of a queue that does not answer, for people; "" of one that does."""
    match = re.match(r"@@silent (\d*)\|(.*)", text)
    if match is None:
        return ""
    said = match[2].strip()
    why = f" ({said})" if said else ""
    age = f"using its answer from {match[1]} s ago" if match[1] else "it has never answered"
    return f"the queue does not answer{why}: {age}"


def _mark_waiting(job: Job, state: JobState, reason: str) -> Job:
    """The job after the queue's word for it. It runs when its script says so: before that there
    may be a prolog, or a node that has yet to wake up."""
    if job.state.ended or (job.spec.is_sweep and job.started is not None):
        return job  # of a sweep, some points may wait while others have run
    if state is JobState.RUNNING and job.started is None:
        return replace(job, state=JobState.QUEUED, reason="starting")
    return replace(job, state=state, reason="" if reason == "None" else reason)


_TIME_IS_UP = "enforced h_rt"
"""Grid Engine's reason for ending a job at its limit."""


def _end_lost(job: Job, rest: str, gone: Mapping[str, JobState], stopped: bool) -> Job:
    """The job has left the queue and has not written down how it ended. With `stopped` its script
    was told to end, as is done to a job that somebody takes from the queue."""
    if job.state.ended:
        return job
    state, _, more = rest.partition("|")
    word = state.partition(" ")[0]
    ended = gone.get(word, JobState.LOST)
    _, reason, when = [*more.split("|"), "", ""][:3]
    if _TIME_IS_UP in reason:
        ended = JobState.TIMEOUT
    elif stopped and word in SAYS_LITTLE:
        ended = JobState.CANCELLED
    why = f"{state}: {reason}" if reason not in ("", "None") else state
    reasons = {
        JobState.LOST: "it left the queue without a final state",
        JobState.FAILED: f"the batch system ended it ({why})",
    }
    return replace(
        job,
        state=ended,
        finished=float(when) if when.isdecimal() else None,
        reason=reasons.get(ended, ""),
    )
