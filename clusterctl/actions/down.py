"""`down`: saves what is worth keeping, removes everything, and proves that nothing is left."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl import bootstrap, providers
from clusterctl.actions import Tell, check_name, connected, key_mark, silent
from clusterctl.actions.jobs import Fetched, fetch_from
from clusterctl.errors import ClusterctlError, LeftoverError, RecordError, UsageError, reason
from clusterctl.insight import cost
from clusterctl.jobs import control, outputs
from clusterctl.jobs.follow import Follower, complete
from clusterctl.jobs.interrupts import Interrupts
from clusterctl.jobs.stage import human
from clusterctl.jobs.start import ranked
from clusterctl.model import (
    Charge,
    Cluster,
    ClusterSpec,
    Job,
    JobState,
    NodeResult,
    Phase,
    Role,
    clock,
)
from clusterctl.providers import billing
from clusterctl.state import ClusterLock, Store
from clusterctl.transport.deadline import Deadline
from clusterctl.transport.fold import fold, ranges
from clusterctl.transport.pool import Pool

LIMIT = 120.0
"""Seconds that all that comes before destroying may take, without the answers of a person and
without fetching: machines are billed meanwhile."""
LOOK_LIMIT = 60.0
"""Of these, seconds for looking for outputs."""
END_LIMIT = 40.0
"""Seconds for ending jobs: somewhat more than one needs where a node does not answer."""
SAVE_LIMIT = 60.0
"""Seconds for saving logs."""
SLICE = 2.0
"""Seconds that the log of a job gets at least, before it is the next one's turn."""

NAMED = 5
"""Jobs that are named one by one."""

CLEAN_LIMIT = 60.0

_ACT = {"down": "take the cluster down", "detach": "remove our files from its machines"}
"""What a verb does, in its questions."""

Ask = Callable[[str], bool]
"""Asks a yes-or-no question; always yes where there is nobody to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfetched:
    """What happens to outputs that were never fetched. By default they keep the cluster alive."""

    fetch: bool = False
    """They are brought here first, into `job-N`."""
    discard: bool = False
    """They may go; with `fetch`, those that cannot be brought."""
    ask: Ask | None = None
    """Asks whether they may go; None: there is nobody to ask."""


@dataclass(frozen=True, slots=True)
class Down:
    """What was taken down. `hours` is how long the cluster lived; 0, like the number of nodes,
    where its record was lost."""

    name: str
    nodes: int
    hours: float
    jobs_cancelled: tuple[int, ...]
    unfetched: tuple[tuple[int, int], ...]
    """Jobs with outputs that went unfetched, and how many bytes they were."""
    fetched: tuple[Fetched, ...] = ()
    """What was brought first."""
    receipt: tuple[cost.Line, ...] = ()
    dollars: float = 0.0
    provider: str = ""


def down(
    store: Store,
    name: str,
    tell: Tell,
    ask: Ask,
    unfetched: Unfetched,
    *,
    force: bool = False,
    verb: str = "down",
) -> Down | None:
    """None when there is nothing of that name, or the person said no. `verb` is `detach` for
    machines that are not ours: there only what we have put on them goes.

    `force` saves nothing and asks nobody. Raises UsageError where outputs would be lost unasked.
    """
    check_name(name)
    with ClusterLock(store.home, name, verb, tell):
        try:
            cluster = store.cluster(name)
        except RecordError as error:
            return _without_record(store, name, error, tell, ask)
        right = "detach" if cluster.spec.provider in providers.ATTACHED else "down"
        if verb != right:
            how = "was attached" if right == "detach" else "was made by clusterctl"
            raise UsageError(f"cluster {name!r} {how}", hint=f"clusterctl {right} {name}")
        living = _living(store, cluster, tell) if cluster.charges else None
        saved = _Saved()
        if cluster.nodes and cluster.phase is not Phase.DELETING and not force:
            done = _save(store, cluster, living, tell, ask, unfetched, _ACT[verb])
            if done is None:
                return None
            saved = done
        elif right == "detach":
            saved = _Saved(cancelled=_end(store, cluster, tell))
        cluster = finish_down(store, cluster, tell, force=force)
    now = time.time()
    return Down(
        name,
        len(cluster.nodes),
        (now - cluster.created) / 3600,
        saved.cancelled,
        saved.lost,
        saved.fetched,
        cost.receipt(cluster.charges, now),
        cost.dollars(cluster.charges, now),
        cluster.spec.provider,
    )


def finish_down(store: Store, cluster: Cluster, tell: Tell, *, force: bool = False) -> Cluster:
    """The part that is safe to repeat: destroy, then let the record go; returns its last state.

    Machines go also where nothing can be written: a full disk must not keep them. `force` also lets
    go of machines that are not ours and do not answer.
    """
    cluster = replace(cluster, phase=Phase.DELETING)
    with _told(tell):
        store.save(cluster)
    store.event(cluster.name, "deleting")
    if cluster.spec.provider in providers.ATTACHED:
        let_go(store, cluster, tell, force=force)
    else:
        provider, folder = providers.load(cluster.spec.provider), store.folder(cluster.name)
        if cluster.charges:
            cluster = replace(cluster, charges=_made(provider, cluster, folder))
        provider.destroy(cluster, folder, tell)
    now = time.time()
    cluster = replace(cluster, charges=tuple(item.ended(now) for item in cluster.charges))
    how = "detached" if cluster.spec.provider in providers.ATTACHED else "taken down"
    for job in _open_jobs(store, cluster):
        with _told(tell):
            store.save_job(replace(job, state=JobState.LOST, reason=f"its cluster was {how}"))
    store.event(cluster.name, "deleted")
    with _told(tell):
        store.retire(cluster)
    return cluster


def _living(store: Store, cluster: Cluster, tell: Tell) -> Collection[str]:
    """The nodes that are billed. Raises the provider's error where it does not let us in: before a
    job is ended for a cluster that would then stay."""
    try:
        return providers.load(cluster.spec.provider).billed(cluster, store.folder(cluster.name))
    except ClusterctlError:
        _tell_price(cluster, tell)
        raise


def _tell_price(cluster: Cluster, tell: Tell) -> None:
    end = f" until {clock(cluster.deadline)}" if cluster.deadline else ""
    tell(f"nothing was ended: the machines go on at ${cost.per_hour(cluster.charges):.2f}/h{end}")


def _made(provider: providers.Provider, cluster: Cluster, folder: Path) -> tuple[Charge, ...]:
    """The charges of machines that there are, or were: an `up` that broke off has planned more, and
    those that are gone cost no more."""
    try:
        there = provider.billed(cluster, folder)
    except ClusterctlError:
        return cluster.charges
    made = {node.name for node in cluster.nodes} | provider.made(folder)
    return billing.settled(cluster, living=there, made=made, now=time.time())


def strays(store: Store, name: str) -> tuple[Cluster, ...]:
    """The clusters that run under this name and have no record, as their machines tell it."""
    folder = store.folder(name)
    return tuple(
        Cluster(
            id=id,
            spec=ClusterSpec(name=name, provider=provider, groups=()),
            phase=Phase.DELETING,
            created=time.time(),
        )
        for provider in providers.PROVIDERS
        for id in sorted(providers.load(provider).ids(folder))
    )


def _without_record(store: Store, name: str, why: RecordError, tell: Tell, ask: Ask) -> Down | None:
    """Takes down what can be found of a cluster whose record is damaged or gone."""
    found = strays(store, name)
    if not found and name not in store.names():
        if store.names():
            raise why
        return None
    tell(why.message)
    question = "outputs and logs of its jobs cannot be saved; remove it all the same?"
    if found and not ask(question):
        return None
    for cluster in found:
        tell(f"found {cluster.id} by its tags")
        finish_down(store, cluster, tell)
    shutil.rmtree(store.folder(name), ignore_errors=True)
    return Down(name, 0, 0.0, (), ())


@contextmanager
def _told(tell: Tell) -> Iterator[None]:
    """Says what could not be written, and goes on."""
    try:
        yield
    except UsageError as error:
        tell(f"{error.message}; going on without")


def let_go(store: Store, cluster: Cluster, tell: Tell, *, force: bool = False) -> None:
    """Removes our folder and our key from machines that are not ours. LeftoverError names those
    that did not answer: they still have both. With `force` that is only said."""

    def clean(name: str) -> NodeResult:
        steps = [bootstrap.removal(cluster.node(name).root, cluster.id)]
        if not cluster.batch:
            steps.append(bootstrap.shut_out(key_mark(cluster)))
        return pool.transport(name).run("\n".join([*steps, ":"]), timeout=CLEAN_LIMIT)

    with connected(store, cluster) as pool:
        failed = [result for result in pool.each(clean) if not result.ok]
    left = f"our folder and key are still there: {'; '.join(fold(failed))}"
    if failed and not force:
        raise LeftoverError(
            left,
            hint=f"`clusterctl detach {cluster.name}` again when they answer, or with --force",
        )
    if failed:
        tell(left)
    silent_ones = {result.node for result in failed}
    if cleaned := [node.name for node in cluster.nodes if node.name not in silent_ones]:
        tell(f"our files are gone from {ranges(cleaned)}")


def _open_jobs(store: Store, cluster: Cluster) -> list[Job]:
    return [job for job in store.jobs() if job.cluster_id == cluster.id and not job.state.ended]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    cancelled: tuple[int, ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    fetched: tuple[Fetched, ...] = ()


def _save(
    store: Store,
    cluster: Cluster,
    living: Collection[str] | None,
    tell: Tell,
    ask: Ask,
    unfetched: Unfetched,
    act: str,
) -> _Saved | None:
    """Ends running jobs, copies logs, and does with outputs as `unfetched` says. Nodes that do not
    answer lose their part, and it is said. `living`: those that are not gone for good; None: all.
    """
    # On machines that are not ours jobs would run on: ending those has no deadline.
    ours = cluster.spec.provider not in providers.ATTACHED
    deadline = Deadline(LIMIT if ours else math.inf)
    look = deadline.within(LOOK_LIMIT)
    jobs = [
        job
        for job in store.jobs()
        if job.cluster_id == cluster.id and (job.started or not job.state.ended)
    ]
    if not jobs:
        return _Saved()
    cancelled: tuple[int, ...] = ()
    whole = cluster
    with connected(store, cluster) as pool:
        away = silent(pool, [node.name for node in cluster.nodes], tell)
        for name, why in away.items():
            tell(f"what is on {name} cannot be saved: {why}")
        cluster = replace(cluster, nodes=tuple(n for n in cluster.nodes if n.name not in away))
        if all(node.role is Role.WORKER for node in cluster.nodes):
            lost = [
                job
                for job in jobs
                if (not job.state.ended or not job.fetched)
                and (living is None or any(place.node in living for place in job.placement))
            ]
            lines = [f"what jobs {_numbers(lost)} made cannot be looked at"] * bool(lost)
            question = f"{act} and lose what jobs {_numbers(lost)} made?"
            return _Saved() if _agree(whole, unfetched, lines, question, tell) else None
        try:
            jobs = _current(store, jobs, cluster, pool, look)
        except (ClusterctlError, OSError) as error:
            tell(f"not everything can be saved: {reason(error)}")
        found, unknown = never_fetched(jobs, cluster, pool, look)
        running = [job for job in jobs if not job.state.ended]
        with deadline.paused():
            if running and not ask(f"job {_numbers(running)} is still running; end it?"):
                return None
            lines = loss(found, unknown)
            for line in lines:
                tell(line)
            if not unfetched.fetch:
                question = f"{act} and lose these outputs?"
                if not _agree(whole, unfetched, lines, question, tell):
                    return None
        if running:
            tell(f"job {_numbers(running)} is ended")
            limit = deadline.within(END_LIMIT if ours else math.inf)
            cancelled = _cancel(store, running, cluster, pool, limit, tell)
        save_logs(store, jobs, cluster, pool, tell, min(SAVE_LIMIT, deadline.left))
        fetched: list[Fetched] = []
        if unfetched.fetch:
            for job in jobs:
                if job.fetched:
                    continue
                missing = {name: why for name, why in away.items() if name in ranked(job, whole)}
                if got := _bring(store, job, whole, pool, missing, unfetched, tell):
                    fetched.append(got)
    brought = {got.job for got in fetched}
    still = tuple((number, size) for number, size in found if number not in brought)
    return _Saved(cancelled=cancelled, lost=still, fetched=tuple(fetched))


def _cancel(
    store: Store, jobs: list[Job], cluster: Cluster, pool: Pool, deadline: Deadline, tell: Tell
) -> tuple[int, ...]:
    """Ends these jobs, all at the same time; returns those that have ended. Names those that have
    not by the deadline."""
    failed: dict[int, str] = {}
    for job in jobs:
        if not deadline.passed:
            try:
                control.ask_to_end(job, cluster, pool, deadline)
            except (ClusterctlError, OSError) as error:
                failed[job.id] = reason(error)
    ended, late = list[int](), list[Job]()
    for job in jobs:
        if job.id in failed:
            continue
        try:
            done = control.wait_for_end(job, cluster, pool, deadline)
            if done.state.ended:
                store.save_job(done)
                ended.append(job.id)
            else:
                late.append(job)
        except (ClusterctlError, OSError) as error:
            failed[job.id] = reason(error)
    for number, why in failed.items():
        tell(f"job {number} could not be ended cleanly: {why}")
    if late:
        numbers, seconds = _numbers(late), f"{deadline.seconds:.0f} s"
        tell(f"job {numbers} did not end within {seconds}: the machines are removed all the same")
    return tuple(ended)


def _agree(
    cluster: Cluster, unfetched: Unfetched, lines: Sequence[str], question: str, tell: Tell
) -> bool:
    """Whether outputs may be lost, as far as there are any (`lines`); UsageError where there is
    nobody to ask."""
    if not lines or unfetched.discard:
        return True
    if unfetched.ask:
        return unfetched.ask(question)
    if cluster.charges:
        _tell_price(cluster, tell)
    raise UsageError(
        f"{'; '.join(lines)}: cluster {cluster.name} stays",
        hint="--fetch brings outputs here first, --discard loses them",
    )


def _bring(
    store: Store,
    job: Job,
    cluster: Cluster,
    pool: Pool,
    away: Mapping[str, str],
    unfetched: Unfetched,
    tell: Tell,
) -> Fetched | None:
    """Fetches what the job has made on nodes that answer. Where that does not bring all of it, the
    error keeps the cluster alive, unless the rest may go."""
    try:
        got = fetch_from(store, store.job(job.id), cluster, pool, away=away)
        if got.brought.outputs:
            tell(f"job {job.id}: {len(got.brought.outputs)} files in {got.folder}")
        if kept := got.brought.kept:
            raise UsageError(
                f"{got.folder}/{kept[0]} is not as it was fetched, and was kept"
                + (f", as {len(kept) - 1} more" if kept[1:] else ""),
                hint="move it away, or --discard loses the file on the node",
            )
    except (ClusterctlError, OSError) as error:
        if not unfetched.discard:
            raise
        tell(f"the outputs of job {job.id} cannot be fetched: {reason(error)}")
        return None
    return got if got.brought.outputs else None


def loss(unfetched: Sequence[tuple[int, int]], unknown: Mapping[int, str]) -> list[str]:
    """What would be lost of these jobs (number, bytes): the largest by name, the others summed.
    `unknown`: jobs that could not be looked at, and why."""
    named = sorted(sorted(unfetched, key=lambda job: job[1])[-NAMED:])
    lines = [f"job {n} has outputs that were never fetched: {human(size)}" for n, size in named]
    others = [size for number, size in unfetched if (number, size) not in named]
    if others:
        many = "1 more job" if len(others) == 1 else f"{len(others)} more jobs"
        lines.append(f"{many} with smaller ones: {human(sum(others))} together")
    whys: dict[str, list[int]] = {}
    for number, why in unknown.items():
        whys.setdefault(why, []).append(number)
    for why, numbers in whys.items():
        which = ", ".join(str(number) for number in numbers)
        lines.append(f"job {which} may have outputs that were never fetched: {why}")
    return lines


def _end(store: Store, cluster: Cluster, tell: Tell) -> tuple[int, ...]:
    """Ends open jobs unasked, as far as nodes answer: on machines that are not ours they would go
    on after us. Returns those that were ended."""
    jobs = _open_jobs(store, cluster)
    if not jobs:
        return ()
    ended: list[int] = []
    with connected(store, cluster) as pool:
        away = silent(pool, [node.name for node in cluster.nodes], tell)
        here = replace(cluster, nodes=tuple(n for n in cluster.nodes if n.name not in away))
        for job in jobs:
            try:
                if cluster.launcher.name in away:
                    control.sweep(job, cluster, pool, end=True)
                else:
                    store.save_job(control.cancel(job, here, pool))
                    ended.append(job.id)
            except (ClusterctlError, OSError) as error:
                tell(f"job {job.id} could not be ended cleanly: {reason(error)}")
    return tuple(ended)


def save_logs(
    store: Store,
    jobs: Sequence[Job],
    cluster: Cluster,
    pool: Pool,
    tell: Tell,
    limit: float = SAVE_LIMIT,
) -> None:
    """Brings the rest of these jobs' output into the state home, as far as `limit` seconds allow
    for all of them; what is not saved is named."""
    deadline = Deadline(limit)
    late = [job for job in jobs if not complete(store.job_folder(job.id))]
    # In turns: a log that takes all the time must not cost the others theirs.
    while late and not deadline.passed:
        turn, late = late, []
        for index, job in enumerate(turn):
            share = max(SLICE, deadline.left / (len(turn) - index))
            if not _save_log(store, job, cluster, pool, min(share, deadline.left), tell):
                late.append(job)
    if late:
        tell(f"the logs of job {_numbers(late)} are incomplete: {limit:.0f} s were not enough")


def _save_log(
    store: Store, job: Job, cluster: Cluster, pool: Pool, limit: float, tell: Tell
) -> bool:
    """Whether more time would bring no more of it."""
    try:
        with (
            Interrupts() as interrupts,
            Follower(
                store.job(job.id), cluster, pool, store.job_folder(job.id), interrupts
            ) as follower,
        ):
            for _ in follower.batches(until_ended=False, replay=False, limit=limit):
                pass
            if cluster.launcher.name in follower.lost:
                tell(
                    f"the logs of job {job.id} may be incomplete: {cluster.launcher.name} does not"
                    " answer"
                )
            return not follower.cut_short
    except (ClusterctlError, OSError) as error:
        tell(f"the logs of job {job.id} could not be saved: {reason(error)}")
        return True


def _current(
    store: Store, jobs: list[Job], cluster: Cluster, pool: Pool, deadline: Deadline
) -> list[Job]:
    going = [job for job in jobs if not job.state.ended]
    asked = control.refresh_all(going, cluster, pool, deadline=deadline)
    fresh = {job.id: job for job in asked}
    for job in going:
        if fresh[job.id] != job:
            store.save_job(fresh[job.id])
    return [fresh.get(job.id, job) for job in jobs]


def never_fetched(
    jobs: list[Job], cluster: Cluster, pool: Pool, deadline: Deadline
) -> tuple[list[tuple[int, int]], dict[int, str]]:
    """Jobs with outputs on these nodes that were never fetched, and how many bytes they are. Then
    those of which that is not known by the deadline, and why."""
    found: list[tuple[int, int]] = []
    unknown: dict[int, str] = {}
    for job in jobs:
        if job.fetched:
            continue
        if deadline.passed:
            unknown[job.id] = f"not looked at within {deadline.seconds:g} s"
            continue
        try:
            made = outputs.find(
                job, cluster, pool, timeout=min(outputs.LIST_TIMEOUT, deadline.left)
            )
        except (ClusterctlError, OSError) as error:
            unknown[job.id] = reason(error)
            continue
        if made:
            found.append((job.id, sum(output.size for output in made)))
    return found, unknown


def _numbers(jobs: list[Job]) -> str:
    return ", ".join(str(job.id) for job in jobs)
