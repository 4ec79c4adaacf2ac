"""Outputs that were never fetched when their machines go: finds, fetches or gives them up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.actions import shared_folder
from clusterctl.actions.jobs import Fetched, fetch_from
from clusterctl.actions.running_costs import report_price
from clusterctl.errors import ClusterctlError, UsageError, describe_reason
from clusterctl.formats import count, format_bytes
from clusterctl.job_model import Job
from clusterctl.jobs import outputs
from clusterctl.model import Cluster, Consent, Reporter
from clusterctl.state import Store
from clusterctl.timeouts import Deadline
from clusterctl.transport.pool import Pool

NAMED = 5
"""Jobs that are named one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfetched:
    """What happens to outputs that were never fetched, and to the files of a shared folder. By
    default they keep the cluster alive."""

    fetch: bool = False
    """They are brought here first, into `job-N` and `shared-NAME`."""
    discard: bool = False
    """They may go; with `fetch`, those that cannot be brought."""
    ask: Consent | None = None
    """Asks whether they may go; None: there is nobody to ask."""


def agree_blind(
    cluster: Cluster,
    jobs: Sequence[Job],
    living: Collection[str] | None,
    shares: bool,
    unfetched: Unfetched,
    act: str,
    report: Reporter,
) -> bool:
    """Whether jobs may go of which nothing can be asked, for their launcher does not answer, and
    with them the shared folder, if one was in use (`shares`)."""
    lost = [
        job
        for job in jobs
        if not job.purpose
        and (not job.state.ended or not job.fetched)
        and (living is None or any(place.node in living for place in job.placement))
    ]
    things = [f"the outputs of job {list_numbers(lost)}"] * bool(lost)
    if shares and (living is None or cluster.launcher.name in living):
        things.append(f"the files in the shared folder {cluster.shared}")
    what = " and ".join(things)
    lines = [f"cannot check {what}"] * bool(things)
    return _agree(cluster, unfetched, lines, f"{act} and lose {what}?", report)


def agree_to_lose(
    cluster: Cluster, lines: Sequence[str], unfetched: Unfetched, act: str, report: Reporter
) -> bool:
    """Whether outputs (`lines`) may go. They need no word where they are fetched first."""
    if unfetched.fetch:
        return True
    if len(lines) > 1 or unfetched.discard or unfetched.ask:  # else the error has the only one
        for line in lines:
            report(line)
    return _agree(cluster, unfetched, lines, f"{act} and lose these files?", report)


def find_unfetched(
    jobs: list[Job],
    cluster: Cluster,
    pool: Pool,
    deadline: Deadline,
    away: Collection[str] = (),
) -> tuple[list[tuple[int, int]], dict[int, str]]:
    """Jobs with outputs on these nodes that were never fetched, and how many bytes they are. Then
    those of which that is not known by the deadline, and why. Of nodes that are `away`, or were
    made anew, the launcher's copies count."""
    found: list[tuple[int, int]] = []
    unknown: dict[int, str] = {}
    for job in jobs:
        if job.fetched:
            continue
        if deadline.passed:
            unknown[job.id] = f"not checked within {deadline.seconds:g} s"
            continue
        try:
            there = outputs.find(
                job, cluster, pool, timeout=min(outputs.LIST_TIMEOUT, deadline.left)
            )
            gone = {place.node for place in job.placement if place.node in away}
            copies = outputs.find_copies(job, cluster, pool, gone.union(there.lost), _say_nothing)
            made = there.require_all() + copies
        except (ClusterctlError, OSError) as error:
            unknown[job.id] = describe_reason(error)
            continue
        if made:
            found.append((job.id, sum(output.size for output in made)))
    return found, unknown


def _say_nothing(line: str) -> None: ...


def describe_loss(unfetched: Sequence[tuple[int, int]], unknown: Mapping[int, str]) -> list[str]:
    """What would be lost of these jobs (number, bytes): the largest by name, the others summed.
    `unknown`: jobs that could not be looked at, and why."""
    named = sorted(sorted(unfetched, key=lambda job: job[1])[-NAMED:])
    lines = [f"job {n} has unfetched outputs: {format_bytes(size)}" for n, size in named]
    others = [size for number, size in unfetched if (number, size) not in named]
    if others:
        more, size = count(len(others), "more job"), format_bytes(sum(others))
        lines.append(f"{more} with smaller ones: {size} together")
    whys: dict[str, list[int]] = {}
    for number, why in unknown.items():
        whys.setdefault(why, []).append(number)
    for why, numbers in whys.items():
        which = ", ".join(str(number) for number in numbers)
        lines.append(f"job {which} may have unfetched outputs: {why}")
    return lines


def _agree(
    cluster: Cluster, unfetched: Unfetched, lines: Sequence[str], question: str, report: Reporter
) -> bool:
    """Whether outputs may be lost, as far as there are any (`lines`); UsageError where there is
    nobody to ask."""
    if not lines or unfetched.discard:
        return True
    if unfetched.ask:
        return unfetched.ask(question)
    if cluster.charges:
        report_price(cluster, report)
    raise UsageError(
        f"{lines[0] if len(lines) == 1 else 'several files were not fetched'};"
        f" keeping cluster {cluster.name}",
        hint="--fetch saves them first, --discard deletes them",
    )


def bring(
    store: Store,
    jobs: Sequence[Job],
    cluster: Cluster,
    pool: Pool,
    away: Mapping[str, str],
    unfetched: Unfetched,
    report: Reporter,
) -> list[Fetched]:
    """Fetches what these jobs have made on nodes that answer, if that is asked for; returns what
    has come in full. Where that is not all of it, the first error keeps the cluster alive, unless
    the rest may go."""
    if not unfetched.fetch:
        return []
    whole: list[Fetched] = []
    failed: list[tuple[int, Exception]] = []
    for job in jobs:
        if job.fetched:
            continue
        try:
            got = fetch_from(store, store.read_job(job.id), cluster, pool, away, report=report)
        except (ClusterctlError, OSError) as error:
            failed.append((job.id, error))
            continue
        if got.brought.outputs:
            report(f"job {job.id}: {count(len(got.brought.outputs), 'file')} in {got.folder}")
        troubles = [*got.failed, *_report_kept(got)]
        failed += [(job.id, trouble) for trouble in troubles]
        if got.brought.outputs and not troubles:
            whole.append(got)
    named = failed if unfetched.discard else failed[1:]
    for number, trouble in named:
        report(f"the outputs of job {number} cannot be fetched: {describe_reason(trouble)}")
    if len(named) < len(failed):
        raise failed[0][1]
    return whole


def bring_shared(
    cluster: Cluster, pool: Pool, away: Mapping[str, str], unfetched: Unfetched, report: Reporter
) -> shared_folder.BroughtFolder | None:
    """Copies the shared folder here, if that is asked for. Where it does not come, the error keeps
    the cluster alive, unless the folder may go."""
    if not unfetched.fetch:
        return None
    try:
        return shared_folder.bring(cluster, pool, away, Path(), report)
    except ClusterctlError as error:
        if not unfetched.discard:
            raise
        report(describe_reason(error))
        return None


def _report_kept(got: Fetched) -> list[UsageError]:
    """What a person can do about files here that were kept, as an error if there are any."""
    kept = got.brought.kept
    if not kept:
        return []
    more = f", as {len(kept) - 1} more" if kept[1:] else ""
    return [
        UsageError(
            f"{got.folder}/{kept[0]} was changed since it was fetched, and was kept{more}",
            hint="move it away, or --discard loses the file on the node",
        )
    ]


def list_numbers(jobs: Sequence[Job]) -> str:
    return ", ".join(str(job.id) for job in jobs)
