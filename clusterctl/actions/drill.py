"""`drill`: injects faults into a test cluster while a job runs, and checks that the job survives.

The seed alone decides on which node and at which step each fault is injected. The job is run by
separate clusterctl processes, as a person would run it: their messages, exit codes and records are
judged.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterctl import assets, process, providers
from clusterctl.actions import open_pool
from clusterctl.actions.up import up
from clusterctl.errors import ClusterctlError, ProviderError, RecordError, UsageError
from clusterctl.job_model import Job, JobState
from clusterctl.jobs.mirror import SAVE_LIMIT
from clusterctl.model import Cluster, ClusterSpec, Phase, Reporter
from clusterctl.providers.protocol import Breakable, Harm
from clusterctl.providers.shared import nodes
from clusterctl.providers.shared.nodes import LAUNCHER
from clusterctl.schedulers.direct import MIRROR_INTERVAL
from clusterctl.state import Store

NAME = "drill"
TTL = 2 * 3600.0
"""Seconds after which a cluster that drill has created ends, if it is not removed before."""
STEPS, STEP = 450, 0.1
"""Steps of the program (it still runs after the first copy of its snapshot); seconds per step."""
BREAK = 10.0
"""Seconds that an outage lasts. Jobs survive 15."""
HANG = 15
"""Seconds of silence after which an attempt with a frozen rank ends."""
PATIENCE = 300.0
"""Seconds that each command may take, besides the time of the program."""
SOON = 15.0
"""Seconds in which clusterctl is meant to report a lost node. The table shows how long it took: a
busy machine makes no miss of it."""
LOOK = 15.0
"""Seconds that one look at a node may take."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done, and what has to follow. One of `harm`, `names`, `file` and `client` is the
    target."""

    reason: str = ""
    """A pattern of the reason that clusterctl has to report."""
    harm: Harm | None = None
    launcher: bool = False
    """The target is the launcher, not a worker."""
    names: tuple[str, ...] = ()
    """Processes of the job, by name."""
    file: str = ""
    """Files in the job's folder with process ids."""
    signal: str = "KILL"
    client: bool = False
    passes: bool = False
    """The fault ends after BREAK, and the job continues."""
    options: tuple[str, ...] = ()
    """Of `run`."""


_RETRY = ("--retries", "1")
FAULTS: Mapping[str, Fault] = {
    "kill-rank": Fault(r"was killed by SIGKILL", file="out/rank-*.pid", options=_RETRY),
    "freeze-rank": Fault(
        r"hung: no rank printed",
        file="out/rank-*.pid",
        signal="STOP",
        options=("--hang-timeout", str(HANG), *_RETRY),
    ),
    "kill-daemon": Fault(r"{node}|daemon", names=("prted", "orted"), options=_RETRY),
    "kill-mpirun": Fault(
        r"mpirun", launcher=True, names=("mpirun", "prterun", "orterun"), options=_RETRY
    ),
    "kill-supervisor": Fault(r"supervisor", launcher=True, file="supervisor.pid"),
    "kill-client": Fault(client=True),
    "kill-node": Fault(r"lost {node}|{node} restarted", Harm.KILL),
    "lose-node": Fault(r"lost {node}", Harm.LOSE),
    "kill-launcher": Fault(r"lost {node}|supervisor", Harm.KILL, launcher=True),
    "lose-launcher": Fault(r"lost {node}", Harm.LOSE, launcher=True),
    "freeze-node": Fault(r"lost {node}", Harm.FREEZE),
    "partition": Fault(r"lost {node}", Harm.CUT),
    "outage": Fault(harm=Harm.CUT, passes=True),
    "reboot-node": Fault(r"{node} restarted", Harm.REBOOT),
    "reboot-launcher": Fault(r"{node} restarted", Harm.REBOOT, launcher=True),
}
"""By name, in the order of a drill."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One round of a plan: the fault, the node and the step at which it is injected."""

    fault: str
    node: str
    step: int


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


def plan(
    faults: Sequence[str], rounds: int, seed: int, workers: Sequence[str], steps: int
) -> tuple[Strike, ...]:
    """The same for the same arguments. Raises UsageError for an unknown fault."""
    if unknown := [name for name in faults if name not in FAULTS]:
        raise UsageError(
            f"--faults: unknown fault {unknown[0]!r}", hint=f"choose from {', '.join(FAULTS)}"
        )
    chance = random.Random(seed)
    strikes = []
    for name in [name for _ in range(rounds) for name in faults or FAULTS]:
        node, step = chance.choice(workers), chance.randrange(steps // 5, steps * 4 // 5 + 1)
        strikes.append(Strike(name, LAUNCHER if FAULTS[name].launcher else node, step))
    return tuple(strikes)


def list_workers(number: int) -> tuple[str, ...]:
    """The names of the workers of a new cluster. Raises UsageError."""
    return nodes.node_names(number, most=20, what="a drill")[1:]


def weights(steps: int, ranks: int) -> str:
    """The final weights of an undisturbed run of templates/drill/train.py."""
    state: list[object] = [0, ""]
    for step in range(steps):
        told = repr([[rank, state] for rank in range(ranks)])
        state = [step + 1, hashlib.sha256(told.encode()).hexdigest()]
    return str(state[1])


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
    _provider(cluster)
    if busy := [job.id for job in store.jobs_of(cluster) if not job.state.ended]:
        raise RecordError(
            f"cluster {name!r} may be running job {busy[0]}", hint=f"clusterctl cancel {busy[0]}"
        )
    return cluster


def _provider(cluster: Cluster) -> Breakable:
    provider = providers.load(cluster.spec.provider)
    if not isinstance(provider, Breakable):
        raise UsageError(
            f"drill works only on local and Docker clusters; cluster {cluster.name!r} is"
            f" {cluster.spec.provider}",
            hint="leave out the name: drill then creates its own cluster",
        )
    return provider


@contextmanager
def prepare(store: Store, spec: ClusterSpec, report: Reporter) -> Iterator[Cluster]:
    """The cluster of the drill. One that it has created is removed at the end."""
    made = store.find(spec.name) is None
    try:
        cluster = up(store, spec, report, consent=lambda question: False).cluster
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
                process.own_command("down", spec.name, "--discard"), timeout=PATIENCE
            )
            if not gone.ok:
                raise ProviderError(gone.error or _last_line(gone.stderr.decode(errors="replace")))


def run(
    store: Store, cluster: Cluster, strikes: Sequence[Strike], steps: int, report: Reporter
) -> Iterator[Round]:
    """Runs round by round, on a cluster that is repaired in between."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-drill-") as scratch:
        folder = Path(scratch)
        program = folder / "train" / "train.py"
        program.parent.mkdir()
        program.write_text((assets.folder("templates") / "drill" / "train.py").read_text())
        for number, strike in enumerate(strikes, 1):
            report(f"{number} of {len(strikes)}: {strike.fault}, {strike.node}, step {strike.step}")
            drill = _Drill(store, cluster.name, strike, steps, program, folder / str(number))
            try:
                found = drill.run()
            except ClusterctlError as error:
                found = Round(strike, None, "", "aborted", 0.0, (), (error.message,))
            yield found


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
    final = f"weights {weights(seen.steps, last.ranks)}\n"
    if last.state is not JobState.SUCCEEDED:
        misses.append(f"job {last.id} is {last.state.value}: {last.reason}")
    elif not seen.outputs[-1] or not all(final in text for text in seen.outputs[-1].values()):
        misses.append("the weights are not those of an undisturbed run")
    if lost > 2 * MIRROR_INTERVAL:
        misses.append(f"{lost:.0f} s of work were lost")
    misses += [f"left behind: {item}" for item in seen.left]
    return Round(strike, seen.reported, reason, seen.outcome, lost, seen.left, tuple(misses))


def choose_jobs(jobs: Iterable[Job], before: int, program: str) -> list[Job]:
    """Those of the program after job `before`: `up` may have run a test of its own in between."""
    return [
        job for job in jobs if job.id > before and Path(job.spec.program.target).name == program
    ]


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


class _Drill:
    """One round."""

    def __init__(
        self, store: Store, name: str, strike: Strike, steps: int, program: Path, folder: Path
    ) -> None:
        self._store, self._name, self._strike, self._steps = store, name, strike, steps
        self._program, self._log = program, folder
        self._fault = FAULTS[strike.fault]
        self._before = max((job.id for job in store.jobs()), default=0)
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
        at, struck = len(self._said()), time.monotonic()
        self._strike_now(client)
        reported = None
        while client.poll() is None and time.monotonic() - struck < self._limit:
            if reported is None and _ours(self._said()[at:]):
                reported = time.monotonic() - struck
            time.sleep(0.05)
        took = time.monotonic() - struck
        ended = client.poll()
        said = _ours(self._said()[at:])
        if reported is None and said and not self._fault.client:
            reported = took
        outcome, more = self._recover(ended)
        jobs = self._jobs()
        outputs = [self._read_outputs(job) for job in jobs]
        words = "\n".join((*said, *more))
        seen = Seen(reported, words, outcome, pace, self._steps, jobs, outputs, self._left())
        return judge(self._strike, seen)

    def _start(self) -> process.Spawned:
        words = ("run", "-c", self._name, *self._fault.options, str(self._program))
        argv = process.own_command(*words, str(self._steps), str(STEP))
        return process.spawn(argv, log=self._log, cwd=self._program.parent, env=os.environ)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")

    def _await_step(self, client: process.Spawned) -> None:
        until = time.monotonic() + self._limit
        while f"] step {self._strike.step}\n" not in self._said():
            if client.poll() is not None or time.monotonic() > until:
                raise ProviderError(
                    f"the program of the drill did not reach step {self._strike.step}:"
                    f" {_last_line(self._said())}",
                    hint=f"clusterctl verify {self._name}",
                )
            time.sleep(0.02)

    def _strike_now(self, client: process.Spawned) -> None:
        fault, cluster = self._fault, self._store.cluster(self._name)
        folder, node = self._store.folder(self._name), self._strike.node
        if fault.client:
            client.kill()
        elif fault.harm:
            _provider(cluster).harm(cluster, folder, node, fault.harm)
            if fault.passes:
                time.sleep(BREAK)
                _provider(cluster).harm(cluster, folder, node, Harm.JOIN)
        else:
            job = self._jobs()[-1]
            script = assets.render(
                "drill/kill.sh.j2",
                folder=f"{cluster.node(node).root}/jobs/{job.id}",
                file=fault.file,
                names=fault.names,
                tag=f"{cluster.id}/{job.id};",
                signal=fault.signal,
            )
            with open_pool(self._store, cluster) as pool:
                result = pool.transport(node).run(script, timeout=LOOK)
            if not result.stdout:
                raise ProviderError(f"{self._strike.fault}: the process was not found on {node}")

    def _jobs(self) -> list[Job]:
        return choose_jobs(self._store.jobs(), self._before, self._program.name)

    def _call(self, *words: str) -> tuple[bool, list[str]]:
        """Whether a command succeeded, and its messages."""
        result = process.run(process.own_command(*words), timeout=self._limit)
        said = _ours(result.stderr.decode(errors="replace"))
        return result.ok, [*said, *([f"{words[0]}: {result.error}"] if result.error else [])]

    def _recover(self, ended: int | None) -> tuple[str, list[str]]:
        """How the program was brought to its end, and the messages of the commands for that."""
        job = self._jobs()[-1]
        if ended == 0:
            if len(self._jobs()) > 1:
                return "replaced", []
            return ("retried" if job.attempt > 1 else "continued"), []
        if ended is None:
            return "run did not end", self._call("cancel", str(job.id))[1]
        ok, said = self._call("logs", str(job.id), "-f")
        if ok and self._store.job(job.id).state is JobState.SUCCEEDED:
            return "continued", said
        ok, more = self._call("up", self._name)
        said += more
        ok, more = self._call("rerun", str(self._jobs()[-1].id), "--resume")
        return ("resumed by rerun" if ok else "lost"), said + more

    def _read_outputs(self, job: Job) -> dict[str, str]:
        files = self._store.job_folder(job.id).glob("out/*/rank-*.out")
        return {path.stem: path.read_text() for path in sorted(files)}

    def _left(self) -> tuple[str, ...]:
        cluster = self._store.cluster(self._name)
        found = []
        with open_pool(self._store, cluster) as pool:
            for node in cluster.nodes:
                script = assets.render(
                    "drill/left.sh.j2", cluster=cluster.id, root=node.root, patience=SAVE_LIMIT
                )
                result = pool.transport(node.name).run(script, timeout=PATIENCE)
                lines = result.text.splitlines() if result.ok else [result.error or "no answer"]
                found += [f"{node.name}: {line}" for line in lines]
        return tuple(found)


_STEP = re.compile(r"^(from|step) (\d+)$", re.MULTILINE)
_LINE = re.compile(r"^(?: *\d+\.\d s  (?!job \d+ succeeded)|clusterctl: |  → )(.*)$", re.MULTILINE)


def _ours(text: str) -> list[str]:
    """The lines of clusterctl, not those of ranks, without the one about success."""
    return _LINE.findall(text)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]
