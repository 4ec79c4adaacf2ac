"""How ranks' output is shown: in pipes, as JSON, on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import pytest

from clusterctl.cli.console import Console
from clusterctl.cli.output import LINE_LIMIT, Printer
from clusterctl.jobs.records import Piece
from tests.terminal import Terminal
from tests.unit.calling import ROOT

Printed = Callable[..., tuple[bytes, bytes]]


def piece(rank: int | None, data: bytes, stream: str = "stdout", node: str = "worker-1") -> Piece:
    return Piece(rank, node, stream, data)


@pytest.fixture
def printed(capfdbinary: pytest.CaptureFixture[bytes]) -> Printed:
    """What is on stdout and stderr after these looks at the ranks' files."""

    def run(*looks: list[Piece], json: bool = False, **options: object) -> tuple[bytes, bytes]:
        with Printer(Console().set(json=json), **options) as printer:  # type: ignore[arg-type]
            for look in looks:
                printer(look)
        done = capfdbinary.readouterr()
        return done.out, done.err

    return run


def documents(out: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_lines_of_several_ranks(printed: Printed) -> None:
    out, err = printed(
        [piece(0, b"a\nb"), piece(1, b"\nc\n"), piece(1, b"oh\n", "stderr"), piece(None, b"up\n")],
        [piece(0, b"b\n\xff\0\x1b[1m\n")],
        [piece(1, b"no end")],
    )
    lines = out.splitlines()
    assert [line for line in lines if line[:3] == b"[0]"] == [
        b"[0] a",
        b"[0] bb",
        b"[0] \xff\0\x1b[1m",
    ]
    assert [line for line in lines if line[:3] == b"[1]"] == [b"[1] ", b"[1] c", b"[1] no end"]
    assert b"[agent] up" in lines
    assert err == b"[1] oh\n"


def test_one_rank_alone(printed: Printed) -> None:
    assert printed([piece(0, b"a\n"), piece(1, b"b\n")], only=1) == (b"[1] b\n", b"")


def test_the_same_rank_on_two_nodes(printed: Printed) -> None:
    """As after a retry that put it elsewhere."""
    out, _ = printed([piece(0, b"be"), piece(0, b"new\n", node="worker-2")], [piece(0, b"fore\n")])
    assert out == b"[0] new\n[0] before\n"


def test_a_long_line_comes_in_parts(printed: Printed) -> None:
    long = ("é" * LINE_LIMIT).encode()  # two bytes each, which no part may tear apart
    looks = [[piece(0, b"-" + long[:1000])], [piece(0, long[1000:-1])], [piece(0, long[-1:])]]
    out = printed(*looks)[0].decode()
    assert out.count("\n") == out.count("[0] ") == 3
    assert out.replace("\n", "").replace("[0] ", "") == "-" + long.decode()
    rows = documents(printed(*looks, json=True)[0])
    assert [row.pop("cut", False) for row in rows] == [True, True, False]
    assert "".join(str(row["line"]) for row in rows) == "-" + long.decode()
    assert {str(row["rank"]) for row in rows} == {"0"}


def test_another_rank_speaks_within_a_long_line(printed: Printed) -> None:
    long = b"x" * (LINE_LIMIT + 10)
    out, _ = printed([piece(0, long)], [piece(1, b"hello\n")], [piece(0, b"y\n")])
    head, rest = long[:LINE_LIMIT], long[LINE_LIMIT:]
    assert out == b"[0] " + head + b"\n[1] hello\n[0] " + rest + b"y\n"


BAR = [b"\r  0%|", b"\r 50%|#", b"\r100%|##"]


@pytest.fixture
def clock() -> list[float]:
    """The time that the printer sees; the test moves it."""
    return [100.0]


def test_a_progress_bar_in_a_pipe(
    clock: list[float], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It is seen while it runs, and not more often than every few seconds."""
    with Printer(Console(), clock=lambda: clock[0]) as printer:
        printer([piece(0, b"start\n\r  0%|", "stderr")])
        assert capfdbinary.readouterr().err == b"[0] start\n[0]   0%|\n"
        for number in range(1, 50):
            clock[0] += 0.1
            printer([piece(0, b"\r%3d%%|" % number, "stderr")])
        assert capfdbinary.readouterr().err == b""
        clock[0] += 0.2
        printer([])  # nothing new has come: what there is, is shown when it is time
        assert capfdbinary.readouterr().err == b"[0]  49%|\n"
        printer([piece(0, b"\r100%|##", "stderr"), piece(1, b"\r7 %", "stderr")])
        assert capfdbinary.readouterr().err == b"[1] 7 %\n"
        printer([piece(0, b"\ndone\n", "stderr")])
        assert capfdbinary.readouterr().err == b"[0] 100%|##\n[0] done\n"
    assert capfdbinary.readouterr().err == b""


@pytest.mark.parametrize("tail", [b"", b"\n"], ids=["unfinished", "finished"])
def test_the_end_of_a_progress_bar_is_shown_once(printed: Printed, tail: bytes) -> None:
    out, _ = printed(*([piece(0, part)] for part in (*BAR, tail)))
    assert out == b"[0]   0%|\n[0] 100%|##\n"


def test_a_progress_bar_below_another(printed: Printed) -> None:
    """As tqdm draws an inner loop: down, the bar, and up again."""
    inner = [b"\n\r step %d\x1b[A" % step for step in range(5)]
    looks = [b"\repoch 0", *inner, b"\repoch 1", *inner, b"\repoch 2\n"]
    out, _ = printed(*([piece(0, part)] for part in looks))
    assert out == b"[0] epoch 0\n[0] epoch 1\n[0] epoch 2\n"


@pytest.mark.parametrize("wipe", [b"\r        \r", b"\r\x1b[2K\r"])
def test_a_progress_bar_that_is_wiped_off(printed: Printed, wipe: bytes) -> None:
    out, _ = printed([piece(0, b"".join(BAR))], [piece(0, wipe)], [piece(0, b"epoch 1\n")])
    assert out == b"[0] 100%|##\n[0] epoch 1\n"


def test_lines_that_end_as_on_windows_are_whole(printed: Printed) -> None:
    assert printed([piece(0, b"a\r\nb\r\n\r\n")]) == (b"[0] a\r\n[0] b\r\n[0] \r\n", b"")
    out, _ = printed([piece(0, b"a\r")], [piece(0, b"\nb\n")])
    assert out.splitlines() == [b"[0] a", b"[0] b"]


def test_the_end_of_a_bar_is_a_line_of_json_also_where_it_was_shown(printed: Printed) -> None:
    rows = documents(printed([piece(0, BAR[2])], json=True)[0])
    assert [row.get("progress", False) for row in rows] == [True, False]
    assert {row["line"] for row in rows} == {"100%|##"}


def test_a_progress_bar_as_json(printed: Printed) -> None:
    out, _ = printed(
        [piece(0, BAR[0])], [piece(0, BAR[1])], [piece(0, BAR[2] + b"\nok\n")], json=True
    )
    assert documents(out) == [
        {"rank": 0, "stream": "stdout", "line": "  0%|", "progress": True},
        {"rank": 0, "stream": "stdout", "line": BAR[2][1:].decode()},
        {"rank": 0, "stream": "stdout", "line": "ok"},
    ]


SHOW = """
import os
import select
from clusterctl.cli.console import Console
from clusterctl.cli.output import Printer
from clusterctl.jobs.records import Piece
console = Console()
heard = b""
with Printer(console) as printer:
    while True:
        while not select.select([0], [], [], 0.05)[0]:
            printer([])
        data = os.read(0, 65536)
        if not data:
            break
        *lines, heard = (heard + data).split(b"\\n")
        for what, rank, text in map(eval, lines):
            if what == "tell":
                console.note(text)
            else:
                printer([Piece(rank, "worker-1", what, text)])
console.note("job 1 succeeded")
"""


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(line: str = 'exec "$0" -c "$1"', **environment: str) -> Terminal:
        env = {"TERM": "xterm", "PYTHONPATH": str(ROOT), **environment}
        made.append(Terminal(["/bin/sh", "-c", line, sys.executable, SHOW], width=40, env=env))
        return made[-1]

    yield start
    for one in made:
        one.close()


def send(terminal: Terminal, what: str, rank: int, text: str | bytes) -> None:
    terminal.send(f"{(what, rank, text)!r}\n".encode())


def test_progress_bars_of_several_ranks_on_a_terminal(terminal: Callable[..., Terminal]) -> None:
    one = terminal()
    send(one, "stdout", 0, b"hello\n")
    send(one, "stderr", 0, b"\r 10%|#")
    one.until("[0] hello", "[0]  10%|#")
    send(one, "stderr", 1, b"\r 20%|##")
    one.until("[0] hello", "[0]  10%|#", "[1]  20%|##")
    send(one, "stdout", 1, b"epoch 1\n")  # lines go above
    send(one, "stderr", 0, b"\r 11%|\x1b[32m#\x1b[0m\x1b[A\x07")  # a bar stays on its line
    one.until("[0] hello", "[1] epoch 1", "[0]  11%|#", "[1]  20%|##")
    send(one, "stderr", 1, b"\r" + b"x" * 200)
    one.until("[0]  11%|#", "[1] " + "x" * 36)
    send(one, "tell", 0, "attempt 2")  # so do our own messages
    send(one, "stderr", 1, b"\r 99%|###")
    one.until("attempt 2", "[0]  11%|#", "[1]  99%|###")
    send(one, "stderr", 1, b"\r100%|####\n")
    one.until("attempt 2", "[1] 100%|####", "[0]  11%|#")
    shown = one.wait()
    assert shown == [
        "[0] hello",
        "[1] epoch 1",
        "attempt 2",
        "[1] 100%|####",
        "[0]  11%|#",
        "job 1 succeeded",
    ]


def test_ranks_have_colours_on_a_terminal_alone(
    terminal: Callable[..., Terminal], printed: Printed
) -> None:
    one = terminal()
    send(one, "stdout", 0, b"hello\n")
    send(one, "stdout", 1, b"hello\n")
    assert one.wait()[:2] == ["[0] hello", "[1] hello"]
    assert "\x1b[36m[0]\x1b[0m hello" in one.raw
    assert "\x1b[33m[1]\x1b[0m hello" in one.raw
    plain = terminal(NO_COLOR="1")
    send(plain, "stdout", 0, b"hello\n")
    plain.wait()
    assert "\x1b[36m" not in plain.raw
    assert printed([piece(0, b"hello\n")])[0] == b"[0] hello\n"


def test_more_progress_bars_than_fit(terminal: Callable[..., Terminal]) -> None:
    one = terminal()
    for rank in range(20):
        send(one, "stderr", rank, b"\r 1%")
    *_, before, last = one.until("(9 more)")
    assert (before, last) == ("[10]  1%", "(9 more)")


def test_another_program_writes_to_the_terminal(terminal: Callable[..., Terminal]) -> None:
    """With `run … | tee log`, nobody but tee knows when a line comes."""
    one = terminal('"$0" -c "$1" | cat')
    send(one, "stderr", 0, b"\r 10%")
    one.until("[0]  10%")
    send(one, "stdout", 0, b"hello\n")
    one.until("[0]  10%", "[0] hello")
    send(one, "stderr", 0, b"\r 20%\n")
    assert one.wait() == ["[0]  10%", "[0] hello", "[0]  20%", "job 1 succeeded"]


def test_a_terminal_that_cannot_move_its_cursor(terminal: Callable[..., Terminal]) -> None:
    one = terminal(TERM="dumb")
    send(one, "stderr", 0, b"\r 10%")
    send(one, "stderr", 0, b"\r 20%\n")
    assert one.wait() == ["[0]  10%", "[0]  20%", "job 1 succeeded"]


HARMFUL = [*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F)]
HARMFUL += range(0x2066, 0x2070)


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_terminal_gets_no_character_that_it_would_obey(
    kind: str, terminal: Callable[..., Terminal], printed: Printed
) -> None:
    """Neither of the second set of control characters nor of those that turn the order of text; in
    a file, all are there."""
    text = "".join(map(chr, HARMFUL))
    line = f"a{text}À日本é\U0001f469\u200d\U0001f4bbz".encode() + b"\x9b2J\x90."
    one = terminal(TERM=kind)
    send(one, "stdout", 0, line + b"\n")
    send(one, "stdout", 0, b"one\x1b[2Jtwo\n")
    one.wait()
    assert not [hex(ord(char)) for char in one.raw if ord(char) in HARMFUL]
    assert "aÀ日本é\U0001f469\u200d\U0001f4bbz2J." in one.raw
    assert "[0] onetwo" in one.raw.replace("\x1b[36m", "").replace("\x1b[0m", "")
    out, _ = printed([piece(0, line + b"\n")])  # a file
    assert line in out
