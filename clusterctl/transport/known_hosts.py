"""Known host keys: which keys may a host show? Pure, and stricter than paramiko's reader.

paramiko keeps one key per host and type, which forbids rotation, and stumbles over the markers and
wildcards that a person's own known_hosts may hold. Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostKey:
    """`kind` as in `ssh-ed25519`; `blob` is the public key in SSH's wire format."""

    kind: str
    blob: bytes
    revoked: bool = False

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.blob)


def fingerprint(blob: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def host_name(host: str, port: int) -> str:
    """The name under which known_hosts files a host."""
    return host if port == 22 else f"[{host}]:{port}"


def lookup(text: str, names: Iterable[str]) -> tuple[HostKey, ...]:
    """The keys that `text`, a known_hosts file, has for any of `names`, in the file's order.

    Certificate authorities are passed over, as are lines that make no sense.
    """
    wanted = tuple(name.lower() for name in names)
    return tuple(
        key for patterns, key in _entries(text) if any(_matches(patterns, name) for name in wanted)
    )


def complete(text: str, keys: Mapping[str, str]) -> str:
    """`text`, a known_hosts file, with these keys (as `ssh-ed25519 AAAA…`, by `host_name`) where it
    has none for that host. If it lacks one, lines that make no sense are left out."""
    good, there = [], set[str]()
    for line in text.splitlines():
        for patterns, key in _entries(line):
            if _is_whole(key):
                good.append(line)
                there.update(patterns.split(","))
    lost = [f"{name} {key}" for name, key in keys.items() if name not in there]
    return "".join(f"{line}\n" for line in (*good, *lost)) if lost else text


def _is_whole(key: HostKey) -> bool:
    """Whether nothing was cut off the key: it is made of its kind and of other fields, each after
    its length (RFC 4253, section 6.6)."""
    fields, rest = [], key.blob
    while len(rest) >= 4:
        end = 4 + int.from_bytes(rest[:4], "big")
        if end > len(rest):
            return False
        fields.append(rest[4:end])
        rest = rest[end:]
    return not rest and len(fields) > 1 and fields[0] == key.kind.encode()


def _entries(text: str) -> Iterator[tuple[str, HostKey]]:
    for line in text.splitlines():
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except ValueError:  # also for what is not ASCII
            continue
        yield fields[0], HostKey(fields[1], blob, revoked=marker == "@revoked")


def _matches(patterns: str, name: str) -> bool:
    found = False
    for pattern in patterns.split(","):
        if pattern.startswith("|1|"):
            found = found or _hash_matches(pattern, name)
        elif _glob(pattern.removeprefix("!").lower(), name):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _glob(pattern: str, name: str) -> bool:
    # Not fnmatch: the brackets of `[address]:port` are themselves here.
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), name) is not None


def _hash_matches(pattern: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
