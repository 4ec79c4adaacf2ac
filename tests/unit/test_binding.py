"""Whether ranks are bound to cores, and to how many."""

from __future__ import annotations

from typing import Any

from clusterctl.launch.hostfile import choose_binding
from tests.unit.making import cluster, node, request, spec
from tests.unit.tables import rows


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
