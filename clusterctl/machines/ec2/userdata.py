"""What a node does at its first boot: cloud-init's configuration, as JSON. Pure.

JSON is YAML, and cannot be badly indented: a private key that is leaves a node without sshd and
cloud-init's status `done`.
"""

from __future__ import annotations

import json

from clusterctl.core import assets
from clusterctl.core.keys import KeyPair
from clusterctl.machines import deadlines

AGENT = f"/etc/clusterctl/{deadlines.AGENT}"
UNIT = "clusterctl-deadline.service"
END = "shutdown -P now || poweroff -f"

LIMIT = 16384
"""Bytes of user data that EC2 takes."""


def render_userdata(
    *, host_key: KeyPair, authorized: str, deadline: float, root: str, spot: bool
) -> str:
    """`root`: the node root, where the agent finds jobs; `deadline`: seconds since the epoch."""
    config = {
        "disable_root": True,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": host_key.private,
            "ed25519_public": host_key.public,
        },
        "ssh_authorized_keys": [authorized],
        "write_files": [
            {
                "path": AGENT,
                "permissions": "0755",
                "content": deadlines.render_agent(root=root, end=END, metadata=True, spot=spot),
            },
            {"path": deadlines.FILE, "permissions": "0644", "content": f"{int(deadline)}\n"},
            {
                "path": f"/etc/systemd/system/{UNIT}",
                "permissions": "0644",
                "content": assets.render("ec2/deadline.service.j2", agent=AGENT),
            },
        ],
        "runcmd": [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", UNIT],
        ],
    }
    return "#cloud-config\n" + json.dumps(config)
