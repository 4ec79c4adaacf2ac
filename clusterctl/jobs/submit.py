"""Puts a job onto its nodes and starts it: one exec per node, one more on the launcher."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import pickle
import platform
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import join, quote
from shutil import which
from time import monotonic
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.agent.setup import REUSED
from clusterctl.agent.stacks import SENT, SETTINGS
from clusterctl.batch.direct import ASK_TIMEOUT, LARGEST_NOTE, STACK_LIMIT
from clusterctl.batch.system import (
    ask_agent,
    list_nodes,
    list_rank_nodes,
    load_system,
    locate_folder,
)
from clusterctl.core import assets
from clusterctl.core.job import Job, LaunchPlan, Program, ProgramKind
from clusterctl.core.model import (
    MEMORY,
    Accelerator,
    Cluster,
    Node,
    NodeResult,
    Reporter,
    make_error,
)
from clusterctl.core.text import count, format_bytes
from clusterctl.core.variables import write_exports, write_unseen, write_unset
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.launch.compiling import NO_COMPILER, Compilation, plan_compilation, suggest_repair
from clusterctl.launch.environment import AS_ROOT
from clusterctl.options.values import quote_words
from clusterctl.project import tree as project_tree
from clusterctl.project.packages import locate_packages
from clusterctl.state.home import Home, find_home
from clusterctl.transport import spreading
from clusterctl.transport.pool import Pool
from clusterctl.transport.spreading import Content, Receiver
from clusterctl.transport.ssh import CONNECT_LIMIT

# -------------------------------------------------------------------------------------------------
# How secrets get to the nodes of a job: in the file `env` of its folder there, which nobody else
# may read. Where we run the jobs it is a link into memory. They are in no command and no record.
#
# `user_variables` says which of a user's variables are secrets, `redaction` keeps them out of what
# is shown.


FILE = "env"
"""Holds all that a rank finds in its environment."""
WITHDRAWN = "withdrawn"
"""Beside it: the job will not start, and staging that is still at work keeps nothing."""
LINGER = "/var/lib/systemd/linger"
"""Has a file for every user whose processes and memory outlive their last session."""


def render_environment(variables: Mapping[str, str], secrets: Mapping[str, str]) -> str:
    """The file, as sh. A PATH that ends with the node's own goes before that."""
    rows = {**variables, **secrets}
    path = ""
    if rows.get("PATH", "").endswith(":$PATH"):
        path = rows.pop("PATH").removesuffix(":$PATH")
    pairs = sorted(rows.items())
    lines = "# rank|agent WORD…: becomes that program, with these variables.\n"
    lines += write_exports(pairs)
    if path:
        lines += f'export PATH={quote(path)}:"$PATH"\n'
    if unseen := write_unseen(pairs):  # an agent starts a shell again
        lines += f'case $1 in rank) shift && set -- rank /usr/bin/env {unseen}"$@" ;; esac\n'
    return lines + 'shift\nexec "$@"\n'


def keep_in_memory(
    scripts: str, data: bytes, name: str, *, memory: str = MEMORY, linger: str = LINGER
) -> str:
    """The sh that takes the file from the beginning of its stdin. `scripts`: where our agent is;
    `name`: the file's in memory, by which another attempt to stage the job finds it."""
    settings = {"size": str(len(data)), "name": name, "memory": memory, "linger": linger}
    words = " ".join(f"cctl_{key}={quote(value)}" for key, value in settings.items())
    return f"{words}; . {quote(scripts)}/secrets.sh"


def remove_secrets(job: Job, cluster: Cluster, pool: Pool) -> None:
    """Removes the file of a job that was staged and will not start, wherever it is kept, on the
    nodes that answer. Of a connection that was cut, the staging may come to it only now."""
    commands = {}
    for name in list_nodes(job, cluster):
        root, folder = quote(cluster.node(name).root), quote(locate_folder(job, cluster, name))
        note = f"mkdir -p {folder} && : >{folder}/{WITHDRAWN}"
        forget = _forget(job, cluster, name)
        commands[name] = f"cd {root} && {{ {_choose_umask(root)}; {note}; {forget}; }}"
    pool.run(commands, timeout=ASK_TIMEOUT)


def _forget(job: Job, cluster: Cluster, name: str) -> str:
    """The sh that removes the file of a job from a node, also from memory where nothing leads to it
    any more."""
    path = quote(f"{locate_folder(job, cluster, name)}/{FILE}")
    kept = f'{MEMORY}/clusterctl-"$(id -u)"/{_name_file(job, cluster, name)}'
    return f'rm -f "$(readlink {path})" {path} {kept}'


def _name_file(job: Job, cluster: Cluster, name: str) -> str:
    """That of the file in the memory of a node."""
    return f"{cluster.id}-{job.id}-{name}"


# -------------------------------------------------------------------------------------------------
# py-spy, which reads the stacks of Python programs, for nodes that may not have it.


def explain_missing(archs: Collection[str]) -> str:
    """Why nodes of these processors cannot use that of this machine; "" where they can."""
    if not _locate():
        return "py-spy is missing on this machine: pip install py-spy"
    if sys.platform != "linux" or set(archs) - {platform.machine()}:
        return "the nodes run a different system: pip install py-spy there"
    return ""


def compress() -> bytes:
    """That of this machine, compressed by gzip."""
    return gzip.compress(Path(_locate()).read_bytes(), 1, mtime=0)


def _locate() -> str:
    path = Path(sys.executable).with_name("py-spy")
    return str(path) if path.is_file() else which("py-spy") or ""


# -------------------------------------------------------------------------------------------------

STAGE_TIMEOUT = 600.0
"""Seconds that a node has to take what is sent to it."""
COMPILE_TIMEOUT, SETUP_TIMEOUT, REQUEST_TIMEOUT = 600.0, 3600.0, 40.0
PATIENCE, PAUSE = 3.0, 10.0
"""Seconds until a person is told what takes its time, and then between two such lines."""
SETUP_SHOWN = 20
"""Lines of the output of --setup that are shown where it fails."""
Carry = int | Mapping[str, Path]
"""Outputs of an earlier job that a job starts with: those that the nodes have of the job of that
number, or an archive here for each node."""
GPU_VARIABLES = {
    Accelerator.NVIDIA: "CUDA_VISIBLE_DEVICES",
    Accelerator.AMD: "HIP_VISIBLE_DEVICES",
}
"""What gives a point of a sweep one GPU."""
NUMBERS = {
    "rank": "cctl_rank=${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID-}}"
    " cctl_local=${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID-}}"
    " cctl_world=${OMPI_COMM_WORLD_SIZE:-${SLURM_NTASKS-}}"
    " cctl_local_world=${OMPI_COMM_WORLD_LOCAL_SIZE:-${SLURM_NTASKS_PER_NODE:-1}}",
    # Of torchrun, which has the user's PATH.
    "agent": "PATH=$2 cctl_rank=$RANK cctl_local=$LOCAL_RANK"
    " cctl_world=$WORLD_SIZE cctl_local_world=$LOCAL_WORLD_SIZE",
    "point": "cctl_rank=$1 cctl_slot=$2 cctl_local=0 cctl_world=1 cctl_local_world=1",
    "once": "cctl_rank=0 cctl_local=0 cctl_world=1 cctl_local_world=1",
}
"""How the wrapper of a rank learns which one it is, in sh, by kind of job."""
COMPILED = (ProgramKind.SOURCE, ProgramKind.BINARY, ProgramKind.COMMAND)
"""Programs that may buffer their output by the block."""
NOTE_BOOT = (
    "{ read -r boot && read -r first </proc/1/stat; } </proc/sys/kernel/random/boot_id;"
    r""" printf '%s\n' "$boot" "$first" >out/boot"""
)
"""As templates/job/rank.sh: a job may wait for its turn, and the node restart meanwhile."""
NO_AGENT = 87
"""What staging exits with where the agent is missing."""
BRIEF = 1_000_000
"""Bytes up to which a job is staged and handed in by one command: until it ends, Ctrl-C waits."""
STAGED = "@@staged"
"""Separates what a node says of what was staged from what the start of the job prints."""
LARGE = 8_000_000
"""Bytes for all nodes together from which on a tree goes by way of their stores."""


FilesByNode = dict[str, dict[str, tuple[str, int]]]


def make_node_files(
    job: Job, cluster: Cluster, plan: LaunchPlan, values: Mapping[str, str]
) -> FilesByNode:
    """Everything generated, per node: name → (text, mode). `values`: those of the secrets."""
    nodes = [cluster.node(name) for name in list_nodes(job, cluster)]
    files = {node.name: _make_files_of_node(job, cluster, plan, values, node) for node in nodes}
    texts = {**plan.files, **load_system(cluster.system).script(job, cluster, plan)}
    files[cluster.launcher.name].update({name: (text, 0o755) for name, text in texts.items()})
    return files


def _make_files_of_node(
    job: Job, cluster: Cluster, plan: LaunchPlan, values: Mapping[str, str], node: Node
) -> dict[str, tuple[str, int]]:
    """What a node needs to run ranks, to say what they have written, and what is left of them."""
    spec, program, system = job.spec, job.spec.program, load_system(cluster.system)
    folder, tag = f"{node.root}/jobs/{job.id}", f"{cluster.id}/{job.id};"
    files = {
        "agent.sh": (write_agent(folder, node.root), 0o755),
        "tag": (f"CLUSTERCTL_JOB={tag}", 0o644),
    }
    if spec.hang_timeout:  # notes where ranks stand that have been silent for too long
        why = explain_missing(_find_archs(job, cluster)) or "py-spy does not run on this node"
        settings = {
            "python_folder": node.python.rpartition("/")[0],
            "why": why,
            "limit": STACK_LIMIT,
            "largest": LARGEST_NOTE,
        }
        files[SETTINGS] = (json.dumps(settings), 0o644)
    if node.name not in plan.programs:
        return files
    variables = _make_variables(job, node, {**plan.env, **plan.node_env.get(node.name, {})})
    files[FILE] = (render_environment(variables, values), 0o600)
    # Whether its ranks have all done the same work: of Python, also behind a shell.
    if job.ranks > 1 and not spec.is_sweep and program.kind is not ProgramKind.SOURCE:
        alone = assets.find_folder("templates") / "job/sitecustomize.py"
        files["lib/sitecustomize.py"] = (alone.read_text(encoding="utf-8"), 0o644)
    files["rank.sh"] = _make_rank(job, cluster, plan, node), 0o755
    if not system.places_ranks:
        text = assets.render(
            "batch/surroundings.sh.j2",
            system=cluster.system,
            device_env=plan.device_env,
        )
        files["surroundings"] = text, 0o644
    if spec.is_sweep:
        slot = assets.render("job/slot.sh.j2", id=job.id, folder=folder, tag=tag)
        files["slot.sh"] = slot, 0o755
        point = assets.render("job/point.sh.j2", id=job.id, points=spec.points)
        files["point"] = point, 0o600
    return files


def write_agent(folder: str, root: str) -> str:
    """The agent.sh of a job in that folder of a node: what is asked of it there."""
    return (
        "#!/bin/sh\n# VERB ARGUMENT…\ncctl_verb=$1\nshift\n"
        "unset CLUSTERCTL_JOB # the tag of the job's processes\n"
        f'exec /bin/sh {quote(assets.locate_agent(root))} "$cctl_verb" {quote(folder)} "$@"\n'
    )


def _make_rank(job: Job, cluster: Cluster, plan: LaunchPlan, node: Node) -> str:
    """What starts a rank on that node."""
    spec, system = job.spec, load_system(cluster.system)
    starter, gpus = plan.agents.get(node.name, ""), len(node.facts.gpus)
    kind = "point" if spec.is_sweep else "agent" if starter else "once" if spec.once else "rank"
    direct = system.places_ranks
    settings: dict[str, object] = {
        "node": node.name,
        # What it has to call itself; "": nobody knows.
        "host": system.expect_hostname(node, cluster),
        "batch": "" if direct else "yes",
        # Says through mpirun how it goes.
        "tells": "yes" if direct and kind in ("rank", "once") else "",
        # The ranks of all nodes note how they end in one folder.
        "linger": "" if direct or spec.is_sweep else "yes",
        "working": spec.program.folder,
        "program": join(plan.programs[node.name]),
        "lines": "yes" if spec.program.kind in COMPILED else "",
        "resume": quote_words(spec.resume_args),
        "starter": starter,
        "grace": math.ceil(spec.save_time),
        "signals": "INT,QUIT,USR1,USR2" if spec.pass_signal else "INT,QUIT",
        "gpu": f"{node.root}/gpu-{node.name}" if direct and gpus else "",
        "gpu_variable": GPU_VARIABLES.get(node.accelerator, ""),
        "gpus": gpus if direct else 0,
        "free_port": f"{node.root}/bin/free-port" if direct else "",
    }
    return write_rank(kind, f"{node.root}/jobs/{job.id}", node.root, settings)


def write_rank(kind: str, folder: str, root: str, settings: Mapping[str, object]) -> str:
    """The rank.sh of a job in that folder of a node: variables of templates/job/rank.sh, and then
    that, which is the same for all jobs."""
    scripts = os.path.dirname(assets.locate_agent(root))
    alone = "a process of a batch job" if settings["batch"] else "a process without mpirun"
    values = {
        "job": folder,
        "scripts": scripts,
        "kind": kind,
        "numbers": NUMBERS[kind],
        "alone": write_unset(alone) if kind == "once" else "",
        "cgroups": "/sys/fs/cgroup",
        **settings,
    }
    lines = [f"cctl_{name}={quote(str(value))}" for name, value in values.items()]
    head = ("#!/bin/sh", "# shellcheck disable=SC1091,SC2016,SC2034")
    return "\n".join([*head, *lines, f". {quote(scripts)}/rank.sh", ""])


def _make_variables(job: Job, node: Node, planned: Mapping[str, str]) -> dict[str, str]:
    """What a rank on that node finds in its environment: what the user sets wins."""
    spec, folder = job.spec, f"{node.root}/jobs/{job.id}"
    variables = {
        **(AS_ROOT if node.user == "root" else {}),
        "CLUSTERCTL_DATA": f"{node.root}/data",
        "PYTHONPATH": ":".join(
            (
                *(f"{folder}/work/{path}" for path in spec.import_paths),
                *([f"{folder}/{project_tree.OWN}"] if spec.import_paths else []),
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
            bins = {f"{folder}/{project_tree.OWN}/bin": None, **bins}
        variables["PATH"] = variables.get("PATH", "") or f"{':'.join(bins)}:$PATH"
    return variables


def _find_archs(job: Job, cluster: Cluster) -> set[str]:
    """The processors of the nodes that run its ranks, as far as they are known."""
    return {cluster.node(name).facts.arch for name in list_rank_nodes(job, cluster)} - {""}


def put(
    job: Job,
    cluster: Cluster,
    files: FilesByNode,
    pool: Pool,
    home: Home,
    *,
    carry: Carry | None = None,
    report: Reporter = lambda text: None,
    starts: bool = False,
) -> str:
    """Ships the job to its nodes; returns a port that is free on the first worker, where we run its
    ranks, or what its start has printed: with `starts`, the same command starts it. `carry` is what
    goes into the new working directories besides.

    Raises NodeUnreachable or LaunchError naming the node that could not take it.
    """
    tree, library = (
        home.stages / job.stage,
        project_tree.pack_workloads("lib", project_tree.LIBRARY),
    )
    system = load_system(cluster.system)
    placed = list_rank_nodes(job, cluster)
    if job.spec.hang_timeout and not explain_missing(_find_archs(job, cluster)):
        library += project_tree.pack_file(SENT, compress())

    size = tree.stat().st_size
    holders = [cluster.node(name) for name in placed]
    spreads = size * len(placed) > LARGE
    spec, program = job.spec, job.spec.program
    if spec.venv or spec.modules or spec.container:  # where interpreters come from, too
        program = replace(program, interpreter="")

    def send(name: str) -> NodeResult:
        node, transport = cluster.node(name), pool.find_transport(name)
        folder, texts, before = f"{node.root}/jobs/{job.id}", dict(files[name]), b""
        scripts = os.path.dirname(assets.locate_agent(node.root))
        steps = [
            _require_agent(node),
            _choose_umask(quote(node.root)),
            f"mkdir -p {quote(folder)}/out {quote(folder)}/work",
            f"cd {quote(folder)} || exit",
        ]
        if FILE in texts and system.places_ranks:
            before = texts.pop(FILE)[0].encode()
            steps.append(keep_in_memory(scripts, before, _name_file(job, cluster, name)))
        # Ownership is ours whoever packed it; the umask must not narrow the modes.
        steps.append("umask 022; TAR_OPTIONS= tar -xpof - ; s=$?; [ $s = 0 ] || exit $s")
        members = project_tree.pack_texts(
            [(path, text, mode) for path, (text, mode) in texts.items()]
        )
        if system.places_ranks and not node.contained:  # ranks have another first process there
            steps.append(NOTE_BOOT)
        if name in placed:
            members += library if spreads else library + tree.read_bytes()
            # Before what is carried over, which is this job's too: it may leave it as it is.
            steps.append(f". {quote(scripts)}/staged.sh")
            if isinstance(carry, Mapping):
                sent = transport.put(carry[name], f"{folder}.carry.tar", timeout=STAGE_TIMEOUT)
                if not sent.ok:
                    return sent
                archive = quote(f"{folder}.carry.tar")
                steps.append(f"TAR_OPTIONS= tar -C work -xof {archive} || exit; rm -f {archive}")
            elif carry is not None:  # nothing made is nothing to copy
                # Of a connection that was lost, the copying may still be at work.
                steps.append("! command -v flock >/dev/null || { exec 9>.carried && flock 9; }")
                earlier = f"{quote(node.root)}/jobs/{carry}"
                pack = f"(cd {earlier} && {ask_agent('pack')}) | TAR_OPTIONS= tar -xof - -C work"
                steps.append(f"if [ -d {earlier} ]; then {pack} || exit; fi")
            if program.interpreter:
                steps.append(project_tree.render_question(program, folder, node))
        folder = quote(folder)
        withdrawn = f"[ ! -e {folder}/{WITHDRAWN} ] || {{ echo the job was withdrawn >&2; false; }}"
        forget = _forget(job, cluster, name)
        end = f") && {{ {withdrawn}; }} || {{ s=$?; {forget}; exit $s; }}"
        steps = ["(", *steps, end]
        if starts:  # with the umask of the log-in, which a queue may hand on
            steps += [f"echo {STAGED}", _render_start(job, cluster)]
        if system.places_ranks and name == placed[0]:
            steps.append(f"exec /bin/sh {quote(node.root)}/bin/free-port")
        content = before + members + project_tree.END_OF_ARCHIVE
        return ask(node, pool, "\n".join(steps), stdin=content, timeout=STAGE_TIMEOUT)

    if spreads:
        _require_staged(_spread_tree(tree, job, holders, pool), job)
    with _Notice(system.slow_start if starts else "", report):
        results: Sequence[NodeResult] = pool.call_each(send, list_nodes(job, cluster))
        if not starts:  # else the job may have been handed in
            results = _send_again(results, lambda names: pool.call_each(send, names), pool)
    for result in results:
        if not result.ok and STAGED in result.text:
            raise _explain_start(job, cluster, result)
    _require_staged(results, job)
    answers = {r.node: project_tree.read_answer(r.stdout) for r in results if r.node in placed}
    lacking = [name for name, (lacks, _) in answers.items() if lacks]
    certain = all(cluster.has(place.node) for place in job.placement)
    if note := project_tree.judge_answers(job.spec.program, lacking, certain=certain):
        report(note)
    _compile(job, cluster, pool, report)
    return answers[placed[0]][1].strip()


def is_brief(job: Job, carry: Carry | None, home: Home) -> bool:
    """Whether one command can stage the job and hand it in to a queue, within moments."""
    here = load_system(job.scheduler).places_ranks or job.spec.setup or isinstance(carry, Mapping)
    return not here and (home.stages / job.stage).stat().st_size <= BRIEF


def _choose_umask(root: str) -> str:
    """For folders of a job. A folder of a group, in which new ones belong to it, is to be read by
    it; secrets have modes of their own."""
    return f"umask 077; [ ! -g {root} ] || umask 027"


def _require_agent(node: Node) -> str:
    """A command that ends a script with NO_AGENT where our agent is not on the node, which an older
    clusterctl has made ready. What comes on stdin is read all the same."""
    script = quote(assets.locate_agent(node.root))
    return f"[ -e {script} ] || {{ cat >/dev/null; exit {NO_AGENT}; }}"


def ask(node: Node, pool: Pool, command: str, *, timeout: float, stdin: bytes = b"") -> NodeResult:
    """Runs sh that begins with `_require_agent`; again with our agent, where there was none."""
    run = partial(pool.find_transport(node.name).run, command, stdin=stdin, timeout=timeout)
    result = run()
    if result.exit_code != NO_AGENT:
        return result
    placed = place_agent(node, pool)
    return run() if placed.ok else placed


def check_request(
    job: Job, cluster: Cluster, pool: Pool, script: str, waits: bool, report: Reporter
) -> None:
    """Raises UsageError where its batch system could never run the job, as far as that answers.
    `waits`: somebody waits for a job that the site has closed its partition to."""
    system, node = load_system(cluster.system), cluster.launcher
    settings = system.describe_request(job.spec, script)
    if not settings:
        return
    settings = {**settings, "pyxis": bool(cluster.site_info.get("pyxis"))}
    command = f"{write_unset(system.emits)}; {render_question(node, None, 'request', settings)}"
    found = ask(node, pool, command, timeout=REQUEST_TIMEOUT)
    if not found.ok or not found.text.strip():
        return
    refusal = json.loads(found.text)
    if refusal["doubtful"]:
        report(f"{refusal['why']}: {refusal['hint']}")
        return
    hint = refusal["hint"] or system.advise(refusal["why"], cluster)
    if not refusal["closed"]:
        raise UsageError(refusal["why"], hint=hint)
    if waits:
        hint += "; `run --detach` leaves the job in the queue until the site opens it"
        raise UsageError(refusal["why"], hint=hint)
    report(f"{refusal['why']}: the job waits until the site opens it ({hint})")


def render_question(node: Node, job: int | None, verb: str, settings: Mapping[str, object]) -> str:
    """The sh that asks our agent there about a job, or None: NO_AGENT where it is missing."""
    folder = node.root if job is None else f"{node.root}/jobs/{job}"
    words = (assets.locate_agent(node.root), verb, folder, json.dumps(settings))
    return f"{_require_agent(node)}; exec /bin/sh {join(words)}"


def place_agents(names: Collection[str], cluster: Cluster, pool: Pool) -> Sequence[NodeResult]:
    return pool.call_each(lambda name: place_agent(cluster.node(name), pool), list(names))


def place_agent(node: Node, pool: Pool) -> NodeResult:
    """Puts it beside the older one, which running jobs keep."""
    pythons = [node.python] if node.python.startswith("/") else []
    return pool.find_transport(node.name).run(
        f"cd {quote(node.root)} && exec /bin/sh -s",
        stdin=assets.render_agent(*pythons).encode(),
        timeout=STAGE_TIMEOUT,
    )


def may_spread(nodes: Collection[Node]) -> bool:
    """Whether the machines of these nodes, and not only containers on them, reach each other."""
    return len(nodes) == 1 or not any(node.contained for node in nodes)


def _require_staged(results: Sequence[NodeResult], job: Job) -> None:
    for result in results:
        if not result.ok:
            raise make_error(f"staging job {job.id}", result)


def _spread_tree(tree: Path, job: Job, nodes: Sequence[Node], pool: Pool) -> Sequence[NodeResult]:
    """Makes the job's tree on its nodes, sent once: what they have of earlier ones stays there."""
    packed = project_tree.read_contents(tree)
    places = {digest: (tree, offset) for digest, offset in packed.places.items()}
    folder = f"jobs/{job.id}"
    prepare = f"{_choose_umask('.')}; mkdir -p {folder}/out {folder}/work; umask 022"
    content = Content(packed.entries, places)

    def send(names: Sequence[str]) -> Sequence[NodeResult]:
        to = [node for node in nodes if node.name in names]
        return spread(pool, to, folder, content, prepare=prepare, timeout=STAGE_TIMEOUT)

    return _send_again(send([node.name for node in nodes]), send, pool)


def _send_again(
    results: Sequence[NodeResult],
    send: Callable[[Sequence[str]], Sequence[NodeResult]],
    pool: Pool,
) -> Sequence[NodeResult]:
    """Once more to the nodes that answer again after their connections were lost; the last result
    of each. What they have of a tree that was spread stays there."""
    cut = [result.node for result in results if result.cut]
    there = [result.node for result in pool.run("true", cut, timeout=CONNECT_LIMIT) if result.ok]
    again = {result.node: result for result in send(there)} if there else {}
    return [again.get(result.node, result) for result in results]


def spread(
    pool: Pool,
    nodes: Sequence[Node],
    folder: str,
    content: Content,
    *,
    prepare: str = ":",
    link: bool = False,
    timeout: float,
    patience: float = spreading.STALLED,
) -> Sequence[NodeResult]:
    """Makes the content in that folder below the root of each node, by way of their stores: what
    none of them has is sent once; to each where the nodes do not reach each other. `prepare`: sh
    that runs in the root before. `link`: programs only read it."""
    by_name = {node.name: node for node in nodes}

    def send(names: Sequence[str]) -> Sequence[NodeResult]:
        receivers = []
        for name in names:
            node = by_name[name]
            root, agent = quote(node.root), quote(assets.locate_agent(node.root))
            command = f"cd {root} && {{ {prepare}; }} && exec /bin/sh {agent} store {root}"
            connect, target = f"{root}/bin/clusterctl-ssh", f"{node.root}/{folder}"
            receivers.append(Receiver(name, command, connect, target))
        return spreading.Spread(
            pool, receivers, content, link=link, timeout=timeout, patience=patience
        ).run()

    def attempt(names: Sequence[str]) -> dict[str, NodeResult]:
        if may_spread(nodes):
            found = send(names)
        else:
            found = pool.call_each(lambda name: send([name])[0], names)
        return {result.node: result for result in found}

    results = attempt(list(by_name))
    failed = {node.name: _require_agent(node) for node in nodes if not results[node.name].ok}
    lacking = [r.node for r in pool.run(failed, timeout=STAGE_TIMEOUT) if r.exit_code == NO_AGENT]
    placed = pool.call_each(lambda name: place_agent(by_name[name], pool), lacking)
    results |= {result.node: result for result in placed}
    return list((results | attempt([result.node for result in placed if result.ok])).values())


def _compile(job: Job, cluster: Cluster, pool: Pool, report: Reporter) -> None:
    """Compiles a source file once per architecture, on the first worker of each, and copies it to
    the others. A job of a queue compiles its program itself, where it runs. Raises LaunchError with
    what the compiler said."""
    program = job.spec.program
    compiled = plan_compilation(program, job.spec.env)
    if compiled is None or not load_system(cluster.system).places_ranks:
        return
    groups: dict[str, list[Node]] = {}
    for name in list_rank_nodes(job, cluster):
        node = cluster.node(name)
        groups.setdefault(node.facts.arch, []).append(node)
    for first, *others in groups.values():
        with _Notice(f"compiling {program.source} on {first.name}", report):
            binary = _compile_on(first, job, compiled, pool)

        def send(name: str, binary: bytes = binary) -> NodeResult:
            folder = f"{cluster.node(name).root}/jobs/{job.id}"
            target = quote(f"{folder}/work/{program.folder}/{program.target}")
            command = f"cat >{target} && chmod 755 {target} && {_count_staged(folder, program)}"
            return pool.find_transport(name).run(command, stdin=binary, timeout=STAGE_TIMEOUT)

        for result in pool.call_each(send, [node.name for node in others]):
            if not result.ok:
                raise make_error("copying the compiled program", result)


def _compile_on(node: Node, job: Job, compiled: Compilation, pool: Pool) -> bytes:
    program = job.spec.program
    target = quote(program.target)
    folder = f"{node.root}/jobs/{job.id}"
    bins = [f"{node.mpi_prefix}/bin", *filter(None, [os.path.dirname(node.python)])]
    # What was compiled of the same tree in the same way is there.
    key = hashlib.sha256(f"{job.stage} {compiled.script} {bins}".encode()).hexdigest()[:16]
    kept = quote(f"{node.root}/compiled/{key}")
    keep = f"mkdir -p {quote(node.root)}/compiled && cp {target} {kept}.$$ && mv {kept}.$$ {kept}"
    command = (
        f"cd {quote(folder)}/work/{quote(program.folder)} || exit;"
        f" PATH={quote(':'.join(bins))}:$PATH;"
        f" if [ -x {kept} ]; then cp {kept} {target}; else ({compiled.script}) && {keep}; fi &&"
        f" {_count_staged(folder, program)} && cat {target}"
    )
    result = pool.find_transport(node.name).run(node.enter(command), timeout=COMPILE_TIMEOUT)
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


def set_up(
    job: Job, cluster: Cluster, names: Sequence[str], pool: Pool, here: Path, report: Reporter
) -> None:
    """Runs --setup's lines on those nodes where no job with these lines and this tree has done so.
    What they print is kept in the job's folder `here`, by node. Raises LaunchError with its end."""
    commands = {}
    for name in names:
        node = cluster.node(name)
        environment = locate_packages(node, job.spec.packages)
        bins = ":".join(
            filter(None, (f"{environment}/bin", node.mpi_prefix and f"{node.mpi_prefix}/bin"))
        )
        settings = {
            "environment": environment,
            "lines": job.spec.setup,
            "folder": job.spec.program.folder,
            "variables": {"VIRTUAL_ENV": environment, "PATH": f"{bins}:$PATH", **job.spec.env},
        }
        commands[name] = node.enter(render_question(node, job.id, "set_up", settings))
    what = f"--setup runs on {count(len(names), 'node')}"
    with _Notice(what, report) as notice:
        results = pool.run(commands, timeout=SETUP_TIMEOUT, on_stdout=notice.hear)
    for result in results:
        if result.stdout:
            (here / f"setup-{result.node}.log").write_bytes(result.stdout)
    for result in results:
        if result.exit_code is None:
            raise make_error("running --setup", result)
        if not result.ok:
            path = here / f"setup-{result.node}.log"
            last = "\n".join(result.text.splitlines()[-SETUP_SHOWN:])
            how = f":\n{last}" if last else ", and printed nothing"
            raise LaunchError(
                f"--setup ended with {result.exit_code} on {result.node}{how}",
                hint=f"all that it printed: {path}" if last else "its lines are for /bin/sh",
            )
    if ran := [result for result in results if REUSED not in result.complaints]:
        report(f"--setup is done on {count(len(ran), 'node')} after {notice.seconds:.1f} s")


def build(
    node: Node, place: str, settings: Mapping[str, object], what: str, pool: Pool, report: Reporter
) -> NodeResult:
    """Runs a build in that folder of a node. It ends with us."""
    words = (assets.locate_agent(node.root), "build", place, json.dumps(settings))
    command = node.enter(f"exec /bin/sh {join(words)}")
    with _Notice(f"building {what} on {node.name}", report) as notice:
        (result,) = pool.run({node.name: command}, timeout=SETUP_TIMEOUT, on_stdout=notice.hear)
    if result.ok:
        report(f"{what} is built on {node.name} after {notice.seconds:.1f} s")
    return result


class _Notice:
    """Says now and then what takes its time, and what nodes have printed last."""

    def __init__(self, what: str, report: Reporter) -> None:
        self._what, self._report = what, report
        self._ended = threading.Event()
        self._last = ""
        self._started = monotonic()

    def hear(self, node: str, data: bytes) -> None:
        if lines := data.decode(errors="replace").strip().splitlines():
            self._last = f"; {node}: {lines[-1][:100]}"

    def __enter__(self) -> _Notice:
        if self._what:
            threading.Thread(target=self._tell, daemon=True).start()
        return self

    def _tell(self) -> None:
        pause = PATIENCE
        while not self._ended.wait(pause):
            self._report(f"{self._what}{self._last}")
            pause = PAUSE

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.seconds = monotonic() - self._started


def _count_staged(folder: str, program: Program) -> str:
    """A command that counts a compiled program, and modules of Fortran, among what was staged: they
    are no outputs."""
    path = os.path.normpath(f"{program.folder}/{program.target}")
    return f"/bin/sh {quote(folder)}/agent.sh built {quote(path)}"


def start(job: Job, cluster: Cluster, pool: Pool, port: str, report: Reporter) -> str:
    """Starts the supervisor, or hands the job in; returns what that has printed, a status. A batch
    system that takes its time is waited for, and that is said."""
    system = load_system(cluster.system)
    with _Notice(system.slow_start, report):
        result = pool.find_transport(cluster.launcher.name).run(
            _render_start(job, cluster, port), timeout=system.start_limit
        )
    if not result.ok:
        raise _explain_start(job, cluster, result)
    return result.text


def _render_start(job: Job, cluster: Cluster, port: str = "") -> str:
    steps = [f"cd {quote(cluster.launcher.root)}/jobs/{job.id}"]
    steps += [f"echo {quote(port)} >port"] if port else []
    return " && ".join([*steps, f"exec {join(load_system(cluster.system).submit_argv(job))}"])


def _explain_start(job: Job, cluster: Cluster, result: NodeResult) -> ClusterctlError:
    if result.was_killed:
        return StartKilled(
            f"starting job {job.id} failed on {result.node}: {result.why}",
            hint=f"`clusterctl rerun {job.id}` starts it again",
        )
    hint = load_system(cluster.system).advise(result.complaints, cluster)
    return make_error(f"starting job {job.id}", result, hint)


class StartKilled(LaunchError):
    """What starts the job was killed; the job may have started all the same."""


# -------------------------------------------------------------------------------------------------
# A function as a program: it is sent to the nodes pickled, with the files of its project; what it
# returns or raises on each rank is read back.


FOLDER = ".clusterctl-call"
"""In the working tree; what is in it is no output of the job (clusterctl/agent/outputs.py)."""
MAX_RESULT = 100_000_000
"""Bytes that each rank may return."""
READ_TIMEOUT = 600.0
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class RankOutcome(Struct, frozen=True):
    """Of one rank. `data`: the pickled result or exception; b"" for one that cannot be pickled."""

    ok: bool
    data: bytes
    said: str
    """The exception in one line."""
    traceback: str


def resolve_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    chosen: Path | None = None,
    limit: int = 0,
    include: Sequence[Path] = (),
) -> tuple[Program, project_tree.Tree]:
    """The call as a program, and its files: what the function's own modules import is staged as for
    a script, from `chosen`, else the git work tree or folder of its module; nothing for one from a
    notebook, a prompt or a library. Raises UsageError for what cannot be sent."""
    import cloudpickle

    name = getattr(function, "__name__", type(function).__name__)
    try:
        data = cloudpickle.dumps((function, args), protocol=5)
    except Exception as error:
        raise UsageError(
            f"{name} cannot be sent to the nodes: {error}",
            hint="open files, locks and connections inside the function, and pass plain values",
        ) from error
    if len(data) > (limit or project_tree.MAX_BYTES):
        raise UsageError(
            f"{name} and its arguments are too large: {format_bytes(len(data))}",
            hint="read the data from a file in the function, or raise the limit with max_stage",
        )
    place = _find_folder(function)
    tree = project_tree.Tree(find_home().path, (), 0, False)
    if chosen or place:
        tree = project_tree.find_tree(place or Path.cwd(), chosen=chosen, limit=limit)
    folder = "."
    if place and place.is_relative_to(tree.root):
        folder = str(place.relative_to(tree.root))
    library = Path(cloudpickle.__file__).parent
    starter = assets.find_folder("templates") / "job/call.py"
    written = {"function.pickle": data, "call.py": starter.read_bytes()}
    written["limits.json"] = json.dumps([PYTHON, MAX_RESULT]).encode()
    for path in sorted(library.glob("*.py")):  # nodes need not have it
        written[f"{library.name}/{path.name}"] = path.read_bytes()
    program = Program(
        kind=ProgramKind.PYTHON,
        target=os.path.relpath(f"{FOLDER}/call.py", folder),
        args=(name,),
        folder=folder,
    )
    tree = project_tree.include(tree, include, limit)
    texts = ((f"{FOLDER}/{name}", text) for name, text in written.items())
    return program, replace(tree, written=tuple(texts))


def _find_folder(function: Callable[..., Any]) -> Path | None:
    """The folder from which the function's module is imported here; None without a file, and for
    installed libraries."""
    function = getattr(function, "func", function)  # of a functools.partial
    name = getattr(function, "__module__", None) or type(function).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if not file:
        return None
    path = Path(file).resolve()
    paths = sysconfig.get_paths()
    installed = {Path(paths[key]).resolve() for key in ("stdlib", "purelib", "platlib", "scripts")}
    if installed & {*path.parents}:
        return None
    spec = getattr(module, "__spec__", None)
    dotted = spec.name if spec else "" if name == "__main__" else name
    levels = dotted.count(".") + (path.name == "__init__.py")
    return path.parents[levels]


def read_outcomes(job: Job, cluster: Cluster, pool: Pool) -> dict[int, RankOutcome]:
    """By rank, of those that have one."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as scratch:
        target = Path(scratch)
        names = list_rank_nodes(job, cluster)

        def get(name: str) -> Any:
            folder = f"{cluster.node(name).root}/jobs/{job.id}/work/{FOLDER}/results"
            return pool.find_transport(name).get(folder, target / name, timeout=READ_TIMEOUT)

        pool.call_each(get, names)  # what is missing is seen by its rank
        found = {}
        for path in target.glob("*/*"):
            if path.name.isdigit():
                found[int(path.name)] = RankOutcome(**pickle.loads(path.read_bytes()))
    return dict(sorted(found.items()))
