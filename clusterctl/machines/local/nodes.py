"""Makes the nodes be exactly those that are wanted: keeps what is healthy, replaces the rest.

What there is, is read from the processes themselves and from the kernel, never from a record: so it
does not matter where an earlier attempt was interrupted.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from ipaddress import IPv4Network
from pathlib import Path

from msgspec import Struct

from clusterctl import process as process_module
from clusterctl.core import assets
from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import networks as machines_networks
from clusterctl.machines.local import layout, processes
from clusterctl.machines.local.layout import (
    SEARCH,
    STARTER,
    SWITCH,
    Place,
    Server,
    Site,
    is_locked,
    read_endpoint,
    rewrite,
    unlock_shadow,
)
from clusterctl.machines.local.processes import (
    Process,
    find_network,
    is_alive,
    read_start,
)
from clusterctl.machines.networks import Endpoint, probe

# -------------------------------------------------------------------------------------------------
# Starts the processes that make up a cluster, such that none of them outlives a starter that died.
#
# A node process waits for one line on a pipe whose other end only we have. It gets that line when
# all is ready for it; if we are killed before, it reads end of file and leaves.


_NODE_PATIENCE = 10.0
"""Seconds for any one step of a start; a healthy machine needs milliseconds."""


class NodeProcess(Struct, frozen=True):
    """The process that a node (or the switch) hangs on. `start` is 0 if it was gone at once."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        return is_alive(self.pid, self.start)


def locate_script(name: str) -> str:
    """The path of a shell script among the templates; those without variables are run in place."""
    return str(assets.find_folder("templates") / "local" / name)


def locate_log(site: Site, name: str) -> Path:
    return site.nodes / "switch.log" if name == SWITCH else site.locate(name).log


@contextmanager
def start_waiting(
    site: Site, commands: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, NodeProcess]]:
    """Starts each command, all waiting for our word; they get it when the block ends well."""
    theirs, word = os.pipe()
    started: dict[str, process_module.Spawned] = {}
    try:
        try:
            for name, argv in commands.items():
                tag, log = site.make_tag(name), locate_log(site, name)
                log.write_text(f"{tag}\n")  # sshd writes over its environment: see `processes`
                env = {"PATH": SEARCH, "CLUSTERCTL_NODE": tag}
                started[name] = process_module.spawn(
                    argv, log=log, stdin=theirs, cwd=Path("/"), env=env
                )
        finally:
            os.close(theirs)
            # Whoever ends before us is no zombie.
            run_in_background(lambda: [process.wait() for process in started.values()])
        yield {
            name: NodeProcess(process.pid, read_start(process.pid) or 0)
            for name, process in started.items()
        }
        os.write(word, b"\n" * len(commands))
    finally:
        os.close(word)


def wait_until_listening(
    places: Mapping[str, Place], started: Mapping[str, NodeProcess]
) -> dict[str, str]:
    """Waits until every node's sshd listens; returns what is wrong with those where it does not."""
    deadline = Deadline(_NODE_PATIENCE)
    troubles: dict[str, str] = {}
    for name, place in places.items():
        while not place.pid_file.exists() and name not in troubles:
            if not started[name].alive:
                troubles[name] = read_last_words(place.log)
            elif deadline.passed:
                troubles[name] = f"its sshd does not listen after {_NODE_PATIENCE:g} s"
            else:
                time.sleep(0.002)
    return troubles


def read_last_words(log: Path) -> str:
    """The last line that a node process wrote, which usually says why it ended."""
    with suppress(OSError, ValueError):
        _, *lines = log.read_text(errors="replace").strip().splitlines()  # the first is its tag
        if lines:
            return lines[-1]
    return "it ended without a message"


# -------------------------------------------------------------------------------------------------
# Removes the files of nodes and says what of a cluster is still there.


def remove_tree(path: Path) -> None:
    """Removes a folder, also where a program left folders in it that it had closed to itself; of a
    link in its place, the link."""
    if path.is_symlink():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        _open_up(path)
        shutil.rmtree(path)


def _open_up(folder: Path) -> None:
    folder.chmod(0o700)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _open_up(Path(entry.path))


def remove_node(place: Place) -> None:
    remove_tree(place.folder)
    remove_tree(place.scratch)


def find_scratch_folders(site: Site) -> list[Path]:
    """The parents of the nodes' temporary folders, by name; nobody else's of that name."""
    folders = sorted(layout.SCRATCH.glob(f"{site.scratch_prefix}*"))
    return [folder for folder in folders if _is_mine(folder)]


def _is_mine(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def find_surplus(site: Site, names: Iterable[str]) -> list[Place]:
    """Nodes that have files here but are not wanted."""
    wanted = set(names)
    found: set[str] = set()
    with suppress(FileNotFoundError):
        found = {path.name for path in site.nodes.glob("worker-*")}
    return [site.locate(name) for name in sorted(found - wanted)]


def find_remnants(site: Site) -> list[str]:
    """What is left besides the cluster's own processes, in words."""
    left = []
    if site.interface in (name for _, name in socket.if_nameindex()):
        left.append(f"interface {site.interface}")
    folders = (site.nodes, site.shared, *find_scratch_folders(site))
    return left + [str(path) for path in folders if path.exists()]


# -------------------------------------------------------------------------------------------------

_ATTEMPTS = 3
"""A loopback port that was free a moment ago may be taken when sshd wants it."""


class Network:
    """What differs between namespaces and loopback."""

    def adopt(self, found: Sequence[Process]) -> bool:
        """Takes over what nodes share from an earlier start; False: it is missing or half-made."""
        return True

    def renew(self) -> None:
        """Gets ready to make it; all processes of an earlier start are gone."""

    def prune(self, kept: Sequence[Process]) -> None:
        """Disconnects all nodes but those of the processes that are kept."""

    def listen(self, place: Place) -> tuple[Endpoint, ...]:
        """Where a node's sshd listens; the first is where others reach it."""
        raise NotImplementedError

    def build_commands(self, places: Sequence[Place]) -> dict[str, list[str]]:
        """What to start for these nodes; each command waits for a line on its standard input."""
        raise NotImplementedError

    def write_files(self, places: Sequence[Place]) -> None:
        """Writes the files of all wanted nodes that depend on who is there."""

    def connect(self, started: Mapping[str, NodeProcess]) -> None:
        """Connects what has been started, before it gets its line."""


class Outcome(Struct, frozen=True):
    endpoints: dict[str, Endpoint]
    host_keys: dict[str, str]
    started: tuple[str, ...]
    removed: tuple[str, ...]


def converge(site: Site, network: Network, names: Sequence[str], server: layout.Server) -> Outcome:
    """Raises ProviderError, naming the node, where one cannot be started."""
    site.nodes.mkdir(mode=0o700, exist_ok=True)
    layout.make_scratch(site)
    places = {name: site.locate(name) for name in names}
    kept = _keep_healthy(site, network, places)
    surplus = find_surplus(site, names)
    for place in surplus:
        remove_node(place)
    started = tuple(name for name in names if name not in kept)
    host_keys: dict[str, str] = {}
    missing = {name: places[name] for name in started}
    for attempt in range(1, _ATTEMPTS + 1):
        troubles = _start(site, network, places, missing, server, host_keys)
        if not troubles:
            break
        _end(site, set(troubles))
        if attempt == _ATTEMPTS:
            name, trouble = next((name, troubles[name]) for name in names if name in troubles)
            raise ProviderError(
                f"{name} could not be started: {trouble}", hint=f"see {places[name].log}"
            )
        missing = {name: places[name] for name in troubles}
    endpoints = {name: network.listen(place)[0] for name, place in places.items()}
    return Outcome(endpoints, host_keys, started, tuple(place.name for place in surplus))


def _end(site: Site, nodes: set[str]) -> None:
    processes.end(site, lambda process: process.node in nodes, seconds=2)


def _keep_healthy(site: Site, network: Network, places: Mapping[str, Place]) -> set[str]:
    """The nodes that stay; every other process of the cluster is ended."""
    found = processes.scan(site)
    kept: set[str] = set()
    whole = network.adopt(found)
    if whole:
        present = {process.node for process in found}
        candidates = {
            name: network.listen(place)[0]
            for name, place in places.items()
            if name in present
            and place.host_key.exists()
            and layout.has_scratch(place)
            and layout.read_endpoint(place) == network.listen(place)[0]
        }
        answers = probe(candidates, seconds=1)
        kept = {name for name, trouble in answers.items() if not trouble}
    stay = {*kept, SWITCH, ""} if whole else set()
    if left := processes.end(site, lambda process: process.node not in stay, seconds=2):
        raise ProviderError(
            f"process {left[0].pid} ({left[0].command}) of an earlier start cannot be ended",
            hint="check what it is waiting for, and try again",
        )
    if whole:
        network.prune([process for process in found if process.node in kept])
    else:
        network.renew()
    return kept


def _start(
    site: Site,
    network: Network,
    places: Mapping[str, Place],
    missing: Mapping[str, Place],
    server: layout.Server,
    host_keys: dict[str, str],
) -> dict[str, str]:
    """Starts the missing nodes and completes the files of all; returns what went wrong, by node."""
    for place in missing.values():
        place.folder.mkdir(mode=0o700, exist_ok=True)
        place.pid_file.unlink(missing_ok=True)
    everyone = list(places.values())
    authorized = "".join(
        (site.folder / "ssh" / key).read_text().strip() + "\n" for key in ("user.pub", "mesh.pub")
    )
    commands = network.build_commands(list(missing.values()))
    with start_waiting(site, commands) as started:
        for name, place in places.items():
            host_keys[name] = layout.write_files(place, authorized)
        network.write_files(everyone)
        for place in missing.values():
            # A node that starts anew numbers its processes anew, and mpirun's daemons refuse to
            # start where a namesake of an earlier life has left its folder.
            layout.clear(place.scratch)
            text = layout.render_config(
                place, site.make_tag(place.name), network.listen(place), server
            )
            layout.rewrite(place.config, text)
        network.connect(started)
    troubles = wait_until_listening(missing, started)
    reached = probe(
        {name: network.listen(missing[name])[0] for name in missing if name not in troubles},
        seconds=5,
    )
    return troubles | {name: trouble for name, trouble in reached.items() if trouble}


# -------------------------------------------------------------------------------------------------
# Namespaces or loopback? Found out by trying: a user id of 0 promises nothing in a container.


NAMESPACES = "namespaces"
LOOPBACK = "loopback"
VARIABLE = "CLUSTERCTL_LOCAL_MODE"

UNSHARE = (
    *("unshare", "--net", "--uts", "--ipc", "--mount", "--pid"),
    *("--fork", "--kill-child", "--propagation", "private", "--mount-proc"),
)


class Mode(Struct, frozen=True):
    """`reason` says in a few words why it is this one."""

    name: str
    reason: str


def choose_mode(environment: Mapping[str, str] = os.environ) -> Mode:
    """The mode for a new cluster. Raises ProviderError where the mode asked for is impossible."""
    wanted = environment.get(VARIABLE, "")
    if wanted not in ("", NAMESPACES, LOOPBACK):
        raise UsageError(
            f"{VARIABLE} is {wanted!r}", hint=f"set it to {NAMESPACES} or {LOOPBACK}, or unset it"
        )
    if wanted == LOOPBACK:
        return Mode(LOOPBACK, f"{VARIABLE}={LOOPBACK}")
    obstacle = find_obstacle()
    if not obstacle:
        return Mode(NAMESPACES, "you are root")
    if wanted == NAMESPACES:
        raise ProviderError(
            f"namespaces are not possible here: {obstacle}",
            hint=f"run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN, or unset {VARIABLE}",
        )
    return Mode(LOOPBACK, obstacle)


@cache
def find_obstacle() -> str:
    """Why nodes cannot have namespaces of their own; nothing if they can. A trial, once."""
    if os.geteuid() != 0:
        return "not root"
    trial = process_module.run(
        [*UNSHARE, "sh", locate_script("trial.sh")], timeout=5, env={"PATH": SEARCH}
    )
    if trial.ok:
        return ""
    return (
        trial.why if trial.error or trial.complaints else f"the trial ended with {trial.exit_code}"
    )


# -------------------------------------------------------------------------------------------------
# Nodes with a network, hostname, process table and mounts of their own.
#
# One process, the switch, holds a network namespace with the bridge; one cable (veth) joins it to
# this machine's network, and one goes to each node. The bridge does not lie in this machine's own
# namespace because a Docker engine's packet filter would drop what crosses it there. No namespace
# has a name: when the processes go, the kernel takes the rest.


_PORT = 22
_ROUTES = ("-4", "-j", "route", "show", "table", "all")
_PATIENCE = 5.0


def render_hosts(addresses: Mapping[str, str]) -> str:
    """/etc/hosts of every node. A node's own name gives its real address, never 127.0.0.1: Gloo
    listens where its hostname resolves to. The mapped form is what a peer's address looks like on
    a socket that serves IPv4 and IPv6, torch's for one.
    """
    lines = [
        f"{address}\t{name}\n::ffff:{address}\t{name}\n" for name, address in addresses.items()
    ]
    return "".join(("127.0.0.1\tlocalhost\n", "::1\tlocalhost ip6-localhost\n", *lines))


def name_port(pid: int) -> str:
    """The switch's end of a node's cable, after the node's process: no two ever share one."""
    return f"n{pid}"


def render_cable(port: str, device: str, address: str, pid: int) -> str:
    """`ip -batch` inside the switch: a cable from a new port of the bridge to a new device in the
    network of process `pid`.
    """
    far = f"name {device} address {machines_networks.compute_mac(address)} netns {pid}"
    return f"link add name {port} type veth peer {far}\nlink set {port} master br0 up\n"


def run_ip(site: Site, *args: str, stdin: str = "", inside: int = 0, check: bool = True) -> str:
    """Runs `ip`, in the network of process `inside` if given. ProviderError unless it succeeds.

    It is tagged as a node process is: if we are killed while it runs, the next start has to end it.
    """
    enter = f"nsenter --net=/proc/{inside}/ns/net".split() if inside else []
    environment = {"PATH": SEARCH, "CLUSTERCTL_NODE": site.make_tag(STARTER)}
    result = process_module.run(
        [*enter, "ip", *args], timeout=_PATIENCE, stdin=stdin.encode(), env=environment
    )
    if check and not result.ok:
        said = result.error or result.complaints
        raise ProviderError(f"the nodes' network could not be created: ip {' '.join(args)}: {said}")
    return result.text


def drop_interface(site: Site) -> None:
    """Takes this machine's end away at once; the kernel would do so some time after the switch."""
    if site.interface in (name for _, name in socket.if_nameindex()):
        run_ip(site, "link", "delete", site.interface, check=False)


class Namespaces(Network):
    """The network of a cluster in namespace mode."""

    def __init__(self, site: Site, server: Server, until: ExitStack) -> None:
        self._site = site
        self._server = server
        self._until = until
        self._switch = 0
        self._subnet = IPv4Network("0.0.0.0")

    def adopt(self, found: Sequence[Process]) -> bool:
        """The switch is whole once it has become `sleep`: it got our word after all was plugged."""
        here = find_network()
        whole = [
            one.pid
            for one in found
            if one.node == SWITCH and one.command == "sleep" and find_network(one.pid) != here
        ]
        if len(whole) != 1:
            return False
        addresses = run_ip(self._site, "-4", "-j", "address")
        subnet = machines_networks.find_own(addresses, self._site.interface)
        if subnet is None:
            return False
        self._switch, self._subnet = whole[0], subnet
        return True

    def renew(self) -> None:
        drop_interface(self._site)
        self._switch = 0
        self._subnet = machines_networks.claim(self._site.id, self._list_used, self._until)

    def _list_used(self) -> tuple[IPv4Network, ...]:
        addresses = run_ip(self._site, "-4", "-j", "address")
        return machines_networks.parse_taken(addresses, run_ip(self._site, *_ROUTES))

    def prune(self, kept: Sequence[Process]) -> None:
        """Unplugs nodes that are gone: the kernel takes its time, and theirs still answer ARP."""
        known = {name_port(one.pid) for one in kept} | {"lo", "br0", "uplink"}
        ports = machines_networks.parse_links(run_ip(self._site, "-j", "link", inside=self._switch))
        if stale := sorted(ports - known):
            batch = "".join(f"link delete {port}\n" for port in stale)
            run_ip(
                self._site, "-force", "-batch", "-", stdin=batch, inside=self._switch, check=False
            )

    def listen(self, place: Place) -> tuple[Endpoint, ...]:
        address = machines_networks.compute_address(self._subnet, layout.parse_index(place.name))
        return ((address, _PORT), ("127.0.0.1", _PORT))

    def build_commands(self, places: Sequence[Place]) -> dict[str, list[str]]:
        """What to start: the nodes, and first the switch if there is none."""
        switch = ["unshare", "--net", "sh", locate_script("hold.sh"), "sleep", "infinity"]
        hidden = layout.find_hidden(self._site.folder, _list_needed())
        shadowed = is_locked(self._server.user)
        shared = self._site.shared
        nodes = {
            place.name: [
                *(*UNSHARE, "sh", "-eu", locate_script("node.sh")),
                *(place.name, self.listen(place)[0][0], str(place.folder), str(hidden)),
                *(str(place.shadow) if shadowed else "", str(shared) if shared.is_dir() else ""),
                *self._server.build_command(place.config),
            ]
            for place in places
        }
        return nodes if self._switch else {SWITCH: switch, **nodes}

    def write_files(self, places: Sequence[Place]) -> None:
        """Tells all nodes, old and new, who is there."""
        text = render_hosts({place.name: self.listen(place)[0][0] for place in places})
        for place in places:
            rewrite(place.hosts, text, 0o644)
        if is_locked(self._server.user):
            shadow = unlock_shadow(Path("/etc/shadow").read_text(errors="replace"))
            for place in places:
                rewrite(place.shadow, shadow)

    def connect(self, started: Mapping[str, NodeProcess]) -> None:
        """Plugs the cables once every node process is in its own namespace."""
        self._await_namespaces(started)
        nodes = {name: owner for name, owner in started.items() if name != SWITCH}
        batch = "".join(
            render_cable(
                name_port(owner.pid),
                "eth0",
                machines_networks.compute_address(self._subnet, layout.parse_index(name)),
                owner.pid,
            )
            for name, owner in nodes.items()
        )
        if SWITCH not in started:
            run_ip(self._site, "-batch", "-", stdin=batch, inside=self._switch)
            return
        here, ours = self._site.interface, str(self._subnet[machines_networks.HOST])
        bridge = "link add name br0 type bridge\nlink set br0 up\n"
        batch = bridge + render_cable("uplink", here, ours, os.getpid()) + batch
        run_ip(self._site, "-batch", "-", stdin=batch, inside=started[SWITCH].pid)
        up = f"address add {ours}/{self._subnet.prefixlen} dev {here}\nlink set {here} up\n"
        run_ip(self._site, "-batch", "-", stdin=up)
        self._switch = started[SWITCH].pid

    def _await_namespaces(self, started: Mapping[str, NodeProcess]) -> None:
        here, deadline = find_network(), Deadline(_PATIENCE)
        for name, owner in started.items():
            while (there := find_network(owner.pid)) == here and not deadline.passed:
                time.sleep(0.001)
            if there in (0, here):
                raise ProviderError(
                    f"{name} could not be started: {read_last_words(locate_log(self._site, name))}"
                )


def _list_needed() -> tuple[Path, ...]:
    """What must stay visible: homes and Python's places, as given and with links followed."""
    homes = (Path.home(), Path(pwd.getpwuid(os.geteuid()).pw_dir))
    python = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable))
    paths = (*homes, *python, layout.SCRATCH)
    return (*paths, *(path.resolve() for path in paths))


# -------------------------------------------------------------------------------------------------
# Nodes for those who may not make namespaces: one sshd each on a loopback address, one host.


_PRIVSEP = Path("/run/sshd")
"""Compiled into sshd: when root runs it, its unprivileged half is locked up in there."""


class Loopback(Network):
    """Of loopback nodes, which share nothing and have this machine's names."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ports: dict[str, Endpoint] = {}

    def listen(self, place: Place) -> tuple[Endpoint, ...]:
        """Where the node listens already, else a free port on its own address."""
        if place.name not in self._ports:
            self._ports[place.name] = read_endpoint(place) or find_free_endpoint(
                layout.parse_index(place.name)
            )
        return (self._ports[place.name],)

    def build_commands(self, places: Sequence[Place]) -> dict[str, list[str]]:
        """What to start. Ports are chosen anew: the ones of before may be taken by now."""
        if os.geteuid() == 0:
            self._let_root_in()
        for place in places:
            self._ports[place.name] = find_free_endpoint(layout.parse_index(place.name))
        hold = ["sh", locate_script("hold.sh")]
        return {place.name: [*hold, *self._server.build_command(place.config)] for place in places}

    def _let_root_in(self) -> None:
        if is_locked(self._server.user):
            raise ProviderError(
                f"sshd refuses {self._server.user}: the account is locked in /etc/shadow",
                hint=f"unlock it without giving it a password: usermod -p '*' {self._server.user}",
            )
        with suppress(FileExistsError):
            _PRIVSEP.mkdir()
            _PRIVSEP.chmod(0o755)  # as the distribution's service has it


def find_free_endpoint(index: int) -> Endpoint:
    """A free port on 127.0.0.2 (the launcher), .3 …, or on 127.0.0.1 where only that exists."""
    for address in (f"127.0.0.{index + 2}", "127.0.0.1"):
        with socket.socket() as trial, suppress(OSError):
            trial.bind((address, 0))
            return address, int(trial.getsockname()[1])
    raise ProviderError("no port can be opened on this machine's loopback interface")
