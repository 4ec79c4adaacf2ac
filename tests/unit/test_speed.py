"""How fast bytes move, and when somebody may be told how long the rest takes."""

from __future__ import annotations

from clusterctl.core.progress import Speedometer


def test_an_estimate_begins_when_it_can_be_believed() -> None:
    """A copy of 200 MB in five seconds, after three in which it connected: no word of minutes."""
    speed, estimates, done = Speedometer(0.0, 0), [], 0
    for tick in range(33):
        if tick >= 12:
            done += 64_000 if tick == 12 else 10_000_000
        speed.add(tick / 4, done)
        estimates.append(speed.estimate(200_000_000 - done))
    assert set(estimates[:19]) == {None}
    told = [seconds for seconds in estimates if seconds is not None]
    assert told
    assert all(seconds < 5 for seconds in told)


def test_a_speed_that_changes_tells_nothing() -> None:
    speed = Speedometer(0.0, 0)
    for tick in range(1, 12):
        speed.add(tick / 4, 50_000_000 + tick * 1000)  # buffers, then the network
    assert speed.estimate(10**9) is None


def test_time_in_which_nothing_moved_does_not_count() -> None:
    """Between the copies of two steps, say."""
    speed = Speedometer(0.0, 0)
    for second in (1, 2, 3):
        speed.add(second, second * 1000)
    for second in range(4, 60):
        speed.add(second, 3000)
    for second in (60, 61, 62):
        speed.add(second, 3000 + 1000 * (second - 59))
    assert speed.rate == 1000
    assert speed.estimate(5000) == 5
