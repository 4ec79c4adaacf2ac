"""Where a host is and how to get there: fabric reads it from the user's ssh_config, or takes ours.

Imported at the first connect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fabric
import paramiko

from clusterctl.errors import UsageError
from clusterctl.transport import ssh_config
from clusterctl.transport.diagnosis import Attempt, Target


class Route:
    """`jumps` are the hosts to go through, nearest first; `proxy` is a command that connects us.

    Raises UsageError for a bad ssh_config.
    """

    def __init__(self, target: Target, seconds: float) -> None:
        node = target.node
        try:
            # Lazy: the configuration files of fabric and invoke stay unread.
            config = fabric.Config(lazy=True, ssh_config=_settings(target))
            # fabric takes `user@host:port` apart, which ProxyJump may hold.
            self.remote: Any = fabric.Connection(
                node.address,
                user=node.user or None,
                port=node.ssh_port or None,
                config=config,
                gateway=False,  # fabric would let jump hosts in whatever key they show
                forward_agent=False,
            )
            port = int(self.remote.port)
        except (paramiko.ConfigParseError, ValueError, KeyError) as error:
            raise UsageError(
                f"{node.name}: your ssh_config cannot be read for {node.address}: {error}"
            ) from error
        self.remote.connect_timeout = None  # the deadline rules
        self.target = target
        self.settings: dict[str, Any] = self.remote.ssh_config
        self.jumps = ssh_config.jumps(self.settings, self.remote.original_host)
        self.proxy = ssh_config.proxy_command(self.settings)
        # paramiko would stumble over a file that is missing.
        named = self.settings.get("identityfile", ())
        self.identity_files = [name for name in named if Path(name).is_file()]
        self.attempt = Attempt(
            node=node.name,
            address=self.remote.host,
            port=port,
            user=self.remote.user,
            key=self._keys_in_words(),
            seconds=seconds,
        )

    def _keys_in_words(self) -> str:
        target = self.target
        if not target.use_ssh_config:
            return f"the key {target.identity}"
        named = [str(target.identity)] if target.identity else []
        return "the keys of " + ", ".join([*named, *self.identity_files, "agent", "~/.ssh"])


def _settings(target: Target) -> Any:
    if not target.use_ssh_config:
        return paramiko.SSHConfig()
    return ssh_config.load(target.node.address, target.node.ssh_port, target.node.user)
