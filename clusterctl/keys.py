"""Ed25519 key pairs in OpenSSH's format, made in this process: none passes a command line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KeyPair:
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
