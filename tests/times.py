"""`pytest --times=FILE`: what each folder of tests costs, as a table between marks in a document.

`seconds` are those of a folder's tests and fixtures, one after the other; of these the test process
and what it has started were computing in `CPU seconds`: processes that were waited for, and those
that live, such as simulators. `--durations=N` names the slowest tests.
"""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest

CPU = "cpu"
MARK = "times"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FILE", help="write what each folder costs")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--times")
    if file:
        config.pluginmanager.register(Meter())
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(file, config.getoption("numprocesses", None) or 1))


class Meter:
    """Writes into the last report of each test how much CPU time all its phases have taken."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> float:
        return sum(os.times()[:4]) + sum(map(_spent, _living(os.getpid())))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":
            now = self._now()
            report.user_properties.append((CPU, max(0.0, now - self._before)))  # one may be lost
            self._before = now
        return report


def _living(pid: int) -> Iterator[int]:
    """The processes that this one has started, and theirs."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                yield child
                yield from _living(child)


def _spent(pid: int) -> float:
    """Seconds of processor time of the process, and of those that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class Table:
    def __init__(self, file: Path, processes: int) -> None:
        self._file = file
        self._processes = processes
        self._start = time.monotonic()
        self._load = os.getloadavg()[0]
        self._folders: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = self._folders[report.nodeid.partition("::")[0].rpartition("/")[0]]
        folder["tests"] += report.when == "call"
        folder["seconds"] += report.duration
        folder["cpu"] += dict(report.user_properties).get(CPU, 0.0)

    def pytest_sessionfinish(self) -> None:
        from scripts import readme  # not there where the tests of mutants run

        minutes = (time.monotonic() - self._start) / 60
        told = (
            f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, load average before:"
            f" {self._load:.1f}. {minutes:.1f} minutes with {self._processes} processes:"
        )
        rows = ["| folder | tests | seconds | CPU seconds |", "|---|---|---|---|"]
        rows += [
            f"| `{name}` | {one['tests']:.0f} | {one['seconds']:.0f} | {one['cpu']:.0f} |"
            for name, one in sorted(self._folders.items())
        ]
        text = "\n".join([told, "", *rows])
        self._file.write_text(readme.replace(self._file.read_text(), MARK, text))
