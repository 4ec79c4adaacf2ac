"""What Slurm and Grid Engine have in common: one script per job, one survey for all jobs.

The script writes the same `state` file as our own supervisor does; the queue is asked for what the
file cannot say: that a job still waits, and how it ended when nobody was left to write that down.
The agent on the login node (clusterctl/agent/queues.py) prints both. All that we reach is the
login node, whose disk the nodes of a job share.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from clusterctl import __version__
from clusterctl.agent import messages
from clusterctl.agent.queues import HAND_IN, QUEUE_AGE
from clusterctl.batch import direct, verdict
from clusterctl.batch.system import SILENT, BatchSystem, Preview
from clusterctl.core import assets
from clusterctl.core.catalog import FAST
from clusterctl.core.job import (
    UNPLACED,
    Job,
    JobSpec,
    JobState,
    LaunchPlan,
    Placement,
    ProgramKind,
    Reason,
)
from clusterctl.core.model import Cluster
from clusterctl.core.sweep import parse_concurrency
from clusterctl.core.variables import SBATCH, write_unset
from clusterctl.errors import UsageError
from clusterctl.launch import hostfile, launcher
from clusterctl.launch.compiling import plan_compilation
from clusterctl.launch.mpirun import plan_batch_calls
from clusterctl.options.batch import BATCH_SYSTEMS

ANSWER_MARGIN = 15
"""Seconds beyond the grace of its programs that a node of a job has to answer its script, which the
batch system may be about to end."""
LEAD = 60
"""Seconds between the warning and the time limit, where ranks need no more than that to save."""

HOPELESS = "waiting does not help: cancel it and ask for something else"

_OF_SCRIPTS = re.compile(r"(-[oeD]|-wd|--output|--error|--chdir)(?![\w-])")
_SAFE = re.compile(r"[\w.,:@%+=/\[\]&|*()!^~-]+", re.ASCII)


def check_value(name: str, text: str) -> str:
    """A value for a directive in a script's head, where nothing can be quoted reliably."""
    if not _SAFE.fullmatch(text):
        raise UsageError(
            f"{name} {text!r} contains characters that the header of a batch script cannot hold",
            hint="leave out spaces, quotes and similar characters",
        )
    return text


def list_arguments(spec: JobSpec, name: str, unfit: str) -> list[str]:
    """Options of the system itself, each with its value, as directives have them."""
    lines = spec.native.get(name, "").splitlines()
    for line in lines:
        if not line.startswith("-"):
            raise UsageError(f"--{name} {line}: it begins with no dash", hint=f"--{name} '-x 1'")
        refuse_unfit(f"--{name} '{line}'", line, unfit)
        if _OF_SCRIPTS.match(line) and spec.program.kind is not ProgramKind.BATCH:
            raise UsageError(
                f"--{name} '{line}': ranks start in a folder of their job, where their output is",
                hint="leave it out: `clusterctl logs` shows the output, `fetch` copies their files",
            )
    return lines


def refuse_unfit(what: str, line: str, unfit: str) -> None:
    """Raises UsageError for an option with which its command would not return at once, or without
    the number of a job that the queue then has."""
    if re.match(rf"(?:{unfit})(?![\w-])", line):
        raise UsageError(
            f"{what}: with it, nobody would know which job it is",
            hint="leave it out: `run` waits for the job, `run --detach` does not",
        )


def make_job_name(spec: JobSpec, number: int) -> str:
    """As asked for; else the program's name and the job's number, in letters that every queue
    takes."""
    stem = spec.program.target.rpartition("/")[2].partition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9_-]", "", stem).strip("-") or "job"
    name = spec.native.get("job-name", f"{plain[:20]}-{number}" if number else plain[:20])
    return check_value("--job-name", name)


def call_mpirun(ranks: str, spec: JobSpec) -> str:
    passed = (f"-x {name}" for name in ("MASTER_ADDR", "MASTER_PORT", *spec.secret_names))
    return f"{shlex.join(('mpirun', *spec.mpirun_args))} -np {ranks} {' '.join(passed)}"


MPI_VARIABLES = (
    "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE",
)
"""What Open MPI tells ranks, under the names that programs read."""


def choose_lead(spec: JobSpec) -> int:
    """Seconds before its time limit at which a job is warned: what its ranks have to save."""
    return max(LEAD, math.ceil(spec.grace))


class QueueSystem(BatchSystem):
    """What all batch systems with a queue do alike. Commands run on the login node."""

    places_ranks = False
    start_limit = 60.0 + HAND_IN
    slow_start = (
        f"the queue has not answered yet; waiting up to {HAND_IN} s (press Ctrl-C twice to give up)"
    )
    ask_limit = 45.0  # as long as a silent queue may take to be given up, twice, and then some
    poll = 0.5
    logs = ("mpirun.err", "mpirun.out", "batch.out")

    system: ClassVar[str]
    hands_in: ClassVar[tuple[str, ...]]
    prefix: ClassVar[str]
    """What a directive begins with, in the head of a script."""
    waits: ClassVar[str]
    """Options with which its command waits for the job, or hands in none, as a pattern."""
    end: ClassVar[str]
    """The command that takes the number of a job to end."""
    down: ClassVar[str]
    """What it says, as a pattern of grep -E, when it could not even ask the queue."""
    unconfigured: ClassVar[str] = ""
    """What it says, as a pattern, where it does not know whom to ask."""
    gone: ClassVar[Mapping[str, JobState]]
    """Ways to have left the queue; one that is not there is taken for lost. Success is not one:
    a script whose ranks all ended well has written that down before it ended."""
    signals: ClassVar[Sequence[tuple[str, str]]]
    """The warnings that the script gets, and what each means: `checkpoint` or `stopped`."""
    ours: ClassVar[tuple[str, ...]]
    """Beginnings of the directives that serve our job folder: no use in an emitted script."""
    number: ClassVar[str]
    """The variable with the number of a job."""
    puts_back: ClassVar[str]
    """The sh by which an emitted script has its job return to the queue."""
    warns: ClassVar[str] = ""
    """The sh by which it sends SIGTERM to ranks that its own launcher has started."""
    rank_variables: ClassVar[Sequence[str]] = ()
    """What its own launcher tells ranks, under the names that programs read."""
    threads: ClassVar[Sequence[str]] = ()
    """How many threads each rank may use."""
    native_env: ClassVar[Sequence[tuple[str, str, str]]] = ()
    """Variables for its own launcher: name, value unless the site sets one, and why."""
    without_mpi: ClassVar[str] = ""
    """The option of `run` with which its own launcher starts programs that call no MPI."""

    @abstractmethod
    def check(self, spec: JobSpec) -> None:
        """Raises UsageError for a value of an option that it cannot take."""

    @abstractmethod
    def resolve_size(self, spec: JobSpec) -> JobSpec:
        """The spec with the numbers of nodes and ranks that it left open. Raises UsageError where
        they contradict each other."""

    @abstractmethod
    def directives(self, spec: JobSpec, number: int) -> list[str]:
        """Lines of the head of a job's script, without `prefix`. Paths are relative to the job's
        folder."""

    @abstractmethod
    def read_queue_state(self, state: str, reason: str) -> tuple[JobState, str]:
        """From the queue's words for a state and its reason: the state, and why the job waits."""

    def warn_after(self, spec: JobSpec) -> float:
        """Seconds until the script warns itself of its time limit, where the system does not; 0:
        never."""
        return 0.0

    def read_notice(self, spec: JobSpec) -> int:
        """Seconds before its end at which the job asks to be warned, where it does."""
        return 0

    def name_passed(self, spec: JobSpec, signal: str) -> str:
        """The signal that ranks get with --pass-signal when the script gets that one; "": the
        script gives them SIGTERM."""
        return signal if spec.pass_signal and signal != "TERM" else ""

    def choose_starter(self, spec: JobSpec, cluster: Cluster) -> str:
        """What starts the ranks in an emitted script: `srun` or `mpirun`."""
        return "mpirun"

    def is_warned(self, spec: JobSpec, starter: str) -> bool:
        """Whether an emitted script itself is warned of the end, and passes that on."""
        return bool(self.warn_after(spec))

    def adapt_directives(self, lines: list[str], spec: JobSpec, warned: bool) -> list[str]:
        """Those of a job of ours as an emitted script has them."""
        return [line for line in lines if not line.startswith(self.ours)]

    def write_start(self, job: Job, starter: str) -> str:
        """The command that starts ranks."""
        return call_mpirun(str(job.ranks), job.spec)

    def list_container(self, job: Job, cluster: Cluster) -> list[str]:
        """Options with which its own launcher starts ranks in their container; [] where those
        enter it themselves."""
        return []

    def pass_on(self, secrets: Sequence[str]) -> list[str]:
        """Directives that hand these variables on from whoever hands the script in."""
        return []

    # ---------------------------------------------------------------------------- before the start

    def _place(self, spec: JobSpec, cluster: Cluster) -> tuple[JobSpec, tuple[Placement, ...]]:
        own = spec.program.kind is ProgramKind.BATCH
        hosts = ",".join(spec.hosts)
        range_given = re.fullmatch(r"\d+-\d+", hosts)
        if range_given and not own:
            raise UsageError(
                f"--nodes {hosts}: a range of numbers works only with a batch script",
                hint="--nodes N asks for so many",
            )
        if hosts and not range_given:
            raise UsageError(
                f"--nodes {hosts}: hosts cannot be chosen here, the queue chooses them",
                hint=f"--nodes N asks for so many; --nodelist {hosts} for these, where it is known",
            )
        self.check(spec)
        if own:
            return spec, (Placement(node=UNPLACED, first=0, count=1),)
        # The seconds that ranks have to save are those that the job says, or all of the warning
        # that it asks for. Of one of our own choice the script needs a part.
        announced = 0 if self.name_passed(spec, "USR1") else self.read_notice(spec)
        grace = spec.grace or float(announced)
        spec = replace(spec, grace=grace, notice=math.ceil(grace) or LEAD - ANSWER_MARGIN)
        if spec.is_sweep:
            _check_points(spec)
            count = parse_concurrency(spec.array) or len(spec.points)
        else:
            spec = self.resolve_size(spec)
            count = spec.ranks or spec.nodes * spec.ranks_per_node
        return spec, (Placement(node=UNPLACED, first=0, count=count),)

    def take_script(self, spec: JobSpec, cluster: Cluster, path: Path | None = None) -> None:
        if self.prefix not in (spec.program.directives or self.prefix).split(" or "):
            super().take_script(spec, cluster, path)
        for line in path.read_text(errors="replace").splitlines() if path else ():
            if line.startswith(self.prefix):
                refuse_unfit(
                    f"{spec.program.target}: {line}", line[len(self.prefix) :].strip(), self.waits
                )
        given = {
            "--launcher": spec.launcher != "auto",
            "--backend": spec.backend != "auto",
            "--env-file": spec.secret_names,
            "--timeout": spec.timeout,
            "--hang-timeout": spec.hang_timeout,
            "--retries": spec.retries,
            "--resume-args": spec.resume_args,
            "--setup": spec.setup,
            "--ranks": self.slots and not spec.once and spec.ranks,
            "--python": spec.python,
            **dict.fromkeys(spec.particular, True),
        }
        known = (*(f"--{name}" for name in spec.native), *(f"-{name}" for name in spec.native))
        known += ("--nodes", "--ranks-per-node", "--array")
        if wrong := [name for name, value in given.items() if value and name not in known]:
            raise UsageError(
                f"{wrong[0]} means nothing to {spec.program.target}, a batch script, which goes to"
                " the queue as it is",
                hint=(wrong[0] == "--ranks" and self.slots)
                or f"leave out {wrong[0]}, or run the program that the script starts",
            )

    @property
    def slots(self) -> str:
        """How to ask for slots, where those are allocated, not nodes."""
        return BATCH_SYSTEMS[self.system].slots

    @abstractmethod
    def list_options(self, spec: JobSpec) -> list[str]:
        """What was asked for before a script of the user's own, as words of its command."""

    def _list_words(self, spec: JobSpec) -> list[str]:
        program = spec.program
        return [*self.list_options(spec), program.target, *program.args]

    def plan(self, request: launcher.Request) -> LaunchPlan:
        if request.spec.program.kind is ProgramKind.BATCH:
            argv = (*self.hands_in, *self._list_words(request.spec))
            return LaunchPlan(argv=argv, env={}, node_env={}, programs={}, files={})
        plan = launcher.plan_launch("batch", request)
        if request.spec.launcher == "mpirun":
            return plan
        reasons = (Reason(item=f"{name}={text}", why=why) for name, text, why in self.native_env)
        return replace(plan, reasons=(*plan.reasons, *reasons))

    def preview(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> Preview:
        if job.spec.program.kind is ProgramKind.BATCH:
            where = job.spec.in_place or "a copy of the tree on the login node"
            line = f"{shlex.join(plan.argv)}  # in {where}"
            return Preview((("on the login node", line),), {"command": list(plan.argv)})
        files = self.script(job, cluster, plan)
        return Preview(tuple(files.items()), {"files": files, "ranks": job.ranks})

    def locate(self, job: Job, cluster: Cluster) -> tuple[str, ...]:
        return (cluster.launcher.name,)

    # --------------------------------------------------------------------------------- the scripts

    def script(self, job: Job, cluster: Cluster, plan: LaunchPlan) -> dict[str, str]:
        folder = f"{cluster.launcher.root}/jobs/{job.id}"
        if job.spec.program.kind is ProgramKind.BATCH:
            where = job.spec.in_place or f"{folder}/work/{job.spec.program.folder}"
            words, env = self._list_words(job.spec), dict(job.spec.env)
            own = messages.OwnScript(words, where, env, self.system)
            return {messages.OWN: direct.render_plan(own)}
        common: dict[str, Any] = {
            "batch": self,
            "system": self.system,
            "job": job,
            "spec": job.spec,
            "plan": plan,
            "directives": self._render_head(self.directives(job.spec, job.id)),
            "tag": f"{cluster.id}/{job.id};",
            "folder": folder,
        }
        files = {
            "job.sh": assets.render("batch/job.sh.j2", **common),
            "plan.json": direct.render_plan(self._plan_job(job, cluster)),
        }
        if job.spec.is_sweep:
            return files
        agent = assets.render(f"{self.system}/agent.sh.j2", folder=folder)
        return {**files, "clusterctl-agent": agent}

    def _plan_job(self, job: Job, cluster: Cluster) -> messages.BatchPlan:
        spec = job.spec
        compiled = plan_compilation(spec.program, spec.env)
        whole = direct.make_plan(job, cluster, placed=False)._replace(answer_limit=ANSWER_MARGIN)
        return messages.BatchPlan(
            system=self.system,
            signals=[(*row, self.name_passed(spec, row[0])) for row in self.signals],
            notice=spec.notice,
            folder=spec.program.folder,
            compile=compiled.script if compiled else "",
            built=os.path.normpath(f"{spec.program.folder}/{spec.program.target}"),
            warn_after=self.warn_after(spec),
            requeues="requeue" in spec.native,
            job=None if spec.is_sweep else whole,
            start=self._plan_start(job, cluster),
        )

    def _plan_start(self, job: Job, cluster: Cluster) -> messages.BatchStart:
        spec = job.spec
        starter = spec.launcher if "srun" in self.launchers else "mpirun"
        return messages.BatchStart(
            starter="once" if spec.once else starter,
            ranks=job.ranks,
            uses_mpi=spec.uses_mpi,
            mpi=spec.native.get("mpi", ""),
            container=self.list_container(job, cluster),
            variables={name: value for name, value, _ in self.native_env},
            calls=plan_batch_calls(spec.mpirun_args),
            clean=write_unset("mpirun"),
            fast=FAST,
            without_mpi=self.without_mpi,
        )

    def emit(self, job: Job, cluster: Cluster, plan: LaunchPlan, *, beside: str) -> str:
        """A script to hand in by hand, as people write them: the site's own srun or mpirun."""
        what = job.spec.program
        if what.kind is ProgramKind.BATCH:
            raise UsageError(f"{what.target} is a batch script already", hint=shlex.join(plan.argv))
        spec, compiled = job.spec, plan_compilation(what, job.spec.env)
        starter = "" if spec.once else self.choose_starter(spec, cluster)
        mpirun = starter == "mpirun"
        warn = self.warns if starter == "srun" else f"kill -{'USR1' if mpirun else 'TERM'} $step"
        traps = self.is_warned(spec, starter)
        lines = self.adapt_directives(self.directives(spec, 0), spec, traps)
        threads = [] if "cpus-per-task" in spec.native else self.threads
        # What the queue hands on has the usual folders.
        path = plan.path if spec.venv or (mpirun and plan.path != "/usr/bin") else ""
        program = next(iter(plan.programs.values()))
        container = self.list_container(job, cluster)
        return assets.render(
            "batch/emit.sh.j2",
            directives=self._render_head([*lines, *self.pass_on(spec.secret_names)]),
            beside=beside,
            path=path,
            title=" ".join((what.target, *what.args)),
            version=__version__,
            env=[item for item in sorted(plan.env.items()) if item[0] != "CLUSTERCTL_GRACE"],
            program=program[4:] if spec.container and not container else program,
            container=container,
            compile=compiled.script if compiled else "",
            starter=starter,
            start=self.write_start(job, starter) if starter else "",
            ranks=[*(MPI_VARIABLES if mpirun else self.rank_variables), *threads],
            traps=traps,
            warn=warn,
            warn_after=self.warn_after(spec) if traps else 0,
            requeues="requeue" in spec.native,
            gpus=any("gpu" in f"{name}={text}" for name, text in spec.native.items()),
            batch=self,
            system=self.system,
            spec=spec,
        )

    def _render_head(self, lines: Sequence[str]) -> list[str]:
        return [f"{self.prefix} {line}" for line in lines]

    # ------------------------------------------------------------------------------- its commands

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        without = [name for name, option in SBATCH.items() if option in job.spec.native]
        name = make_job_name(job.spec, job.id)
        words = ("/bin/sh", "./agent.sh", "hand_in", self.system, name, str(HAND_IN))
        # The queue may hand its environment on to the job.
        unset = write_unset(self.emits, without)
        return ("/bin/sh", "-c", f"{unset}; exec {shlex.join(words)}")

    def describe_request(self, spec: JobSpec, script: str) -> Mapping[str, object]:
        own = spec.program.kind is ProgramKind.BATCH
        if own:
            head = takewhile(lambda line: line.strip()[:1] in ("#", ""), script.splitlines())
            lines = [line[len(self.prefix) :] for line in head if line.startswith(self.prefix)]
        else:
            lines = self.directives(spec, 0)
        return {
            "system": self.system,
            "words": self.list_options(spec) if own else [],
            "lines": lines,
            "folder": spec.in_place,
            "venv": spec.venv,
            "container": spec.container,
            "modules": spec.modules,
        }

    def advise(self, refusal: str, cluster: Cluster) -> str:
        status = f"`clusterctl status {cluster.name} --live` shows"
        silences = ("^no answer from the queue", self.down, self.unconfigured)
        if re.search("|".join(filter(None, silences)), refusal):
            return f"the queue does not answer; {status} when it does again"
        return f"check the options of the job; {status} partitions and queues"

    def status_commands(
        self, jobs: Sequence[Job], cluster: Cluster, age: float = 0.0
    ) -> Mapping[str, Sequence[Job]]:
        """One question for all of them."""
        if not jobs:
            return {}
        # Not in a job's folder: there may be none, where its client died. Any agent can answer; the
        # script was there before there was one.
        numbers = " ".join(str(job.id) for job in jobs)
        own = assets.locate_agent(".")
        return {
            f"cd {shlex.quote(cluster.launcher.root)} || exit; {write_unset(self.emits)};"
            f"{f' {QUEUE_AGE}={age:.0f}; export {QUEUE_AGE};' if age else ''}"
            f" for run in {own} agent/*/run; do if [ -e $run ]; then"
            f" exec /bin/sh $run survey . {self.system} {numbers}; fi; done;"
            f" exec /bin/sh bin/survey {numbers}": jobs
        }

    def describe_silence(self, answer: str) -> str:
        match = re.match(r"@@silent (\d*)\|(.*)", answer)
        if match is None:
            return ""
        said = match[2].strip()
        why = f" ({said})" if said else ""
        age = f"using its answer from {match[1]} s ago" if match[1] else "it has never answered"
        return f"the queue does not answer{why}: {age}"

    def parse_status(self, job: Job, text: str) -> Job:
        """The job after a survey."""
        native, lines = _split_sections(text).get(job.id, ("", []))
        if job.state.ended:
            return job
        facts = "\n".join(lines)
        job = verdict.judge(replace(job, native_id=native or job.native_id), facts)
        read = verdict.read_state(facts)
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "queue":
                state, _, reason = rest.partition("|")
                job = _mark_waiting(job, *self.read_queue_state(state, reason))
            elif word == "unsubmitted" and rest.isdecimal():
                job = verdict.mark_unsubmitted(job, read, float(rest))
            elif word == "gone":
                job = self._end_gone(job, facts, rest, read.last.stop)
        return job

    def _end_gone(self, job: Job, facts: str, rest: str, stop: str) -> Job:
        """The job after it has left the queue without a note how it ended, of which the queue says
        `STATE|CODE|REASON|WHEN`. `stop`: why its script was told to end: `stopped`, as is done to a
        job that somebody takes from the queue."""
        if job.state.ended:
            return job
        said, _, reason, when = [*rest.split("|"), "", "", ""][:4]
        word, reason = said.partition(" ")[0], reason.replace("None", "")
        state = self.gone.get(word, JobState.LOST)
        outside = reason if self.end in reason else f"by {self.end}, outside clusterctl"
        outside = "" if stop == "cancelled" else outside
        if job.spec.is_sweep:
            cancelled = outside if state is JobState.CANCELLED else None
            return _end_sweep(job, facts, said, when, cancelled)
        if _TIME_IS_UP in reason:
            state = JobState.TIMEOUT
        elif stop == "stopped" and word in SAYS_LITTLE:
            state = JobState.CANCELLED
        reasons = {
            JobState.LOST: "it left the queue without a final state",
            JobState.FAILED: f"the batch system ended it ({said}{f': {reason}' * bool(reason)})",
            JobState.CANCELLED: outside,
        }
        finished = float(when) if when.isdecimal() else None
        return replace(job, state=state, finished=finished, reason=reasons.get(state, ""))

    def describe_wait(self, job: Job) -> str:
        why = f": {job.reason}" if job.reason else ""
        return f"job {job.id} ({job.scheduler} {job.native_id}) is in the queue{why}"

    def cancel_argv(self, job: Job) -> tuple[str, ...]:
        """Leaves word for the script, which ends its ranks with grace and counts what is left of
        them; a job whose script does not run is taken from the queue at once."""
        if job.spec.program.kind is ProgramKind.BATCH:
            return ("/bin/sh", "-c", f"echo cancelled >stop; {self._end('rm -f stop')}")
        script = self._end()
        if not job.spec.is_sweep:  # its tasks give their programs time; those that wait never begin
            waits = "'' | queued* | stop*stopped | ended*"
            script = f"case $(tail -n 1 state 2>/dev/null) in {waits}) {script} ;; esac"
        return ("/bin/sh", "-c", f"echo cancelled >stop; {script}")

    def limit_end(self, spec: JobSpec) -> float:
        return 2 * spec.save_time + 20.0  # its script has to see our word first, and asks all nodes

    def end_argv(self, job: Job) -> tuple[str, ...]:
        return ("/bin/sh", "-c", self._end())

    def _end(self, undo: str = ":") -> str:
        """Takes the job from the queue. What that said before is void. `undo`: where the queue has
        certainly not been told."""
        why = '"the queue does not answer: $(printf %s "$said" | tail -n 1)"'
        silences = shlex.quote("|".join(filter(None, (self.down, self.unconfigured))))
        return (
            f"{write_unset(self.emits)}; rm -f ../../queue;"
            ' n=$(cat native 2>/dev/null); n=${n%%;*}; [ -n "$n" ] || exit 0;'
            f' said=$(timeout {END_LIMIT} {self.end} "$n" 2>&1); case $? in 0) exit 0 ;;'
            f" 124) said='no answer in {END_LIMIT} s' ;;"
            f' *) printf %s "$said" | grep -Eq {silences} || exit 0; {undo} ;; esac;'
            f" echo {why} >&2; exit {SILENT}"
        )


END_LIMIT = 20
"""Seconds that a queue has to end a job: less than a question about it may take."""
SAYS_LITTLE = ("COMPLETED", "FAILED", "UNKNOWN")
"""What a batch system may say of a job, or of a task, whose own notes say more."""
_TIME_IS_UP = "enforced h_rt"
"""Grid Engine's reason for ending a job at its limit."""


def _check_points(spec: JobSpec) -> None:
    """Raises UsageError for options that mean nothing to an array, whose tasks the queue starts."""
    hostfile.check_sweep(spec)
    given = {"nodes": spec.nodes, "timeout": spec.timeout, "pass-signal": spec.pass_signal}
    for name in (name for name, value in given.items() if value):
        raise UsageError(
            f"--{name} cannot be combined with --sweep or --array on a batch system:"
            " each point is a task of its array",
            hint="leave it out; --time limits each point",
        )


@lru_cache(maxsize=1)  # each of a thousand jobs reads the same text
def _split_sections(text: str) -> Mapping[int, tuple[str, Sequence[str]]]:
    """A survey's answers by job: the batch system's number, and the lines."""
    found: dict[int, tuple[str, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        words = line.split() if line.startswith("@@job") else []
        if words[:1] == ["@@job"] and len(words) > 1 and words[1].isdecimal():
            lines = []
            found[int(words[1])] = (words[2] if len(words) > 2 else "", lines)
        else:
            lines.append(line)
    return found


def _mark_waiting(job: Job, state: JobState, reason: str) -> Job:
    """The job after the queue's word for it. It runs when its script says so: before that there
    may be a prolog, or a node that has yet to wake up."""
    if job.state.ended or (job.spec.is_sweep and job.started is not None):
        return job  # of a sweep, some points may wait while others have run
    if state is JobState.RUNNING and job.started is None:
        return replace(job, state=JobState.QUEUED, reason="starting")
    return replace(job, state=state, reason="" if reason == "None" else reason)


def _end_sweep(job: Job, facts: str, said: str, when: str, cancelled: str | None) -> Job:
    """The job after the last task of its array has left the queue. Each task leaves two notes of
    its own, where it began and how it ended: a shared disk takes no lines from several nodes.
    `cancelled`: from where, if it was."""
    time = when if when.isdecimal() else "0"
    code = 1 if job.unfinished_points else 0
    began = sum(line.startswith("point ") for line in facts.splitlines())
    ends = f"launcher {time} {code}\nstarted {time} {began}\nended {time}\n"
    ended = verdict.judge(job, f"{facts}\n{ends}")
    if ended.state is not JobState.FAILED:
        return ended
    if cancelled is not None:
        return replace(ended, state=JobState.CANCELLED, failure=None, reason=cancelled)
    if said.partition(" ")[0] in SAYS_LITTLE:
        return ended
    return replace(ended, reason=f"{ended.reason} (the batch system says {said})")
