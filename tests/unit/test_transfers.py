"""How far downloads and copies are."""

from __future__ import annotations

from clusterctl.actions import common
from clusterctl.cli.console import Console
from clusterctl.cli.data import Download
from clusterctl.core.progress import Meter


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
