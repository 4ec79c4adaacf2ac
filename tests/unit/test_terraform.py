"""Terraform's driver: events, command lines, versions, and what must not happen to a process."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterctl import process
from clusterctl.errors import ProviderError
from clusterctl.terraform import binary
from clusterctl.terraform import folder as terraform_folder
from clusterctl.terraform.binary import Binary, TerraformError
from clusterctl.terraform.folder import Diagnostic, Terraform
from tests.unit.tables import rows


@rows("line, said", "terraform.events")
def test_events(line: str, said: dict[str, Any]) -> None:
    """An event with what the row has, or none."""
    event = terraform_folder.parse_event(line.encode())
    assert (msgspec.to_builtins(event) if event else {}) == (
        {"diagnostic": None, "change": None, "hook": None, "outputs": {}, **said} if said else {}
    )


FAKE = """#!{python}
import json, os, signal, sys, time
if sys.argv[1] == "version":
    print(json.dumps({{"terraform_version": "{version}"}}))
    sys.exit()
with open("argv", "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
{body}
"""


def fake(folder: Path, body: str = "", version: str = "1.11.4", name: str = "terraform") -> Path:
    path = folder / name
    path.write_text(FAKE.format(python=sys.executable, version=version, body=body))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def runner(folder: Path, body: str, **more: Any) -> Terraform:
    work = folder / "work"
    work.mkdir()
    path = fake(folder, body)
    return Terraform(
        work, Binary(str(path), (1, 11, 4)), cluster="lab", cache=folder / "cache", **more
    )


def calls(runner: Terraform) -> list[tuple[list[str], dict[str, str]]]:
    lines = (runner.folder / "argv").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]


def test_destroy_is_a_command_that_exists(tmp_path: Path) -> None:
    """python-terraform's own would add -force, which Terraform refuses."""
    tool = runner(tmp_path, "")
    tool.destroy(lambda event: None, parallelism=12)
    [(argv, env)] = calls(tool)
    assert argv[0] == "destroy"
    assert "-force" not in argv
    assert {"-auto-approve", "-json", "-parallelism=12", "-input=false"} <= set(argv)
    assert env["TF_IN_AUTOMATION"] == "1"


def test_variables_go_by_file_and_the_users_own_settings_stay_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CLI_ARGS_apply", "-destroy")
    monkeypatch.setenv("TF_VAR_region", "mars-1")
    monkeypatch.setenv("TF_WORKSPACE", "other")
    body = 'print(json.dumps({"type": "outputs", "outputs": {"nodes": {"value": [7]}}}))'
    tool = runner(tmp_path, body)
    assert tool.apply({"region": "x"}, lambda event: None, parallelism=10) == {"nodes": [7]}
    [(argv, env)] = calls(tool)
    assert f"-var-file={terraform_folder.VARIABLES}" in argv
    assert not {"TF_CLI_ARGS_apply", "TF_VAR_region", "TF_WORKSPACE"} & set(env)
    path = tool.folder / terraform_folder.VARIABLES
    assert json.loads(path.read_text()) == {"region": "x"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failure_is_an_error_with_what_terraform_said(tmp_path: Path) -> None:
    said = {"type": "diagnostic", "diagnostic": {"severity": "error", "summary": "no room"}}
    tool = runner(tmp_path, f"print({json.dumps(json.dumps(said))}); sys.exit(1)")
    with pytest.raises(TerraformError, match="no room") as caught:
        tool.apply({}, lambda event: None, parallelism=10)
    assert caught.value.diagnostics == (Diagnostic(summary="no room"),)
    assert caught.value.exit_code == 3
    silent = tmp_path / "silent"
    silent.mkdir()
    with pytest.raises(TerraformError, match="exit code 9"):
        runner(silent, "sys.exit(9)").destroy(lambda event: None, parallelism=10)


def test_too_old_and_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProviderError, match="neither terraform nor tofu") as caught:
        binary.find_terraform()
    assert "https://" in caught.value.hint
    fake(tmp_path, version="0.12.3")
    with pytest.raises(ProviderError, match=r"0\.12\.3"):
        binary.find_terraform()
    fake(tmp_path, version="1.8.0-beta1", name="tofu")
    assert binary.find_terraform().name == "tofu 1.8.0"


def test_the_lock_is_lent_and_the_pid_told(tmp_path: Path) -> None:
    read, write = os.pipe()
    told: list[tuple[int, str]] = []
    tool = runner(
        tmp_path,
        f"os.write({write}, b'held')",
        lock=write,
        on_start=lambda pid, command: told.append((pid, command)),
    )
    tool.apply({}, lambda event: None, parallelism=10)
    os.close(write)
    assert os.read(read, 10) == b"held"
    os.close(read)
    [(pid, command)] = told
    assert pid > 0
    assert command == "terraform apply"


WORKER = 'aws_instance.this["worker-1"]'


def planning(folder: Path, action: str, address: str = WORKER) -> Terraform:
    """A Terraform that knows of one machine, and would do that to one thing."""
    change = {"resource": {"addr": address}, "action": action, "reason": "cannot_update"}
    line = json.dumps({"type": "planned_change", "change": change})
    tool = runner(folder, f"print({line!r})")
    one = {"index_key": "worker-1", "attributes": {"id": "i-1"}}
    machine = {"mode": "managed", "type": "aws_instance", "name": "this", "instances": [one]}
    (tool.folder / "terraform.tfstate").write_text(json.dumps({"resources": [machine]}))
    return tool


@pytest.mark.parametrize("action", ["replace", "delete"])
def test_no_machine_goes_that_nobody_has_agreed_to(action: str, tmp_path: Path) -> None:
    tool = planning(tmp_path, action)
    with pytest.raises(TerraformError, match="nothing was changed") as caught:
        tool.apply({}, lambda event: None, parallelism=10)
    assert f"would {action} {WORKER} (i-1: cannot update)" in caught.value.message
    assert "`clusterctl down lab`" in caught.value.hint
    [(argv, _)] = calls(tool)
    assert argv[0] == "plan"


@pytest.mark.parametrize(
    ("action", "address"), [("update", WORKER), ("replace", "aws_vpc.this"), ("noop", WORKER)]
)
def test_what_was_planned_is_what_is_applied(action: str, address: str, tmp_path: Path) -> None:
    """And not what Terraform would plan a moment later."""
    tool = planning(tmp_path, action, address)
    tool.apply({}, lambda event: None, parallelism=10)
    [(plan, _), (apply, _)] = calls(tool)
    assert (plan[0], apply[0]) == ("plan", "apply")
    assert f"-out={apply[-1]}" in plan
    assert f"-var-file={terraform_folder.VARIABLES}" in plan
    assert not [word for word in apply if word.startswith("-var")], "Terraform refuses it there"
    assert not (tool.folder / apply[-1]).exists()


def test_what_may_go_is_not_asked_about(tmp_path: Path) -> None:
    """One Terraform less: its provider takes seconds to start."""
    tool = planning(tmp_path, "replace")
    tool.apply({}, lambda event: None, parallelism=10, may_go=[WORKER])
    [(argv, _)] = calls(tool)
    assert argv[0] == "apply"


def test_the_module_is_copied_once(tmp_path: Path) -> None:
    tool = runner(tmp_path, "")
    module = tmp_path / "module"
    module.mkdir()
    (module / "main.tf").write_text("old")
    tool.copy(module)
    (module / "main.tf").write_text("new")
    tool.copy(module)
    assert (tool.folder / "main.tf").read_text() == "old"


INIT = """
place = os.path.join(".terraform", "providers", "h", "ns", "aws", "5.1.0", "linux_amd64")
os.makedirs(os.path.dirname(place))
os.symlink(os.environ["TF_PLUGIN_CACHE_DIR"], place)
{pause}
open(".terraform.lock.hcl", "w").write("locked")
"""


def seeded(folder: Path, name: str, **changes: str) -> Terraform:
    """A cluster's folder with a module of one file."""
    work = folder / name
    work.mkdir()
    (work / "main.tf").write_text(changes.get("module", "# a module"))
    path = str(folder / "terraform")
    return Terraform(work, Binary(path, (1, 11, 4)), cluster="lab", cache=folder / "cache")


def inits(folder: Path) -> int:
    return sum(
        path.read_text().count('["init"') for path in (folder / "terraform-seeds").glob("*/argv")
    )


def test_one_init_serves_all_clusters_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_PLUGIN_CACHE_DIR", raising=False)
    fake(tmp_path, INIT.format(pause=""))
    for name in ("one", "two"):
        tool = seeded(tmp_path, name)
        tool.init()
        tool.init()
        assert (tool.folder / ".terraform.lock.hcl").read_text() == "locked"
    assert inits(tmp_path) == 1
    seeded(tmp_path, "three", module="# another").init()
    assert inits(tmp_path) == 2


def test_two_at_a_time_run_one_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_PLUGIN_CACHE_DIR", raising=False)
    fake(tmp_path, INIT.format(pause="time.sleep(0.5)"))
    with ThreadPoolExecutor() as both:
        list(both.map(lambda name: seeded(tmp_path, name).init(), ("one", "two")))
    assert inits(tmp_path) == 1


BROKEN = """There are some problems with the CLI configuration:
╷
│ Warning: something else
│ Error: Error parsing /home/me/rc: At 2:1: key 'oops'
"""


def test_a_broken_cli_configuration_is_named(tmp_path: Path) -> None:
    fake(tmp_path, f"sys.stderr.write({BROKEN!r}); sys.exit(1)")
    with pytest.raises(TerraformError) as caught:
        seeded(tmp_path, "one").init()
    assert caught.value.message.endswith(
        "the CLI configuration: Error: Error parsing /home/me/rc: At 2:1: key 'oops'"
    )
    assert "TF_CLI_CONFIG_FILE" in caught.value.hint
    (tmp_path / "later").mkdir()
    later = runner(tmp_path / "later", f"sys.stderr.write({BROKEN!r}); sys.exit(1)")
    with pytest.raises(TerraformError, match="configuration: Error: Error parsing"):
        later.destroy(print, parallelism=10)


WATCH = """
import sys
from pathlib import Path
from clusterctl import process
folder = Path(sys.argv[1])
with process.handle_signals(): ended = process.watch(
    ["sh", "-c", sys.argv[2]], log=folder / "log",
    on_line=lambda line: print(line.decode(), flush=True),
    on_start=lambda pid: print("pid", pid, flush=True),
    on_interrupt=lambda: print("told", flush=True),
    timeout=30, grace=5, cwd=folder, env={"PATH": "/usr/bin:/bin"})
print("ended", ended.exit_code, repr(ended.interrupted), flush=True)
"""


def watch(folder: Path, script: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", WATCH, str(folder), script],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


@pytest.mark.parametrize(
    ("number", "what"), [(signal.SIGINT, "KeyboardInterrupt()"), (signal.SIGTERM, "Terminated()")]
)
def test_the_first_interrupt_is_handed_on_once_and_waited_for(
    number: signal.Signals, what: str, tmp_path: Path
) -> None:
    on_interrupt = "echo heard; sleep 0.5; echo finished; exit 3"
    script = f"trap '{on_interrupt}' INT; echo up; while :; do sleep 0.1; done"
    with watch(tmp_path, script) as started:
        assert read(started).startswith("pid")
        assert read(started) == "up"
        os.killpg(started.pid, number)  # as the terminal does: to the whole group
        rest = started.communicate(timeout=20)[0].split("\n")
    assert rest == ["told", "heard", "finished", f"ended 3 {what}", ""]


def test_a_second_ctrl_c_leaves_it_alone_and_its_output_goes_on(tmp_path: Path) -> None:
    script = "trap '' INT; echo up; sleep 2; echo still here"
    with watch(tmp_path, script) as started:
        pid = int(read(started).split()[1])
        assert read(started) == "up"
        os.kill(started.pid, signal.SIGINT)
        assert read(started) == "told"
        os.kill(started.pid, signal.SIGINT)
        started.communicate(timeout=10)
        os.kill(pid, 0)
    deadline = time.monotonic() + 10
    while "still here" not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_takes_too_long_is_asked_and_then_killed(tmp_path: Path) -> None:
    def watched(script: str, grace: float) -> tuple[process.Watched, float]:
        began = time.monotonic()
        ended = process.watch(
            ["sh", "-c", script],
            log=tmp_path / "log",
            on_line=lambda line: None,
            on_start=lambda pid: None,
            on_interrupt=lambda: None,
            timeout=0.3,
            grace=grace,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},
        )
        return ended, time.monotonic() - began

    ended, took = watched("trap 'exit 4' INT; while :; do sleep 0.05; done", 60)
    assert (ended.exit_code, took < 30) == (4, True)
    assert "did not end within 0.3 s" in ended.error
    ended, took = watched("trap '' INT; while :; do sleep 0.05; done", 0.3)
    assert (ended.exit_code, took < 30) == (-9, True)


@rows("damaged", "terraform.a_damaged_state_is_not_taken_for_an_empty_one")
def test_a_damaged_state_is_not_taken_for_an_empty_one(tmp_path: Path, damaged: str) -> None:
    tool = runner(tmp_path, "")
    (tool.folder / "terraform.tfstate").write_text(damaged)
    with pytest.raises(TerraformError, match=r"terraform\.tfstate is damaged") as caught:
        tool.list_resources()
    assert caught.value.exit_code == 3
    assert "`clusterctl down lab`" in caught.value.hint
