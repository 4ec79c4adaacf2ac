"""How far a download or a copy is: a bar on a terminal, lines in a pipe."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clusterctl.actions import common, images
from clusterctl.cli.console import Console
from clusterctl.cli.progress import Transfer
from clusterctl.core import progress
from clusterctl.core.progress import Meter
from clusterctl.errors import ProviderError
from tests.terminal import Terminal as Pty
from tests.unit.calling import ROOT


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


BAR = """
from clusterctl.cli.console import Console
from clusterctl.cli.progress import Transfer
now = [0.0]
transfer = Transfer(Console(), clock=lambda: now[0])
for done in (0, 25, 50):
    transfer("train.bin", done * 10**6, 10**8)
    now[0] += 1.0
Console().leave()
input()
"""


@pytest.mark.parametrize(("encoding", "half"), [("utf-8", "━" * 12), ("ascii", "-" * 12)])
def test_a_terminal_has_one_line_with_a_bar(encoding: str, half: str) -> None:
    environment = {"TERM": "xterm", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    terminal = Pty([sys.executable, "-c", BAR], width=100, env=environment)
    try:
        while "50 %" not in terminal.raw:
            terminal.until_more()
        terminal.send(b"\n")
        [line] = [line for line in terminal.wait() if "train.bin" in line]
    finally:
        terminal.close()
    assert line.startswith(f"[{half}")
    assert line.endswith("] train.bin  50 % of 100.0 MB, 25.0 MB/s, 2.0 s left")


def test_copies_under_way_know_what_is_left() -> None:
    copies = Meter()
    assert copies.left is None
    with copies.count_copy(100) as first:
        first.add(30)
        with copies.count_copy(50) as second:
            second.add(60)  # an archive is larger than the files in it
            assert (copies.read(), copies.left) == (90, 70)
            with copies.count_copy(None):
                assert copies.left is None
        assert copies.left == 70
    assert (copies.read(), copies.left) == (90, None)


def test_what_other_programs_download_counts_while_they_run() -> None:
    carried = [10_000_000]
    downloads = Meter(lambda: carried[0])
    assert downloads.downloaded == 0
    with downloads.count_download():
        carried[0] += 1_900_000
        assert downloads.downloaded == 1_000_000, "whole megabytes"
        carried[0] += 600_000
        assert downloads.downloaded == 2_000_000
    carried[0] += 50_000_000
    assert (downloads.downloaded, downloads.read()) == (2_000_000, 0)
    with downloads.count_download():
        carried[0] += 3_500_000
        assert downloads.downloaded == 6_000_000


NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo: {inner} 1    0    0    0     0          0         0  7000000    1    0    0    0
  eth0:{received} 9    0    0    0     0          0         0  1000000    9    0    0    0
docker0: {inner} 2    0    0    0     0          0         0  9000000    2    0    0    0
"""
DOCKER = """#!/bin/sh
case "$1" in
version) echo 27.0 ;;
pull) cp "{after}" "{table}"; exit 1 ;;
*) exit 1 ;;
esac
"""


def test_a_pull_of_an_image_build_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table, after, docker = (tmp_path / name for name in ("table", "after", "docker"))
    table.write_text(NETWORK.format(received=100_000_000, inner=1))
    after.write_text(NETWORK.format(received=105_000_000, inner=9_000_000))
    docker.write_text(DOCKER.format(table=table, after=after))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(progress, "NETWORK", table)
    before, _ = common.count_moved()
    with pytest.raises(ProviderError, match="could not be pulled"):
        images.build("cpu", on_line=lambda line: None)
    assert common.count_moved() == (before + 5_000_000, None)
    table.unlink()
    assert progress.count_network() == 0, "not Linux"


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
