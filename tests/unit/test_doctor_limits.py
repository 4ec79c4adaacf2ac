"""What `doctor` makes of ranks that a cgroup keeps from running."""

from __future__ import annotations

import pytest

from clusterctl.insight import node_views
from clusterctl.insight.doctor import causes
from tests.unit.diagnosed import reduces, sleeps, two_ranks


def test_what_a_node_prints_of_limits() -> None:
    text = "periods-before 200 40 38\nperiods-before 100 0 0\nperiods-before 300 x\n"
    text += "periods-after 200 50 47\nperiods-after 100 0 0\n"
    found = node_views.read_dumps(text)
    assert {pid: dump.throttled for pid, dump in found.items()} == {200: 0.9, 100: 0.0}


def test_a_rank_that_a_cgroup_stops_again_and_again() -> None:
    """The others make progress from time to time: it is the limit that makes this one slow."""
    found = two_ranks(reduces(), sleeps())
    found.ranks[0].moved, found.ranks[1].throttled = True, 0.9
    cause, note = causes.judge(found)
    assert (cause.kind, cause.ranks, cause.nodes) == ("limited", (1,), ("worker-2",))
    assert cause.text.endswith("is slow: a limit of its cgroup stops it in 90% of the time slices")
    assert (note.kind, note.serious) == ("straggler", False)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_limit_that_slows_no_rank_more_than_the_others(share: float) -> None:
    found = two_ranks(reduces(), reduces())
    for rank in found.ranks.values():
        rank.throttled = share
    assert not any(finding.serious for finding in causes.judge(found))
