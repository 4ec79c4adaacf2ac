"""Makes the containers of a cluster, keeps those that are sound, and waits for their sshd."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from pathlib import Path

import msgspec
from msgspec import Struct

from clusterctl import process
from clusterctl.core import assets, catalog
from clusterctl.core.clock import Deadline
from clusterctl.core.model import SHARED, Accelerator, Cluster, ClusterSpec, NodeResult, Reporter
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import deadlines, networks, protocol
from clusterctl.machines.networks import probe
from clusterctl.machines.protocol import LAUNCHER

# -------------------------------------------------------------------------------------------------
# The Docker engine of this machine, through its own command line: JSON in, deadlines on all calls.
#
# Everything of ours carries labels: a cluster is found by them, whatever its record says.


CLUSTER = "clusterctl.cluster"
"""Label: the cluster's id."""
FOLDER = "clusterctl.folder"
"""Label: the cluster's folder. One engine may serve several people."""
NODE = "clusterctl.node"
DIGEST = "clusterctl.digest"

ENGINE_PATIENCE = 60.0
"""Seconds that one call may take. An engine under load needs some for a container."""
GREETING = 10.0
"""Seconds that an engine may take to say its version."""

_INSTALL = (
    "install it: apt-get install docker.io (Debian, Ubuntu), dnf install moby-engine (Fedora)"
)


class Container(Struct, frozen=True):
    """One of ours, as the engine describes it."""

    id: str
    name: str
    node: str
    digest: str
    state: str
    """`running`, `exited`, `created`, `paused`, …"""
    exit_code: int
    address: str


def call(*words: str, timeout: float = ENGINE_PATIENCE, stdin: bytes = b"") -> NodeResult:
    """`docker WORDS`."""
    return process.run(["docker", *words], timeout=timeout, stdin=stdin)


_DAEMON = "Error response from daemon: "


def explain_failure(result: NodeResult) -> str:
    """The line of a failed call that says why. Never empty: the client adds blank lines and advice
    around what the daemon said."""
    lines = [line.strip() for line in result.stderr.decode(errors="replace").splitlines()]
    daemon = [line.partition(_DAEMON)[2] for line in lines if _DAEMON in line]
    own = [line for line in lines if line and not line.startswith(("See '", "Run 'docker"))]
    return result.error or (daemon or own or [f"exit code {result.exit_code}"])[-1]


def need(
    *words: str, what: str, timeout: float = ENGINE_PATIENCE, stdin: bytes = b"", hint: str = ""
) -> str:
    """The same, or ProviderError: `what` could not be done, and why."""
    result = call(*words, timeout=timeout, stdin=stdin)
    if not result.ok:
        raise ProviderError(f"{what}: {explain_failure(result)}", hint=hint)
    return result.text


def require() -> str:
    """The engine's version. Raises ProviderError, telling apart the ways of having none."""
    result = call("version", "--format", "{{.Server.Version}}", timeout=GREETING)
    if result.ok:
        return result.text.strip()
    why = explain_failure(result)
    if result.error.endswith("No such file or directory"):
        raise ProviderError("docker is not on PATH", hint=_INSTALL)
    if result.error:
        raise ProviderError(
            f"the Docker engine does not answer within {GREETING:g} s",
            hint="check it: systemctl status docker, journalctl -u docker",
            transient=True,
        )
    if "permission denied" in why:
        raise ProviderError(
            "you are not allowed to use this machine's Docker engine",
            hint="sudo usermod -aG docker $USER, and log in again",
        )
    raise ProviderError(
        f"no Docker engine answers: {why}",
        hint="start it (systemctl start docker), or set DOCKER_HOST",
    )


def has_image(reference: str) -> bool:
    return call("image", "inspect", "--format", "{{.Id}}", reference).ok


def list_containers(cluster: str) -> tuple[Container, ...]:
    """All containers of a cluster, running or not."""
    listed = need(
        *("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={CLUSTER}={cluster}"),
        what="the cluster's containers could not be listed",
    ).split()
    if not listed:
        return ()
    # One that ends in between makes the exit code 1; the others are printed all the same.
    return parse_containers(call("inspect", "--format", _FORM, *listed).text)


_FORM = "|".join(
    (
        "{{.Id}}|{{.Name}}",
        *(f'{{{{index .Config.Labels "{label}"}}}}' for label in (NODE, DIGEST)),
        "{{.State.Status}}|{{.State.ExitCode}}",
        "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}",
    )
)
_CONTAINER = re.compile(r"(\w+)\|/?([^|]*)\|([^|]*)\|([^|]*)\|(\w+)\|(-?\d{1,9})\|\s*(\S*).*")


def parse_containers(text: str) -> tuple[Container, ...]:
    """What `docker inspect` printed in _FORM. Raises ProviderError."""
    found = []
    for line in text.splitlines():
        row = _CONTAINER.fullmatch(line)
        if not row:
            raise ProviderError(
                f"cannot read the output of `docker inspect`: {line[:200]!r}",
                hint="check the Docker engine and its version: docker version",
            )
        id, name, node, digest, state, code, address = row.groups()
        found.append(Container(id, name, node, digest, state, int(code), address))
    return tuple(found)


def list_labelled(kind: str, cluster: str) -> tuple[str, ...]:
    """The names of the cluster's networks or volumes (`kind`)."""
    words = ("--filter", f"label={CLUSTER}={cluster}", "--format", "{{.Name}}")
    return tuple(need(kind, "ls", *words, what=f"the engine's {kind}s could not be listed").split())


def list_subnets(names: Iterable[str] = ()) -> tuple[IPv4Network, ...]:
    """The IPv4 subnets of these networks, or of all that the engine knows."""
    wanted = (
        list(names)
        or need(
            "network", "ls", "--quiet", what="the engine's networks could not be listed"
        ).split()
    )
    form = "{{range .IPAM.Config}}{{.Subnet}} {{end}}"
    said = call("network", "inspect", "--format", form, *wanted).text if wanted else ""
    return tuple(filter(None, map(networks.parse_network, said.split())))


def list_clusters(folder: Path) -> frozenset[str]:
    """The ids of the clusters that were made for a folder. None where no engine answers: what it
    would hold, nobody can reach now."""
    label = f"label={FOLDER}={folder}"
    form = f'{{{{.Label "{CLUSTER}"}}}}'
    found: set[str] = set()
    for words in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
        result = call(*words, "--filter", label, "--format", form, timeout=GREETING)
        if not result.ok:
            return frozenset(found)
        found |= set(result.text.split())
    return frozenset(found)


def remove_containers(kind: Sequence[str], names: Sequence[str]) -> None:
    """Removes what is still there of `names`; whether it worked is asked afterwards."""
    for start in range(0, len(names), 50):
        call(*kind, *names[start : start + 50], timeout=ENGINE_PATIENCE * 2)


# -------------------------------------------------------------------------------------------------
# What a cluster in containers consists of: pure functions from the options to argv.


MAX_WORKERS = 200
"""A cluster gets a /24."""

PORT = 22
"""Each container has an address of its own, so sshd may have its usual port."""

ENTRY = "/usr/local/lib/clusterctl"
ETC = "/etc/clusterctl"

AGENT = f"{ENTRY}/{deadlines.AGENT}"
START = f"/bin/sh {AGENT} & exec /bin/sh {ENTRY}/entrypoint.sh"
END = "kill -TERM 1"
"""What the agent does at the deadline. `--init` hands it on to sshd, which ends with 0."""

SHARED_MEMORY = "8g"
"""Upper limit of /dev/shm, where ranks of one node and data loaders meet; Docker's is 64 MiB. Not
`--ipc=host`: that would also show nodes each other's segments, which no two machines do."""


class Privilege(msgspec.Struct, frozen=True):
    """Something an engine may refuse, and what it costs to go on without: a row of
    privileges.toml. `needs`: the folder of this machine's devices that it is for."""

    name: str
    argv: tuple[str, ...]
    cost: str
    needs: str = ""


PRIVILEGES = msgspec.toml.decode(
    Path(__file__).with_name("privileges.toml").read_bytes(), type=dict[str, tuple[Privilege, ...]]
)["privilege"]


class NodePlan(Struct, frozen=True):
    """One node to be: its index decides its address."""

    name: str
    index: int
    image: str
    gpus: tuple[str, ...] = ()
    vendor: Accelerator = Accelerator.NONE

    @property
    def devices(self) -> tuple[str, ...]:
        """The engine's arguments that hand exactly these GPUs in."""
        if not self.gpus:
            return ()
        if self.vendor is Accelerator.NVIDIA:
            return ("--gpus", f'"device={",".join(self.gpus)}"')
        nodes = (f"/dev/dri/renderD{128 + int(gpu)}" for gpu in self.gpus)
        words = [word for path in ("/dev/kfd", *nodes) for word in ("--device", path)]
        return (*words, "--group-add", "video")


def name_nodes(workers: int) -> tuple[str, ...]:
    return protocol.name_nodes(workers, most=MAX_WORKERS, what="a cluster in containers")


def find_vendor(devices: Path) -> Accelerator:
    """Whose GPUs this machine has, by the device files of the drivers."""
    if (devices / "nvidiactl").exists():
        return Accelerator.NVIDIA
    return Accelerator.AMD if (devices / "kfd").exists() else Accelerator.NONE


def list_gpus(maker: Accelerator, devices: Path) -> tuple[str, ...]:
    """All GPUs of this machine, as the engine's arguments call them."""
    if maker is Accelerator.NVIDIA:
        found = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*")]
    else:
        renders = [path.name.removeprefix("renderD") for path in devices.glob("dri/renderD*")]
        found = [str(int(name) - 128) for name in renders if name.isdigit()]
    return tuple(sorted((name for name in found if name.isdigit()), key=int))


def plan_machines(spec: ClusterSpec, devices: Path) -> tuple[NodePlan, ...]:
    """The launcher and its workers. GPUs are dealt out evenly, neighbours together.

    Raises UsageError where the numbers cannot be met, ProviderError where this machine lacks them.
    """
    if any(group.instance_type or group.family not in ("", "cpu") for group in spec.groups):
        raise UsageError(
            "--provider docker has no machine types to choose from",
            hint="leave --gpu, --cpu and --instance-type out; --gpus 0,1 uses this machine's GPUs",
        )
    count = spec.workers
    launcher, *workers = name_nodes(count)
    maker, gpus = _choose_gpus(spec, devices)
    if gpus and len(gpus) < count:
        raise UsageError(
            f"{len(gpus)} GPUs cannot be shared by {count} workers",
            hint=f"--workers {len(gpus)}, or more --gpus",
        )
    kind = {Accelerator.NVIDIA: "nvidia", Accelerator.AMD: "amd"}.get(maker, "cpu")
    chosen = catalog.choose_images(("launcher", kind), spec.image, spec.images)
    images = {
        of: catalog.name_local_image(image) if image in catalog.RECIPES else image
        for of, image in chosen.items()
    }
    share, rest = divmod(len(gpus), count)
    made = [NodePlan(launcher, 0, images["launcher"])]
    first = 0
    for number, name in enumerate(workers, 1):
        last = first + share + (number <= rest)
        made.append(NodePlan(name, number, images[kind], gpus[first:last], maker))
        first = last
    return tuple(made)


def _choose_gpus(spec: ClusterSpec, devices: Path) -> tuple[Accelerator, tuple[str, ...]]:
    if not spec.gpus:
        return Accelerator.NONE, ()
    maker = find_vendor(devices)
    there = list_gpus(maker, devices)
    if not there:
        raise ProviderError(
            "this machine has no GPU for containers",
            hint="no /dev/nvidiactl and no /dev/kfd: is the driver loaded? Or leave --gpus out",
        )
    wanted = there if spec.gpus == ("all",) else spec.gpus
    strange = [gpu for gpu in wanted if gpu not in there]
    if strange or len(set(wanted)) < len(wanted):
        raise UsageError(
            f"--gpus {','.join(wanted)}: this machine has {', '.join(there)}",
            hint="name each GPU once, or use --gpus all",
        )
    return maker, wanted


def list_privileges(devices: Path) -> tuple[Privilege, ...]:
    """What workers are to get beyond the engine's usual."""
    return tuple(row for row in PRIVILEGES if not row.needs or (devices / row.needs).exists())


def compute_digest(machine: NodePlan, address: str, keys: Sequence[str]) -> str:
    """Changes when the container has to be made anew. What an engine refuses is not part of it."""
    parts = (machine.image, *machine.gpus, address, *keys)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def name_root(cluster: str) -> str:
    """The node root, in every container."""
    return f"/root/.clusterctl/{cluster}"


def choose_restart(deadline: float | None) -> str:
    """The engine's policy: whoever ends at a deadline, with exit code 0, has to stay down."""
    return "on-failure" if deadline else "unless-stopped"


def name_container(cluster: str, machine: NodePlan) -> str:
    """Its name, which has to be unique on the engine."""
    return f"{cluster}-{machine.name}"


def name_volume(cluster: str) -> str:
    """The engine's name of the folder that all nodes share."""
    return f"{cluster}-shared"


def label(cluster: Cluster, folder: Path) -> list[str]:
    """The engine's arguments that label what is of the cluster."""
    labels = {CLUSTER: cluster.id, FOLDER: str(folder)}
    return [word for name, text in labels.items() for word in ("--label", f"{name}={text}")]


def build_create_argv(
    machine: NodePlan,
    cluster: Cluster,
    folder: Path,
    digest: str,
    subnet: IPv4Network,
    privileges: Sequence[Privilege],
) -> list[str]:
    """`docker create …`. Neither keys nor paths of this machine are in it."""
    words = [
        *("create", "--name", name_container(cluster.id, machine), "--hostname", machine.name),
        *("--network", cluster.id, "--network-alias", machine.name),
        *("--ip", networks.compute_address(subnet, machine.index)),
        *("--init", "--restart", choose_restart(cluster.deadline), "--user", "root"),
        *("--shm-size", SHARED_MEMORY),
        *label(cluster, folder),
        *("--label", f"{DIGEST}={digest}", "--label", f"{NODE}={machine.name}"),
    ]
    for privilege in privileges:
        words += privilege.argv
    words += machine.devices
    if cluster.spec.shared:
        words += ["--mount", f"type=volume,source={name_volume(cluster.id)},target={SHARED}"]
    environment = {"SSH_PORT": str(PORT), "SSH_USER": "root", "HOST_KEY_FILE": f"{ETC}/host_key"}
    if machine.gpus:
        environment["SLOTS"] = str(len(machine.gpus))
    if machine.gpus and machine.vendor is Accelerator.NVIDIA:
        # Without it, releases of the container toolkit differ in whether they hand CUDA in.
        environment["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    for name, value in environment.items():
        words += ["--env", f"{name}={value}"]
    health = f"/bin/sh {ENTRY}/healthcheck.sh"
    words += ["--health-cmd", health, "--health-interval", "30s"]
    return [*words, "--entrypoint", "/bin/sh", machine.image, "-c", START]


# -------------------------------------------------------------------------------------------------

START_LIMIT = 30.0
"""Seconds until a started container's sshd has to greet."""
_AT_ONCE = 8
_TOOLKIT = "NVIDIA GPUs need the NVIDIA container toolkit on this machine: docs/docker.md"


def set_deadline(cluster: str, deadline: float | None, life: float = 0.0) -> dict[Container, str]:
    """Gives the containers that are there their deadline; those that cannot get it, and why."""
    data = build_archive({deadlines.FILE: (deadlines.render_file(deadline, life), 0o644)})
    refused: dict[Container, str] = {}

    def set_one(item: Container) -> None:
        copied = call("cp", "-", f"{item.id}:/", stdin=data)
        policy = call("update", "--restart", choose_restart(deadline), item.id)
        for result in (copied, policy):
            if not result.ok:
                refused[item] = explain_failure(result)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(set_one, list_containers(cluster)))
    return refused


def keep_healthy(
    cluster: str, digests: Mapping[str, str], addresses: Mapping[str, str]
) -> tuple[set[str], list[str]]:
    """The nodes that stay, and those whose container was removed. One that only stands still is
    started again: what was written in it is worth keeping."""
    found = list_containers(cluster)
    fit = {item.node: item for item in found if digests.get(item.node) == item.digest}
    for item in list(fit.values()):
        revive = "unpause" if item.state == "paused" else "start"
        if item.state == "created":
            del fit[item.node]  # we were interrupted before it had its keys
        elif item.state != "running" and not call(revive, item.id).ok:
            del fit[item.node]
    answers = _wait({name: addresses[name] for name in fit}, START_LIMIT / 3)
    kept = {name for name, trouble in answers.items() if not trouble}
    doomed = [item for item in found if item.node not in kept or fit[item.node] is not item]
    remove_containers(("rm", "--force", "--volumes"), [item.id for item in doomed])
    return kept, [item.node for item in doomed]


def _wait(addresses: Mapping[str, str], limit: float) -> dict[str, str]:
    """Name → nothing, or what is wrong with its sshd when the time is up."""
    deadline = Deadline(limit)
    answers = probe({name: (ip, PORT) for name, ip in addresses.items()}, seconds=1)
    while (late := [n for n, trouble in answers.items() if trouble]) and not deadline.passed:
        time.sleep(0.1)
        answers |= probe({name: (addresses[name], PORT) for name in late}, seconds=1)
    return answers


def find_supported(
    cluster: str,
    machines: Sequence[NodePlan],
    wanted: Sequence[Privilege],
    report: Reporter,
) -> tuple[Privilege, ...]:
    """What this engine gives of what workers are to get (`wanted`). Each refusal is said with its
    price."""
    workers = [machine for machine in machines if machine.name != LAUNCHER]
    if not workers:
        return ()
    image = workers[0].image
    if not _find_refusal(cluster, image, wanted):
        return tuple(wanted)
    found = []
    for privilege in wanted:
        if why := _find_refusal(cluster, image, (privilege,)):
            report(f"warning: the engine refuses {privilege.name} ({why}): {privilege.cost}")
        else:
            found.append(privilege)
    return tuple(found)


def _find_refusal(cluster: str, image: str, wanted: Iterable[Privilege]) -> str:
    """Why a container with that does not start; nothing if it does. It carries the cluster's label,
    so that `down` finds it if we are killed in between."""
    words = [word for privilege in wanted for word in privilege.argv]
    result = call(
        *("run", "--rm", "--network", "none", "--label", f"{CLUSTER}={cluster}", *words),
        *("--entrypoint", "/bin/true", image),
    )
    if result.ok:
        return ""
    return explain_failure(result).removesuffix(".").removesuffix(": unknown").split(": ")[-1]


def make_container(
    cluster: Cluster,
    folder: Path,
    machines: Sequence[NodePlan],
    digests: Mapping[str, str],
    subnet: IPv4Network,
    privileges: Sequence[Privilege],
    authorized: Sequence[str],
) -> None:
    """Creates, fills and starts containers, several at once. ProviderError names the first node
    that could not be started."""

    def make_one(machine: NodePlan) -> None:
        given = () if machine.name == LAUNCHER else privileges
        argv = build_create_argv(machine, cluster, folder, digests[machine.name], subnet, given)
        what = f"{machine.name} could not be created"
        id = need(*argv, what=what).strip()
        private = (folder / "containers" / machine.name).read_text()
        files = {
            f"{ETC}/host_key": (private, 0o600),
            f"{ETC}/authorized_keys": ("".join(f"{k}\n" for k in authorized), 0o644),
            **_render_files(cluster),
        }
        need("cp", "-", f"{id}:/", what=what, stdin=build_archive(files))
        hint = _TOOLKIT if machine.vendor is Accelerator.NVIDIA and machine.gpus else ""
        need("start", id, what=f"{machine.name} could not be started", hint=hint)

    # All of them, also after one has failed; then the first failure.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        started = [pool.submit(make_one, machine) for machine in machines]
    for each in started:
        each.result()


def _render_files(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """The entry point, its sshd's settings and the agent that minds the deadline: this release's,
    whatever the image brings."""
    common = assets.find_folder("docker") / "common"
    found = {f"{ETC}/sshd_config": ((common / "sshd_config").read_text(), 0o644)}
    for name in ("entrypoint.sh", "healthcheck.sh"):
        found[f"{ENTRY}/{name}"] = ((common / name).read_text(), 0o755)
    agent = deadlines.render_agent(root=name_root(cluster.id), end=END)
    found[AGENT] = (agent, 0o755)
    found[deadlines.FILE] = (deadlines.render_file(cluster.deadline, cluster.spec.ttl), 0o644)
    return found


def build_archive(files: Mapping[str, tuple[str, int]]) -> bytes:
    """A tar of path → (text, mode), all root's, with the folders above it."""
    rows = {f"{Path(path).parent}/": (b"", 0o755) for path in files}
    rows |= {path: (text.encode(), mode) for path, (text, mode) in files.items()}
    return assets.pack({path.lstrip("/"): row for path, row in rows.items()})


def wait_for_sshd(
    cluster: Cluster, machines: Sequence[NodePlan], addresses: Mapping[str, str]
) -> None:
    """Raises ProviderError for the first node whose sshd cannot be reached, with what it said."""
    answers = _wait({machine.name: addresses[machine.name] for machine in machines}, START_LIMIT)
    failed = next((machine for machine in machines if answers[machine.name]), None)
    if failed is None:
        return
    name = name_container(cluster.id, failed)
    log = call("logs", "--tail", "3", name)
    lines = (log.text + log.stderr.decode(errors="replace")).strip().splitlines()
    state = next((c.state for c in list_containers(cluster.id) if c.node == failed.name), "gone")
    if state == "running":
        raise ProviderError(
            f"{failed.name} runs, but {answers[failed.name]}",
            hint="containers can be reached only from the machine that runs the engine (not"
            " with Docker Desktop, nor with a DOCKER_HOST elsewhere)",
        )
    raise ProviderError(
        f"{failed.name} stopped at once ({state}): {' · '.join(lines) or 'it printed nothing'}",
        hint=f"docker logs {name}; the image {failed.image} needs /bin/sh and an sshd",
    )
