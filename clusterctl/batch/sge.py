"""Grid Engine: qsub, qstat, qdel. http://gridscheduler.sourceforge.net/htmlman/manuals.html"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.batch import queue
from clusterctl.core.job import Job, JobSpec, JobState, parse_concurrency
from clusterctl.core.text import count
from clusterctl.errors import UsageError

OPTIONS = {
    "pe": "-pe",
    "l": "-l",
    "queue": "-q",
    "project": "-P",
    "account": "-A",
    "mail-user": "-M",
    "mail-type": "-m",
    "time": "-l h_rt=",
    "job-name": "-N",
    "requeue": "-r y",
}
"""What `run` passes on, and Grid Engine's word for it."""

MAIL = {"BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "bea", "NONE": "n"}

GONE: dict[str, JobState] = {
    "CANCELLED": JobState.CANCELLED,
    "FAILED": JobState.FAILED,
}

REQUEUE_CODE = 99
"""A job that exits with it is put back into the queue (`man sge_conf`, FORBID_RESCHEDULE)."""


class Sge(queue.Batch):
    system = "sge"
    prefix = "#$"
    submit, receipt = "qsub", "-terse"
    end = "qdel"
    example_size = "-pe NAME 2"
    down = "Connection refused|got (select|send) error"
    unconfigured = "commlib error|Unable to initialize environment"
    gone = GONE
    point = '$(sed -n "${SGE_TASK_ID}p" todo)'  # its tasks count from 1, and none is left out
    # -notify: USR2 comes before the end, whether by qdel or by a limit. A suspension is announced
    # by USR1, which is then taken for the end: better saved once too often.
    signals = (("USR1", "checkpoint"), ("USR2", "stopped"), ("TERM", "stopped"))
    requeue_code = REQUEUE_CODE
    ours = ("-o ", "-notify", "-r ")
    launchers = ("auto", "mpirun")

    def check(self, spec: JobSpec) -> None:
        if "time" in spec.native:
            parse_seconds(spec.native["time"])
        if "mail-type" in spec.native:
            translate_mail_type(spec.native["mail-type"])
        for item in spec.native["l"].split(",") if "l" in spec.native else ():
            name, _, text = item.partition("=")
            if not (name and text):
                raise UsageError(
                    f"-l {item}: it has no value", hint="-l h_vmem=15G, -l exclusive=TRUE"
                )
        for name in ("l", "queue", "project", "account", "mail-user", "job-name"):
            if name in spec.native:
                queue.check_value(OPTIONS[name], spec.native[name])

    def resolve_size(self, spec: JobSpec) -> JobSpec:
        """Grid Engine counts slots, one rank each. UsageError for more ranks than slots."""
        _, _, given = spec.native.get("pe", "").rpartition(" ")
        slots = int(given) if given.isdecimal() else 1
        if spec.ranks > slots:
            raise UsageError(
                f"--ranks {spec.ranks} do not fit into {count(slots, 'slot')}",
                hint=f"ask for them with -pe NAME {spec.ranks}",
            )
        return replace(spec, ranks=spec.ranks or slots)

    def directives(self, job: Job) -> list[str]:
        native = job.spec.native
        name = native.get("job-name", queue.make_job_name(job))
        lines = [
            f"-N {queue.check_value('--job-name', name if name[:1].isalpha() else f'j{name}')}",
            "-S /bin/sh",
            "-cwd",
            "-j y",
            "-o batch.out",
            "-notify",
            f"-r {'y' if 'requeue' in native else 'n'}",
        ]
        if job.spec.is_sweep:
            lines.append(f"-t 1-{len(job.processes)}")
            if most := parse_concurrency(job.spec.array):
                lines.append(f"-tc {most}")
        if "pe" in native:
            pe, _, slots = native["pe"].rpartition(" ")
            lines.append(f"-pe {queue.check_value('-pe', pe)} {queue.check_value('-pe', slots)}")
        if "l" in native:
            lines.append(f"-l {queue.check_value('-l', native['l'])}")
        if "time" in native:
            lines.append(f"-l h_rt={parse_seconds(native['time'])}")
        if "mail-type" in native:
            lines.append(f"-m {translate_mail_type(native['mail-type'])}")
        for option in ("queue", "project", "account", "mail-user"):
            if option in native:
                lines.append(
                    f"{OPTIONS[option]} {queue.check_value(f'--{option}', native[option])}"
                )
        return lines

    def read_queue_state(self, state: str, reason: str) -> tuple[JobState, str]:
        """qstat's letters: `q` waits (`h` held, `E` in error), all else is some kind of running."""
        if "E" in state:
            return JobState.QUEUED, f"in error ({state}): `qstat -j` on the login node shows why"
        if "q" in state:
            return JobState.QUEUED, "held" if "h" in state else "waiting"
        return JobState.RUNNING, ""

    def warn_after(self, job: Job) -> float:
        if job.spec.pass_signal:
            return 0  # as the site says: USR1 for -l s_rt, USR2 before the end
        limit = find_time_limit(job.spec)
        return max(1, limit - queue.choose_lead(job.spec)) if limit else 0

    def pass_on(self, secrets: Sequence[str]) -> list[str]:
        return [f"-v {','.join(secrets)}"] if secrets else []

    def interactive_argv(self, job: Job, words: Sequence[str]) -> tuple[str, ...]:
        ours = (*self.ours, "-j ", "-S ", "-cwd")
        lines = [line for line in self.directives(job) if not line.startswith(ours)]
        return ("qrsh", "-now", "no", *(word for line in lines for word in line.split()), *words)


def parse_seconds(text: str) -> int:
    """`12:00:00`. Slurm would read a bare number as minutes, Grid Engine as seconds."""
    match = re.fullmatch(r"(\d+):(\d\d?):(\d\d?)", text)
    if match is None:
        raise UsageError(f"--time {text!r} is not HOURS:MINUTES:SECONDS", hint="--time 12:00:00")
    hours, minutes, rest = map(int, match.groups())
    return hours * 3600 + minutes * 60 + rest


def find_time_limit(spec: JobSpec) -> int:
    """Seconds until the job is killed: `--time`, or h_rt in `-l`; 0 where none was asked for."""
    if "time" in spec.native:
        return parse_seconds(spec.native["time"])
    match = re.search(r"\bh_rt=(\d+)(?::(\d+):(\d+))?(?:,|$)", spec.native.get("l", ""))
    if match is None:
        return 0
    if match[2] is None:
        return int(match[1])
    return int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])


def translate_mail_type(text: str) -> str:
    """Letters for -m, from Slurm's words (`BEGIN,END`) or as they are."""
    words = text.upper().split(",")
    if all(word in MAIL for word in words):
        letters = "".join(MAIL[word] for word in words)
        return "".join(dict.fromkeys(letters))
    if re.fullmatch("[beasn]+", text):
        return text
    raise UsageError(
        f"--mail-type {text!r} is unknown", hint=f"some of: {', '.join(MAIL)}, or letters of -m"
    )
