"""The live view of `up`: what it shows, and that the terminal is whole whatever comes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.cli import up_view
from clusterctl.cli.console import Console
from clusterctl.core.progress import (
    BOOTING,
    CONNECTING,
    FAILED,
    INSTALLING,
    PULLING,
    READY,
    REQUESTED,
    NodeState,
    Picture,
)
from tests.terminal import Terminal
from tests.unit.calling import ROOT
from tests.unit.tables import rows


@pytest.fixture(autouse=True)
def without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def lines(*nodes: NodeState, stage: str = "", height: int = 24) -> list[str]:
    return up_view.describe_nodes(Picture(stage, 12.0, nodes), height)


def test_a_line_for_each_node() -> None:
    gigabyte = 10**9
    assert lines(
        NodeState("launcher", READY, seconds=40.0),
        NodeState("worker-1", PULLING, "", 31.0, 37.0, gigabyte, 32e6, 2 * gigabyte),
        NodeState("worker-2", INSTALLING, "Docker", 5.0, None, 81_000_000, 4e6),
        NodeState("worker-3", FAILED, "no such image", 9.0, None, gigabyte),
        NodeState("worker-10", BOOTING, "", 9.0, 21.0),
        stage="preparing nodes",
    ) == [
        "launcher   ready",
        "worker-1   pulling image        31 s   1000.0 of 2000.0 MB received, 32.0 MB/s, about 37 s"
        " left",
        "worker-2   installing packages  5.0 s  Docker, 81.0 MB received, 4.0 MB/s",
        "worker-3   failed                      no such image",
        "worker-10  booting              9.0 s  about 21 s left",
        "preparing nodes, 12 s",
    ]


def test_what_is_not_worth_a_word_is_left_out() -> None:
    """The traffic of SSH, a rate that is not known yet or next to nothing, the last half second."""
    assert lines(
        NodeState("worker-1", CONNECTING, "", 3.0, 0.4, 20_000, 9e3),
        NodeState("worker-2", PULLING, "", 3.0, None, 2_000_000),
        NodeState("worker-3", INSTALLING, "wheels", 60.0, None, 15_000_000, 8e3),
        NodeState("worker-4", READY, "", 3.0, None, 10**9, 5e6, 2 * 10**9),
    ) == [
        "worker-1  waiting for SSH      3.0 s",
        "worker-2  pulling image        3.0 s  2.0 MB received",
        "worker-3  installing packages  60 s   wheels, 15.0 MB received",
        "worker-4  ready",
    ]


def test_an_image_that_has_come_is_unpacked() -> None:
    assert lines(NodeState("worker-1", PULLING, "", 30.0, None, 306_000_000, 2e6, 305_600_000)) == [
        "worker-1  pulling image  30 s  306.0 MB received, unpacking"
    ]


def test_many_nodes_are_counted_and_the_slowest_have_lines() -> None:
    nodes = [
        NodeState("launcher", READY),
        *(NodeState(f"worker-{n}", READY, "", 90.0) for n in range(1, 201)),
        *(NodeState(f"worker-{n}", PULLING, "", n / 10) for n in range(201, 250)),
        *(NodeState(f"worker-{n}", CONNECTING, "", n / 10) for n in range(250, 256)),
        NodeState("worker-256", FAILED, "no such image"),
    ]
    assert lines(*nodes, stage="preparing nodes") == [
        "257 nodes: 201 ready, 1 failed, 49 pulling image, 6 waiting for SSH",
        "worker-256  failed                 no such image",
        "worker-255  waiting for SSH  26 s",
        "worker-254  waiting for SSH  25 s",
        "worker-253  waiting for SSH  25 s",
        "worker-252  waiting for SSH  25 s",
        "preparing nodes, 12 s",
    ]


@pytest.mark.parametrize("height", [24, 10, 5, 2])
def test_it_fits_every_window(height: int) -> None:
    phases = (READY, PULLING, BOOTING, REQUESTED)
    nodes = [NodeState(f"worker-{n}", phases[n % 4], "", 5.0) for n in range(256)]
    shown = lines(*nodes, stage="preparing nodes", height=height)
    assert len(shown) <= max(up_view.LEAST, height // 2)
    assert shown[0].startswith("256 nodes: ")
    assert shown[-1] == "preparing nodes, 12 s"


def test_all_that_is_ready_needs_no_lines() -> None:
    nodes = [NodeState(f"worker-{n}", READY) for n in range(256)]
    assert lines(*nodes, stage="testing") == ["256 nodes: 256 ready", "testing, 12 s"]


@rows("terminal, term, settings, shown", "node_view.only_a_terminal_that_somebody_looks_at_has_it")
def test_only_a_terminal_that_somebody_looks_at_has_it(
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    term: str,
    settings: dict[str, bool],
    shown: bool,
) -> None:
    class Stderr:
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setattr("sys.stderr", Stderr())
    monkeypatch.delenv("TERM", raising=False)
    if term:
        monkeypatch.setenv("TERM", term)
    console = Console().set(**settings)
    with up_view.watch(console) as nodes:
        assert nodes.watched is shown


PROGRAM = """
import pathlib, sys, time
from clusterctl.cli import up_view
from clusterctl.cli.console import Console
folder = pathlib.Path(sys.argv[1])
def wait(name):
    end = time.monotonic() + 60
    while not (folder / name).exists() and time.monotonic() < end:
        time.sleep(0.02)
up_view.DELAY = 0.0
console = Console.begin()
try:
    with up_view.watch(console) as nodes:
        nodes.expect({"launcher": "launcher", "worker-1": "worker"})
        nodes.show_stage("creating nodes")
        wait("go")
        SCENE
        wait("end")
except (KeyboardInterrupt, ValueError) as error:
    console.note(f"stopped by {type(error).__name__}")
"""

Play = Callable[..., Terminal]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """The program with that scene, once the view is there."""
    started = []

    def start(scene: str, **environment: str) -> Terminal:
        variables = {"TERM": "xterm", "PYTHONPATH": str(ROOT), "NO_COLOR": "", **environment}
        argv = [sys.executable, "-c", PROGRAM.replace("SCENE", scene), str(tmp_path)]
        terminal = Terminal(argv, width=60, keyboard=True, env=variables)
        started.append(terminal)
        read(terminal, "creating nodes, ")
        (tmp_path / "go").touch()
        return terminal

    yield start
    for terminal in started:
        terminal.close()


def read(terminal: Terminal, text: str) -> None:
    """Until the program has written that, after what was read before."""
    seen = len(terminal.raw)
    while text not in terminal.raw[seen:]:
        terminal.until_more()


def test_messages_stay_above_it_and_at_the_end_it_is_gone(play: Play, tmp_path: Path) -> None:
    terminal = play("console.note('first'); console.note('second')")
    while "launcher  requested" not in terminal.raw.partition("second")[2]:
        terminal.until_more()
    assert [line.split("  ")[0] for line in terminal.screen.text] == [
        *("first", "second"),
        *("launcher", "worker-1", terminal.screen.text[-1]),
    ]
    (tmp_path / "end").touch()
    assert terminal.wait() == ["first", "second"]


def test_a_question_stands_alone_until_it_is_answered(play: Play, tmp_path: Path) -> None:
    terminal = play("console.note(f'answer: {console.confirm(\"remove worker-1?\")}')")
    terminal.until("remove worker-1? [y/N]")
    terminal.send(b"y\n")
    read(terminal, "worker-1  requested")
    question, answer, *view = terminal.screen.text
    assert (question, answer, len(view)) == ("remove worker-1? [y/N] y", "answer: True", 3)
    (tmp_path / "end").touch()
    assert terminal.wait() == [question, answer]


@rows("scene, name", "node_view.what_breaks_off_leaves_the_terminal_whole")
def test_what_breaks_off_leaves_the_terminal_whole(play: Play, scene: str, name: str) -> None:
    terminal = play(scene)
    if name == "KeyboardInterrupt":
        terminal.process.send_signal(signal.SIGINT)
    assert terminal.wait() == [f"stopped by {name}"]


def test_ctrl_c_at_the_question(play: Play) -> None:
    terminal = play("console.confirm('remove worker-1?')")
    terminal.until("remove worker-1? [y/N]")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.wait() == ["remove worker-1? [y/N]", "stopped by KeyboardInterrupt"]


STRIKES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/select.h>
#include <unistd.h>

static void strike(void) {
    if (getenv("ONCE") && unlink(getenv("ONCE")) == 0) kill(getpid(), SIGINT);
}
ssize_t read(int from, void *into, size_t most) {
    ssize_t (*real)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    if (from == 0) strike();
    return real(from, into, most);
}
int select(int n, fd_set *in, fd_set *out, fd_set *more, struct timeval *limit) {
    int (*real)(int, fd_set *, fd_set *, fd_set *, struct timeval *) = dlsym(RTLD_NEXT, "select");
    strike();
    return real(n, in, out, more, limit);
}
"""
"""For LD_PRELOAD: Ctrl-C comes after Python has looked for signals, before it waits for input."""


def test_ctrl_c_just_before_the_wait_for_an_answer(
    need: Callable[[str], str], play: Play, tmp_path: Path
) -> None:
    (tmp_path / "strikes.c").write_text(STRIKES)
    library = str(tmp_path / "strikes.so")
    build = [need("gcc"), "-shared", "-fPIC", "-o", library, str(tmp_path / "strikes.c"), "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    scene = "(folder / 'once').touch(); console.confirm('remove worker-1?')"
    terminal = play(scene, LD_PRELOAD=library, ONCE=str(tmp_path / "once"))
    assert terminal.wait() == ["remove worker-1? [y/N]", "stopped by KeyboardInterrupt"]


def test_it_has_colours_unless_they_are_not_wanted(play: Play, tmp_path: Path) -> None:
    terminal = play("nodes.enter(['launcher'], 'ready')", NO_COLOR="1")
    read(terminal, "launcher  ready")
    assert "\x1b[3" not in terminal.raw
    (tmp_path / "go").unlink()
    terminal = play("nodes.enter(['launcher'], 'ready')")
    read(terminal, "\x1b[32mlauncher  ready")
