"""As much of cloud-init as user data in JSON needs."""

from __future__ import annotations

import base64
import json
import os
import pwd
import shlex
import subprocess
from pathlib import Path
from typing import Any

from system import UBUNTU, write


class CloudInit:
    """As much of it as user data in JSON needs, in its own order: keys and files before sshd
    starts, commands after that.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        text = spec["user_data"]
        self.errors: list[str] = []
        self.config: dict[str, Any] = {}
        self.script = ""
        if text.startswith("#cloud-config"):
            try:
                self.config = json.loads(text.partition("\n")[2] or "{}")
            except ValueError as wrong:
                # The real one reads YAML too. What we send is JSON, or it is a mistake of ours.
                self.errors.append(f"user data is no JSON: {wrong}")
        elif text.startswith("#!"):
            self.script = text
        elif text:
            self.errors.append("user data is neither #cloud-config nor a script")
        self.keys = [*spec["public_keys"], *self.config.get("ssh_authorized_keys", [])]
        known = {"ssh_keys", "ssh_authorized_keys", "write_files", "runcmd", "disable_root"}
        known |= {"ssh_deletekeys", "ssh_genkeytypes", "ssh_pwauth", "package_update", "packages"}
        known |= {"package_upgrade", "hostname", "preserve_hostname", "manage_etc_hosts", "output"}
        for key in sorted(set(self.config) - known):
            self.errors.append(f"the simulator's cloud-init does not know {key!r}")

    def early(self) -> None:
        """The stages before sshd."""
        for key, value in self.config.get("ssh_keys", {}).items():
            kind, _, half = key.partition("_")
            name = f"/etc/ssh/ssh_host_{kind}_key"
            if half == "private":
                write(name, value, 0o600)
            elif half == "public":
                write(f"{name}.pub", value.rstrip("\n") + "\n")
        if not self.config.get("ssh_keys"):
            for kind in self.config.get("ssh_genkeytypes", ["ed25519"]):
                argv = [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    kind,
                    "-N",
                    "",
                    "-f",
                    f"/etc/ssh/ssh_host_{kind}_key",
                ]
                subprocess.run(argv, check=True)
        folder = Path(f"/home/{UBUNTU}/.ssh")
        folder.mkdir(mode=0o700, exist_ok=True)
        write(str(folder / "authorized_keys"), "\n".join([*self.keys, ""]), 0o600)
        for path in (folder, folder / "authorized_keys"):
            os.chown(path, 1000, 1000)
        refuse = 'no-port-forwarding,command="echo Please login as ubuntu" '
        root = "".join(f"{refuse}{key}\n" for key in self.keys)
        if self.config.get("disable_root") is False:
            root = "\n".join([*self.keys, ""])
        Path("/root/.ssh").mkdir(mode=0o700, exist_ok=True, parents=True)
        write("/root/.ssh/authorized_keys", root, 0o600)
        for file in self.config.get("write_files", []):
            if not file.get("defer"):
                self._file(file)

    def _file(self, file: dict[str, Any]) -> None:
        content = file.get("content", "")
        encoding = file.get("encoding", "text/plain")
        data = content.encode()
        if encoding in ("b64", "base64"):
            data = base64.b64decode(content)
        elif encoding != "text/plain":
            self.errors.append(f"{file['path']}: encoding {encoding!r}")
        path = Path(file["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = "ab" if file.get("append") else "wb"
        with path.open(mode) as stream:
            stream.write(data)
        path.chmod(int(str(file.get("permissions", "0644")), 8))
        owner = str(file.get("owner", "root:root")).split(":")[0]
        entry = pwd.getpwnam(owner)
        os.chown(path, entry.pw_uid, entry.pw_gid)

    def late(self) -> str:
        """The script of the last stage."""
        for file in self.config.get("write_files", []):
            if file.get("defer"):
                self._file(file)
        lines = ["#!/bin/sh"]
        if packages := self.config.get("packages"):
            lines.append(f"apt-get install -y {shlex.join(packages)}")
        for command in self.config.get("runcmd", []):
            lines.append(command if isinstance(command, str) else shlex.join(map(str, command)))
        return self.script or "\n".join([*lines, ""])
