"""Copies of outputs on the launcher: which files come, and when."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core.job import JobState
from tests.unit.supervised import BOTH, Site, site, until

__all__ = ["site"]

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def apart(site: Site) -> Site:
    """Nodes that are machines of their own, and a mesh between them; looks follow quickly."""
    site.connect('exec /bin/sh -c "$2"')
    site.planned = {"mirror": {"interval": 0.2}}
    return site


def mirrored(site: Site, number: int = 1) -> dict[str, str]:
    """What the launcher has of the outputs."""
    folder = site.folder("launcher", number) / "mirror"
    found = {}
    for path in folder.glob("[!.]*/**/*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # it may be removed meanwhile
            found[str(path.relative_to(folder))] = path.read_text()
    return found


def note(site: Site, name: str) -> dict[str, Any]:
    """What the launcher has noted of the outputs of a node."""
    path = site.folder("launcher", 1) / "mirror" / f".{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_the_launcher_has_outputs_while_the_job_runs(apart: Site) -> None:
    """Whole ones, also of a program that replaces its snapshot again and again, and none of those
    that the program has removed since."""
    script = (
        "mkdir -p 'a  b'; echo x >'a  b/it'\"'\"'s'; echo old >old;"
        " while [ ! -e end ]; do for i in 1 2 3; do echo $RANK; done >new; mv new snapshot;"
        " [ ! -e remove ] || rm -f old; sleep 0.02; done; echo last >last"
    )
    job = apart.submit(1, script, BOTH)
    whole = {
        "worker-1/a  b/it's": "x\n",
        "worker-1/old": "old\n",
        "worker-1/snapshot": "0\n0\n0\n",
        "worker-2/a  b/it's": "x\n",
        "worker-2/old": "old\n",
        "worker-2/snapshot": "1\n1\n1\n",
    }
    until(lambda: mirrored(apart) == whole)
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "remove").touch()
    until(lambda: "worker-1/old" not in mirrored(apart))
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    until(lambda: mirrored(apart).get("worker-2/last") == "last\n")


def test_a_look_that_finds_nothing_new_starts_nothing(apart: Site, tmp_path: Path) -> None:
    """What it says goes over the connection on which the supervisor asks anyway."""
    started = tmp_path / "started"
    apart.connect(f'echo "$2" >>{started}; exec /bin/sh -c "$2"')
    apart.planned["mirror"]["largest"] = 100
    script = "head -c 200 /dev/zero >large; echo it >it; while [ ! -e end ]; do sleep 0.02; done"
    apart.submit(1, f"{script}; rm it", BOTH)
    both = {"worker-1/it": "it\n", "worker-2/it": "it\n"}
    until(lambda: mirrored(apart) == both)
    times = {note(apart, "worker-1")["time"]}
    until(lambda: times.add(note(apart, "worker-1")["time"]) or len(times) > 2)
    before = started.read_text()
    until(lambda: times.add(note(apart, "worker-1")["time"]) or len(times) > 5)
    assert started.read_text() == before
    assert note(apart, "worker-1")["left"] == [1, 200]
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    until(lambda: not mirrored(apart).keys() & both.keys())


LATER = """
import itertools, time
now, hours = time.time, itertools.count()
time.time = lambda: now() + 3600 * next(hours)
"""
"""A clock that is set an hour ahead whenever somebody looks."""


def test_outputs_are_copied_on_while_the_launchers_clock_is_set(apart: Site) -> None:
    """The pause between two looks is measured, and does not become an hour by that."""
    apart.alter(LATER, "launcher")
    job = apart.submit(1, "until [ -e end ]; do echo it >>saved; sleep 0.1; done", BOTH)
    seen = set()
    until(lambda: seen.add(mirrored(apart).get("worker-1/saved", "")) or len(seen) > 3)
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)


def test_what_is_saved_on_a_spot_notice_is_copied_also_before_the_first_look(apart: Site) -> None:
    apart.planned = {}
    job = apart.submit(1, "until [ -e end ]; do sleep 0.1; done; echo it >saved; exit 1", BOTH)
    until(lambda: (apart.folder("worker-1", 1) / "work").is_dir())
    (apart.folder("worker-1", 1).parent.parent / "ending").write_text("spot\n")
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert "EC2 reclaimed the spot instance worker-1" in apart.ended(job).reason
    until(lambda: mirrored(apart).get("worker-1/saved") == "it\n")


def test_a_file_that_grows_without_a_pause_is_copied_as_far_as_it_has_come(apart: Site) -> None:
    script = "echo quiet >quiet; n=0; while [ ! -e end ]; do echo $((n+=1)) >>busy; sleep 0.1; done"
    job = apart.submit(1, script, BOTH)
    seen = set()
    until(lambda: seen.add(mirrored(apart).get("worker-1/busy", "")) or len(seen) > 3)
    assert mirrored(apart)["worker-1/quiet"] == "quiet\n"
    for text in seen:
        lines = text.split()
        assert lines == [str(n + 1) for n in range(len(lines))]
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    whole = (apart.folder("worker-1", 1) / "work" / "busy").read_text()
    until(lambda: mirrored(apart).get("worker-1/busy") == whole)


def test_a_file_that_never_stays_as_it_is_keeps_its_last_copy(apart: Site) -> None:
    """One that is truncated and written again may be seen empty: the copy is not."""
    script = (
        "echo first >it; until [ -e go ]; do sleep 0.05; done;"
        " while [ ! -e end ]; do : >it; sleep 0.02; done; echo last >it"
    )
    job = apart.submit(1, script, BOTH)
    until(lambda: mirrored(apart).get("worker-1/it") == "first\n")
    (apart.folder("worker-1", 1) / "work" / "go").touch()
    (apart.folder("worker-1", 1) / "work" / "later").touch()
    until(lambda: "worker-1/later" in mirrored(apart))
    assert mirrored(apart)["worker-1/it"] == "first\n"
    for name in ("worker-1", "worker-2"):
        for mark in ("go", "end"):
            (apart.folder(name, 1) / "work" / mark).touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    until(lambda: mirrored(apart).get("worker-1/it") == "last\n")


@pytest.mark.parametrize("chosen", [(), ("small",)], ids=["by default", "as was asked for"])
def test_large_outputs_that_are_not_copied_are_named(apart: Site, chosen: tuple[str, ...]) -> None:
    """Once, where the ranks write: nobody would miss them before their node is lost."""
    script = (
        "echo it >small; until [ -e end ]; do sleep 0.1; truncate -s 123000000 big.h5;"
        " truncate -s 100000001 'not so big'; done"
    )
    job = apart.submit(1, script, BOTH, keep_files=chosen)
    until(lambda: note(apart, "worker-1").get("left") == [2, 223000001])
    seen = note(apart, "worker-1")["time"]
    until(lambda: note(apart, "worker-1")["time"] > seen)
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "end").touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    assert "worker-1/big.h5" not in mirrored(apart)
    said = (apart.folder("worker-1", 1) / "out" / "rank-0.err").read_text()
    text = "2 outputs are too large to be copied off this node, such as big.h5 (123 MB)"
    assert said.count(text) == (0 if chosen else 1)


PK = "printf 'PK and much more PK\\005\\006------------------'"
"""The bytes of a zip archive by which it is known, and that it is whole."""


@pytest.mark.parametrize("torn", ["printf 'PK and'", ":"], ids=["cut short", "empty"])
def test_a_snapshot_that_is_overwritten_in_place_outlives_a_kill(apart: Site, torn: str) -> None:
    """The launcher keeps the last copy that was whole, and the next attempt gets it back."""
    script = (
        f'echo "$1"; [ $CLUSTERCTL_ATTEMPT = 1 ] || {{ cat "$1"; exit 0; }}; {PK} >model.pt;'
        f" until [ -e go ]; do sleep 0.1; done; {torn} >model.pt; echo >torn;"
        " until [ -e end ]; do sleep 0.1; done; exit 5"
    )
    job = apart.submit(1, script, BOTH, retries=1, resume_args="--resume {snapshot}")
    work = [apart.folder(name, 1) / "work" for name in ("worker-1", "worker-2")]
    until(lambda: "worker-1/model.pt" in mirrored(apart))
    for folder in work:
        (folder / "go").touch()
    until(lambda: "worker-1/torn" in mirrored(apart))
    for folder in work:
        (folder / "end").touch()
    job = apart.ended(job)
    assert job.state is JobState.SUCCEEDED, apart.story(job)
    assert mirrored(apart)["worker-1/model.pt"].startswith("PK and much more")
    said = (apart.folder("worker-2", 1) / "out" / "rank-1.out").read_text()
    assert "PK and much more" in said
    said = (apart.folder("worker-1", 1) / "out" / "rank-0.err").read_text()
    assert "model.pt: it was cut short, so the last whole copy on the launcher takes its" in said


def test_a_program_that_looks_for_its_snapshot_itself_finds_a_whole_one(apart: Site) -> None:
    script = (
        f"[ $CLUSTERCTL_ATTEMPT = 1 ] || {{ cat model.pt; exit 0; }}; {PK} >model.pt;"
        " until [ -e go ]; do sleep 0.1; done; printf PK >model.pt; exit 5"
    )
    job = apart.submit(1, script, BOTH, retries=1)
    until(lambda: {"worker-1/model.pt", "worker-2/model.pt"} <= set(mirrored(apart)))
    for name in ("worker-1", "worker-2"):
        (apart.folder(name, 1) / "work" / "go").touch()
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    for rank, name in enumerate(("worker-1", "worker-2")):
        assert "much more" in (apart.folder(name, 1) / "out" / f"rank-{rank}.out").read_text()
    said = (apart.folder("worker-1", 1) / "out" / "rank-0.err").read_text()
    assert said.count("clusterctl: model.pt: it was cut short, so the last whole copy") == 1


def test_with_sync_a_job_that_ends_before_the_first_look_is_copied(apart: Site) -> None:
    apart.planned = {}
    job = apart.submit(1, "echo it >saved", BOTH, sync="/there")
    assert apart.ended(job).state is JobState.SUCCEEDED, apart.story(job)
    until(lambda: mirrored(apart).get("worker-1/saved") == "it\n")


def test_a_node_that_is_made_anew_leaves_the_copies_as_they_are(apart: Site) -> None:
    script = "echo it >it; until [ -e end ]; do sleep 0.1; done"
    job = apart.submit(1, script, BOTH)
    until(lambda: "worker-1/it" in mirrored(apart))
    shutil.rmtree(apart.folder("worker-1", 1))
    began = time.time()
    (apart.folder("worker-2", 1) / "work" / "news").touch()
    until(lambda: "worker-2/news" in mirrored(apart))
    assert mirrored(apart)["worker-1/it"] == "it\n"
    until(lambda: note(apart, "worker-2")["time"] >= began)
    assert note(apart, "worker-1")["time"] <= began
    apart.cancel(job)
    apart.ended(job)


def test_only_files_of_the_given_patterns_are_copied(apart: Site) -> None:
    script = "mkdir -p runs/a; touch x.pt y.pt.partial runs/a/z log; sleep 60"
    job = apart.submit(1, script, BOTH, keep_files=("*.pt", "runs/*"))
    until(lambda: len(mirrored(apart)) >= 4)
    assert {name for name in mirrored(apart) if "worker-1" in name} == {
        "worker-1/x.pt",
        "worker-1/runs/a/z",
    }
    apart.cancel(job)
    apart.ended(job)
