"""Start-up is a feature: what a command does not need, it does not load."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.cli import main
from clusterctl.options.verbs import VERBS
from tests.unit.making import cluster
from tests.unit.tables import read_rows

HEAVY = set(read_rows("imports", "heavy"))


def loaded(*arguments: str, cwd: Path) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The modules and packages that `python ARGUMENTS` loads, and how it ended."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=cwd,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )
    names = [
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    ]
    return {*names, *(name.partition(".")[0] for name in names)}, done


def test_import_is_light(tmp_path: Path) -> None:
    modules, done = loaded("-c", "import clusterctl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "clusterctl" in modules
    assert not modules & (HEAVY | {"typer", "msgspec"})


def test_ctrl_c_is_ours_from_the_first_line_on(tmp_path: Path) -> None:
    """What is loaded before could only end with a traceback."""
    code = "import sys; known = {*sys.modules}; import clusterctl; print(*{*sys.modules} - known)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert set(done.stdout.split()) <= {"clusterctl", "__future__"}, done
    for module in ("atexit", "clusterctl.cli.main", "clusterctl.cli.main"):
        code = f"""
import os, signal, sys
class Presses:
    def find_spec(name, *more):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Presses)
from clusterctl.__main__ import main
main()
"""
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_that_python_drops_comes_once_more(number: int, tmp_path: Path) -> None:
    """What a finalizer raises is lost, also where a module that is loaded lets it run."""
    code = f"""
import os, signal, sys, time
from clusterctl import process
from clusterctl.cli import main as cli
from clusterctl.__main__ import main
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), {number})
def work():
    with process.handle_signals():
        Dropped()
        time.sleep(30)
cli.main = work
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=25
    )
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_start_up_is_light(argument: str, tmp_path: Path) -> None:
    modules, done = loaded("-m", "clusterctl", argument, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "clusterctl" in done.stdout
    assert not modules & HEAVY
    # Each of these takes a hundredth of it or more.
    assert not modules & {"json", "clusterctl.cli.launches"}


@pytest.mark.parametrize("verb", ["status", "list"])
def test_looking_at_the_record_is_light(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one cluster, without jobs."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    open_store().save(cluster())
    modules, done = loaded("-m", "clusterctl", verb, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not modules & HEAVY
    # Each of these takes a fiftieth of it or more.
    assert not modules & {"logging", "hashlib", "socket", "clusterctl.core.job"}
    assert not modules & {
        "clusterctl.cli.output",
        "clusterctl.machines.protocol",
        "clusterctl.jobs",
        "clusterctl.launch.launcher",
        "clusterctl.insight.top",
        "clusterctl.transport.pool",
        "clusterctl.core.keys",
        "clusterctl.insight.messages",
    }


def test_what_goes_to_the_nodes_of_a_job_is_made_without_jinja2() -> None:
    """Every `run` makes it, and loading jinja2 would take a fifth of its own time."""
    code = "from tests.unit.test_templates import files; assert 'launcher/launch.sh' in files('/r')"
    modules, done = loaded("-c", code, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "jinja2" not in modules


def test_one_provider_loads_no_other(tmp_path: Path) -> None:
    modules, done = loaded("-m", "clusterctl", "up", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {name for name in modules if name.startswith("clusterctl.machines.local")}
    assert not {name for name in modules if name.startswith("clusterctl.machines.ec2")}


def test_what_becomes_of_jobs_before_down_loads_nothing_that_starts_one(tmp_path: Path) -> None:
    modules, done = loaded("-c", "import clusterctl.actions.outputs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not modules & {"clusterctl.jobs.submit", "clusterctl.jobs.follow", "clusterctl.project"}


def test_no_module_of_a_verb_hides_the_function_that_runs_them() -> None:
    """Importing a module `cli.execute` would put it where the function of that name is."""
    for name in {verb.module for verb in VERBS.values()}:
        import_module(f"clusterctl.cli.{name}")
    assert callable(main.execute)
