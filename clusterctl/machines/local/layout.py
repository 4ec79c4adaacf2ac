"""What a local cluster consists of on disk: names and places, from its id and folder alone, and the
files of its nodes' sshd."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from clusterctl import process
from clusterctl.core import assets, keys
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import protocol
from clusterctl.machines.networks import Endpoint
from clusterctl.machines.protocol import LAUNCHER

MAX_WORKERS = 200
"""A cluster gets a /24 (or 127.0.0.x), which also holds the launcher and this machine's own end."""

SWITCH = "switch"
STARTER = "starter"
REAPER = "reaper"
SCRATCH = Path("/tmp")
"""Where the nodes' TMPDIRs lie. Fixed and short: a socket's path may have 107 characters."""


def name_nodes(workers: int) -> tuple[str, ...]:
    return protocol.name_nodes(workers, most=MAX_WORKERS, what="a local cluster")


def parse_index(name: str) -> int:
    """0 for the launcher, 1… for the workers."""
    return 0 if name == LAUNCHER else int(name.rpartition("-")[2])


class Place:
    """The files of one node. `folder` is all that the node sees of the state home, `scratch` its
    TMPDIR."""

    def __init__(self, name: str, folder: Path, scratch: Path) -> None:
        self.name = name
        self.folder = folder
        self.scratch = scratch
        self.root = folder / "root"
        self.home = folder / "home"
        self.log = folder / "sshd.log"
        self.etc = folder / "etc"
        self.config = self.etc / "sshd_config"
        self.host_key = self.etc / "ssh_host_ed25519_key"
        self.pid_file = self.etc / "sshd.pid"  # sshd writes it once it listens
        self.authorized_keys = self.etc / "authorized_keys"
        self.hosts = self.etc / "hosts"
        self.shadow = self.etc / "shadow"


class Site:
    """One local cluster. `folder` has no symbolic links: it is what the kernel calls it."""

    def __init__(self, id: str, folder: Path) -> None:
        self.id = id
        self.folder = folder
        self.nodes = folder / "nodes"
        self.shared = folder / "shared"
        """The folder that all nodes see, at this path, if one was asked for."""
        self.short = hashlib.sha256(id.encode()).hexdigest()[:8]
        """Stands for the id where few or odd characters are not welcome."""
        self.interface = f"cctl-{self.short}"
        """This machine's end of the cable to the switch; a name has at most 15 characters."""
        self.scratch_prefix = f"cctl-{self.short}-"
        self.scratch_link = folder / "scratch"
        """Leads to the parent of the nodes' TMPDIRs, which has a name that nobody else can guess,
        and take before."""

    @property
    def scratch(self) -> Path:
        """That parent, once it is made."""
        try:
            return Path(os.readlink(self.scratch_link))
        except OSError:
            return self.scratch_link

    def make_tag(self, name: str) -> str:
        """The value of CLUSTERCTL_NODE in the environment of the processes that make up a node."""
        return f"{self.id}/{name}"

    def locate(self, name: str) -> Place:
        return Place(name, self.nodes / name, self.scratch / str(parse_index(name)))


def make_site(cluster_id: str, folder: Path) -> Site:
    check_path(folder)
    return Site(cluster_id, folder.resolve())


def check_path(folder: Path) -> None:
    """Refuses a path that sshd's configuration or Open MPI cannot hold; everything else is quoted.
    Raises UsageError."""
    text = str(folder)
    if any(char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in text):
        wrong = "has a control character or a byte that is not UTF-8"
    elif "," in text:
        wrong = "has a comma: Open MPI splits paths at commas"
    elif ":" in text:  # that of Open MPI's remote agent
        wrong = "has a colon, which separates the folders of PATH"
    else:
        return
    hint = "set CLUSTERCTL_HOME to another folder"
    raise UsageError(f"the state home {text!r} {wrong}", hint=hint)


def find_hidden(folder: Path, keep: Iterable[Path]) -> Path:
    """What nodes must not see: the whole state home (`folder` is STATE/clusters/NAME), or as much
    of it as does not hold one of `keep`, which nodes need (a home, Python, /tmp).
    """
    needed = tuple(keep)
    for candidate in (folder.parent.parent, folder.parent, folder):
        if not any(path.is_relative_to(candidate) for path in needed):
            return candidate
    raise UsageError(
        f"the cluster's folder {folder} contains files that its nodes need",
        hint="set CLUSTERCTL_HOME to a folder of its own",
    )


# -------------------------------------------------------------------------------------------------
# One sshd per node: its configuration, keys and what this machine must have for it.


SEARCH = os.pathsep.join(
    (os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin")
)
"""Where tools are looked for: an ordinary user's PATH often lacks the sbin folders."""

_PACKAGES = (
    "install it: apt-get install openssh-server (Debian, Ubuntu), "
    "dnf install openssh-server (Fedora, RHEL)"
)
_SYSTEMS = {"darwin": "macOS"}
_SHADOW = Path("/etc/shadow")


class Server(Struct, frozen=True):
    """The sshd of this machine, and the user who runs it and whom it lets in."""

    path: str
    version: tuple[int, int]
    user: str

    def build_command(self, config: Path) -> list[str]:
        """In the foreground. -r, which 9.8 has no more: a connection is served by a copy of the
        process, which takes a third less than to start sshd again."""
        again = ["-r"] if self.version < (9, 8) else []
        return [self.path, "-D", "-e", *again, "-f", str(config)]


def find_server() -> Server:
    """Raises ProviderError where no sshd of ours could run: on another system than Linux, without
    sshd (with the package to install), for a user that the system does not know."""
    if sys.platform != "linux":
        raise ProviderError(
            f"local clusters need Linux, and this is {_SYSTEMS.get(sys.platform, sys.platform)}",
            hint="run clusterctl in a Linux machine or container; or use machines on EC2"
            " (`clusterctl up --cpu t3.xlarge`) or your own (`clusterctl attach`)",
        )
    path = shutil.which("sshd", path=SEARCH)
    if path is None:
        raise ProviderError("sshd is not installed on this machine", hint=_PACKAGES)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ProviderError(
            f"user id {os.geteuid()} has no entry in /etc/passwd, so it cannot log in",
            hint="run clusterctl as a user with an entry in /etc/passwd",
        ) from None
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("sshd")
        except KeyError:
            raise ProviderError(
                "sshd cannot run: its privilege separation user 'sshd' does not exist",
                hint=_PACKAGES,
            ) from None
    return Server(path, _ask_version(path), user)


@cache
def _ask_version(path: str) -> tuple[int, int]:
    """An sshd that knows no -V (before 9.2) names its version while it complains."""
    answer = process.run([path, "-V"], timeout=5)
    return parse_version(answer.text + answer.stderr.decode(errors="replace"))


def parse_version(text: str) -> tuple[int, int]:
    """(9, 2) from `OpenSSH_9.2p1 …`; (0, 0) if it does not say."""
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def unlock_shadow(text: str) -> str:
    """/etc/shadow with no password and no lock for anyone.

    Without PAM, sshd refuses an account whose password starts with `!`, as root's does on Ubuntu,
    even to a key. No hash is copied.
    """
    lines = (line.split(":") for line in text.splitlines())
    return "".join(":".join((line[0], "*", *line[2:])) + "\n" for line in lines if len(line) > 2)


def is_locked(user: str, shadow: Path = _SHADOW) -> bool:
    """Whether sshd, with our rights, will take this account for locked."""
    try:
        text = shadow.read_text(errors="replace")
    except OSError:
        return False  # what we cannot read, our sshd cannot read either
    return any(line.startswith(f"{user}:!") for line in text.splitlines())


def quote(value: str) -> str:
    """One word of sshd_config. Since OpenSSH 8.7 a backslash escapes quotes and backslashes."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def render_user_pattern(user: str) -> str:
    """For AllowUsers, where @ starts a host and ! a refusal: those become `?`, any character."""
    return quote(re.sub(r"[@!*]", "?", user))


def is_safe(path: Path, uid: int) -> bool:
    """What StrictModes asks: no one else can write to the file or to a folder above it."""
    return all(
        part.lstat().st_uid in (0, uid) and not part.lstat().st_mode & 0o022
        for part in (path, *path.parents)
    )


def render_config(place: Place, tag: str, listen: Sequence[Endpoint], server: Server) -> str:
    """The text of a node's sshd_config. The first of `listen` is where others reach the node."""
    environment = {
        "HOME": str(place.home),
        "TMPDIR": str(place.scratch),
        "CLUSTERCTL_NODE": tag,
    }
    return assets.render(
        "local/sshd_config.j2",
        listen=[f"{address}:{port}" for address, port in listen],
        host_key=quote(str(place.host_key)),
        pid_file=quote(str(place.pid_file)),
        # sshd expands % in this one
        authorized_keys=quote(str(place.authorized_keys).replace("%", "%%")),
        user=render_user_pattern(server.user),
        strict=is_safe(place.authorized_keys, os.geteuid()),
        # From 9.8 on it shuts out addresses that connect and leave, as our health checks do.
        penalties=server.version >= (9, 8),
        environment=[quote(f"{name}={value}") for name, value in environment.items()],
    )


def _search_config(config: Path, pattern: str) -> re.Match[str] | None:
    with suppress(OSError):
        return re.search(pattern, config.read_text(errors="replace"), re.MULTILINE)
    return None


def read_endpoint(place: Place) -> Endpoint | None:
    """Where the node was told to listen when it was started; None: it never was."""
    match = _search_config(place.config, r"^ListenAddress ([\d.]+):(\d+)$")
    return (match[1], int(match[2])) if match else None


def has_scratch(place: Place) -> bool:
    """Whether the node was started with the temporary folder that it has now."""
    return bool(_search_config(place.config, re.escape(f"TMPDIR={place.scratch}")))


def read_cluster(config: Path) -> str:
    """The id of the cluster that a node's sshd_config was written for; nothing if it cannot say."""
    match = _search_config(config, r"CLUSTERCTL_NODE=([a-z0-9-]+)/")
    return match[1] if match else ""


def make_scratch(site: Site) -> None:
    """Makes the parent of the temporary folders, in a folder where others can write, too: unless it
    is ours alone, another one with a new name takes its place. Where it was removed, as a cleaner
    of /tmp does, it is made again by its name."""
    with suppress(OSError):
        if site.scratch.parent == SCRATCH:
            site.scratch.mkdir(mode=0o700)
    with suppress(OSError):
        status = site.scratch.lstat()
        mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if site.scratch.parent == SCRATCH and mine and not status.st_mode & 0o077:
            return
    made = tempfile.mkdtemp(prefix=site.scratch_prefix, dir=SCRATCH)
    site.scratch_link.unlink(missing_ok=True)
    site.scratch_link.symlink_to(made)


def write_files(place: Place, authorized: str) -> str:
    """Makes the node's folders and keys, or completes them; returns the public host key."""
    for folder in (place.root, place.home, place.etc, place.scratch):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    rewrite(place.authorized_keys, authorized)
    return keys.ensure(place.host_key)


def clear(folder: Path) -> None:
    """Removes what is in the folder, as far as it lets us."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.unlink()


def rewrite(path: Path, text: str, mode: int = 0o600) -> None:
    """Changes a file in place, since mounts hold on to its inode; it is never empty between."""
    content = text.encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        if os.read(descriptor, len(content) + 1) != content:
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)
