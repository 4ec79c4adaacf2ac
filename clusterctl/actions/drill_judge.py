"""What came of a round of a drill: what was lost, and what was not as expected. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterctl.actions.drill_faults import FAULTS, Strike
from clusterctl.batch.direct import MIRROR_INTERVAL
from clusterctl.core.job import Job, JobState

SOON = 15.0
"""Seconds in which clusterctl is meant to report a lost node. The table shows how long it took: a
busy machine makes no miss of it."""
_STEP = re.compile(r"^(from|step) (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Round:
    """The result. `reported`: seconds until clusterctl reported the fault; None: it did not.
    `misses` is empty if everything was as expected."""

    strike: Strike
    reported: float | None
    reason: str
    outcome: str
    lost: float
    """Seconds of work that were repeated."""
    left: tuple[str, ...]
    misses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a round has shown. `outputs`: what each rank has printed, for each job."""

    reported: float | None
    said: str
    outcome: str
    pace: float
    """Seconds that a step took."""
    steps: int
    jobs: Sequence[Job]
    outputs: Sequence[Mapping[str, str]]
    left: tuple[str, ...] = ()


def judge(strike: Strike, seen: Seen) -> Round:
    """The result of a round, with everything that is not as expected."""
    fault, misses = FAULTS[strike.fault], []
    first, last = seen.jobs[0], seen.jobs[-1]
    pattern = fault.reason.replace("{node}", re.escape(strike.node))
    found = re.search(f"^.*(?:{pattern}).*$", f"{first.reason}\n{seen.said}", re.MULTILINE)
    reason = first.reason or (found[0] if found else "")
    if not found:
        misses.append(f"wrong reason: {reason or 'none'}")
    if fault.harm and not fault.passes and seen.reported is None:
        misses.append("not reported")
    lost = _follow_steps(seen, misses) * seen.pace
    final = f"weights {compute_weights(seen.steps, last.ranks)}\n"
    if last.state is not JobState.SUCCEEDED:
        misses.append(f"job {last.id} is {last.state.value}: {last.reason}")
    elif not seen.outputs[-1] or not all(final in text for text in seen.outputs[-1].values()):
        misses.append("the weights are not those of an undisturbed run")
    if lost > 2 * MIRROR_INTERVAL:
        misses.append(f"{lost:.0f} s of work were lost")
    misses += [f"left behind: {item}" for item in seen.left]
    return Round(strike, seen.reported, reason, seen.outcome, lost, seen.left, tuple(misses))


def compute_weights(steps: int, ranks: int) -> str:
    """The final weights of an undisturbed run of templates/drill/train.py."""
    state: list[object] = [0, ""]
    for step in range(steps):
        told = repr([[rank, state] for rank in range(ranks)])
        state = [step + 1, hashlib.sha256(told.encode()).hexdigest()]
    return str(state[1])


def describe_reports(rounds: Sequence[Round]) -> str:
    """How soon lost nodes were reported, as far as they were; "" where none was."""
    losses = [item for item in rounds if FAULTS[item.strike.fault].harm]
    times = [item.reported for item in losses if item.reported is not None]
    if not times:
        return ""
    late = sum(seconds > SOON for seconds in times)
    return (
        f"lost nodes were reported after at most {max(times):.1f} s,"
        f" {len(times) - late} of {len(times)} within {SOON:g} s"
    )


def _follow_steps(seen: Seen, misses: list[str]) -> int:
    """How many steps were repeated. The lines of all steps must be there."""
    again = 0
    for rank in sorted({name for texts in seen.outputs for name in texts}):
        reached = 0
        for job, texts in zip(seen.jobs, seen.outputs, strict=True):
            at = -1
            for word, digits in re.findall(_STEP, texts.get(rank, "")):
                number = int(digits)
                if word == "from":
                    again = max(again, reached - number)
                elif number != at + 1:
                    misses.append(f"job {job.id}, {rank}: lines {at + 1} to {number} were lost")
                at = reached = number
    return again
