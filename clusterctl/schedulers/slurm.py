"""Slurm: sbatch, squeue, scancel. https://slurm.schedmd.com/sbatch.html"""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterctl.errors import UsageError
from clusterctl.model import Job, JobSpec, JobState
from clusterctl.schedulers import batch, written

TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|-1|infinite|unlimited", re.I | re.A)
"""What --time takes: https://slurm.schedmd.com/sbatch.html#OPT_time"""

SIGNAL = re.compile(r"(?:[BR]:)?(?:(?:SIG)?USR1|10)(?:@(\d+))?", re.I | re.A)
"""What --signal takes, as far as our script understands it:
https://slurm.schedmd.com/sbatch.html#OPT_signal"""

QUEUE: dict[str, JobState] = {
    "PENDING": JobState.QUEUED,
    "CONFIGURING": JobState.QUEUED,
    "REQUEUED": JobState.QUEUED,
    "REQUEUE_FED": JobState.QUEUED,
    "REQUEUE_HOLD": JobState.QUEUED,
    "RESV_DEL_HOLD": JobState.QUEUED,
    "SPECIAL_EXIT": JobState.QUEUED,
}
"""Every other state of a job that squeue lists is some kind of running."""

HOPELESS = re.compile(
    r"BadConstraints|PartitionConfig|PartitionTimeLimit|Invalid(Account|QOS)|MaxMemPerLimit"
    r"|(Account|QOS)NotAllowed|DependencyNeverSatisfied|ReservationDeleted"
    r"|(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?"
)
"""Reasons for which a job waits that no free node will end.
https://slurm.schedmd.com/job_reason_codes.html"""
HELD = re.compile("JobHeld(Admin|User)|JobHoldMaxRequeue")

GONE: dict[str, JobState] = {
    "CANCELLED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "FAILED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "PREEMPTED": JobState.FAILED,
    "REVOKED": JobState.FAILED,
}


class Slurm(batch.Batch):
    system = "slurm"
    prefix = "#SBATCH"
    submit, receipt = "sbatch", "--parsable"
    end = "scancel"
    down = "connect failure"
    gone = GONE
    signals = (("USR1", "checkpoint"), ("TERM", "stopped"))
    ours = ("--output=", "--open-mode=", "--signal=", "--no-requeue", "--requeue")

    def check(self, spec: JobSpec) -> None:
        check(spec)

    def directives(self, job: Job) -> list[str]:
        return directives(job)

    def in_queue(self, state: str, reason: str) -> tuple[JobState, str]:
        if HOPELESS.fullmatch(reason):
            reason += " (waiting does not help: cancel it and ask for something else)"
        elif HELD.fullmatch(reason):
            reason += " (held: `scontrol release` on the login node lets it go)"
        return QUEUE.get(state, JobState.RUNNING), reason

    def interactive_argv(self, job: Job, words: Sequence[str]) -> tuple[str, ...]:
        spec = job.spec
        options = [f"--{k}={v}" if v else f"--{k}" for k, v in spec.native.items()]
        command = tuple(words) or ("/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}" -l')
        return ("srun", "--pty", *size(spec), *options, *command)


def directives(job: Job) -> list[str]:
    """The words after #SBATCH. Paths are relative to the job's folder, where sbatch is called."""
    spec = job.spec
    lines = [
        f"--job-name={batch.value('--job-name', spec.native.get('job-name', batch.job_name(job)))}",
        "--output=batch.out",
        "--open-mode=append",
    ]
    lines += size(spec)
    for name, text in spec.native.items():
        if name in ("job-name", "requeue", "signal"):
            continue
        lines.append(f"--{name}={batch.value(f'--{name}', text)}" if text else f"--{name}")
    lines.append("--requeue" if "requeue" in spec.native else "--no-requeue")
    lines.append(f"--signal=B:USR1@{warning(spec)}")
    return lines


def warning(spec: JobSpec) -> int:
    """Seconds before its time limit at which the script is warned. Without `B:` Slurm would warn
    the ranks alone, and only the script can put the job back into the queue."""
    match = SIGNAL.fullmatch(spec.native.get("signal", f"USR1@{batch.LEAD}"))
    if match is None:
        raise UsageError(
            f"--signal {spec.native['signal']} cannot be passed on",
            hint="--signal USR1@SECONDS says how early the job is warned; programs get SIGTERM",
        )
    return int(match[1] or batch.LEAD)


def size(spec: JobSpec) -> list[str]:
    """How many nodes and tasks."""
    lines = [f"--nodes={spec.nodes}"] if spec.nodes else []
    if spec.ranks_per_node:
        lines.append(f"--ntasks-per-node={spec.ranks_per_node}")
    if spec.ranks:
        lines.append(f"--ntasks={spec.ranks}")
    return lines


def check(spec: JobSpec) -> None:
    """Raises UsageError for a value that Slurm cannot take."""
    for name, text in spec.native.items():
        if text:
            batch.value(written(name), text)
    warning(spec)
    limit = spec.native.get("time", "")
    if limit and not TIME.fullmatch(limit):
        raise UsageError(
            f"--time {limit!r} is no time limit of Slurm's",
            hint="minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, for example --time 12:00:00",
        )
