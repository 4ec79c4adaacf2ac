"""Which ranks run where."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.core.job import Placement
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.launch.hostfile import MOST_ON_LOCAL, is_oversubscribed, place
from tests.unit.making import cluster, job, node, spec

LAUNCHER = node("launcher", "10.0.0.10")
T4 = "Tesla T4"


def workers(*slots: int, gpus: tuple[int, ...] = ()) -> Any:
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


@pytest.mark.parametrize(
    ("where", "wanted", "counts"),
    [
        pytest.param(workers(4, 4), {}, [1, 1], id="one rank per worker"),
        pytest.param(workers(1), {}, [1], id="one worker"),
        pytest.param(workers(4, 4, gpus=(4, 4)), {}, [4, 4], id="one rank per GPU"),
        pytest.param(workers(1, 4, gpus=(1, 4)), {}, [1, 4], id="unlike numbers of GPUs"),
        pytest.param(workers(4, 4, gpus=(0, 4)), {}, [1, 4], id="a worker without a GPU"),
        pytest.param(workers(4, 4), {"ranks": 8}, [4, 4], id="ranks fill all slots"),
        pytest.param(workers(4, 4, 4), {"ranks": 7}, [3, 2, 2], id="the first take one more"),
        pytest.param(workers(4, 4, 4), {"ranks": 2}, [1, 1], id="fewer ranks than workers"),
        pytest.param(workers(4, 4), {"ranks": 1}, [1], id="one rank"),
        pytest.param(workers(4, 4), {"ranks_per_node": 3}, [3, 3], id="ranks per node"),
        pytest.param(workers(4, 4), {"ranks_per_node": 2, "ranks": 4}, [2, 2], id="both agree"),
        pytest.param(workers(4, 4, 4), {"nodes": 2}, [1, 1], id="fewer nodes"),
        pytest.param(workers(4, 4, 4), {"nodes": 2, "ranks": 8}, [4, 4], id="nodes and ranks"),
        pytest.param(workers(4, 4, 4), {"nodes": 2, "ranks": 2}, [1, 1], id="a rank for each node"),
        pytest.param(
            workers(4, 4, gpus=(4, 4)), {"nodes": 1, "ranks": 2}, [2], id="fewer ranks than GPUs"
        ),
    ],
)
def test_counts(where: Any, wanted: dict[str, int], counts: list[int]) -> None:
    placement = place(where, spec(**wanted))
    assert [item.count for item in placement] == counts
    assert [item.node for item in placement] == [f"worker-{i + 1}" for i in range(len(counts))]
    # Ranks are dealt out without a gap, in the hostfile's order.
    assert [rank for item in placement for rank in item.ranks] == list(range(sum(counts)))


@pytest.mark.parametrize(
    ("where", "wanted", "kind", "words"),
    [
        pytest.param(
            workers(4, 4), {"ranks": 9}, LaunchError, ["9 ranks", "worker-1", "8"], id="ranks"
        ),
        pytest.param(
            workers(4, 2), {"ranks": 6}, LaunchError, ["worker-2", "2 slots"], id="uneven slots"
        ),
        pytest.param(workers(4), {"ranks_per_node": 5}, LaunchError, ["worker-1"], id="per node"),
        pytest.param(
            workers(1, 1, gpus=(1, 1)), {"ranks": 3}, LaunchError, ["3 ranks"], id="GPUs are slots"
        ),
        pytest.param(workers(4, 4), {"nodes": 3}, LaunchError, ["--nodes 3", "2"], id="nodes"),
        pytest.param(
            workers(4, 4), {"ranks": 3, "ranks_per_node": 2}, UsageError, ["--ranks 3"], id="both"
        ),
        pytest.param(
            workers(4, 4), {"nodes": 2, "ranks": 1}, UsageError, ["--nodes 2"], id="few ranks"
        ),
    ],
)
def test_what_does_not_fit(
    where: Any, wanted: dict[str, int], kind: type[ClusterctlError], words: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        place(where, spec(**wanted))
    assert all(word in caught.value.message for word in words), caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == (6 if kind is LaunchError else 2)


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
