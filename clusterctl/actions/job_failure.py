"""Why a job failed, and what to do, in words."""

from __future__ import annotations

from clusterctl.errors import ClusterctlError, LaunchError, NodeUnreachable
from clusterctl.insight import messages
from clusterctl.job_model import Job, JobState
from clusterctl.jobs import missing_files
from clusterctl.schedulers.job_state import NO_RANK, has_never_started, is_disk_full
from clusterctl.state import Store

REMARKS = 64_000
"""Bytes at the end of a failed rank's stderr that are searched for the cause."""


def suggest(store: Store, job: Job) -> str:
    """The line in which the rank that failed first says why, with what it means and what to do; ""
    for what is not known."""
    failure = job.failure
    if job.state is not JobState.FAILED or failure is None:
        return ""
    path = store.locate_job_folder(job.id) / "out" / failure.node / f"rank-{failure.rank}.err"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - REMARKS))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    found = messages.find(text)
    if (found is None or found.line in missing_files.find_lines(text)) and (
        why := missing_files.explain(text)
    ):
        return why
    if found is None:
        return messages.explain_exit(failure.exit_code, job)
    return f"{found.line}\n  {found.message.cause}; {messages.advise(found.message.advice, job)}"


def explain_failure(job: Job, said: str = "") -> ClusterctlError | None:
    """Why a job failed or was lost without an exit code of its program's; None where it has one, or
    ended otherwise. What its launcher exits with is no code of the program's. `said`: what the
    launcher said of a job that never started."""
    if job.state is JobState.LOST:
        return LaunchError(
            f"job {job.id} was lost: {job.reason}",
            hint="check the launcher with `clusterctl status --live`; then"
            f" `clusterctl rerun {job.id} --resume` continues from the job's files",
        )
    if job.state is not JobState.FAILED or job.program_exit_code is not None:
        return None
    kind: type[ClusterctlError] = LaunchError
    if has_never_started(job):
        what = f"could not be started: {job.reason.removeprefix(f'{NO_RANK}: ') or NO_RANK}"
        hint = "`clusterctl run --dry-run …` shows the command and the reason for each flag"
    else:
        look = "check the nodes with `clusterctl status --live`"
        if job.hangs and job.hangs[-1].attempt == job.attempt:
            look = f"`clusterctl doctor {job.id}` shows where its ranks stood"
        what = f"failed: {job.reason}"
        hint = f"{look}; then `clusterctl rerun {job.id} --resume` continues from the job's files"
        if -1 in job.survivors.values():
            kind = NodeUnreachable
    if is_disk_full(job):
        hint = "free space there: `clusterctl ssh NODE -- df -h`"
    return kind(f"job {job.id} {what}" + (f"\n{said}" if said else ""), hint=hint)


def describe_attempt(job: Job) -> str:
    """That a job has begun again: it failed, or the batch system may have put it back."""
    tries = job.spec.retries + 1
    if job.attempt > tries or "requeue" in job.spec.native:
        return f"job {job.id} runs again: attempt {job.attempt}"
    why = f": {job.reason}" if job.reason else ""
    return f"job {job.id} failed{why}; attempt {job.attempt} of {tries}"
