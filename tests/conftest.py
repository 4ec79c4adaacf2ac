"""What every test folder shares.

What a test needs on the machine
    Its markers say it (`sshd`, `netns`, `docker`, …: the table REQUIREMENTS below), or it asks:

        def test_compiles(need):
            gcc = need("gcc")  # a program, on PATH or in an sbin folder: returns its path
            need(os.cpu_count() > 1, "needs two cores")  # any condition

    What is missing skips the test with the reason; with CI=true it is a failure. What needs root
    (`netns`, or the fixture `need_root`) skips for an ordinary user, and what needs a GPU skips
    without one, even then.

    `need` works in fixtures of every scope. Folders with a conftest.py of their own just use it:
    nothing has to be imported. Helper modules are imported by their full name
    (`from tests.sim import …`): the root of the checkout is on sys.path, test folders are not, and
    test files in different folders may have the same name. Fixtures of the simulators (`ec2`) are
    in tests/sim/plugin.py and known everywhere.

The environment of a test
    HOME and CLUSTERCTL_HOME are empty temporary folders, new for each test. All other CLUSTERCTL_*
    variables, XDG folders, PYTHONUNBUFFERED and what a launcher or batch system leaves in the
    environment are gone. A fixture of a wider scope gets a folder for the whole session: one that
    starts a cluster passes a CLUSTERCTL_HOME of its own to what it runs.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

import pytest

pytest_plugins = ("tests.scheduling", "tests.sim.plugin")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: what tests start would not hear Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)

FOREIGN = (
    "CLUSTERCTL_",
    "OMPI_",
    "PMIX_",
    "PRTE_",
    "SLURM_",
    "SGE_",
    "UV_",
    "XDG_",
)
"""Beginnings of the names of variables that no test sees."""

FOREIGN_NAMES = (
    "PYTHONUNBUFFERED",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class Need(Protocol):
    def __call__(self, what: str | bool, reason: str = "") -> str: ...


def find(program: str) -> str | None:
    """The path of a program: beside this Python, on PATH, or where Debian hides it from users."""
    folders = [str(Path(sys.prefix) / "bin"), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]
    return shutil.which(program, path=os.pathsep.join(folders))


NO_GPU = "needs a GPU"
NOT_ROOT = "needs root"
NO_CPU_ONLY = "needs a machine without a GPU"
MAY_SKIP = (NO_GPU, NOT_ROOT, NO_CPU_ONLY)
"""What a skip may say in CI too, as its last words."""


def missing(reason: str) -> None:
    """A skip on a person's machine, a failure in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI has to have this: {reason}", pytrace=False)
    pytest.skip(reason)


def require(what: str | bool, reason: str = "") -> str:
    """`what`: the name of a program, or a condition. Returns the program's path."""
    found = find(what) or "" if isinstance(what, str) else ""
    if not (found or what is True):
        missing(reason or f"needs the program {what}")
    return found


def root_only() -> None:
    if os.geteuid() != 0:
        pytest.skip(NOT_ROOT)


@cache
def answers(*argv: str) -> bool:
    """Does this command end well, and soon? Asked once."""
    try:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def require_sshd() -> None:
    for program in ("sshd", "ssh", "ssh-keygen"):
        require(program)


def require_namespaces() -> None:
    root_only()
    require(answers(require("unshare"), "--net", "--mount", "true"), "needs network namespaces")
    require("ip")


def require_docker() -> None:
    require(answers(require("docker"), "info"), "needs a running Docker engine")


def require_terraform() -> None:
    require(find("terraform") or find("tofu") or "terraform")


def require_mpi() -> None:
    require("mpirun")


def require_gpu() -> None:
    if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
        pytest.skip(NO_GPU)


REQUIREMENTS: dict[str, Callable[[], None]] = {
    "sshd": require_sshd,
    "netns": require_namespaces,
    "docker": require_docker,
    "terraform": require_terraform,
    "mpi": require_mpi,
    "gpu": require_gpu,
}
"""By marker. `slurm` and `sge` tests bring their own and use `need`."""


gc.set_threshold(100_000, 20, 100)  # all that tests are collected into stays


def pytest_collection_finish() -> None:
    """Nobody looks for garbage in what lives until the end, and seldom in the rest."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names that can be chosen on pytest's command line, which takes a backslash for a slash."""
    name = ascii(val) if isinstance(val, str | bytes) else ""
    return name.replace("\\", "|") if "\\" in name else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, check in REQUIREMENTS.items():
        if item.get_closest_marker(name):
            check()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true a skip for any other reason than MAY_SKIP is a failure, however it came about:
    a suite that tests less than it seems to must not pass."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _refuse_in_ci(report, str(call.excinfo.value) if call.excinfo else "skipped")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips as it is imported."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        _refuse_in_ci(report, report.longrepr[-1])
    return report


def _refuse_in_ci(report: pytest.TestReport | pytest.CollectReport, reason: str) -> None:
    if os.environ.get("CI") == "true" and not reason.endswith(MAY_SKIP):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} skipped in CI: {reason}"


@pytest.fixture(scope="session")
def need() -> Need:
    return require


@pytest.fixture(scope="session")
def need_root() -> None:
    root_only()


def isolate(patch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in FOREIGN_NAMES:
            patch.delenv(name)
    home = folder / "home"
    home.mkdir()
    patch.setenv("HOME", str(home))
    patch.setenv("CLUSTERCTL_HOME", str(folder / "state"))


@pytest.fixture(scope="session", autouse=True)
def _session_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, tmp_path_factory.mktemp("session"))
        yield


@pytest.fixture(autouse=True)
def _environment(
    _session_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    isolate(monkeypatch, tmp_path_factory.mktemp("env"))
