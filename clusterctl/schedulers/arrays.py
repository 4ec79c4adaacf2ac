"""Sweeps as arrays of a batch system: one task per point. Pure.

Each task leaves two notes of its own, for a shared disk takes no lines from several nodes: where
it began, and how it ended. The survey reads them; the queue says when there will be no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterctl.formats import fold_runs
from clusterctl.job_model import Job, JobState
from clusterctl.schedulers import job_state

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
    ended = job_state.judge(job, f"{facts}\n{ends}")
    if ended.state is not JobState.FAILED:
        return ended
    if gone.get(word) is JobState.CANCELLED:
        return replace(ended, state=JobState.CANCELLED, failure=None, reason="")
    if word in SAYS_LITTLE:
        return ended
    return replace(ended, reason=f"{ended.reason} (the batch system says {said})")
