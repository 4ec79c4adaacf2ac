"""The Python API: `from clusterctl import Cluster`. The same actions as the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from clusterctl.actions import call, common, node_loss, up_plan
from clusterctl.actions import down as actions_down
from clusterctl.actions import jobs as actions_jobs
from clusterctl.actions import metrics as actions_metrics
from clusterctl.actions import run as actions_run
from clusterctl.actions import up as actions_up
from clusterctl.actions import verify as actions_verify
from clusterctl.actions.common import Unfetched
from clusterctl.actions.run import Prepared
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster as ClusterRecord
from clusterctl.core.model import Consent, Node
from clusterctl.errors import UsageError
from clusterctl.options.kinds import DEFAULT_NAME, Option, Verb
from clusterctl.options.verbs import Run, Up

if TYPE_CHECKING:
    from clusterctl.actions.down import DownResult
    from clusterctl.insight.verify import Measurements
    from clusterctl.state.store import Store

T = TypeVar("T")
V = TypeVar("V", bound=Verb)
OnLine = Callable[[str], object]
"""Is called with one line of text, such as `print`."""

_NOT_HERE = {"cluster", "dry_run", "emit", "interactive", "json", "m", "quiet", "verbose"}
"""Options that make sense only on a command line."""


class Cluster:
    """A cluster, created or resumed by `up`, or an existing one by `attach`.

    The end of a `with` block removes a cluster that `up` has created, and keeps one that existed
    before. Nothing is printed: `report` is called with the lines that the command line shows as
    progress. Errors are those of `clusterctl.errors`, each with a `message` and a `hint`.

    Do not use one object from several threads at the same time.
    """

    def __init__(self, store: Store, name: str, *, created: bool, report: OnLine | None) -> None:
        self._store, self.name, self.created = store, name, created
        self._report: Any = report or (lambda line: None)

    @classmethod
    def up(
        cls,
        name: str = DEFAULT_NAME,
        *,
        yes: bool = False,
        report: OnLine | None = None,
        **options: Any,
    ) -> Cluster:
        """Creates a cluster, or resumes one, with the options of `clusterctl up`: `workers=2`,
        `gpu="g4dn:2"`, `ttl="4h"`, `spot=True`.

        Args:
            yes: Consents to the cost. Without it, a cluster that costs money is a UsageError.
        """
        store = common.open_store()
        given = _read_options(Up, options)
        given, wanted = up_plan.read_options(store, name, given, lambda line: None)
        before = store.list_names()
        made = cls(store, name, created=name not in before, report=report)

        consent = _make_consent(yes)
        actions_up.bring_up(store, wanted, made._report, consent)
        return made

    @classmethod
    def attach(cls, name: str | None = None, *, report: OnLine | None = None) -> Cluster:
        """The cluster of that name, or the only one. RecordError if there is none."""
        store = common.open_store()
        return cls(store, common.choose_cluster(store, name).name, created=False, report=report)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Saves unfetched output files of jobs to `job-N` in the current folder first."""
        if self.created and self.name in self._store.list_names():
            self.down(fetch=True)

    def __repr__(self) -> str:
        return f"<Cluster {self.name!r}>"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, as `clusterctl up` or `clusterctl attach` last recorded them."""
        return self._store.read_cluster(self.name).nodes

    @overload
    def run(
        self,
        program: str | Path,
        *args: object,
        env: Mapping[str, str] | None = ...,
        output: OnLine | None = ...,
        check: bool = ...,
        **options: Any,
    ) -> Job: ...
    @overload
    def run(
        self,
        program: Callable[..., T],
        *args: object,
        env: Mapping[str, str] | None = ...,
        output: OnLine | None = ...,
        **options: Any,
    ) -> list[T]: ...
    def run(
        self,
        program: str | Path | Callable[..., Any],
        *args: object,
        env: Mapping[str, str] | None = None,
        output: OnLine | None = None,
        check: bool = True,
        **options: Any,
    ) -> Any:
        """Runs a script, or calls a function, on all ranks, and waits until it has ended.

        For a script, returns its Job; with `detach=True`, as soon as it has started. A function is
        called with `args` on every rank, and sees the variables of its rank, such as RANK and
        MASTER_ADDR. For a function, returns the list of its results, ordered by rank.

        Args:
            env: Environment variables of the ranks.
            output: Is called with each line that a rank prints, such as `[0] epoch 1`.
            check: Whether a script that fails raises JobError.
            options: Those of `clusterctl run`: `ranks=4`, `timeout="30m"`, `stage="src"`.

        Raises:
            JobError: The job did not succeed. For a function, `__cause__` is what the rank raised.
            LaunchError, NodeUnreachable: The job could not be started, or a node was lost.
        """
        cluster = common.require_ready(self._store.read_cluster(self.name))
        given = _read_options(Run, options)
        ways = {word for word in ("detach", "array") if getattr(given, word)}
        place = f"the provider of cluster {self.name!r} is {cluster.spec.provider}"
        given = given.apply_limits({cluster.system, *ways}, self._report, place)
        prepared = self._prepare(cluster, given, program, args, env or {})
        actions_run.agree_to_size(self._store, prepared, _make_consent(given.yes))
        lines = _Lines(output)
        seen: Any = {"on_output": lines, "report": self._report}
        if given.detach:
            return actions_run.run(
                self._store, prepared, on_start=lambda job: None, detach=True, **seen
            )
        job = node_loss.run_again(
            self._store,
            prepared.job.id,
            lambda note: actions_run.run(self._store, prepared, on_start=note, **seen),
            prepared.secrets,
            on_start=lambda job: None,
            **seen,
        )
        lines.finish()
        if callable(program):
            return call.read_results(self._store, job)
        if check and job.state is not JobState.SUCCEEDED:
            raise call.explain_failure(job)
        return job

    def _prepare(
        self,
        cluster: ClusterRecord,
        given: Run,
        program: str | Path | Callable[..., Any],
        args: tuple[object, ...],
        env: Mapping[str, str],
    ) -> Prepared:
        """The script or the function as a job that is ready to go."""
        needs = given.requirements
        if callable(program):
            if given.detach:
                raise UsageError("a function cannot run detached", hint="run a script instead")
            files = (given.stage, given.max_stage, given.include)
            resolved = call.resolve(cluster, program, args, *files)
            needs = needs or "none"
        elif not isinstance(program, (str, Path)):
            raise UsageError(
                f"not a script or a function: {program!r}",
                hint="give a path, or what can be called",
            )
        else:
            given.values["command"] = (str(program), *map(str, args))
            resolved = actions_run.resolve_run(given, cluster=cluster)
        given.values["env"] = (*given.variables, *(f"{name}={env[name]}" for name in env))
        wanted, secrets = actions_run.make_spec(given, resolved.program)
        node_loss.check_node_loss(wanted.on_node_loss, cluster)

        def plan(number: int) -> actions_run.Prepared:
            return actions_run.prepare(
                cluster,
                wanted,
                resolved,
                secrets,
                number=number,
                requirements=needs,
            )

        return actions_run.claim_number(self._store, plan(self._store.read_next_job_id()), plan)

    def jobs(self) -> tuple[Job, ...]:
        """The jobs of this cluster with their present state, newest last; without those that
        `verify` and `bench` have started."""
        return actions_jobs.choose_own(actions_jobs.list_jobs(self._store, self.name, self._report))

    def logs(self, job: int | None = None, *, stream: str = "stdout") -> dict[int, str]:
        """What each rank has printed so far, by rank. `job`: default is the last one; `stream`:
        `stdout` or `stderr`."""
        if stream not in ("stdout", "stderr"):
            raise UsageError(f"unknown stream {stream!r}", hint="choose stdout or stderr")
        found: dict[int, bytes] = {}
        number = self._find_number(job)
        for pieces in actions_jobs.read_logs(
            self._store, number, self.name, self._report, follow=False
        ):
            for piece in pieces:
                if piece.rank is not None and piece.stream == stream:
                    found[piece.rank] = found.get(piece.rank, b"") + piece.data
        return {rank: found[rank].decode(errors="replace") for rank in sorted(found)}

    def metrics(self, job: int | None = None) -> list[dict[str, float]]:
        """The metrics that ranks have printed so far, rank by rank, in the order of printing: each
        with `rank` and the names that the program gave them. `job`: default is the last one."""
        number = self._find_number(job)
        points = actions_metrics.collect_metrics(self._store, number, self.name, self._report)
        return [{"rank": point.rank, **point.values} for point in points]

    def fetch(self, job: int | None = None, to: str | Path | None = None) -> Path:
        """Copies the output files of a job to the folder `to` (default: `job-N` in the current
        folder), with a subfolder for each node, and returns it. Raises NodeUnreachable, with what
        the others have in that folder, if a node does not answer, and RecordError if one no longer
        has the job's folder."""
        number, target = self._find_number(job), Path(to) if to else None
        got = actions_jobs.fetch(self._store, number, self.name, target, self._report)
        for line in got.describe():
            self._report(line)
        got.require_all()
        return got.folder

    def cancel(self, job: int | None = None) -> Job:
        """Ends a job on all nodes."""
        return actions_jobs.cancel(self._store, self._find_number(job), self.name, self._report)

    def verify(self, *, quick: bool = False) -> Measurements:
        """Measures nodes and links as `clusterctl verify` does. `low` of the report lists what is
        below its limit."""
        cluster = self._store.read_cluster(self.name)
        return actions_verify.measure(self._store, cluster, self._report, quick=quick, now=False)

    def down(
        self, *, fetch: bool = False, discard: bool = False, force: bool = False
    ) -> DownResult | None:
        """Ends all jobs and removes the cluster; None if there is none. Raises UsageError if jobs
        have unfetched output files, or the shared folder has files, unless `fetch` saves or
        `discard` deletes them."""
        unfetched = Unfetched(fetch=fetch, discard=discard)
        return actions_down.take_down(
            *(self._store, self.name, self._report, lambda question: True, unfetched), force=force
        )

    def _find_number(self, job: int | None) -> int:
        return actions_jobs.find_last_job(self._store, self.name).id if job is None else job


class _Lines:
    """Passes on the output of ranks line by line, each with its rank."""

    def __init__(self, output: OnLine | None) -> None:
        self._output = output
        self._rest: dict[tuple[int | None, str], bytes] = {}

    def __call__(self, pieces: list[Any]) -> None:
        for piece in pieces if self._output else ():
            key = (piece.rank, piece.stream)
            *lines, rest = (self._rest.get(key, b"") + piece.data).split(b"\n")
            self._rest[key] = rest
            for line in lines:
                self._pass(piece.rank, line)

    def finish(self) -> None:
        """Passes on last lines without a newline."""
        for (rank, _), rest in self._rest.items():
            if rest:
                self._pass(rank, rest)

    def _pass(self, rank: int | None, line: bytes) -> None:
        assert self._output
        tag = "" if rank is None else f"[{rank}] "
        self._output(tag + line.decode(errors="replace"))


def _make_consent(yes: bool) -> Consent:
    def consent(question: str) -> bool:
        if yes:
            return True
        raise UsageError(f"consent is required: {question}", hint="pass yes=True to consent")

    return consent


def _read_options(verb: type[V], options: Mapping[str, Any]) -> V:
    """Options of a verb by their Python names, checked as the command line checks them."""
    known = {
        key: item for key, item in verb.options().items() if item.flags and key not in _NOT_HERE
    }
    values = {}
    for key, value in options.items():
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"`clusterctl {verb.__name__.lower()} --help` lists the options; write _ for -"
            hint = f"did you mean {close[0]}?" if close else hint
            raise UsageError(f"unknown option {key}", hint=hint)
        known[key].check_given(value, key)
        values[key] = known[key].read(_make_text(known[key], value), key)
    return verb(values, [key for key in options if values[key]])


def _make_text(option: Option[Any], value: Any) -> Any:
    """The value as text, as on the command line."""
    if value is None or option.is_flag:
        return value and bool(value)
    if isinstance(value, timedelta):
        value = f"{value.total_seconds():g}s"
    items = [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
    return tuple(items) if option.many else ",".join(items)
