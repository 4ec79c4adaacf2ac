"""Outputs that were never fetched when their machines go: finds, fetches or gives them up."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.actions import shared_folder
from clusterctl.actions.common import Connected, Unfetched, connect_all
from clusterctl.actions.costs import report_price
from clusterctl.actions.jobs import (
    GONE,
    SAVE_LIMIT,
    Fetched,
    fetch_from,
    list_numbers,
    refresh_records,
    save_logs,
)
from clusterctl.batch.system import load_system
from clusterctl.core.clock import Deadline
from clusterctl.core.job import GRACE, Job
from clusterctl.core.model import Cluster, Consent, Phase, Reporter, Role
from clusterctl.core.text import count, format_bytes
from clusterctl.errors import (
    ClusterctlError,
    NodeUnreachable,
    RecordError,
    UsageError,
    describe_reason,
)
from clusterctl.jobs import control, fetch
from clusterctl.state.store import Store

UNRECORDED = "has no record here that can be read: it was removed, or is damaged"
NAMED = 5
"""Jobs that are named one by one."""


def list_unseen(
    store: Store, cluster: Cluster, jobs: Sequence[Job], living: Collection[str] | None
) -> list[str]:
    """What may be lost of which nothing can be asked, for its launcher does not answer: outputs of
    jobs, of which the launcher may have the only copies, and the files of a shared folder that was
    in use. `living`: nodes that are not gone for good; None: all."""
    first = cluster.launcher.name
    lost = [
        job
        for job in jobs
        if not job.purpose
        and (not job.state.ended or not job.fetched)
        and (
            living is None
            or any(place.node in living or first in living for place in job.placement)
        )
    ]
    things = [f"the outputs of job {list_numbers(lost)}"] * bool(lost)
    if (living is None or first in living) and shared_folder.was_usable(store, cluster):
        things.append(f"the files in the shared folder {cluster.shared}")
    return [f"cannot check {' and '.join(things)}"] * bool(things)


def find_unfetched(
    at: Connected,
    jobs: Sequence[Job],
    deadline: Deadline,
    living: Collection[str] | None = None,
) -> tuple[list[tuple[int, int]], dict[int, str]]:
    """Jobs with outputs on these nodes that were never fetched, and how many bytes they are. Then
    those of which that is not known by the deadline, and why. Of nodes that are away, or were made
    anew, the launcher's copies count; those that are away and `living` may have more."""
    found: list[tuple[int, int]] = []
    unknown: dict[int, str] = {}
    for job in jobs:
        if job.fetched:
            continue
        if deadline.passed:
            unknown[job.id] = f"not checked within {deadline.seconds:g} s"
            continue
        try:
            there = fetch.find_outputs(
                job, at.here, at.pool, timeout=min(fetch.LIST_TIMEOUT, deadline.left)
            )
            gone = {place.node for place in job.placement if place.node in at.away}
            gone.update(there.lost)
            copies = fetch.find_copies(job, at.here, at.pool, gone, lambda line: None)
            made = there.require_all() + copies
            silent = list_living(gone.intersection(at.away), living)
            silent -= control.find_saved(job, at.here, at.pool) if silent else set()
        except (ClusterctlError, OSError) as error:
            unknown[job.id] = describe_reason(error)
            continue
        if made:
            found.append((job.id, sum(output.size for output in made)))
        if silent:
            unknown[job.id] = f"{', '.join(sorted(silent))} did not answer"
        copied = {output.node for output in copies}
        if job.started and (lost := [name for name in there.lost if name not in copied]):
            at.report(f"job {job.id}: {', '.join(lost)} {GONE}")
    return found, unknown


def list_living(names: Iterable[str], living: Collection[str] | None) -> set[str]:
    return {name for name in names if living is None or name in living}


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
    cluster: Cluster,
    unfetched: Unfetched,
    lines: Sequence[str],
    report: Reporter,
    running: Sequence[Job] = (),
) -> bool:
    """Whether what these lines name may be lost, if anything; UsageError where there is nobody to
    ask. `running`: jobs that end if so."""
    if not lines:
        return True
    if len(lines) > 1 or unfetched.discard or unfetched.ask:  # else the error has the only one
        for line in lines:
            report(line)
    if unfetched.discard:
        return True
    if unfetched.ask:
        return unfetched.ask("continue, and lose these files?")
    if cluster.charges:
        report_price(cluster, report)
    stopped = cluster.phase is Phase.STOPPED
    first = f"after `clusterctl start {cluster.name}`, " * stopped
    raise UsageError(
        f"{lines[0] if len(lines) == 1 else 'several files were not fetched'};"
        f" keeping cluster {cluster.name}",
        hint=f"{first}--fetch saves them first, --discard deletes them"
        + f"; both end job {list_numbers(running)}, which is still running" * bool(running),
    )


def bring(
    at: Connected,
    jobs: Sequence[Job],
    unfetched: Unfetched,
    living: Collection[str] | None = None,
    unrecorded: Sequence[int] = (),
) -> list[Fetched]:
    """Fetches what these jobs have made on nodes that answer, if that is asked for; returns what
    has come in full. Where that is not all of it, the first error keeps the cluster alive, unless
    the rest may go. `living`: as for `save`; `unrecorded`: jobs without a record."""
    if not unfetched.fetch:
        return []
    whole: list[Fetched] = []
    node = (at.here.workers or at.here.nodes)[0]
    failed: list[tuple[int, Exception]] = [
        (
            number,
            RecordError(
                f"job {number} {UNRECORDED}",
                hint=f"`clusterctl cp {node.name}:{node.root}/jobs/{number}/work FOLDER` copies its"
                " files from a node; with --discard, the others are lost",
            ),
        )
        for number in unrecorded
    ]
    for job in jobs:
        if job.fetched:
            continue
        try:
            got = fetch_from(at, at.store.read_job(job.id))
        except (ClusterctlError, OSError) as error:
            failed.append((job.id, error))
            continue
        if got.brought.outputs:
            at.report(f"job {job.id}: {count(len(got.brought.outputs), 'file')} in {got.folder}")
        troubles = list(got.failed)
        if silent := sorted(list_living(got.missing, living)):
            troubles.append(got.make_missing_error(silent))
        if kept := got.brought.kept:
            more = f", as {len(kept) - 1} more" if kept[1:] else ""
            troubles.append(
                UsageError(
                    f"{got.folder}/{kept[0]} was changed since it was fetched, and was kept{more}",
                    hint="move it away, or --discard loses the file on the node",
                )
            )
        failed += [(job.id, trouble) for trouble in troubles]
        if got.brought.outputs and not troubles:
            whole.append(got)
    named = failed if unfetched.discard else failed[1:]
    for number, trouble in named:
        at.report(f"the outputs of job {number} cannot be fetched: {describe_reason(trouble)}")
    if len(named) < len(failed):
        raise failed[0][1]
    return whole


# -------------------------------------------------------------------------------------------------
# What is kept before machines go: jobs are ended, logs saved, outputs fetched or given up.


LIMIT = 120.0
"""Seconds that all that comes before destroying may take, without the answers of a person, without
fetching, and without what jobs take to save (--grace): machines are billed meanwhile."""

LOOK_LIMIT = 60.0
"""Of these, seconds for looking for outputs."""

END_LIMIT = 40.0
"""Seconds for ending jobs: somewhat more than one needs where a node does not answer."""


def save(
    store: Store,
    cluster: Cluster,
    living: Collection[str] | None,
    report: Reporter,
    ask: Consent,
    unfetched: Unfetched,
) -> dict[str, Any] | None:
    """Ends running jobs, copies logs, and does with outputs as `unfetched` says; returns what
    became of them as fields of a DownResult, None where somebody said no. Nodes that do not answer
    lose their part, and it is said. `living`: those that are not gone for good; None: all.
    """
    # On machines that are not ours jobs would run on: ending those has no deadline.
    jobs = store.list_cluster_jobs(cluster)
    saving = max((job.spec.save_time for job in jobs if not job.state.ended), default=GRACE) - GRACE
    deadline = Deadline(LIMIT + saving if not cluster.attached else math.inf)
    look = deadline.limit(LOOK_LIMIT)
    shares = shared_folder.was_usable(store, cluster)
    unrecorded = store.list_unrecorded_jobs(cluster)
    if not (jobs or shares or unrecorded):
        return {}
    unseen = list_unseen(store, cluster, jobs, living)
    unseen += [f"job {number} {UNRECORDED}" for number in unrecorded]
    if cluster.phase is Phase.STOPPED:
        report(
            f"its machines are stopped: `clusterctl start {cluster.name}` if you need their files"
        )
        return {} if _agree(cluster, unfetched, unseen, report) else None
    if living is not None and not living:
        if unrecorded or any(not (job.purpose or job.fetched) for job in jobs):
            report("its machines have ended: files that were not fetched are lost")
        return {}
    with connect_all(store, cluster, report) as at:
        for name, why in at.away.items():
            report(f"files on {name} cannot be saved: {why}")
        if all(node.role is Role.WORKER for node in at.here.nodes):
            return {} if _agree(cluster, unfetched, unseen, report) else None
        try:
            going = [job for job in jobs if not job.state.ended]
            fresh = refresh_records(store, going, at.here, at.pool, deadline=look)
            jobs = [fresh.get(job.id, job) for job in jobs]
        except (ClusterctlError, OSError) as error:
            report(f"not everything can be saved: {describe_reason(error)}")
        found, unknown = find_unfetched(at, jobs, look, living)
        unknown.update(dict.fromkeys(unrecorded, f"it {UNRECORDED}"))
        loss = describe_loss(found, unknown)
        if shares:
            loss += filter(None, [shared_folder.look(at, look.left).text])
        running = [job for job in jobs if not job.state.ended]
        if running and not (unfetched.end or unfetched.fetch or unfetched.discard):
            loss.append(f"job {list_numbers(running)} is still running")
        with deadline.pause():
            if running and not ask(f"job {list_numbers(running)} is still running; end it?"):
                return None
            if not (unfetched.fetch or _agree(cluster, unfetched, loss, report, running)):
                return None
        limit = deadline.limit(END_LIMIT + saving if not cluster.attached else math.inf)
        cancelled = _cancel(at, running, limit)
        save_logs(at, jobs, min(SAVE_LIMIT, deadline.left))
        # What they have saved as they ended.
        new = [job for job in running if job.id not in {**dict(found), **unknown}]
        if new and not (unfetched.fetch or unfetched.discard):
            more, unknown = find_unfetched(at, new, deadline.limit(LOOK_LIMIT), living)
            found += more
            with deadline.pause():
                if not _agree(cluster, unfetched, describe_loss(more, unknown), report):
                    return None
        fetched = bring(at, jobs, unfetched, living, unrecorded)
        shared = None
        if shares and unfetched.fetch:
            try:
                shared = shared_folder.bring(at, Path())
            except ClusterctlError as error:
                if not unfetched.discard:
                    raise
                report(describe_reason(error))
    brought = {got.job for got in fetched}
    return {
        "jobs_cancelled": cancelled,
        "unfetched": tuple((number, size) for number, size in found if number not in brought),
        "fetched": tuple(fetched),
        "shared": shared,
    }


def end_jobs(store: Store, cluster: Cluster, report: Reporter) -> tuple[int, ...]:
    """Ends open jobs unasked, as far as nodes answer: on machines that are not ours they would go
    on after us. Returns those that were ended."""
    jobs = store.list_open_jobs(cluster)
    if not jobs:
        return ()
    ended: list[int] = []
    with connect_all(store, cluster, report) as at:
        for job in jobs:
            try:
                if cluster.launcher.name in at.away:
                    control.kill_processes(job, cluster, at.pool)
                else:
                    store.save_job(control.cancel(job, at.here, at.pool, report))
                    ended.append(job.id)
            except (ClusterctlError, OSError) as error:
                report(f"job {job.id} could not be ended cleanly: {describe_reason(error)}")
    return tuple(ended)


def _cancel(at: Connected, jobs: list[Job], deadline: Deadline) -> tuple[int, ...]:
    """Ends these jobs, all at the same time; returns those that have ended. Names those that have
    not by the deadline."""
    if jobs:
        at.report(f"ending job {list_numbers(jobs)}")
    failed: dict[int, str] = {}
    for job in jobs:
        if not deadline.passed:
            try:
                control.ask_to_end(job, at.here, at.pool, deadline)
            except (ClusterctlError, OSError) as error:
                failed[job.id] = describe_reason(error)
    ended, late = list[int](), list[Job]()
    for job in jobs:
        if job.id in failed:
            continue
        try:
            done = control.wait_for_end(job, at.here, at.pool, deadline, at.report)
            if done.state.ended:
                at.store.save_job(done)
                ended.append(job.id)
            else:
                late.append(job)
        except (ClusterctlError, OSError) as error:
            failed[job.id] = describe_reason(error)
    for number, why in failed.items():
        at.report(f"job {number} could not be ended cleanly: {why}")
    if failed and not load_system(at.here.system).places_ranks:
        numbers, name = ", ".join(map(str, failed)), at.here.name
        raise NodeUnreachable(
            f"job {numbers} may still be running; keeping cluster {name}",
            hint=f"try again when the queue answers; `clusterctl detach --force {name}` leaves it",
            transient=True,
        )
    if late:
        numbers, seconds = list_numbers(late), f"{deadline.seconds:.0f} s"
        at.report(f"job {numbers} did not end within {seconds}: removing the machines anyway")
    return tuple(ended)
