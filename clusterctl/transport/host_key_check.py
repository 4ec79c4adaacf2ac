"""Whether a host shows a key that we know: else the connection ends before a word is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import paramiko

from clusterctl import known_hosts
from clusterctl.transport import ssh_config
from clusterctl.transport.diagnosis import Target


class KnownKeysOnly(paramiko.RejectPolicy):  # type: ignore[misc]  # untyped
    """Lets in the keys that we know, several per host, and no other (ConnectError); learns and
    saves nothing.

    paramiko's own table stays empty, so that it asks for every host.
    """

    def __init__(self, target: Target, names: Iterable[str], settings: Mapping[str, Any]) -> None:
        """`names`: under which the host may be listed. `settings`: ssh_config's for it."""
        self._target = target
        port = target.node.ssh_port
        self._files = [target.known_hosts]
        self._keys = known_hosts.find_keys_in(
            self._files, [known_hosts.name_host(name, port) for name in names]
        )
        if target.use_ssh_config and not self._keys:
            # A user's host on which our own file is silent: what the user's files say.
            alias = settings.get("hostkeyalias")
            theirs = [alias or known_hosts.name_host(target.node.address, port)]
            files = ssh_config.list_known_hosts_files(settings)
            self._files += files
            self._keys = known_hosts.find_keys_in(files, theirs)

    @property
    def kinds(self) -> list[str]:
        return [key.kind for key in self._keys if not key.revoked]

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        offered = known_hosts.compute_fingerprint(key.asbytes())
        same = [known for known in self._keys if known.blob == key.asbytes()]
        good = [known for known in self._keys if not known.revoked]
        hint = ""
        if any(known.revoked for known in same):
            what = f"its host key {offered} is marked as revoked"
        elif same:
            return
        elif good:
            alike = [known for known in good if known.kind == key.get_name()] or good
            expected = " or ".join(known_hosts.compute_fingerprint(known.blob) for known in alike)
            what = f"its host key has changed: expected {expected}, offered {offered}"
            hint = "someone may be between you and the node; if it was reinstalled,"
            hint += " create or attach it again"
        else:
            what = f"its host key {offered} is not known"
            files = ", ".join(map(str, self._files))
            hint = f"it is not listed in {files}; `clusterctl up` or `attach` adds missing keys"
        raise self._target.make_error(f"{what}; nothing was sent", hint)
