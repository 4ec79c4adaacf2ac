"""Output that has become too long: what is kept of it, on a node and here, and that it is said."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.batch.direct import LEAST_OUTPUT
from clusterctl.core import assets
from clusterctl.jobs import records
from clusterctl.jobs.records import read_stored
from clusterctl.project.tree import KEPT_JOBS
from clusterctl.state.store import Store
from tests.unit.followed import ENDED, Site, site, text

_ = site  # a fixture

LINES = b"".join(b"%07d\n" % number for number in range(250_000))
"""2 MB."""


def tend(site: Site, node: str, need: Callable[[str], str]) -> None:
    """What the launcher asks of a node from time to time, with a limit of 200 kB."""
    need("fallocate")
    script = site.folder(node) / "processes.sh"
    values = {"id": site.job.id, "node": node, "tag": f"{os.getpid()}/none;"}
    rendered = assets.render(
        "job/processes.sh.j2", folder=str(site.folder(node)), output=0, least=200_000, **values
    )
    script.write_text(rendered)
    subprocess.run(["sh", script, "tend"], check=True, timeout=60)


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def check(pieces: bytes) -> None:
    """The beginning, what was left out, and the end."""
    head, _, rest = pieces.partition(b"\n[clusterctl: ")
    missing, _, tail = rest.partition(b" of output left out here]\n")
    assert head
    assert LINES.startswith(head)
    assert tail
    assert LINES.endswith(tail)
    assert missing == b"1.8 MB"


def test_a_file_that_becomes_too_long_loses_its_middle_on_its_node(
    site: Site, need: Callable[[str], str]
) -> None:
    """A follower that is behind goes on after it, and says so; the copy here does, too."""
    path = site.write("worker-1", "rank-0.out", LINES)
    short = site.write("worker-1", "rank-1.out", b"short\n")
    tend(site, "worker-1", need)
    assert on_disk(path) > 1_900_000, "who is reading there has time to go on behind it"
    tend(site, "worker-1", need)
    assert on_disk(path) < 300_000
    assert (path.stat().st_size, short.read_bytes()) == (len(LINES), b"short\n")
    site.state(ENDED)
    _, pieces = site.follow()
    check(text(pieces, 0))
    assert text(pieces, 1) == b"short\n"
    stored = [piece for batch in read_stored(site.home) for piece in batch]
    check(text(stored, 0))
    assert on_disk(site.copy("worker-1", "rank-0.out")) < 300_000


def test_a_rank_goes_on_writing_to_a_file_that_was_shortened(
    site: Site, need: Callable[[str], str]
) -> None:
    """Who follows the job loses nothing while it keeps up."""
    site.write("worker-1", "rank-0.out", LINES)
    _, pieces = site.follow(until_ended=False)
    assert text(pieces, 0) == LINES
    for _ in range(2):
        tend(site, "worker-1", need)
    site.write("worker-1", "rank-0.out", b"more\n")
    site.state(ENDED)
    _, pieces = site.follow()
    assert text(pieces, 0) == LINES + b"more\n"


def test_a_copy_here_is_bounded_too(tmp_path: Path, need: Callable[[str], str]) -> None:
    need("fallocate")
    path = tmp_path / "rank-0.out"
    size = LEAST_OUTPUT * 3 // 2
    path.write_bytes(b"x" * size)
    records.shorten(path, files=1)
    assert on_disk(path) == pytest.approx(size, rel=0.01), "it has not more than its share"
    records.shorten(path, files=1_000_000)
    assert on_disk(path) < LEAST_OUTPUT + 10_000
    [(start, end)] = records.read_cuts(path)
    shown = b"".join(data for data, _ in records.read_log(path))
    assert shown == b"x" * start + records.render_marker(end - start) + b"x" * (size - end)


def test_a_copy_that_ends_where_something_was_left_out_goes_on_there(tmp_path: Path) -> None:
    """Its clusterctl was killed before the file was as long as it has noted."""
    path = tmp_path / "rank-0.out"
    path.write_bytes(b"head")
    path.with_name("rank-0.out.cut").write_text("4 100\n4 90\n")
    assert list(records.read_log(path)) == [(b"head", 4)]
    records.leave_out(path, 4, 120)
    with path.open("ab") as file:
        file.write(b"tail")
    assert list(records.read_log(path))[-1] == (b"tail", 124)


def test_the_output_of_old_jobs_is_removed(tmp_path: Path) -> None:
    """Of those that are not among the last, and ended long ago; it can be told."""
    store = Store(open_store().home)
    old = time.time() - records.KEPT_SECONDS - 60
    for number in range(1, KEPT_JOBS + 3):
        output = store.locate_job_folder(number) / "out" / "worker-1"
        output.mkdir(parents=True)
        (output / "rank-0.out").write_text("it\n")
        os.utime(output.parent, (old, old) if number != 2 else None)
    records.remove_old(store)
    there = [n for n in range(1, KEPT_JOBS + 3) if (store.locate_job_folder(n) / "out").exists()]
    assert there == list(range(2, KEPT_JOBS + 3))
    assert records.was_removed(store.locate_job_folder(1))
    assert not records.was_removed(store.locate_job_folder(2))
    assert list(read_stored(store.locate_job_folder(1))) == []
