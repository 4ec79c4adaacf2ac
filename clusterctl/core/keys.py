"""Ed25519 key pairs in OpenSSH's format, made in this process (none passes a command line), and
what known_hosts files say of host keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct


class KeyPair(Struct, frozen=True):
    """`private` is the text of an OpenSSH key file, `public` one `ssh-ed25519 AAAA…` line."""

    private: str
    public: str


def generate() -> KeyPair:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    return KeyPair(
        key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()).decode(),
        key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode(),
    )


def ensure(path: Path) -> str:
    """Makes the key pair `path`, `path`.pub unless it is there; returns the public line.

    The private half is renamed into place last, so that a pair is either whole or absent.
    """
    public = path.with_name(path.name + ".pub")
    if not (path.exists() and public.exists()):
        pair = generate()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        public.write_text(pair.public + "\n")
        scratch = path.with_name(path.name + ".new")
        scratch.unlink(missing_ok=True)
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(pair.private)
        scratch.rename(path)
    return public.read_text().strip()


def ensure_pair(path: Path) -> KeyPair:
    """Both halves of that pair, which is made unless it is there."""
    public = ensure(path)
    return KeyPair(path.read_text(), public)


# -------------------------------------------------------------------------------------------------
# Known host keys: which keys may a host show? Stricter than paramiko's reader.
#
# paramiko keeps one key per host and type, which forbids rotation, and stumbles over the markers
# and wildcards that a person's own known_hosts may hold. Format: sshd(8), "SSH_KNOWN_HOSTS FILE
# FORMAT".


class HostKey(Struct, frozen=True):
    """`kind` as in `ssh-ed25519`; `blob` is the public key in SSH's wire format."""

    kind: str
    blob: bytes
    revoked: bool = False


def write_entry(name: str, key: HostKey) -> str:
    """The line of a known_hosts file."""
    marker = "@revoked " if key.revoked else ""
    return f"{marker}{name} {key.kind} {base64.b64encode(key.blob).decode()}"


def compute_fingerprint(blob: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def name_host(host: str, port: int) -> str:
    """The name under which known_hosts files a host."""
    return host if port == 22 else f"[{host}]:{port}"


def find_keys_in(files: Iterable[Path], names: Sequence[str]) -> tuple[HostKey, ...]:
    """As `find_keys`, in all of these files; one that cannot be read has none."""
    found: list[HostKey] = []
    for file in files:
        with suppress(OSError):
            found += find_keys(file.read_text(errors="replace"), names)
    return tuple(found)


def find_keys(text: str, names: Iterable[str]) -> tuple[HostKey, ...]:
    """The keys that `text`, a known_hosts file, has for any of `names`, in the file's order.

    Certificate authorities are passed over, as are lines that make no sense.
    """
    wanted = tuple(name.lower() for name in names)
    return tuple(
        key
        for patterns, key in read_entries(text)
        if any(_matches(patterns, name) for name in wanted)
    )


def read_entries(text: str) -> Iterator[tuple[str, HostKey]]:
    """The patterns for hosts and the key of each line that has some."""
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
        # The brackets of `[address]:port` are themselves here.
        elif fnmatchcase(name, pattern.removeprefix("!").lower().replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _hash_matches(pattern: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
