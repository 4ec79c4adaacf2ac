"""What we show a node and what we expect from it: keys, and the host keys that we know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import paramiko

from clusterctl.transport import known_hosts, ssh_config
from clusterctl.transport.diagnosis import Attempt
from clusterctl.transport.known_hosts import HostKey
from clusterctl.transport.route import Route


class Refused(Exception):
    """Carries a ConnectError, its only argument, out of paramiko's host key policy."""


class Pinned(paramiko.RejectPolicy):  # type: ignore[misc]  # untyped
    """Lets in the keys that we know, several per host, and no other; learns and saves nothing.

    paramiko's own table stays empty, so that it asks for every host.
    """

    def __init__(self, route: Route) -> None:
        self._attempt = attempt = route.attempt
        target, alias = route.target, route.settings.get("hostkeyalias")
        hosts = dict.fromkeys((target.node.address, route.remote.original_host, attempt.address))
        names = [known_hosts.host_name(host, attempt.port) for host in hosts]
        self._files = [target.known_hosts]
        self._keys = known_hosts.lookup(_text(target.known_hosts), names)
        if target.use_ssh_config and not self._keys:
            # A user's host on which our own file is silent: what the user's files say.
            name = alias or known_hosts.host_name(attempt.address, attempt.port)
            files = ssh_config.known_hosts_files(route.settings)
            self._files += files
            self._keys = tuple(
                key for path in files for key in known_hosts.lookup(_text(path), [name])
            )

    @property
    def kinds(self) -> list[str]:
        return [key.kind for key in self._keys if not key.revoked]

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        blob = key.asbytes()
        offered = known_hosts.fingerprint(blob)
        good: list[HostKey] = [known for known in self._keys if not known.revoked]
        if any(known.blob == blob and known.revoked for known in self._keys):
            raise Refused(
                self._attempt.error(
                    f"its host key {offered} is marked as revoked; nothing was sent"
                )
            )
        if any(known.blob == blob for known in good):
            return
        if good:
            alike = [known for known in good if known.kind == key.get_name()] or good
            expected = " or ".join(known.fingerprint for known in alike)
            raise Refused(
                self._attempt.error(
                    f"its host key has changed: expected {expected}, offered {offered}; "
                    "nothing was sent",
                    hint="someone may be between you and the node; if it was reinstalled, create "
                    "or attach it again",
                )
            )
        raise Refused(
            self._attempt.error(
                f"its host key {offered} is not known; nothing was sent",
                hint=f"no line for it in {', '.join(map(str, self._files))}",
            )
        )


@contextmanager
def offered_keys(route: Route) -> Iterator[dict[str, Any]]:
    """The arguments of paramiko's connect that say which keys to offer, best first.

    Raises ConnectError for an identity file that cannot be used.
    """
    identity = route.target.identity
    key = _load(identity, route.attempt) if identity else None
    if not route.target.use_ssh_config:
        yield {"pkey": key, "allow_agent": False, "look_for_keys": False}
        return
    others = route.settings.get("identitiesonly") != "yes"
    with closing(paramiko.Agent()) as agent:
        yield {
            "pkey": key or _from_agent(agent, route.identity_files),
            "key_filename": route.identity_files,
            "allow_agent": others,
            "look_for_keys": others,
        }


def _load(path: Path, attempt: Attempt) -> Any:
    try:
        return paramiko.PKey.from_path(path)
    except OSError as error:
        raise attempt.error(f"the key {path} cannot be read: {error.strerror}") from error
    except TypeError as error:
        raise attempt.error(
            f"the key {path} has a passphrase, and nothing here may ask for it",
            hint="load it into ssh-agent, and name no identity",
        ) from error
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise attempt.error(f"{path} holds no private key that can be used: {error}") from error


def _from_agent(agent: Any, files: list[str]) -> Any:
    """The agent's key that ssh_config names: to be tried first, for sshd counts what it refuses."""
    words = (_text(Path(name + ".pub")).split() for name in files)
    wanted = {fields[1] for fields in words if len(fields) > 1}
    return next((key for key in agent.get_keys() if key.get_base64() in wanted), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
