"""Which ranks run where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core.job import Placement
from clusterctl.errors import ClusterctlError, LaunchError
from clusterctl.launch.hostfile import MOST_ON_LOCAL, is_oversubscribed, place, place_points
from tests.unit.making import cluster, job, node, spec
from tests.unit.tables import read_rows, rows

LAUNCHER = node("launcher", "10.0.0.10")
T4 = "Tesla T4"


def workers(*slots: int, gpus: Sequence[int] = ()) -> Any:
    made = [
        node(
            f"worker-{index + 1}",
            f"10.0.0.{11 + index}",
            slots=count,
            gpus=[T4] * (gpus[index] if gpus else 0),
        )
        for index, count in enumerate(slots)
    ]
    return cluster(LAUNCHER, *made)


@pytest.mark.parametrize("case", read_rows("placements", "counts"), ids=itemgetter("id"))
def test_counts(case: dict[str, Any]) -> None:
    where, counts = workers(*case["slots"], gpus=case.get("gpus", ())), case["counts"]
    placement = place(where, spec(**case["wanted"]))
    assert [item.count for item in placement] == counts
    assert [item.node for item in placement] == [f"worker-{i + 1}" for i in range(len(counts))]
    # Ranks are dealt out without a gap, in the hostfile's order.
    assert [rank for item in placement for rank in item.ranks] == list(range(sum(counts)))


@pytest.mark.parametrize("case", read_rows("placements", "refused"), ids=itemgetter("id"))
def test_what_does_not_fit(case: dict[str, Any]) -> None:
    where = workers(*case["slots"], gpus=case.get("gpus", ()))
    with pytest.raises(ClusterctlError) as caught:
        place(where, spec(**case["wanted"]))
    assert all(word in caught.value.message for word in case["words"]), caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == case["exit_code"]


@pytest.mark.parametrize("slots", [(4, 2), (2, 4), (4, 4, 2), (3, 3), (5,)])
def test_the_hint_of_what_does_not_fit_is_the_most_that_does(slots: tuple[int, ...]) -> None:
    where = workers(*slots)
    with pytest.raises(LaunchError) as caught:
        place(where, spec(ranks=100))
    words = caught.value.hint.replace(",", " ").split()
    most = int(words[words.index("--ranks") + 1])
    assert sum(item.count for item in place(where, spec(ranks=most))) == most
    with pytest.raises(LaunchError):
        place(where, spec(ranks=most + 1))


def test_more_nodes_come_from_up_or_from_the_file_of_hosts() -> None:
    made = workers(4, 4)
    for where, hint in (
        (made, "`clusterctl up lab --workers 3` adds workers"),
        (replace(made, identity="/home/me/.ssh/id"), "add hosts to the file"),
    ):
        with pytest.raises(LaunchError) as caught:
            place(where, spec(nodes=3))
        assert caught.value.hint == hint
        with pytest.raises(LaunchError) as caught:
            place(where, spec(ranks=5, ranks_per_node=2))
        assert caught.value.hint == hint
        assert "--nodes" not in caught.value.message
        assert re.findall(r"\d+ (?:rank|worker)s", caught.value.message) == [
            *("5 ranks", "3 workers", "2 workers")
        ]


@rows("slots, array, counts", "placement.points_take_the_slots_of_the_workers_by_turns")
def test_points_take_the_slots_of_the_workers_by_turns(
    slots: tuple[int, ...], array: str, counts: list[list[Any]]
) -> None:
    placement = place_points(workers(*slots), spec(array=array))
    assert [[item.node, item.first, item.count] for item in placement] == counts


def test_points_need_a_slot() -> None:
    with pytest.raises(LaunchError, match="no slots") as caught:
        place_points(workers(0, 0), spec(array="0-2"))
    assert "status" in caught.value.hint


@rows("option, wanted", "placement.what_means_nothing_to_points_is_refused")
def test_what_means_nothing_to_points_is_refused(option: str, wanted: dict[str, Any]) -> None:
    with pytest.raises(ClusterctlError) as caught:
        place_points(workers(4), spec(array="0-2", **wanted))
    assert caught.value.message.startswith(f"{option} ")
    assert caught.value.hint


def test_a_local_node_takes_so_many_ranks_and_no_more() -> None:
    where = cluster(LAUNCHER, node(slots=1), provider="local")
    assert place(where, spec(ranks=MOST_ON_LOCAL))[0].count == MOST_ON_LOCAL
    with pytest.raises(LaunchError, match="too many for this machine") as caught:
        place(where, spec(ranks=MOST_ON_LOCAL + 1))
    assert str(MOST_ON_LOCAL) in caught.value.hint


def test_local_nodes_share_a_machine_and_may_be_oversubscribed() -> None:
    where = cluster(
        LAUNCHER, node(slots=1), node("worker-2", "10.0.0.12", slots=1), provider="local"
    )
    placement = place(where, spec(ranks=8))
    assert [item.count for item in placement] == [4, 4]
    assert is_oversubscribed(where, placement)
    assert not is_oversubscribed(where, place(where, spec()))


def test_a_job_knows_the_node_of_each_rank_and_of_none_beyond() -> None:
    places = (Placement(node="a", first=0, count=2), Placement(node="b", first=2, count=1))
    placed = replace(job(cluster(), spec()), placement=places)
    assert [placed.find_node(rank) for rank in range(4)] == ["a", "a", "b", ""]
