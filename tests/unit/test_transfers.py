"""How far a download is, in a pipe."""

from __future__ import annotations

import pytest

from clusterctl.cli.console import Console
from clusterctl.cli.progress import Transfer


def test_each_tenth_is_a_line_with_the_rate_and_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    transfer = Transfer(Console(), clock=lambda: now[0])
    for done in range(0, 1_000_000_001, 10_000_000):
        transfer("train.bin", done, 1_000_000_000)
        now[0] += 0.5
    lines = [line.split("s  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 11
    assert lines[5] == "train.bin  50 % of 1000.0 MB, 20.0 MB/s, 25 s left"
    assert lines[-1] == "train.bin 100 % of 1000.0 MB, 20.0 MB/s"


def test_a_size_that_no_server_tells_is_no_reason_for_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    transfer = Transfer(Console(), clock=lambda: now[0])
    for number in range(60):
        transfer("train.bin", number * 1_000_000, 0)
        now[0] += 1
    lines = [line.split("s  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[1:3] == ["train.bin 10.0 MB, 1.0 MB/s", "train.bin 20.0 MB, 1.0 MB/s"]
    assert len(lines) == 6
