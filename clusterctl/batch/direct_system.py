"""Jobs that clusterctl starts itself: a supervisor on the launcher, ranks on nodes of ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from shlex import join, quote

from clusterctl.batch import scheduler
from clusterctl.batch.direct import ASK_TIMEOUT, STAGE_TIMEOUT, render_command_line
from clusterctl.batch.system import Preview, check_options
from clusterctl.core import assets
from clusterctl.core.clock import Deadline
from clusterctl.core.job import Job, JobSpec, LaunchPlan, Placement, Program
from clusterctl.core.model import Cluster, Node, NodeResult, make_error
from clusterctl.errors import LaunchError, UsageError
from clusterctl.launch import launcher as launch_launcher
from clusterctl.launch.compiling import NO_COMPILER, Compilation, plan_compilation, suggest_repair
from clusterctl.launch.hostfile import place
from clusterctl.launch.torchrun import place_points
from clusterctl.project.program import check_program
from clusterctl.transport.pool import Pool

COMPILE_TIMEOUT = 600.0


class DirectSystem:
    """The nodes of a job are known before it starts, and answer from here."""

    start_limit = 60.0
    slow_start = ""
    poll = 0.1
    backoff = 1.0
    logs = ("mpirun.err", "mpirun.out", "supervise.log")
    errors = "mpirun.err"
    secrets_in_memory = True
    copies_outputs = True
    counts_survivors = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.scheduler = scheduler.load_scheduler("direct")

    def advise(self, refusal: str) -> str:
        return "--verbose shows more"

    def resolve(self, spec: JobSpec) -> tuple[JobSpec, tuple[Placement, ...]]:
        check_options(spec.particular, spec.launcher, self._cluster)
        how = place_points if spec.is_sweep else place
        placement = how(self._cluster, spec)
        check_program(spec.program, self._cluster, tuple(item.node for item in placement))
        return replace(spec, notice=0), placement

    def plan(self, request: launch_launcher.Request) -> LaunchPlan:
        name = "points" if request.spec.is_sweep else request.spec.launcher
        return launch_launcher.load_launcher(name).plan(request)

    def preview(self, job: Job, plan: LaunchPlan) -> Preview:
        hostfile = plan.files.get("hostfile")
        sections = [
            *([("hostfile", hostfile)] if hostfile else []),
            (f"on {self._cluster.launcher.name}", f"{render_command_line(plan.argv)}\n"),
        ]
        if plan.agents:
            agents = "".join(f"{name}: {line}\n" for name, line in plan.agents.items())
            sections.append(("torchrun, on each node", agents))
        document = {
            "argv": plan.argv,
            "node_env": plan.node_env,
            "agents": plan.agents,
            "files": plan.files,
            "notes": (*plan.notes, *plan.warnings),
            "placement": {place.node: list(place.ranks) for place in job.placement},
        }
        return Preview(tuple(sections), document)

    def locate(self, job: Job) -> tuple[str, ...]:
        return tuple(place.node for place in job.placement)

    def expect_hostname(self, node: Node) -> str:
        one = self._cluster.one_host
        return (self._cluster.launcher if one else node).facts.hostname

    def refresh(
        self, jobs: Sequence[Job], pool: Pool, report: Callable[[str], None], deadline: Deadline
    ) -> tuple[Job, ...]:
        return tuple(self._refresh(job, pool, deadline) for job in jobs)

    def _refresh(self, job: Job, pool: Pool, deadline: Deadline) -> Job:
        if deadline.passed:
            return job
        launcher = self._cluster.launcher
        # There may be no folder, where its client died or the launcher was made anew.
        absent = assets.render("job/absent.sh.j2", root=launcher.root, id=job.id)
        command = (
            f"cd {quote(launcher.root)}/jobs/{job.id} 2>/dev/null"
            f" || {{\n{absent}\nexit; }};"
            f" {join(self.scheduler.status_argv(job))}"
        )
        limit = min(ASK_TIMEOUT, deadline.left)
        result = pool.find_transport(launcher.name).run(command, timeout=limit)
        if result.error or not result.stdout:
            return job
        return self.scheduler.parse_status(job, result.text)

    def limit_end(self, spec: JobSpec) -> float:
        return spec.save_time + 4.0

    def make_force_argv(self, job: Job) -> tuple[str, ...]:
        return ()  # what its supervisor leaves is ended on each node

    def describe_wait(self, job: Job) -> str:
        return f"job {job.id} is waiting: other jobs use the slots (--now skips the queue)"

    def make_interactive_argv(self, spec: JobSpec, words: Sequence[str]) -> tuple[str, ...]:
        raise UsageError(
            f"cluster {self._cluster.name!r} has no batch system; --interactive needs one",
            hint="`clusterctl ssh` opens a shell on one of its nodes",
        )

    def build(self, job: Job, pool: Pool) -> None:
        """Compiles a source file once per architecture, on the first worker of each, and copies it
        to the others."""
        program = job.spec.program
        compiled = plan_compilation(program, job.spec.env)
        if compiled is None:
            return
        groups: dict[str, list[Node]] = {}
        for name in self.locate(job):
            node = self._cluster.node(name)
            groups.setdefault(node.facts.arch, []).append(node)
        for nodes in groups.values():
            binary = _compile_on(nodes[0], job, compiled, pool)

            def send(name: str, binary: bytes = binary) -> NodeResult:
                job_folder = f"{self._cluster.node(name).root}/jobs/{job.id}"
                target = quote(f"{job_folder}/work/{program.folder}/{program.target}")
                command = (
                    f"cat >{target} && chmod 755 {target} && {_count_staged(job_folder, program)}"
                )
                return pool.find_transport(name).run(command, stdin=binary, timeout=STAGE_TIMEOUT)

            for result in pool.call_each(send, [node.name for node in nodes[1:]]):
                if not result.ok:
                    raise make_error("copying the compiled program", result)


def _compile_on(node: Node, job: Job, compiled: Compilation, pool: Pool) -> bytes:
    program = job.spec.program
    target = quote(program.target)
    folder = f"{node.root}/jobs/{job.id}"
    command = (
        f"cd {quote(folder)}/work/{quote(program.folder)} || exit;"
        f" PATH={quote(node.mpi_prefix)}/bin:$PATH; ({compiled.script}) &&"
        f" {_count_staged(folder, program)} && cat {target}"
    )
    if node.job_port != node.ssh_port:
        # The compiler is where the program will run: in the node's container.
        command = f"exec {quote(node.root)}/bin/clusterctl-ssh {quote(node.name)} {quote(command)}"
    result = pool.find_transport(node.name).run(command, timeout=COMPILE_TIMEOUT)
    if result.exit_code is None:
        raise make_error(f"compiling {program.source}", result)
    if result.exit_code == NO_COMPILER:
        raise LaunchError(
            f"{node.name}: {result.why}",
            hint=f"on the node: apt-get install {compiled.language.package}",
        )
    if not result.ok:
        raise LaunchError(
            f"{program.source} does not compile on {node.name}:\n{result.complaints}",
            hint=suggest_repair(compiled.language, result.complaints),
        )
    return result.stdout


def _count_staged(folder: str, program: Program) -> str:
    """A command that counts a compiled program, and modules of Fortran, among what was staged: they
    are no outputs."""
    path = os.path.normpath(f"{program.folder}/{program.target}")
    return f"/bin/sh {quote(folder)}/outputs.sh built {quote(path)}"
