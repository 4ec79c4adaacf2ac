"""What people see of a bootstrap while it goes on."""

from __future__ import annotations

from clusterctl.machines.bootstrap import StepReporter


def test_equal_steps_of_many_nodes_are_one_line() -> None:
    told: list[str] = []
    with StepReporter(told.append, pause=60) as progress:
        for name in ("launcher", "worker-1", "worker-2"):
            progress.on_stdout(name, b"@@step hosts the nodes by name\n")
        progress.on_stdout("worker-1", b"@@step image the image ")
        progress.on_stdout("worker-2", b"@@fact hostname\nip-10-0-0-2\n@@fact arch\nx86_64\n")
        progress.on_stdout("worker-1", b"a/b:1\n@@st")
    assert told == [
        "launcher,worker-[1-2]: the nodes by name",
        "worker-2: done",
        "worker-1: the image a/b:1",
    ]


def test_a_node_that_has_all_it_needs_is_not_spoken_of() -> None:
    told: list[str] = []
    with StepReporter(told.append, pause=60) as progress:
        progress.on_stdout("worker-1", b"@@fact hostname\nip-10-0-0-1\n@@fact end\n")
    assert told == []


def test_how_long_each_step_took_on_the_slowest_node() -> None:
    clock = iter([0.0, 1.0, 5.0, 9.0, 9.0, 12.0, 13.0])
    with StepReporter(lambda line: None, pause=60, now=lambda: next(clock)) as progress:
        progress.on_stdout("worker-1", b"@@step wheels wheels\n")
        progress.on_stdout("worker-2", b"@@step wheels wheels\n")
        progress.on_stdout("worker-1", b"@@step image image\n")
        progress.on_stdout("worker-2", b"@@step image image\n")
        progress.on_stdout("worker-1", b"@@fact hostname\n")
    assert progress.seconds == {"wheels": 8.0, "image": 4.0}


def test_it_is_told_before_all_is_over() -> None:
    """A pull of gigabytes is named while it goes on."""
    import threading

    told = threading.Event()
    with StepReporter(lambda line: told.set()) as progress:
        progress.on_stdout("worker-1", b"@@step docker Docker\n")
        assert told.wait(20)
