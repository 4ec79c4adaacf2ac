"""What we show a node and what we expect from it: keys, and the host keys that we know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from clusterctl.transport import diagnosis, known_hosts, ssh_config
from clusterctl.transport.diagnosis import Attempt
from clusterctl.transport.known_hosts import HostKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to and with what. `port` 0 and `user` "" leave it to ssh_config and its defaults.

    Without `use_ssh_config` the identity file is the only key that is shown.
    """

    node: str
    host: str
    port: int
    user: str
    identity: Path | None
    known_hosts: Path
    use_ssh_config: bool


class Refused(Exception):
    """Carries a ConnectError, its only argument, out of paramiko's host key policy."""


class Pinned(paramiko.RejectPolicy):  # type: ignore[misc]  # untyped
    """Lets in the keys that we know, several per host, and no other; learns and saves nothing.

    paramiko's own table stays empty, so that it asks for every host.
    """

    def __init__(self, target: Target, remote: Any, attempt: Attempt) -> None:
        self._attempt = attempt
        self._files = [target.known_hosts]
        port = int(remote.port)
        hosts = dict.fromkeys((target.host, remote.original_host, remote.host))
        names = [known_hosts.host_name(host, port) for host in hosts]
        self._keys = known_hosts.lookup(_text(target.known_hosts), names)
        if target.use_ssh_config and not self._keys:
            self._ask_the_user(remote)

    def _ask_the_user(self, remote: Any) -> None:
        """A user's host on which our own file is silent: what the user's files say."""
        alias = remote.ssh_config.get("hostkeyalias")
        name = alias or known_hosts.host_name(remote.host, int(remote.port))
        files = ssh_config.known_hosts_files(remote.ssh_config)
        self._files.extend(files)
        self._keys = tuple(key for path in files for key in known_hosts.lookup(_text(path), [name]))

    @property
    def kinds(self) -> list[str]:
        return [key.kind for key in self._keys if not key.revoked]

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        blob = key.asbytes()
        offered = known_hosts.fingerprint(blob)
        same = [known for known in self._keys if known.blob == blob]
        if any(known.revoked for known in same):
            raise Refused(diagnosis.key_revoked(self._attempt, offered))
        if same:
            return
        good: list[HostKey] = [known for known in self._keys if not known.revoked]
        if good:
            alike = [known for known in good if known.kind == key.get_name()] or good
            expected = [known.fingerprint for known in alike]
            raise Refused(diagnosis.key_changed(self._attempt, expected, offered))
        raise Refused(diagnosis.key_unknown(self._attempt, offered, list(map(str, self._files))))


def in_words(target: Target, remote: Any) -> str:
    """Which keys we show."""
    if not target.use_ssh_config:
        return f"the key {target.identity}"
    named = [str(target.identity)] if target.identity else []
    return "the keys of " + ", ".join([*named, *_identity_files(remote), "agent", "~/.ssh"])


@contextmanager
def shown(target: Target, remote: Any, attempt: Attempt) -> Iterator[dict[str, Any]]:
    """The arguments of paramiko's connect that say which keys to show, best first.

    Raises ConnectError for an identity file that cannot be used.
    """
    if not target.use_ssh_config:
        yield {
            "pkey": _load(target.identity, attempt) if target.identity else None,
            "allow_agent": False,
            "look_for_keys": False,
        }
        return
    files = _identity_files(remote)
    others = remote.ssh_config.get("identitiesonly") != "yes"
    agent = paramiko.Agent()
    try:
        yield {
            "pkey": _load(target.identity, attempt)
            if target.identity
            else _from_agent(agent, files),
            "key_filename": files,
            "allow_agent": others,
            "look_for_keys": others,
        }
    finally:
        agent.close()


def _identity_files(remote: Any) -> list[str]:
    """Those of ssh_config that exist: paramiko would stumble over the others."""
    return [name for name in remote.ssh_config.get("identityfile", ()) if Path(name).is_file()]


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
