"""A verb that waits says so."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.cli import console
from clusterctl.cli.console import Console
from clusterctl.core.model import Charge, CloudSpec
from clusterctl.core.progress import QUESTION
from clusterctl.errors import ProviderError
from clusterctl.machines.ec2.provider import Ec2Provider
from tests.terminal import Terminal as Pty
from tests.unit.calling import ROOT, Call
from tests.unit.making import cluster
from tests.unit.provided import provide


def wait_for(capsys: pytest.CaptureFixture[str], word: str) -> str:
    said = ""
    end = time.monotonic() + 30
    while word not in said and time.monotonic() < end:
        time.sleep(0.01)
        said += capsys.readouterr().err
    return said


def test_what_is_waited_for_is_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.report("launcher: starts")
    with console.show_waiting(silence=0.05):
        said = wait_for(capsys, "still")
    assert "s  still working; last step: launcher: starts\n" in said
    assert [thread.name for thread in threading.enumerate()].count("waiting") == 0
    assert len(console.story) == 1, "the log has it once"


def test_a_long_wait_is_not_told_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Not every 2.5 seconds in a log: a wait of 60 seconds has five lines."""
    console = Console()
    with console.show_waiting(silence=0.05):
        time.sleep(1.2)
        assert 2 <= capsys.readouterr().err.count("still") <= 5
        console.report("launcher: starts")
        assert "last step: launcher" in wait_for(capsys, "still"), "a new step is news"


def test_nothing_is_said_while_a_password_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    with console.show_waiting(silence=0.05):
        with QUESTION:
            time.sleep(0.4)
            assert "still" not in capsys.readouterr().err
        assert "still" in wait_for(capsys, "still")


def test_silence_from_before_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """As that of a busy machine which loads our modules: its clock stands still afterwards."""
    shows = [0.0]
    console = Console(lambda: shows[0])
    shows[0] = 100.0
    with console.show_waiting(silence=1.0):
        assert "still working" in wait_for(capsys, "still")


def test_quiet_means_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console().set(quiet=True)
    with console.show_waiting(silence=0.01):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


class Asked(Console):
    interactive = True


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Lets somebody at a keyboard answer yes, after what happens meanwhile."""
    file = os.open(os.devnull, os.O_RDONLY)

    def sit_down(meanwhile: Callable[[], None]) -> None:
        class Person:
            def fileno(self) -> int:
                return file

            def readline(self) -> str:
                meanwhile()
                return "y\n"

        monkeypatch.setattr("sys.stdin", Person())

    yield sit_down
    os.close(file)


def test_a_question_is_not_talked_over(
    capsys: pytest.CaptureFixture[str], answer: Callable[[Callable[[], None]], None]
) -> None:
    seen: list[str] = []

    def think() -> None:
        time.sleep(0.2)
        seen.append(capsys.readouterr().err)

    answer(think)
    console = Asked()
    with console.show_waiting(silence=0.1):
        assert console.confirm("start 3 machines?")
    assert seen[0].endswith("start 3 machines? [y/N] ")


def test_a_live_view_is_not_painted_over_a_question(
    capsys: pytest.CaptureFixture[str], answer: Callable[[Callable[[], None]], None]
) -> None:
    console = Asked()
    answer(lambda: console.draw(["meanwhile"]))
    assert console.confirm("start 3 machines?")
    assert "meanwhile" not in capsys.readouterr().err
    console.draw(["afterwards"])
    assert "afterwards" in capsys.readouterr().err


def test_a_copy_says_how_much_has_come_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets it with the lines that say that something still happens."""
    moved = iter(range(0, 10**15, 2_000_000))
    console = Console()
    console.report("fetching")
    with console.show_waiting(silence=0.05, moved=lambda: (next(moved), None)):
        said = wait_for(capsys, "MB/s")
    assert re.search(
        r"still working; last step: fetching, \d+\.0 MB copied, \d+\.\d MB/s\n", said
    ), said
    assert "\r" not in said


def test_a_copy_of_known_size_says_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moved, ticks = iter(range(0, 10**15, 2_000_000)), iter(range(10**9))
    console = Console(clock=lambda: next(ticks) / 10)
    with console.show_waiting(silence=0.05, moved=lambda: (next(moved), 10**15)):
        said = wait_for(capsys, "left")
    assert re.search(r"MB/s, \d+\.\d [dh] left\n", said), said


def test_copies_alone_are_told_where_the_rest_is_told_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As by a job, whose output is on the screen."""
    moved, still = iter(range(0, 10**9, 2_000_000)), threading.Event()
    console = Console()
    with console.show_waiting(
        silence=0.02, moved=lambda: (0 if not still.is_set() else next(moved), 0), only_copies=True
    ):
        time.sleep(0.2)
        assert capsys.readouterr().err == ""
        still.set()
        assert "MB copied" in wait_for(capsys, "MB/s")


COPIES = """
import itertools, sys
from clusterctl.cli.console import Console
console = Console()
console.report("fetching")
moved = itertools.count(0, 1_000_000)
with console.show_waiting(silence=0.2, moved=lambda: (n := next(moved), 4 * n)):
    sys.stdin.readline()
console.note("done")
"""


def show(code: str, until: str) -> tuple[str, list[str]]:
    """What a terminal has seen of a program that reads a line, and what it shows at its end."""
    environment = {"TERM": "xterm", "PYTHONPATH": str(ROOT)}
    terminal = Pty([sys.executable, "-c", code], width=100, env=environment)
    try:
        while until not in terminal.raw:
            terminal.until_more()
        terminal.send(b"\n")
        shown = terminal.wait()
        return terminal.raw, [line.split("s  ")[-1].strip() for line in shown if line.strip()]
    finally:
        terminal.close()


def test_on_a_terminal_a_copy_is_one_line_that_goes_at_its_end() -> None:
    raw, shown = show(COPIES, "MB/s")
    assert re.search(r"fetching, \d+\.0 MB copied, \d+\.\d MB/s", raw)
    assert shown == ["fetching", "done"]


WAITS = """
import sys
from clusterctl.cli.console import Console
console = Console()
console.report("removing 3 machines")
with console.show_waiting(silence=0.1):
    sys.stdin.readline()
console.note("done")
"""


def test_on_a_terminal_the_same_word_is_not_said_in_a_line_each_time() -> None:
    raw, shown = show(WAITS, "still working")
    assert "last step: removing 3 machines" in raw
    assert shown == ["removing 3 machines", "done"]


STEPS = """
import sys
from clusterctl.cli.console import Console
console = Console()
for step in ("pulling", "building"):
    console.step(step)
sys.stdin.readline()
console.note("done")
"""


def test_on_a_terminal_the_steps_of_a_long_action_are_one_line() -> None:
    raw, shown = show(STEPS, "building")
    assert "pulling" in raw
    assert shown == ["done"]


def test_elsewhere_a_step_is_what_one_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.step("pulling")
    assert capsys.readouterr().err == ""
    with console.show_waiting(silence=0.05):
        assert "still working; last step: pulling\n" in wait_for(capsys, "still")
    Console().set(verbose=True).step("building")
    assert capsys.readouterr().err.endswith("s  building\n")


# ------------------------------------------------------------------------------------------------
# A verb that waits for AWS says every five seconds that it still does.


SILENCE = 0.05


class Hanging(Ec2Provider):
    """An AWS that hangs the first time, and then does not answer."""

    waited = False

    def hang(self, *about: object, **more: object) -> Any:
        if not self.waited:
            time.sleep(10 * SILENCE)
        self.waited = True
        raise ProviderError("AWS did not answer", hint="check your network")

    plan = list_things = describe = allow = stop = check_pausing = extend = find = hang

    def find_usual_region(self) -> str:
        return "us-east-1"

    def list_regions(self) -> tuple[str, ...]:
        return ("us-east-1",)

    def find_owner(self) -> str:
        return ""


LINES = (
    "up lab --yes|up lab --dry-run|start --yes|gc --yes|status|status --live|cost"
    "|allow 192.0.2.1|extend --ttl 4h --yes|stop --yes|down --yes|gc --adopt other"
)


@pytest.mark.parametrize("line", LINES.split("|"))
def test_who_waits_for_aws_says_so(line: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "ec2", Hanging())
    monkeypatch.setattr(console, "SILENCE", SILENCE)
    now = time.time()
    charge = Charge(node="launcher", part="instance", item="x", hourly=1.0, source="", since=1.0)
    made = cluster(charges=(charge,), created=1.0, deadline=now + 3600)
    spec = replace(made.spec, cloud=CloudSpec(region="us-east-1", idle=60.0))
    open_store().save(replace(made, spec=spec))
    said = call(*line.split())
    assert "s  still working" in said.err
    assert "AWS did not answer" in said.err + said.out
