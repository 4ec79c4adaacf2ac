"""The packages and projects of a job, as its script finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import wheels
from tests.e2e.cli import Cli
from tests.unit.packaged import make_project

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

SCRIPT = """\
#!/bin/sh
demo-version && mine-x && python3 -c 'import demo, deep; print(demo.VERSION, deep.STATE)'
"""


def test_a_script_finds_commands_and_code_of_packages_and_of_its_project(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only a build knows. What the project's own code was for one job, it is not for the
    next."""
    wheels.make(tmp_path / "index", "demo", "2.0", script=True)
    for name, value in wheels.settings(tmp_path / "index").items():
        monkeypatch.setenv(name, value)
    code, script = cli.folder / "lib" / "deep" / "__init__.py", cli.folder / "run.sh"
    code.parent.mkdir(parents=True)
    code.write_text("STATE = 'old'\ndef main():\n    print(STATE)\n")
    entry = "[console_scripts]\nmine-x = deep:main\n"
    files = {
        "deep/__init__.py": "@lib/deep/__init__.py",
        "mine-1.0.dist-info/entry_points.txt": entry,
    }
    make_project(cli.folder, "mine", files, "demo>=1")
    script.write_text(SCRIPT)
    script.chmod(0o755)
    assert cli("run", "--once", "./run.sh", timeout=120).of(0) == ["2.0", "old", "2.0 old"]
    code.write_text(code.read_text().replace("old", "new"))
    assert cli("run", "--once", "mine-x").of(0) == ["new"]
    assert cli("run", "--once", "demo-version").of(0) == ["2.0"]
    line = ("python", "-W", "ignore", "-c", "import demo, deep; print(demo.VERSION, deep.STATE)")
    assert cli("run", "--once", *line).of(0) == ["2.0 new"]
    err = cli("run", "demo-versoin", code=2).err
    assert "no script named demo-versoin" in err
    assert "did you mean demo-version?" in err


def test_setup_runs_once_for_its_lines_and_tree(cli: Cli) -> None:
    """What it makes is there for every job. A setup that fails is tried again, and its reason is
    shown."""
    script, counted = cli.folder / "t.py", cli.folder.parent / "count"
    script.write_text("import sys; print(*open('made').read().split(), sys.executable)")
    lines = f"""echo x >>{counted}; [ -e {counted}.ok ] || {{ echo broken >&2; exit 9; }}
    echo $FLAVOUR $(command -v python) >made"""
    argv = ("run", "--once", "-e", "FLAVOUR=sweet", "--setup", lines, "t.py")
    failed = cli(*argv, code=6).err
    assert "broken" in failed
    Path(f"{counted}.ok").touch()

    def see_runs(number: int) -> None:
        ((flavour, made_for, python),) = map(str.split, cli(*argv).of(0))
        assert (flavour, made_for) == ("sweet", python)
        assert counted.read_text() == "x\n" * number

    see_runs(2)
    see_runs(2)
    script.write_text(f"{script.read_text()} # new")
    see_runs(3)
    made = "printf '#!/bin/sh\\necho built\\n' >tool; chmod +x tool"
    assert cli("run", "--once", "--setup", made, "./tool").of(0) == ["built"]


def test_a_python_that_nodes_lack_is_named(cli: Cli) -> None:
    (cli.folder / "t.py").touch()
    assert "no python3.99 on worker-1" in cli("run", "--python", "3.99", "t.py", code=6).err
