"""Puts a job onto its nodes and starts it: one exec per node, one more on the launcher."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl import assets, schedulers
from clusterctl.compiling import NO_COMPILER, Compilation, advice, compilation
from clusterctl.errors import ClusterctlError, LaunchError, NodeUnreachable
from clusterctl.jobs import stage
from clusterctl.model import (
    MEMORY,
    Cluster,
    Job,
    LaunchPlan,
    Node,
    NodeResult,
    Program,
    ProgramKind,
)
from clusterctl.schedulers import batch
from clusterctl.schedulers.direct import GRACE
from clusterctl.state import Home
from clusterctl.transport.pool import Pool

STAGE_TIMEOUT = 600.0
COMPILE_TIMEOUT = 600.0
START_TIMEOUT = 60.0
PATIENCE = 5.0
"""Seconds after which a person wants to know what the hand-in waits for."""
LINGER = "/var/lib/systemd/linger"
"""Has a file for every user whose processes and memory outlive their last session."""
LARGE = 8_000_000
"""Archives above this are sent as a file of their own, so that they are not held once per node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carry:
    """Outputs of an earlier job of the same cluster, copied into the new working directories."""

    job: int


def node_files(job: Job, cluster: Cluster, plan: LaunchPlan, secrets: Mapping[str, str]) -> Files:
    """Everything generated, per node: name → (text, mode). The environment file holds the secrets
    and is nobody else's to read."""
    files: Files = {}
    tag = f"{cluster.id}/{job.id};"
    for name in involved(job, cluster):
        node = cluster.node(name)
        folder = f"{node.root}/jobs/{job.id}"
        sweep = assets.render("job/sweep.sh.j2", id=job.id, node=name, tag=tag, folder=folder)
        files[name] = {"sweep.sh": (sweep, 0o755)}
        if name not in plan.programs:
            continue
        variables = {
            "CLUSTERCTL_DATA": f"{node.root}/data",
            "PYTHONPATH": f"{folder}/lib",
            **plan.env,
            **plan.node_env.get(name, {}),
            **job.spec.env,
            **secrets,
        }
        spec = job.spec
        if node.python.startswith("/") and not (spec.venv or spec.modules or spec.container):
            # Programs expect the tools of their Python (torchrun, pip) beside it.
            variables["PATH"] = (
                variables.get("PATH", "") or f"{node.python.rpartition('/')[0]}:$PATH"
            )
        outputs = assets.render("job/outputs.sh.j2", id=job.id, folder=folder)
        files[name]["outputs.sh"] = (outputs, 0o755)
        files[name]["env"] = (_environment(variables), 0o600)
        files[name]["rank.sh"] = (
            assets.render(
                "job/rank.sh.j2",
                id=job.id,
                node=name,
                folder=folder,
                hostname=_hostname(cluster, node),
                working=job.spec.program.folder,
                program=plan.programs[name],
                agent=plan.agents.get(name, ""),
                grace=GRACE,
                line_buffered=job.spec.program.kind in (ProgramKind.SOURCE, ProgramKind.BINARY),
            ),
            0o755,
        )
    launcher = files[cluster.launcher.name]
    texts = {**plan.files, **schedulers.load(job.scheduler).script(job, cluster, plan)}
    launcher.update({name: (text, 0o755) for name, text in texts.items()})
    return files


def _hostname(cluster: Cluster, node: Node) -> str:
    """What a rank on that node has to see as its host's name; "": the batch system decides."""
    if cluster.batch:
        return ""
    return cluster.launcher.facts.hostname if cluster.one_host else node.facts.hostname


Files = dict[str, dict[str, tuple[str, int]]]


def involved(job: Job, cluster: Cluster) -> tuple[str, ...]:
    """The launcher, then the nodes that run ranks, as far as they still exist."""
    return tuple(dict.fromkeys((cluster.launcher.name, *ranked(job, cluster))))


def ranked(job: Job, cluster: Cluster) -> tuple[str, ...]:
    """The nodes that have the job's files: those that run ranks, as far as they still exist, or the
    login node, whose disk they share."""
    if cluster.batch:
        return (cluster.launcher.name,)
    return tuple(place.node for place in job.placement if cluster.has(place.node))


def put(
    job: Job,
    cluster: Cluster,
    files: Files,
    pool: Pool,
    home: Home,
    *,
    carry: Carry | None = None,
) -> str:
    """Ships the job to its nodes; returns a port that is free on the first worker.

    Raises NodeUnreachable or LaunchError naming the node that could not take it.
    """
    tree = home.stages / job.stage
    large = tree.stat().st_size > LARGE
    library = stage.library()
    placed = ranked(job, cluster)
    first = placed[0]

    def send(name: str) -> NodeResult:
        node = cluster.node(name)
        transport = pool.transport(name)
        folder = f"{node.root}/jobs/{job.id}"
        texts = dict(files[name])
        before, keep = _apart(texts, job, cluster)
        members = stage.text_members((path, text, mode) for path, (text, mode) in texts.items())
        steps = [
            "umask 077",
            f"mkdir -p {_q(folder)}/out {_q(folder)}/work",
            f"cd {_q(folder)} || exit",
            *keep,
            # Ownership is ours whoever packed it; the umask must not narrow the modes.
            "umask 022; tar -xof - ; s=$?; [ $s = 0 ] || exit $s",
        ]
        if name in placed:
            members += library
            if large:
                archive = f"{node.root}/jobs/{job.id}.tar"
                sent = transport.put(tree, archive, timeout=STAGE_TIMEOUT)
                if not sent.ok:
                    return sent
                steps.append(f"tar -xof {_q(archive)} || exit; rm -f {_q(archive)}")
            else:
                members += tree.read_bytes()
            # Before what is carried over, which is this job's too: it may leave it as it is.
            steps.append("/bin/sh ./outputs.sh staged || exit")
            if carry:
                steps.append(_carry(node, carry.job))
        if name == first:
            steps.append(f"exec /bin/sh {_q(node.root)}/bin/free-port")
        return transport.run(
            "\n".join(steps),
            stdin=before + members + stage.END_OF_ARCHIVE,
            timeout=STAGE_TIMEOUT,
        )

    results = pool.each(send, involved(job, cluster))
    for result in results:
        if not result.ok:
            raise trouble(f"staging job {job.id}", result)
    _compile(job, cluster, pool)
    return next(result.text.strip() for result in results if result.node == first)


def _apart(
    texts: dict[str, tuple[str, int]], job: Job, cluster: Cluster
) -> tuple[bytes, list[str]]:
    """Takes the environment of ranks out of `texts`: what is sent before the archive, and the sh
    that keeps it. A batch job stays as it is: it may start after a restart, or on another node."""
    if cluster.batch or "env" not in texts:
        return b"", []
    text, _ = texts.pop("env")
    data = text.encode()
    name = f"{cluster.id}-{job.id}"
    script = assets.render(
        "job/secrets.sh.j2", size=len(data), name=name, memory=MEMORY, linger=LINGER
    )
    return data, [script]


def start(job: Job, cluster: Cluster, pool: Pool, port: str, tell: Callable[[str], None]) -> Job:
    """Starts the supervisor, or hands the job in; returns the job in the state that was written
    first. A batch system that takes its time is waited for, and that is said."""
    scheduler = schedulers.load(job.scheduler)
    launcher = cluster.launcher
    command = (
        f"cd {_q(launcher.root)}/jobs/{job.id} && echo {_q(port)} >port &&"
        f" {shlex.join(scheduler.submit_argv(job))}"
    )
    limit = START_TIMEOUT + (batch.HAND_IN if cluster.batch else 0)
    slow = threading.Timer(
        PATIENCE,
        tell,
        [f"the queue does not answer yet; it gets {batch.HAND_IN} s (Ctrl-C twice gives up)"],
    )
    slow.daemon = True
    if cluster.batch:
        slow.start()
    try:
        result = pool.transport(launcher.name).run(command, timeout=limit)
    finally:
        slow.cancel()
    if not result.ok:
        raise trouble(f"starting job {job.id}", result)
    return scheduler.parse_status(job, result.text)


def trouble(doing: str, result: NodeResult) -> ClusterctlError:
    """The error for a command of ours that failed on a node."""
    said = result.stderr.decode(errors="replace").strip().splitlines()
    if result.exit_code is None:
        return NodeUnreachable(
            f"{doing}: {result.node}: {result.error}",
            hint="`clusterctl status --live` asks the nodes; `up` or `attach` repairs them",
            transient=True,
        )
    no_space = [line for line in said if "No space left" in line]
    full = bool(no_space)
    detail = (no_space or said or [f"exit code {result.exit_code}"])[-1]
    return LaunchError(
        f"{doing} failed on {result.node}: {detail}",
        hint="free space there: `clusterctl ssh NODE -- df -h`" if full else "--verbose shows more",
    )


def _environment(variables: Mapping[str, str]) -> str:
    rows = dict(variables)
    path = ""
    if rows.get("PATH", "").endswith(":$PATH"):
        path = rows.pop("PATH").removesuffix(":$PATH")
    return assets.render("job/env.j2", variables=sorted(rows.items()), path=path)


def _carry(node: Node, job: int) -> str:
    """Copies what job `job` has made there. Nothing made is nothing to copy."""
    script = f"{_q(node.root)}/jobs/{job}/outputs.sh"
    return f"if [ -e {script} ]; then /bin/sh {script} pack | tar -xof - -C work || exit; fi"


def _compile(job: Job, cluster: Cluster, pool: Pool) -> None:
    """Compiles a source file once per architecture, on the first worker of each, and copies it.
    A batch job does so itself, where it runs and with the modules that it loads."""
    program = job.spec.program
    compiled = compilation(program, job.spec.env)
    if compiled is None or cluster.batch:
        return
    groups: dict[str, list[Node]] = {}
    for name in ranked(job, cluster):
        node = cluster.node(name)
        groups.setdefault(node.facts.arch, []).append(node)
    for nodes in groups.values():
        binary = _compile_on(nodes[0], job, compiled, pool)

        def send(name: str, binary: bytes = binary) -> NodeResult:
            folder = f"{cluster.node(name).root}/jobs/{job.id}/work/{program.folder}"
            target = _q(f"{folder}/{program.target}")
            job_folder = f"{cluster.node(name).root}/jobs/{job.id}"
            command = f"cat >{target} && chmod 755 {target} && {_not_output(job_folder, program)}"
            return pool.transport(name).run(command, stdin=binary, timeout=STAGE_TIMEOUT)

        for result in pool.each(send, [node.name for node in nodes[1:]]):
            if not result.ok:
                raise trouble("copying the compiled program", result)


def _compile_on(node: Node, job: Job, compiled: Compilation, pool: Pool) -> bytes:
    program = job.spec.program
    target = _q(program.target)
    folder = f"{node.root}/jobs/{job.id}"
    command = (
        f"cd {_q(folder)}/work/{_q(program.folder)} || exit;"
        f" PATH={_q(node.mpi_prefix)}/bin:$PATH; ({compiled.script}) &&"
        f" {_not_output(folder, program)} && cat {target}"
    )
    if node.job_port != node.ssh_port:
        # The compiler is where the program will run: in the node's container.
        command = f"exec {_q(node.root)}/bin/clusterctl-ssh {_q(node.name)} {_q(command)}"
    result = pool.transport(node.name).run(command, timeout=COMPILE_TIMEOUT)
    if result.exit_code is None:
        raise trouble(f"compiling {program.source}", result)
    said = result.stderr.decode(errors="replace").strip()
    if result.exit_code == NO_COMPILER:
        raise LaunchError(
            f"{node.name}: {said.splitlines()[-1]}",
            hint=f"on the node: apt-get install {compiled.language.package}",
        )
    if not result.ok:
        raise LaunchError(
            f"{program.source} does not compile on {node.name}:\n{said}",
            hint=advice(compiled.language, said),
        )
    return result.stdout


def _not_output(folder: str, program: Program) -> str:
    """A command that counts a compiled program, and modules of Fortran, among what was staged: they
    are no outputs."""
    path = os.path.normpath(f"{program.folder}/{program.target}")
    return f"/bin/sh {_q(folder)}/outputs.sh built {_q(path)}"


def _q(text: str) -> str:
    return shlex.quote(text)
