"""Whether ranks are bound to cores, and to how many."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.launch.hostfile import choose_binding
from tests.unit.making import cluster, node, request, spec


def cores(counts: dict[str, Any], *, physical: tuple[int, int] = (8, 8), **changes: Any) -> int:
    boots = changes.pop("boots", ("a", "b"))
    nodes = [
        node(f"worker-{index}", f"10.0.0.{index}", slots=8, boot_id=boot, physical_cores=number)
        for index, (boot, number) in enumerate(zip(boots, physical, strict=True), 1)
    ]
    found = choose_binding(request(cluster(*nodes, **changes), spec(**counts)))
    assert found.why
    return found.cores


@pytest.mark.parametrize(
    ("wanted", "where", "bound"),
    [
        ({"ranks_per_node": 2}, {}, 4),
        ({"ranks_per_node": 3}, {}, 2),
        ({"ranks_per_node": 8}, {}, 1),
        # The node with the fewest cores for a rank decides.
        ({"ranks_per_node": 2}, {"physical": (8, 4)}, 2),
        ({"ranks": 3}, {"physical": (8, 2)}, 2),
        ({"ranks_per_node": 8}, {"physical": (8, 4)}, 0),
        ({}, {}, 0),
        ({"ranks_per_node": 2, "now": True}, {}, 0),
        ({"ranks_per_node": 2, "launcher": "torchrun"}, {}, 0),
        ({"ranks_per_node": 2}, {"boots": ("a", "a")}, 0),
        ({"ranks_per_node": 2}, {"boots": ("", "")}, 4),
        ({"ranks_per_node": 2}, {"provider": "local"}, 0),
    ],
)
def test_cores_per_rank(wanted: dict[str, Any], where: dict[str, Any], bound: int) -> None:
    assert cores(wanted, **where) == bound
