"""As much of cloud-init as our user data needs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from system import UBUNTU, write

KNOWN = {
    *("disable_root", "ssh_authorized_keys", "ssh_deletekeys", "ssh_keys", "ssh_pwauth"),
    *("runcmd", "write_files"),
}


class CloudInit:
    """In its own order: keys and files before sshd starts, commands after that. What it does not
    know, as the real one may, is an error."""

    def __init__(self, spec: dict[str, Any]) -> None:
        text = spec["user_data"]
        self.errors: list[str] = []
        self.config: dict[str, Any] = {}
        if text.startswith("#cloud-config"):
            try:
                self.config = json.loads(text.partition("\n")[2] or "{}")
            except ValueError as wrong:
                # The real one reads YAML too. What we send is JSON, or it is a mistake of ours.
                self.errors.append(f"user data is no JSON: {wrong}")
        elif text:
            self.errors.append("user data is no #cloud-config")
        self.keys = [*spec["public_keys"], *self.config.get("ssh_authorized_keys", [])]
        for key in sorted(set(self.config) - KNOWN):
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
            file = "/etc/ssh/ssh_host_ed25519_key"
            subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", file], check=True)
        folder = Path(f"/home/{UBUNTU}/.ssh")
        folder.mkdir(mode=0o700, exist_ok=True)
        write(str(folder / "authorized_keys"), "\n".join([*self.keys, ""]), 0o600)
        for path in (folder, folder / "authorized_keys"):
            os.chown(path, 1000, 1000)
        refuse = 'no-port-forwarding,command="echo Please login as ubuntu" '
        root = "".join(f"{refuse}{key}\n" for key in self.keys)
        Path("/root/.ssh").mkdir(mode=0o700, exist_ok=True, parents=True)
        write("/root/.ssh/authorized_keys", root, 0o600)
        for file in self.config.get("write_files", []):
            if unknown := set(file) - {"path", "content", "permissions"}:
                self.errors.append(f"{file['path']}: the simulator does not know {unknown}")
            write(file["path"], file["content"], int(file.get("permissions", "0644"), 8))

    def late(self) -> str:
        """The script of the last stage."""
        lines = ["#!/bin/sh", *map(shlex.join, self.config.get("runcmd", []))]
        return "\n".join([*lines, ""])
