"""Files that name machines, in the two ways that people write them, and ranks bound to cores."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.core.model import Node
from clusterctl.errors import UsageError
from clusterctl.launch.hostfile import choose_binding, parse_hosts
from tests.unit.making import cluster, node, request, spec
from tests.unit.tables import read_rows, rows


def said(node: Node) -> tuple[str, str, str, int, int, str]:
    return node.name, node.address, node.user, node.ssh_port, node.slots, node.python


def test_our_own_lines() -> None:
    text = """
    # the lab
    gpu1 slots=4 gpu=2 user=ana port=2222
    bob@10.0.0.2   # of Bob's
    head.site.org role=launcher python=/opt/py/bin/python
    last slots=3
    """
    head = "head.site.org"
    nodes = parse_hosts("\ufeff" + text, "hosts", "u")
    assert all((n.job_port, n.private_address) == (n.ssh_port, n.address) for n in nodes)
    assert [said(node) for node in nodes] == [
        (head, head, "u", 0, 0, "/opt/py/bin/python"),
        ("gpu1", "gpu1", "ana", 2222, 2, ""),
        ("10.0.0.2", "10.0.0.2", "bob", 0, 0, ""),
        ("last", "last", "u", 0, 3, ""),
    ]


@rows("text, roles", "hostfiles.the_first_host_does_both")
def test_the_first_host_does_both_unless_there_is_a_launcher(
    text: str, roles: list[list[str]]
) -> None:
    assert [[node.name, node.role] for node in parse_hosts(text, "h")] == roles


def test_an_open_mpi_hostfile() -> None:
    text = "a slots=2 max_slots=4\nb slots=8 max-slots=8\na slots=1\nc count=3\nb\nd\nd\nd\ne\n"
    assert [(host.name, host.slots) for host in parse_hosts(text, "h")] == [
        ("a", 3),
        ("b", 9),
        ("c", 3),
        ("d", 3),
        ("e", 0),
    ]


@pytest.mark.parametrize(
    "case",
    read_rows("hostfiles", "refused"),
    ids=lambda case: " ".join(case["text"].split()),  # no backslash: mutmut knows tests by them
)
def test_a_bad_line_is_named(case: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(case["text"], "hosts")
    told = f"{caught.value.message} {caught.value.hint}"
    assert all(word in told for word in case["words"]), told
    assert caught.value.hint


def cores(counts: dict[str, Any], *, physical: tuple[int, int] = (8, 8), **changes: Any) -> int:
    boots = changes.pop("boots", ("a", "b"))
    nodes = [
        node(f"worker-{index}", f"10.0.0.{index}", slots=8, boot_id=boot, physical_cores=number)
        for index, (boot, number) in enumerate(zip(boots, physical, strict=True), 1)
    ]
    found = choose_binding(request(cluster(*nodes, **changes), spec(**counts)))
    assert found.why
    return found.cores


@rows("wanted, where, bound", "binding.cores_per_rank")
def test_cores_per_rank(wanted: dict[str, Any], where: dict[str, Any], bound: int) -> None:
    assert cores(wanted, **where) == bound
