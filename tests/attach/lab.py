"""Machines of a person's own: unlike interfaces, homes and Pythons, and each with its own fault."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.core import keys
from tests.conftest import find
from tests.e2e.cli import Cli
from tests.sim.machines import Machine, Machines

DEVICES = {"alpha": "eth0", "beta": "ens5"}
PERSON = 54321
"""User id of somebody who is not root on these hosts."""

STUDENT = 54322
"""User id of somebody who has one home for all hosts."""


SHELLS = {
    "bash": ".bashrc",
    "tcsh": ".tcshrc",
    "fish": ".config/fish/config.fish",
    "zsh": ".zshenv",
}
"""Users with these login shells, and these names. Their start files say something, and expect a
terminal."""
SHELL_USERS = {name: PERSON + number for number, name in enumerate(SHELLS, start=10)}


@dataclass
class Hosts:
    """`home` is the person's here: keys, known_hosts, state."""

    machines: Machines
    home: Path

    @classmethod
    def start(cls, folder: Path, names: Sequence[str], hidden: dict[str, list[str]]) -> Hosts:
        """`hidden` are programs that a host does not have."""
        lab = cls(Machines(folder), folder / "person")
        (lab.home / ".ssh").mkdir(parents=True, mode=0o700)
        public = keys.ensure(lab.home / ".ssh" / "id_ed25519")
        try:
            lab.machines.start(names, devices=DEVICES)
            lab.machines.ready({name: lab._furnish(name, public, hidden) for name in names})
            for name in names:
                lab.machines.sshd(name)
        except BaseException:
            lab.machines.stop()
            raise
        lab.know(*names)
        return lab

    def _furnish(
        self, name: str, public: str, hidden: dict[str, list[str]]
    ) -> list[tuple[Path, str]]:
        folder = self.machines.hosts[name].folder
        homes = folder / "srv"
        people = {"root": 0, "person": PERSON, **SHELL_USERS}
        for user, number in people.items():
            ssh = homes / f"{user}-of-{name}" / ".ssh"
            ssh.mkdir(parents=True)
            # The last line of a file that people edit may lack its end.
            (ssh / "authorized_keys").write_text(f"# mine\n{public}")
            for path in (ssh.parent, ssh, ssh / "authorized_keys"):
                os.chown(path, number, number)
        for user, file in SHELLS.items():
            start = homes / f"{user}-of-{name}" / file
            start.parent.mkdir(parents=True, exist_ok=True)
            start.write_text("echo hello\nstty erase x\n")
        homes.chmod(0o755)
        lines = [
            line
            for line in Path("/etc/passwd").read_text().splitlines()
            if not line.startswith("root:")
        ]
        lines += [
            f"root:x:0:0::/srv/root-of-{name}:/bin/sh",
            f"person:x:{PERSON}:{PERSON}::/srv/person-of-{name}:/bin/sh",
            *(
                f"{user}:x:{number}:{number}::/srv/{user}-of-{name}:{find(user) or '/bin/sh'}"
                for user, number in SHELL_USERS.items()
            ),
            f"student:x:{STUDENT}:{STUDENT}::/srv/student:/bin/sh",
        ]
        (folder / "passwd").write_text("\n".join(lines) + "\n")
        (folder / "nothing").touch(mode=0o644)
        (homes / "student").mkdir()
        mounts = [
            (folder / "passwd", "/etc/passwd"),
            (homes, "/srv"),
            (self._shared_home(public), "/srv/student"),
        ]
        for program in hidden.get(name, ()):
            path = os.path.realpath(find(program) or f"/usr/bin/{program}")
            mounts.append((folder / "nothing", path))
        return mounts

    def _shared_home(self, public: str) -> Path:
        home = self.machines.folder / "student"
        if not home.exists():
            (home / ".ssh").mkdir(parents=True)
            (home / ".ssh" / "authorized_keys").write_text(f"# mine\n{public}")
            for path in (home, home / ".ssh", home / ".ssh" / "authorized_keys"):
                os.chown(path, STUDENT, STUDENT)
        return home

    def __getitem__(self, name: str) -> Machine:
        return self.machines.hosts[name]

    def user_home(self, name: str, user: str = "root") -> Path:
        """The user's home on that host, as seen from here."""
        if user == "student":
            return self.machines.folder / user
        return self[name].folder / "srv" / f"{user}-of-{name}"

    def know(self, *names: str) -> None:
        """Puts these hosts' keys, and no others, into the person's known_hosts."""
        lines = [f"{self[name].address} {self[name].public_key}\n" for name in names]
        (self.home / ".ssh" / "known_hosts").write_text("".join(lines))

    def cli(self, folder: Path) -> Cli:
        folder.mkdir(exist_ok=True)
        return Cli(self.home / "state", folder, env={"HOME": str(self.home)})

    def file(self, cli: Cli, *lines: str) -> Path:
        """A hostfile; `{alpha}` stands for that host's address, `{python}` for one with torch."""
        words = {name: machine.address for name, machine in self.machines.hosts.items()}
        text = "\n".join(lines).format(python=sys.executable, **words)
        return cli.script("hosts", text + "\n")

    def traces(self, name: str, user: str = "root") -> list[str]:
        """What of ours is in the user's home there."""
        home = self.user_home(name, user)
        found = [str(path) for path in home.glob(".clusterctl")]
        text = (home / ".ssh" / "authorized_keys").read_text()
        return found + [line for line in text.splitlines() if "clusterctl" in line]
