"""`drill`: injects faults into a test cluster while a job runs, and checks that the job survives.

The seed alone decides on which node and at which step each fault is injected. The job is run by
separate clusterctl processes, as a person would run it: their messages, exit codes and records are
judged.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from clusterctl import process
from clusterctl.actions.common import open_pool
from clusterctl.actions.drill_faults import FAULTS, Strike
from clusterctl.actions.drill_judge import Round, Seen, judge
from clusterctl.actions.up import bring_up
from clusterctl.core import assets
from clusterctl.core.errors import ClusterctlError, ProviderError, RecordError, UsageError
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, ClusterSpec, Phase, Reporter
from clusterctl.jobs.mirror import SAVE_LIMIT
from clusterctl.machines import protocol, providers
from clusterctl.machines.protocol import Breakable, Harm
from clusterctl.options.table import BREAKABLE, join_titles
from clusterctl.state.store import Store

NAME = "drill"
TTL = 2 * 3600.0
"""Seconds after which a cluster that drill has created ends, if it is not removed before."""
STEPS, STEP = 450, 0.1
"""Steps of the program (it still runs after the first copy of its snapshot); seconds per step."""
BREAK = 10.0
"""Seconds that an outage lasts. Jobs survive 15."""
PATIENCE = 300.0
"""Seconds that each command may take, besides the time of the program."""
LOOK = 15.0
"""Seconds that one look at a node may take."""


def list_workers(number: int) -> tuple[str, ...]:
    """The names of the workers of a new cluster. Raises UsageError."""
    return protocol.name_nodes(number, most=20, what="a drill")[1:]


def find(store: Store, name: str) -> Cluster | None:
    """The cluster of that name, if it exists. Raises UsageError or RecordError if it must not be
    broken."""
    cluster = store.find(name)
    if cluster is None:
        return None
    if cluster.phase is not Phase.READY:
        raise RecordError(
            f"cluster {name!r} is {cluster.phase.value}", hint=f"clusterctl down {name}"
        )
    _require_provider(cluster)
    if busy := [job.id for job in store.list_cluster_jobs(cluster) if not job.state.ended]:
        raise RecordError(
            f"cluster {name!r} may be running job {busy[0]}", hint=f"clusterctl cancel {busy[0]}"
        )
    return cluster


def _require_provider(cluster: Cluster) -> Breakable:
    provider = providers.load_provider(cluster.spec.provider)
    if not isinstance(provider, Breakable):
        raise UsageError(
            f"drill works only on {join_titles(BREAKABLE)} clusters; cluster {cluster.name!r} is"
            f" {cluster.spec.provider}",
            hint="leave out the name: drill then creates its own cluster",
        )
    return provider


@contextmanager
def prepare(store: Store, spec: ClusterSpec, report: Reporter) -> Iterator[Cluster]:
    """The cluster of the drill. One that it has created is removed at the end."""
    made = store.find(spec.name) is None
    try:
        cluster = bring_up(store, spec, report, consent=lambda question: False).cluster
        if cluster.one_host:
            raise UsageError(
                "without root, local nodes share this machine's processes and network",
                hint="run drill as root, or with --provider docker",
            )
        yield cluster
    finally:
        if made:
            report(f"removing cluster {spec.name}")
            gone = process.run(
                process.build_own_command("down", spec.name, "--discard"), timeout=PATIENCE
            )
            if not gone.ok:
                raise ProviderError(
                    gone.error or _find_last_line(gone.stderr.decode(errors="replace"))
                )


def run(
    store: Store, cluster: Cluster, strikes: Sequence[Strike], steps: int, report: Reporter
) -> Iterator[Round]:
    """Runs round by round, on a cluster that is repaired in between."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-drill-") as scratch:
        folder = Path(scratch)
        program = folder / "train" / "train.py"
        program.parent.mkdir()
        program.write_text((assets.find_folder("templates") / "drill" / "train.py").read_text())
        for number, strike in enumerate(strikes, 1):
            report(f"{number} of {len(strikes)}: {strike.fault}, {strike.node}, step {strike.step}")
            drill = _Drill(store, cluster.name, strike, steps, program, folder / str(number))
            try:
                found = drill.run()
            except ClusterctlError as error:
                found = Round(strike, None, "", "aborted", 0.0, (), (error.message,))
            finally:
                drill.mark_jobs()
            yield found


def choose_jobs(jobs: Iterable[Job], before: int, program: str) -> list[Job]:
    """Those of the program after job `before`: `up` may have run a test of its own in between."""
    return [
        job for job in jobs if job.id > before and Path(job.spec.program.target).name == program
    ]


class _Drill:
    """One round."""

    def __init__(
        self, store: Store, name: str, strike: Strike, steps: int, program: Path, folder: Path
    ) -> None:
        self._store, self._name, self._strike, self._steps = store, name, strike, steps
        self._program, self._log = program, folder
        self._fault = FAULTS[strike.fault]
        self._before = max((job.id for job in store.list_jobs()), default=0)
        self._limit = PATIENCE + steps * STEP * 3

    def run(self) -> Round:
        client = self._start()
        try:
            return self._watch(client)
        finally:
            if client.poll() is None:
                process.kill_group(client.pid)
                client.wait()

    def _watch(self, client: process.Spawned) -> Round:
        before = time.monotonic()
        self._await_step(client)
        pace = (time.monotonic() - before) / self._strike.step
        at, struck = len(self._read_output()), time.monotonic()
        self._strike_now(client)
        reported = None
        while client.poll() is None and time.monotonic() - struck < self._limit:
            if reported is None and _find_our_lines(self._read_output()[at:]):
                reported = time.monotonic() - struck
            time.sleep(0.05)
        took = time.monotonic() - struck
        ended = client.poll()
        said = _find_our_lines(self._read_output()[at:])
        if reported is None and said and not self._fault.client:
            reported = took
        outcome, more = self._recover(ended)
        jobs = self._list_jobs()
        outputs = [self._read_outputs(job) for job in jobs]
        words = "\n".join((*said, *more))
        seen = Seen(reported, words, outcome, pace, self._steps, jobs, outputs, self._list_left())
        return judge(self._strike, seen)

    def _start(self) -> process.Spawned:
        words = ("run", "-c", self._name, *self._fault.options, str(self._program))
        argv = process.build_own_command(*words, str(self._steps), str(STEP))
        return process.spawn(argv, log=self._log, cwd=self._program.parent)

    def _read_output(self) -> str:
        return self._log.read_text(errors="replace")

    def _await_step(self, client: process.Spawned) -> None:
        until = time.monotonic() + self._limit
        while f"] step {self._strike.step}\n" not in self._read_output():
            if client.poll() is not None or time.monotonic() > until:
                raise ProviderError(
                    f"the program of the drill did not reach step {self._strike.step}:"
                    f" {_find_last_line(self._read_output())}",
                    hint=f"clusterctl verify {self._name}",
                )
            time.sleep(0.02)

    def _strike_now(self, client: process.Spawned) -> None:
        fault, cluster = self._fault, self._store.read_cluster(self._name)
        folder, node = self._store.locate_folder(self._name), self._strike.node
        if fault.client:
            client.kill()
        elif fault.harm:
            _require_provider(cluster).inject(cluster, folder, node, fault.harm)
            if fault.passes:
                time.sleep(BREAK)
                _require_provider(cluster).inject(cluster, folder, node, Harm.JOIN)
        else:
            job = self._list_jobs()[-1]
            script = assets.render(
                "drill/kill.sh.j2",
                folder=f"{cluster.node(node).root}/jobs/{job.id}",
                file=fault.file,
                names=fault.names,
                tag=f"{cluster.id}/{job.id};",
                signal=fault.signal,
            )
            with open_pool(self._store, cluster) as pool:
                result = pool.find_transport(node).run(script, timeout=LOOK)
            if not result.stdout:
                raise ProviderError(f"{self._strike.fault}: the process was not found on {node}")

    def mark_jobs(self) -> None:
        """They are none of the user's, who did not start them."""
        for job in self._list_jobs():
            self._store.save_job(replace(job, purpose=NAME, fetched=True))

    def _list_jobs(self) -> list[Job]:
        return choose_jobs(self._store.list_jobs(), self._before, self._program.name)

    def _call(self, *words: str) -> tuple[bool, list[str]]:
        """Whether a command succeeded, and its messages."""
        result = process.run(process.build_own_command(*words), timeout=self._limit)
        said = _find_our_lines(result.stderr.decode(errors="replace"))
        return result.ok, [*said, *([f"{words[0]}: {result.error}"] if result.error else [])]

    def _recover(self, ended: int | None) -> tuple[str, list[str]]:
        """How the program was brought to its end, and the messages of the commands for that."""
        job = self._list_jobs()[-1]
        if ended == 0:
            if len(self._list_jobs()) > 1:
                return "replaced", []
            return ("retried" if job.attempt > 1 else "continued"), []
        if ended is None:
            return "run did not end", self._call("cancel", str(job.id))[1]
        ok, said = self._call("logs", str(job.id), "-f")
        if ok and self._store.read_job(job.id).state is JobState.SUCCEEDED:
            return "continued", said
        ok, more = self._call("up", self._name)
        said += more
        ok, more = self._call("rerun", str(self._list_jobs()[-1].id), "--resume")
        return ("resumed by rerun" if ok else "lost"), said + more

    def _read_outputs(self, job: Job) -> dict[str, str]:
        files = self._store.locate_job_folder(job.id).glob("out/*/rank-*.out")
        return {path.stem: path.read_text() for path in sorted(files)}

    def _list_left(self) -> tuple[str, ...]:
        cluster = self._store.read_cluster(self._name)
        found = []
        with open_pool(self._store, cluster) as pool:
            for node in cluster.nodes:
                script = assets.render(
                    "drill/left.sh.j2", cluster=cluster.id, root=node.root, patience=SAVE_LIMIT
                )
                result = pool.find_transport(node.name).run(script, timeout=PATIENCE)
                lines = result.text.splitlines() if result.ok else [result.error or "no answer"]
                found += [f"{node.name}: {line}" for line in lines]
        return tuple(found)


_LINE = re.compile(r"^(?: *\d+\.\d s  (?!job \d+ succeeded)|clusterctl: |  → )(.*)$", re.MULTILINE)


def _find_our_lines(text: str) -> list[str]:
    """The lines of clusterctl, not those of ranks, without the one about success."""
    return _LINE.findall(text)


def _find_last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]
