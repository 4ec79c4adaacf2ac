"""Key pairs: usable by OpenSSH, private from the first byte on, made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from clusterctl.core import keys


def test_the_halves_belong_together() -> None:
    pair = keys.generate()
    private = load_ssh_private_key(pair.private.encode(), password=None)
    assert private.public_key() == load_ssh_public_key(pair.public.encode())
    assert pair.private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert pair.public.startswith("ssh-ed25519 ")
    assert keys.generate().private != pair.private


def test_a_pair_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ssh" / "user"
    old = os.umask(0)
    try:
        line = keys.ensure(path)
    finally:
        os.umask(old)
    assert path.with_name("user.pub").read_text() == f"{line}\n"
    private = load_ssh_private_key(path.read_bytes(), password=None)
    assert private.public_key() == load_ssh_public_key(line.encode())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(path.parent)) == ["user", "user.pub"]
    assert keys.ensure(path) == line


@pytest.mark.parametrize("lost", ["user", "user.pub"])
def test_half_a_pair_is_replaced(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "user"
    first = keys.ensure(path)
    (tmp_path / lost).unlink()
    (tmp_path / "user.new").write_text("from an attempt that was killed")
    (tmp_path / "user.new").chmod(0o666)
    line = keys.ensure(path)
    assert line != first
    private = load_ssh_private_key(path.read_bytes(), password=None)
    assert private.public_key() == load_ssh_public_key(line.encode())
    assert path.stat().st_mode & 0o777 == 0o600


def test_both_halves_are_read_from_the_files(tmp_path: Path) -> None:
    pair = keys.ensure_pair(tmp_path / "user")
    assert pair.private == (tmp_path / "user").read_text()
    assert pair.public == keys.ensure(tmp_path / "user")
