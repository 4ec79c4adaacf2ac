"""Puts a job onto its nodes and starts it: one exec per node, one more on the launcher."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import join, quote

from clusterctl import assets
from clusterctl.job_model import Job, ProgramKind
from clusterctl.jobs import archives, block_copies, py_spy, secrets, stage, systems, tree_checks
from clusterctl.launch_plan import LaunchPlan
from clusterctl.model import Accelerator, Cluster, Node, NodeResult, Reporter
from clusterctl.node_results import make_error
from clusterctl.resume_args import SNAPSHOTS, quote_words
from clusterctl.schedulers.direct import (
    LARGEST_NOTE,
    LEAST_OUTPUT,
    MIRROR_RESERVE,
    OUTPUT,
    SMALL,
    STACK_LIMIT,
    STAGE_TIMEOUT,
)
from clusterctl.state import Home
from clusterctl.transport.pool import Pool

ALONE = "job/sitecustomize.py"
"""Of the templates: notes whether a rank has met others."""
PATIENCE = 5.0
"""Seconds after which a person wants to know what the hand-in waits for."""
CGROUPS = "/sys/fs/cgroup"
"""Where control groups of version 2 are; with those of version 1 it holds none."""
Carry = int | Mapping[str, Path]
"""Outputs of an earlier job that a job starts with: those that the nodes have of the job of that
number, or an archive here for each node."""
GPU_VARIABLES = {
    Accelerator.NVIDIA: "CUDA_VISIBLE_DEVICES",
    Accelerator.AMD: "HIP_VISIBLE_DEVICES",
    Accelerator.NONE: "",
}
"""What gives a point of a sweep one GPU."""
COMPILED = (ProgramKind.SOURCE, ProgramKind.BINARY, ProgramKind.COMMAND)
"""Programs that may buffer their output by the block."""
LARGE = 8_000_000
"""Archives above this are sent as a file of their own, so that they are not held once per node."""


def make_node_files(
    job: Job, cluster: Cluster, plan: LaunchPlan, values: Mapping[str, str]
) -> FilesByNode:
    """Everything generated, per node: name → (text, mode). `values`: those of the secrets."""
    files: FilesByNode = {}
    system = systems.load(cluster)
    tag = f"{cluster.id}/{job.id};"
    for name in list_nodes(job, cluster):
        node = cluster.node(name)
        folder = f"{node.root}/jobs/{job.id}"
        script = assets.render(
            "job/processes.sh.j2",
            id=job.id,
            node=name,
            tag=tag,
            folder=folder,
            output=OUTPUT,
            least=LEAST_OUTPUT,
        )
        files[name] = {
            "processes.sh": (script, 0o755),
            "blocks.sh": (block_copies.render_script(MIRROR_RESERVE), 0o755),
        }
        if job.spec.hang_timeout:
            files[name]["stacks.sh"] = (
                _render_stacks_script(job, node, tag, _find_archs(job, cluster)),
                0o755,
            )
        if name not in plan.programs:
            continue
        variables = _make_variables(job, node, {**plan.env, **plan.node_env.get(name, {})})
        environment = secrets.render_environment(variables, values)
        files[name][secrets.FILE] = (environment, secrets.MODE)
        if _may_be_alone(job):
            text = assets.find_folder("templates").joinpath(ALONE).read_text(encoding="utf-8")
            files[name]["lib/sitecustomize.py"] = (text, 0o644)
        files[name] |= _make_rank_files(
            job, node, plan, cluster.system, system.expect_hostname(node)
        )
        if job.spec.is_sweep:
            files[name] |= _make_point_files(job, folder, tag)
    launcher = files[cluster.launcher.name]
    texts = {**plan.files, **system.scheduler.script(job, cluster, plan)}
    launcher.update({name: (text, 0o755) for name, text in texts.items()})
    return files


def _may_be_alone(job: Job) -> bool:
    """Whether its ranks may be found to have done the same work: of Python, also behind a shell."""
    several = job.ranks > 1 and not job.spec.is_sweep
    return several and job.spec.program.kind is not ProgramKind.SOURCE


FilesByNode = dict[str, dict[str, tuple[str, int]]]


def _make_rank_files(
    job: Job, node: Node, plan: LaunchPlan, system: str, hostname: str
) -> dict[str, tuple[str, int]]:
    """What a node needs to run ranks, and to say what they have written. `hostname`: what it has to
    call itself; "": nobody knows."""
    folder, gpus = f"{node.root}/jobs/{job.id}", len(node.facts.gpus)
    outputs = assets.render(
        "job/outputs.sh.j2",
        id=job.id,
        folder=folder,
        reserve=MIRROR_RESERVE,
        small=0 if job.spec.keep_files else SMALL,
        points=job.spec.is_sweep,
        resume_args=job.spec.resume_args,
        resumed=job.rerun_of or job.id,
        patterns=", ".join(job.spec.keep_files or SNAPSHOTS)
        + ("" if job.spec.keep_files else "; --keep-files names others"),
    )
    rank = assets.render(
        "job/rank.sh.j2",
        id=job.id,
        node=node.name,
        folder=folder,
        hostname=hostname,
        working=job.spec.program.folder,
        program=plan.programs[node.name],
        resume_args=quote_words(job.spec.resume_args),
        agent=plan.agents.get(node.name, ""),
        device_env=plan.device_env,
        points=job.spec.is_sweep,
        once=job.spec.once,
        system=system,
        root=node.root,
        gpu_variable=GPU_VARIABLES[node.accelerator] if gpus else "",
        gpus=gpus,
        grace=math.ceil(job.spec.save_time),
        pass_signal=job.spec.pass_signal,
        cgroups=CGROUPS,
        line_buffered=job.spec.program.kind in COMPILED,
    )
    return {"outputs.sh": (outputs, 0o755), "rank.sh": (rank, 0o755)}


def _make_variables(job: Job, node: Node, planned: Mapping[str, str]) -> dict[str, str]:
    """What a rank on that node finds in its environment: what the user sets wins."""
    spec, folder = job.spec, f"{node.root}/jobs/{job.id}"
    variables = {
        "CLUSTERCTL_DATA": f"{node.root}/data",
        "PYTHONPATH": ":".join(
            (
                *(f"{folder}/work/{path}" for path in spec.import_paths),
                *([f"{folder}/{stage.OWN}"] if spec.import_paths else []),
                f"{folder}/lib",  # the project may have packages of the same names
            )
        ),
        **planned,
        **spec.env,
    }
    if node.python.startswith("/") and not (spec.venv or spec.modules or spec.container):
        # Programs expect the tools of their Python (torchrun, pip) beside it.
        pythons = [node.python]
        if spec.packages and node.facts.python and not spec.python:
            pythons.append(node.facts.python.executable)  # the one with torch
        bins = dict.fromkeys(python.rpartition("/")[0] for python in pythons)
        if spec.import_paths:
            bins = {f"{folder}/{stage.OWN}/bin": None, **bins}
        variables["PATH"] = variables.get("PATH", "") or f"{':'.join(bins)}:$PATH"
    return variables


def _find_archs(job: Job, cluster: Cluster) -> set[str]:
    """The processors of the nodes that run its ranks, as far as they are known."""
    return {cluster.node(name).facts.arch for name in list_rank_nodes(job, cluster)} - {""}


def _render_stacks_script(job: Job, node: Node, tag: str, archs: set[str]) -> str:
    """Notes where the ranks on a node stand, when they have been silent for too long."""
    return assets.render(
        "job/stacks.sh.j2",
        id=job.id,
        node=node.name,
        folder=f"{node.root}/jobs/{job.id}",
        tag=tag,
        python_folder=node.python.rpartition("/")[0] or "/nowhere",
        why=py_spy.explain_missing(archs) or "py-spy does not run on this node",
        limit=STACK_LIMIT,
        largest=LARGEST_NOTE,
    )


def _make_point_files(job: Job, folder: str, tag: str) -> dict[str, tuple[str, int]]:
    """What a node needs to run points of a sweep."""
    return {
        "slot.sh": (assets.render("job/slot.sh.j2", id=job.id, folder=folder, tag=tag), 0o755),
        "point": (assets.render("job/point.sh.j2", id=job.id, points=job.spec.points), 0o600),
    }


def list_nodes(job: Job, cluster: Cluster) -> tuple[str, ...]:
    """The launcher, then the nodes that run ranks, as far as they still exist."""
    return tuple(dict.fromkeys((cluster.launcher.name, *list_rank_nodes(job, cluster))))


def list_rank_nodes(job: Job, cluster: Cluster) -> tuple[str, ...]:
    """The nodes that have the job's files, as far as they still exist."""
    return tuple(name for name in systems.load(cluster).locate(job) if cluster.has(name))


def put(
    job: Job,
    cluster: Cluster,
    files: FilesByNode,
    pool: Pool,
    home: Home,
    *,
    carry: Carry | None = None,
    doubtful: Collection[str] = (),
    report: Reporter = lambda text: None,
) -> str:
    """Ships the job to its nodes; returns a port that is free on the first worker. `carry` is what
    goes into the new working directories besides. Of the links `doubtful`, nodes are asked
    whether they lead anywhere.

    Raises NodeUnreachable or LaunchError naming the node that could not take it.
    """
    tree, library = home.stages / job.stage, stage.pack_library()
    placed = list_rank_nodes(job, cluster)
    if job.spec.hang_timeout and not py_spy.explain_missing(_find_archs(job, cluster)):
        library += archives.pack_file(py_spy.FILE, py_spy.compress())

    large = tree.stat().st_size > LARGE
    spec, program = job.spec, job.spec.program
    if spec.venv or spec.modules or spec.container:  # where interpreters come from, too
        program = replace(program, interpreter="")

    def send(name: str) -> NodeResult:
        node, transport = cluster.node(name), pool.find_transport(name)
        texts = dict(files[name])
        before, keep = _split_environment(texts, job, cluster)
        members = archives.pack_texts((path, text, mode) for path, (text, mode) in texts.items())
        sources: dict[str, Path] = {}
        if name in placed:
            members += library if large else library + tree.read_bytes()
            sources |= {_locate_archive(node, job, "tar"): tree} if large else {}
            if isinstance(carry, Mapping):
                sources[_locate_archive(node, job, "carry.tar")] = carry[name]
        for target, source in sources.items():
            sent = transport.put(source, target, timeout=STAGE_TIMEOUT)
            if not sent.ok:
                return sent
        steps = _render_unpacking(node, job, keep, large and name in placed)
        if name in placed:
            # Before what is carried over, which is this job's too: it may leave it as it is.
            steps += ["/bin/sh ./outputs.sh staged || exit", *_carry_over(node, job, carry)]
            folder = f"{node.root}/jobs/{job.id}"
            steps += tree_checks.render_questions(program, folder, node, doubtful)
        if name == placed[0]:
            steps.append(f"exec /bin/sh {quote(node.root)}/bin/free-port")
        return transport.run(
            "\n".join(steps),
            stdin=before + members + archives.END_OF_ARCHIVE,
            timeout=STAGE_TIMEOUT,
        )

    results = pool.call_each(send, list_nodes(job, cluster))
    for result in results:
        if not result.ok:
            raise make_error(f"staging job {job.id}", result)
    answers = {
        r.node: tree_checks.read_answers(r.stdout, doubtful) for r in results if r.node in placed
    }
    lacks = {name: lacking for name, (lacking, _) in answers.items()}
    certain = all(cluster.has(place.node) for place in job.placement)
    for note in tree_checks.judge_answers(job.spec.program, lacks, certain=certain):
        report(note)
    systems.load(cluster).build(job, pool)
    return answers[placed[0]][1].strip()


def _locate_archive(node: Node, job: Job, kind: str) -> str:
    """Where an archive for the job's folder lies on a node until it is unpacked."""
    return f"{node.root}/jobs/{job.id}.{kind}"


def _render_unpacking(node: Node, job: Job, keep: list[str], large: bool) -> list[str]:
    """The sh that makes the job's folder, and unpacks there what comes on stdin, and the `large`
    archive of the program's files."""
    folder = quote(f"{node.root}/jobs/{job.id}")
    steps = [
        "umask 077",
        f"mkdir -p {folder}/out {folder}/work",
        f"cd {folder} || exit",
        *keep,
        # Ownership is ours whoever packed it; the umask must not narrow the modes.
        "umask 022; TAR_OPTIONS= tar -xpof - ; s=$?; [ $s = 0 ] || exit $s",
    ]
    if large:
        archive = quote(_locate_archive(node, job, "tar"))
        steps.append(f"TAR_OPTIONS= tar -xpof {archive} || exit; rm -f {archive}")
    return steps


def _carry_over(node: Node, job: Job, carry: Carry | None) -> list[str]:
    """The sh that puts what an earlier job has made into the job's working directory. Nothing made
    is nothing to copy."""
    if carry is None:
        return []
    if isinstance(carry, int):
        script = f"{quote(node.root)}/jobs/{carry}/outputs.sh"
        pack = f"/bin/sh {script} pack | TAR_OPTIONS= tar -xof - -C work || exit"
        return [f"if [ -e {script} ]; then {pack}; fi"]
    archive = quote(_locate_archive(node, job, "carry.tar"))
    return [f"TAR_OPTIONS= tar -xof {archive} -C work || exit; rm -f {archive}"]


def _split_environment(
    texts: dict[str, tuple[str, int]], job: Job, cluster: Cluster
) -> tuple[bytes, list[str]]:
    """Takes the environment of ranks out of `texts`: what is sent before the archive, and the sh
    that keeps it."""
    if secrets.FILE not in texts or not systems.load(cluster).secrets_in_memory:
        return b"", []
    text, _ = texts.pop(secrets.FILE)
    data = text.encode()
    return data, [secrets.keep_in_memory(data, f"{cluster.id}-{job.id}")]


def start(job: Job, cluster: Cluster, pool: Pool, port: str, report: Reporter) -> Job:
    """Starts the supervisor, or hands the job in; returns the job in the state that was written
    first. A batch system that takes its time is waited for, and that is said."""
    system = systems.load(cluster)
    launcher = cluster.launcher
    command = (
        f"cd {quote(launcher.root)}/jobs/{job.id} && echo {quote(port)} >port &&"
        f" {join(system.scheduler.submit_argv(job))}"
    )
    slow = threading.Timer(PATIENCE, report, [system.slow_start])
    slow.daemon = True
    if system.slow_start:
        slow.start()
    try:
        result = pool.find_transport(launcher.name).run(command, timeout=system.start_limit)
    finally:
        slow.cancel()
    if not result.ok:
        raise make_error(f"starting job {job.id}", result, system.advise(result.complaints))
    return system.scheduler.parse_status(job, result.text)
