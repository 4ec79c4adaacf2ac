"""What a cluster in containers consists of: pure functions from the options to argv."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from clusterctl import catalog
from clusterctl.errors import ProviderError, UsageError
from clusterctl.model import SHARED, Accelerator, ClusterSpec
from clusterctl.providers.docker import engine
from clusterctl.providers.shared import deadlines, nodes, subnets

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


@dataclass(frozen=True, slots=True)
class Privilege:
    """Something an engine may refuse, and what it costs to go on without."""

    name: str
    argv: tuple[str, ...]
    cost: str


PRIVILEGES = (
    Privilege(
        "unlimited locked memory",
        ("--ulimit", "memlock=-1"),
        "RDMA and EFA cannot register large buffers, so MPI and NCCL use TCP",
    ),
    Privilege(
        "the capability IPC_LOCK",
        ("--cap-add", "IPC_LOCK"),
        "pinned memory stays within the limit of locked memory: no RDMA, slower copies to GPUs",
    ),
    Privilege(
        "the capability SYS_PTRACE",
        ("--cap-add", "SYS_PTRACE"),
        "ranks of one node copy large messages twice (no CMA), and stacks of hung ranks cannot be"
        " read",
    ),
    Privilege(
        "the capability SYS_NICE",
        ("--cap-add", "SYS_NICE"),
        "memory is not bound to the socket or the GPU beside it",
    ),
)
INFINIBAND = Privilege("the RDMA devices", ("--device", "/dev/infiniband"), "no RDMA: MPI uses TCP")


@dataclass(frozen=True, slots=True)
class NodePlan:
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
    return nodes.name_nodes(workers, most=MAX_WORKERS, what="a cluster in containers")


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
    return (*PRIVILEGES, INFINIBAND) if (devices / "infiniband").exists() else PRIVILEGES


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


def build_create_argv(
    machine: NodePlan,
    *,
    cluster: str,
    labels: Mapping[str, str],
    subnet: IPv4Network,
    privileges: Sequence[Privilege],
    restart: str,
    shared: bool = False,
) -> list[str]:
    """`docker create …`. Neither keys nor paths of this machine are in it."""
    words = [
        *("create", "--name", name_container(cluster, machine), "--hostname", machine.name),
        *("--network", cluster, "--network-alias", machine.name),
        *("--ip", subnets.compute_address(subnet, machine.index)),
        *("--init", "--restart", restart, "--user", "root"),
        *("--shm-size", SHARED_MEMORY),
    ]
    for name, value in {**labels, engine.NODE: machine.name}.items():
        words += ["--label", f"{name}={value}"]
    for privilege in privileges:
        words += privilege.argv
    words += machine.devices
    if shared:
        words += ["--mount", f"type=volume,source={name_volume(cluster)},target={SHARED}"]
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
