"""How many modules a job passes on its way from the command line to mpirun.

A module is passed when one of its functions is given the job: its spec, its record, its plan, or a
value that holds one of these. Methods of those values do not count, nor does who is given a part
(its number, its program). The way ends when the launcher is told to start.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from clusterctl.actions.run import Prepared
from clusterctl.job_model import Job, JobSpec
from clusterctl.launch import Request
from clusterctl.launch_plan import LaunchPlan
from tests.unit.calling import Call
from tests.unit.staged import lab

JOB = (Job, JobSpec, LaunchPlan, Request, Prepared)
START = "supervise.sh </dev/null"
"""In the command that tells the launcher to start."""


@contextmanager
def modules_given(kinds: tuple[type, ...], until: str) -> Iterator[list[str]]:
    """The modules of ours that are given one of these, in order, until a transport is given text
    with `until` in it."""
    found: list[str] = []
    ended = False

    def look(frame: FrameType, event: str, more: Any) -> None:
        nonlocal ended
        module = frame.f_globals.get("__name__", "")
        if event != "call" or ended or not module.startswith("clusterctl."):
            return
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names]
        if module.startswith("clusterctl.transport."):
            ended = any(isinstance(value, str) and until in value for value in values)
        of_value = names[:1] == ("self",) and isinstance(values[0], kinds)
        if not of_value and any(isinstance(value, kinds) for value in values):
            name = module.removeprefix("clusterctl.")
            if name not in found:
                found.append(name)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert ended, "the launcher was never told to start"


def test_a_job_passes_few_modules(tmp_path: Path, call: Call) -> None:
    lab(tmp_path / "nodes")
    with modules_given(JOB, START) as passed:
        call("run", "train.py")  # there is no mpirun: it fails right after its start
    way = {"cli.run", *passed}
    assert len(way) <= 9, sorted(way)
    assert {"actions.run", "jobs.start", "launch.mpirun", "schedulers.direct"} <= way
