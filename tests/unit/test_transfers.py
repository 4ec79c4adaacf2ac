"""How far downloads and copies are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.actions import common, images
from clusterctl.cli.console import Console
from clusterctl.cli.data import Download
from clusterctl.core import progress
from clusterctl.core.progress import Meter
from clusterctl.errors import ProviderError


def test_downloads_count_beside_copies() -> None:
    download, (before, _) = Download(Console()), common.count_copied()
    download("train.bin", 10, 100)
    assert download.count() == (before + 10, 90)
    download("train.bin", 100, 100)
    download("test.bin", 5, 0)
    assert download.count() == (before + 105, None), "no server tells its size"


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
