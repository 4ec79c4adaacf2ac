"""`verify` finds what is wrong with real nodes: each fault is planted in one, and named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.cli import Cli

pytestmark = [pytest.mark.sshd, pytest.mark.netns]


Row = tuple[str, str, str]


@contextmanager
def broken(cli: Cli, node: str, how: str, mend: str) -> Iterator[None]:
    cli("ssh", node, "--", how)
    try:
        yield
    finally:
        cli("ssh", node, "--", mend)


def low(cli: Cli, *words: str) -> list[Row]:
    """What is below its limit, by subject, name and text: exit code 8 says that there is such."""
    return rows(cli("verify", *words, "--json", code=8, timeout=120).document(), "low")


def rows(document: dict[str, Any], state: str) -> list[Row]:
    found = document["verdicts"]
    return [(v["subject"], v["what"], v["text"]) for v in found if v["state"] == state]


def root(cli: Cli, name: str) -> str:
    return next(str(node["root"]) for node in cli.status()["nodes"] if node["name"] == name)


def test_a_disk_that_cannot_be_written_hides_nothing_else(cli: Cli) -> None:
    folder = root(cli, "worker-1")
    how = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
    with broken(cli, "worker-1", how, f"umount {folder}"):
        document = cli("verify", "--quick", "--json", code=8).document()
    [(subject, _, text)] = [row for row in rows(document, "low") if row[1] == "disk write"]
    assert subject == "worker-1"
    assert "Read-only file system" in text
    judged = {v["what"] for v in document["verdicts"] if v["subject"] == "worker-1"}
    assert {"cores", "core speed", "memory copy", "clock"} <= judged
    assert [v["subject"] for v in document["verdicts"] if v["what"] == "bandwidth"]


def test_a_link_without_a_connection(cli: Cli) -> None:
    [address] = [n["private_address"] for n in cli.status()["nodes"] if n["name"] == "worker-2"]
    with broken(
        cli,
        "worker-1",
        f"ip route add blackhole {address}/32",
        f"ip route del blackhole {address}/32",
    ):
        found = low(cli, "--quick")
    [(subject, _, text)] = [row for row in found if row[1] == "link"]
    assert subject == "worker-1 – worker-2"
    assert "no connection" in text
