"""`rerun`: a job as a new one, with the same program, files and options."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.actions.common import check_name, connect_or_report, open_pool, require_ready
from clusterctl.actions.jobs import find_cluster, make_lost_cluster_error, require_handed_in
from clusterctl.actions.run import (
    OnJob,
    OnOutput,
    Prepared,
    claim_number,
    plan_job,
    run,
)
from clusterctl.batch.system import list_nodes, list_rank_nodes, load_system
from clusterctl.core.job import Job, JobSpec, JobState, ProgramKind
from clusterctl.core.model import Cluster, Phase, Reporter
from clusterctl.core.text import format_time
from clusterctl.errors import NodeUnreachable, RecordError, UsageError
from clusterctl.jobs import control, fetch, records
from clusterctl.jobs.records import Files
from clusterctl.jobs.submit import Carry
from clusterctl.launch.hostfile import drop_unknown_hosts
from clusterctl.options.values import SNAPSHOTS, are_given, matches
from clusterctl.project.tree import Tree
from clusterctl.state.files import explain_write_errors
from clusterctl.state.store import Store

# -------------------------------------------------------------------------------------------------
# `rerun --resume`: what an earlier job made, wherever it is, goes to the nodes of the next.


SPREAD = 256_000_000
"""Bytes of outputs that are copied to all nodes of a job that is resumed on the same cluster."""


class NothingSaved(RecordError):
    """Nothing is left of what the job's rank 0 wrote."""


class EarlierFiles(Struct, frozen=True):
    """Where the files of an earlier job are. `nodes` are those that it ran on, that of rank 0
    first."""

    old: Job
    cluster: Cluster | None = None
    """Where it ran, if that is still there."""
    in_place: bool = False
    """The nodes that have them are those that get them."""
    nodes: tuple[str, ...] = ()
    there: tuple[str, ...] = ()
    """The nodes that still have their files."""
    here: Mapping[str, Files] = field(default_factory=dict)
    """What was fetched from the others."""
    copies: tuple[fetch.Output, ...] = ()
    """The launcher's copies of what others had."""


def find_earlier_files(
    store: Store, old: Job, next_job: Job, target: Cluster, report: Reporter
) -> EarlierFiles:
    """Where the files of `old` are for a job that is planned for `target`. Raises RecordError where
    what its rank 0 wrote is gone, or the job has not ended."""
    cluster = find_cluster(store, old)
    if cluster is not None and cluster.id == target.id:
        cluster = target  # as far as it is there
    if cluster is None or (cluster.phase is not Phase.READY and cluster.id != target.id):
        ran = tuple(place.node for place in old.placement)
        names = records.read_fetched(store.home, old).nodes or ran
        why = f"its cluster {old.cluster!r} is gone, and none of its files were fetched"
        return _complete(store, EarlierFiles(old, nodes=names), {*names, *ran}, why, report)
    same = cluster.id == target.id
    with open_pool(store, cluster) as pool:
        locate = load_system(cluster.system).locate
        first, *_ = names = locate(old, cluster)
        same = same and locate(next_job, target)[0] == first
        away = {} if same else connect_or_report(pool, list_nodes(old, cluster), report)
        asks = cluster.launcher.name not in away
        if asks:
            old = _require_ended(control.refresh(old, cluster, pool))
        else:
            report(f"{cluster.launcher.name} does not answer: job {old.id} may still be running")
        there = control.find_staged(old, cluster.drop_nodes(away), pool)
        copies: tuple[fetch.Output, ...] = ()
        if asks and not old.fetched:
            lost = [name for name in names if name not in there]
            copies = fetch.find_copies(old, cluster, pool, lost, report)
        if same and first in there and not copies:
            found = fetch.find_outputs(old, cluster, pool).require_all()
            wrote = {output.node for output in found}
            places = list_rank_nodes(next_job, target)
            stale = _has_stale(old, found, first)
            # Each rank of an ordinary program reads the snapshot itself, the bundled ones send it
            # from rank 0. Much would take long by way of this machine; of a job with
            # --resume-args, its supervisor brings each node what it lacks.
            small = sum(output.size for output in found) <= SPREAD
            small |= bool(next_job.spec.resume_args) and stale
            needed = first in wrote and small and (stale or not wrote.issuperset(places))
            if not needed and not _changes_places(old, next_job, found, first):
                if gone := [name for name in names if name not in there]:
                    report(_describe_lost(old, gone))
                brought = bool(next_job.spec.resume_args)
                here = [] if brought else [name for name in there if name in places]
                _report_missing(old, first, here, wrote, stale, report)
                return EarlierFiles(old, cluster, in_place=True)
    source = EarlierFiles(old, cluster, nodes=tuple(names), there=there, copies=copies)
    why = f"{first}, where its rank 0 ran, has none of its files"
    return _complete(store, source, names, why, report)


def _complete(
    store: Store, source: EarlierFiles, ran: Collection[str], why: str, report: Reporter
) -> EarlierFiles:
    """With what this machine has of the nodes where it `ran` and no file is. NothingSaved, and
    `why`, where rank 0's are nowhere."""
    old, names, copied = source.old, source.nodes, {output.node for output in source.copies}
    gone = {name for name in ran if name not in {*source.there, *copied}}
    here = _find_here(store, old, gone, report)
    lost = [name for name in names if name not in {*source.there, *here, *copied}]
    if not names or names[0] in lost:
        raise NothingSaved(
            f"job {old.id} cannot be resumed: {why}",
            hint=f"`clusterctl rerun {old.id}` starts from the beginning",
        )
    if lost:
        report(_describe_lost(old, lost))
    return replace(source, here=here)


def _describe_lost(old: Job, names: Sequence[str]) -> str:
    return (
        f"{', '.join(names)}: the files of job {old.id} there are lost and will not be carried over"
    )


def _require_ended(old: Job) -> Job:
    if not old.state.ended:
        raise RecordError(
            f"job {old.id} is {old.state.value}: its outputs are not complete",
            hint=f"wait for it, or `clusterctl cancel {old.id}` first",
        )
    return old


def _find_here(store: Store, old: Job, lost: Collection[str], report: Reporter) -> dict[str, Files]:
    """What this machine has of the job's files of the nodes that are lost, by node, and says so:
    what was fetched, and copies that are newer."""
    found = records.find_files(store.home, old, lambda node: node in lost)
    if found:
        report(f"using the files of job {old.id} that were fetched from {', '.join(found)}")
    if old.fetched:
        return found
    folder = fetch.locate_copies(store.locate_job_folder(old.id))
    for name, copies in sorted(fetch.list_stored(folder).items()):
        files = found.setdefault(name, {})
        newer = {
            path: copy
            for path, _, modified in copies.files
            if os.path.lexists(copy := folder / name / path)
            and (path not in files or files[path].lstat().st_mtime < int(modified))
        }
        files |= newer
        if newer and name in lost:
            report(
                f"using copies of the files of {name} on this machine,"
                f" as of {format_time(copies.when)}"
            )
    return {name: files for name, files in found.items() if files}


def _changes_places(old: Job, next_job: Job, found: Sequence[fetch.Output], first: str) -> bool:
    """Whether ranks whose nodes have snapshots that rank 0's (`first`) has not are to run on other
    nodes, or in another number: each of them may need any of these files."""
    here = {output.path for output in found if output.node == first}
    patterns = old.spec.keep_files or SNAPSHOTS
    return old.placement != next_job.placement and any(
        output.path not in here and matches(output.path, patterns) for output in found
    )


def _is_stale(old: Job, modified: float, of_rank_0: float) -> bool:
    """Whether a file is one that the job `old` began with, while its rank 0 has written the file
    of that path: only rank 0 of most programs writes a snapshot. Of a program whose ranks write one
    each, every node keeps its own. Times are in seconds since the epoch; files that are carried
    over keep theirs, so a clock that is wrong by less than the job took changes nothing."""
    return old.started is not None and modified < old.started <= of_rank_0


def _has_stale(old: Job, found: Sequence[fetch.Output], first: str) -> bool:
    """Whether some node has files that are older than those of rank 0's node."""
    newest = {output.path: output.modified for output in found if output.node == first}
    return any(
        output.path in newest and _is_stale(old, output.modified, newest[output.path])
        for output in found
        if output.node != first
    )


def _report_missing(
    old: Job,
    first: str,
    here: Sequence[str],
    wrote: Collection[str],
    stale: bool,
    report: Reporter,
) -> None:
    """Says which ranks on the nodes `here` start from the beginning, or from an earlier point: they
    have nothing but what these nodes have."""
    without = [name for name in here if name not in wrote]
    if first not in wrote:
        report(f"job {old.id} has left no files on {first}: the program starts from the beginning")
    elif without:
        report(
            f"{', '.join(without)}: job {old.id} has left no files there, as it has on"
            f" {first}: ranks there that read files of their own start from the beginning"
        )
    if stale:
        report(
            f"files of job {old.id} on other nodes are older than those on {first}, which are too"
            " large to copy: ranks there that read files of their own read old ones"
        )


@contextmanager
def carry_over(
    store: Store, source: EarlierFiles | None, job: Job, target: Cluster, report: Reporter
) -> Iterator[Carry | None]:
    """What `start.put` needs so that `job` starts with the files of an earlier one."""
    if source is None or source.in_place:
        yield source.old.id if source else None
        return
    _remove_abandoned(store)
    scratch = store.home.make(store.locate_job_folder(job.id) / "carry")
    lock = os.open(scratch, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        files = dict(source.here)
        if source.cluster and (source.there or source.copies):
            files.update(_bring(store, source, source.cluster, scratch, report))
        yield _pack(source, files, list_rank_nodes(job, target), scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):
            scratch.parent.rmdir()  # where the job never came to a record
        os.close(lock)


def _remove_abandoned(store: Store) -> None:
    """What a clusterctl that was killed has copied here: nobody holds the lock on it."""
    for folder in store.home.jobs.glob("*/carry"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                folder.parent.rmdir()  # it may have a record
            finally:
                os.close(lock)


def _bring(
    store: Store, source: EarlierFiles, cluster: Cluster, scratch: Path, report: Reporter
) -> dict[str, Files]:
    """Copies here what is still on nodes."""
    if source.there:
        report(f"copying the files of job {source.old.id} from {', '.join(source.there)}")
    others = {node.name for node in cluster.nodes}.difference(source.there)
    here = cluster.drop_nodes(others)
    found: dict[str, Files] = {name: {} for name in source.there}
    found |= {output.node: {} for output in source.copies}
    with open_pool(store, cluster) as pool:
        there = fetch.find_outputs(source.old, here, pool).require_all()
        wanted = [*there, *source.copies]
        copies = fetch.copy_outputs(source.old, cluster, pool, wanted, scratch, report)
    for result in copies:
        if not result.ok:
            raise NodeUnreachable(
                f"{result.node}: the files of job {source.old.id} cannot be copied:"
                f" {result.error or result.text.strip()}",
                hint=f"`clusterctl fetch {source.old.id}`, then try again",
                transient=True,
            )
    for output in wanted:
        if (path := scratch / output.place).is_symlink() or path.is_file():
            found[output.node][output.path] = path
    return found


def _pack(
    source: EarlierFiles, files: Mapping[str, Files], names: tuple[str, ...], scratch: Path
) -> dict[str, Path]:
    """An archive for each node of the new job: all files of all old nodes. Where several have one
    of the same path, a node gets that of the old node with its own place, unless it is stale, else
    rank 0's."""
    files = _drop_stale(source, files)
    archives: dict[tuple[tuple[str, Path], ...], Path] = {}
    packed: dict[str, Path] = {}
    for place, name in enumerate(names):
        own = source.nodes[place : place + 1]
        merged: Files = {}
        for node in (*reversed(source.nodes), *own):
            merged.update(files.get(node, {}))
        key = tuple(sorted(merged.items()))
        if key not in archives:
            archives[key] = records.pack(merged, scratch / f"{len(archives)}.tar")
        packed[name] = archives[key]
    return packed


def _drop_stale(source: EarlierFiles, files: Mapping[str, Files]) -> dict[str, Files]:
    newest = files.get(source.nodes[0], {}) if source.nodes else {}

    def keeps(path: str, file: Path) -> bool:
        if newest.get(path, file) == file:
            return True
        return not _is_stale(source.old, file.lstat().st_mtime, newest[path].lstat().st_mtime)

    return {
        name: {path: file for path, file in found.items() if keeps(path, file)}
        for name, found in files.items()
    }


# -------------------------------------------------------------------------------------------------


class Changes(Struct, frozen=True):
    """What a rerun is given: variables, of which `plain` may be recorded, `secrets` may not, and
    `files` held some; further arguments; another number of ranks (0: as before)."""

    plain: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    ranks: int = 0
    failed: bool = False
    """Of a sweep, only the points that did not succeed."""


def rerun(
    store: Store,
    number: int,
    given: Changes,
    *,
    resume: bool,
    where: str | None,
    on_start: OnJob,
    on_output: OnOutput,
    report: Reporter,
    detach: bool,
    without: Collection[str] = (),
) -> Job:
    """The same program, tree and options again, as a new job on a cluster of the same name, or on
    the cluster `where`, less the nodes `without`.

    `resume` carries the old job's outputs over, so that a program that reads its snapshot goes on.
    """
    old = store.read_job(number)
    if where is None and store.list_names() and old.cluster not in store.list_names():
        other = store.list_names()[0]
        raise make_lost_cluster_error(
            old, f"`clusterctl rerun {number} -c {other}` runs it on cluster {other}"
        )
    old = _require_known(store, old)
    cluster = require_ready(store.read_cluster(old.cluster if where is None else check_name(where)))
    cluster = cluster.drop_nodes(without)
    spec, secrets = _apply_changes(old.spec, given)
    spec = replace(spec, hosts=tuple(name for name in spec.hosts if name not in without))
    if spec.hosts and cluster.name != old.cluster:
        spec, note = drop_unknown_hosts(spec, cluster)
        if note:
            report(note)
    if given.failed:
        spec = replace(spec, only=_choose_points(old))
    spec = replace(spec, detach=detach)
    if detach and spec.sync:
        report(f"--sync {spec.sync} is left out: clusterctl does not follow the job")
        spec = replace(spec, sync="")

    def plan(number: int) -> Prepared:
        return _prepare_again(store, old, cluster, spec, secrets, number)

    prepared = plan(store.read_next_job_id())
    resume = resume and not spec.in_place  # its files lie where it starts
    source = find_earlier_files(store, old, prepared.job, cluster, report) if resume else None
    archive = store.home.stages / old.stage
    if not archive.is_file():
        raise RecordError(
            f"the staged files of job {number} are no longer on this machine"
            if old.stage
            else f"job {number} was never staged: there is nothing to run again",
            hint="use `clusterctl run`",
        )
    with explain_write_errors(archive):
        os.utime(archive)  # it is in use again
    prepared = claim_number(store, prepared, plan)
    own = not spec.resume_args or are_given(spec.resume_args, given.arguments)
    prepared = replace(prepared, job=replace(prepared.job, resumes=resume and not own))
    carried = carry_over(store, source, prepared.job, cluster, report)
    return run(
        store,
        prepared,
        on_start=on_start,
        on_output=on_output,
        report=report,
        detach=detach,
        carried=carried,
    )


def _require_known(store: Store, old: Job) -> Job:
    """The job. RecordError for one that its queue may have, or has got without that being on
    record: whoever runs it again then would have it twice."""
    cluster, number = find_cluster(store, old), old.id
    waits = old.state is JobState.QUEUED and not old.native_id and old.started is None
    if cluster is None or not waits or load_system(cluster.system).places_ranks:
        return old
    with open_pool(store, cluster) as pool:
        old = require_handed_in(store, old, cluster, pool)
    if old.native_id:
        raise RecordError(
            f"the queue has got job {number}, as {old.native_id} ({old.state.value})",
            hint=f"`clusterctl logs {number}` shows it; the next `rerun` runs it once more",
        )
    if not old.state.ended:
        raise RecordError(
            f"job {number} may be in the queue: {cluster.launcher.name} has not said whether it is",
            hint=f"`clusterctl jobs` asks again; `clusterctl cancel {number}` ends it",
            transient=True,
        )
    return old


def _choose_points(old: Job) -> tuple[int, ...]:
    if not old.state.ended:
        raise UsageError(
            f"job {old.id} is still {old.state.value}", hint=f"`clusterctl logs {old.id} -f` waits"
        )
    if not (old.spec.is_sweep and old.unfinished_points):
        raise UsageError(f"no point of job {old.id} has failed", hint="leave out --failed")
    return old.unfinished_points


def _apply_changes(spec: JobSpec, given: Changes) -> tuple[JobSpec, dict[str, str]]:
    """The spec with these changes, and the values of its secrets. What was a secret stays one,
    however it is given this time."""
    plain = {name: value for name, value in given.plain.items() if name not in spec.secret_names}
    secrets = {**given.secrets, **{n: v for n, v in given.plain.items() if n not in plain}}
    env = {name: value for name, value in {**spec.env, **plain}.items() if name not in secrets}
    names = tuple(sorted({*spec.secret_names, *secrets}))
    program = replace(spec.program, args=(*spec.program.args, *given.arguments))
    spec = replace(spec, program=program, env=env, secret_names=names, env_files=given.files)
    if given.ranks:  # sizes that the old number led to would contradict it
        hosts = tuple(dict.fromkeys(spec.hosts))
        spec = replace(spec, ranks=given.ranks, ranks_per_node=0, nodes=0, hosts=hosts, once=False)
    return spec, secrets


def _prepare_again(
    store: Store,
    old: Job,
    cluster: Cluster,
    spec: JobSpec,
    secrets: Mapping[str, str],
    number: int,
) -> Prepared:
    """The job as a new one; RecordError where secrets are missing."""
    missing = [name for name in old.spec.secret_names if name not in secrets]
    if missing:
        raise RecordError(
            f"job {old.id} used secrets that are not stored: {', '.join(missing)}",
            hint="give them again with --env NAME=VALUE or --env-file",
        )
    if spec.program.kind is ProgramKind.BATCH:
        load_system(cluster.system).take_script(spec, cluster)
    if spec.in_place and cluster.id != old.cluster_id:
        raise RecordError(
            f"job {old.id} ran in {spec.in_place} of cluster {old.cluster!r}: no file of it was"
            " copied",
            hint=f"`clusterctl run -c {cluster.name}` hands in the script of that cluster",
        )
    job, plan = plan_job(cluster, spec, number=number)
    job = replace(job, stage=old.stage, rerun_of=old.id)
    tree = Tree(store.home.stages, (), 0, False)
    return Prepared(job=job, cluster=cluster, plan=plan, tree=tree, secrets=secrets)
