"""The command line: run with a script, results, records and tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.cli.console import Console, ago, format_table
from clusterctl.core.job import JobState, Program, ProgramKind
from tests.unit.calling import Call, judge, state
from tests.unit.making import cluster, job, node, spec
from tests.unit.tables import read_rows, rows


@pytest.mark.usefixtures("lab")
@rows("line, args", "cli.what_follows_the_script_is_the_scripts")
def test_what_follows_the_script_is_the_scripts(
    line: list[str], args: list[str] | None, call: Call
) -> None:
    said = call("run", "--dry-run", "--json", *line)
    assert said.code == 0, said.err
    expected = line[1:] if args is None else args
    for argv in said.document["programs"].values():
        start = argv.index("train.py") if "train.py" in argv else argv.index("train")
        assert argv[start + 1 :] == expected


@pytest.mark.usefixtures("lab")
def test_a_dry_run_leaves_nothing(call: Call) -> None:
    before = state()
    said = call("run", "--dry-run", "train.py", "1")
    assert said.code == 0
    for word in read_rows("cli", "a_dry_run_leaves_nothing"):
        assert word in said.out
    said = call("run", "--emit", "sh", "train.py", "1")
    assert said.out.startswith("#!/bin/sh\n")
    assert state() == before
    assert list(Path.cwd().iterdir()) == [Path.cwd() / "train.py"]


@pytest.mark.usefixtures("lab")
@rows("settings, options, said", "cli.a_setting_that_has_no_effect")
def test_a_setting_that_has_no_effect(
    settings: str, options: list[str], said: str, call: Call
) -> None:
    """It is a default for many command lines: passed over, with a note where it is for `run`."""
    file = Path("clusterctl.toml").absolute()
    file.write_text(settings)
    done = call("run", *(options or ["--dry-run"]), "train.py")
    assert done.code == 0, done
    assert ("ignoring " in done.err) == bool(said)
    assert said.format(file) in done.err


@pytest.mark.usefixtures("lab")
@rows("key, value, wrong", "cli.a_wrong_value_names_where_it_is_set")
def test_a_wrong_value_names_where_it_is_set(key: str, value: str, wrong: str, call: Call) -> None:
    """A person who has set it long ago would look for it on the command line."""
    file = Path("clusterctl.toml").absolute()
    file.write_text(f'[run]\n{key} = "{value}"\n')
    said = call("run", "--dry-run", "train.py")
    judge(said, 2, f"{key} in [run] of {file}", "")
    assert wrong in said.err


@pytest.mark.parametrize("line", ["check", "data|list"])
def test_a_cluster_in_the_environment_is_passed_over(
    line: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "lab")
    monkeypatch.setenv("PATH", "/nowhere")
    assert call(*line.split("|")).code in (0, 3)  # 3: `check` finds no tools there
    Path("clusterctl.toml").write_text(f'[{line.partition("|")[0]}]\ncluster = "lab"\n')
    monkeypatch.delenv("CLUSTERCTL_CLUSTER")
    assert "ignoring cluster in " in call(*line.split("|")).err


@pytest.mark.usefixtures("lab")
def test_secrets_are_not_shown(call: Call) -> None:
    Path("secrets.env").write_text("# mine\nexport PLAIN='hunter-plain'\n\nMY_TOKEN=hunter-token\n")
    line = [
        *("--env-file", "secrets.env", "--env", "API_KEY=hunter-key", "--env", "OPEN=visible"),
        "train.py",
    ]
    for flags in (["--dry-run"], ["--dry-run", "--json"], ["--emit", "sh"]):
        said = call("run", *flags, *line)
        assert said.code == 0
        assert "hunter" not in said.out + said.err
        assert "visible" in said.out
    shown = call("run", "--dry-run", "--json", *line).document["env"]
    assert {shown[name] for name in ("PLAIN", "MY_TOKEN", "API_KEY")} == {"***"}


@pytest.mark.usefixtures("lab")
def test_a_mistake_in_an_environment_file_does_not_show_it(call: Call) -> None:
    """All of the file is secret; the line's number is what a person needs."""
    Path("secrets.env").write_text("GOOD=1\nhunter2 is my password\n")
    said = call("run", "--dry-run", "--env-file", "secrets.env", "train.py")
    judge(said, 2, "line 2", "")
    assert "secrets.env" in said.err
    assert "hunter2" not in said.err


@pytest.mark.usefixtures("lab")
def test_results_on_stdout_prose_on_stderr(call: Call) -> None:
    store = open_store()
    store.save_job(job(state=JobState.SUCCEEDED, started=1.0, finished=43.0, program_exit_code=0))
    for verb in (["status"], ["list"], ["jobs"]):
        said = call(*verb)
        assert (said.code, said.err) == (0, "")
        assert "lab" in said.out
        document = call(*verb, "--json").document
        assert document["schema"] == 1
    assert call("jobs", "--json").document["jobs"][0]["seconds"] == 42
    assert call("status", "--json").document["nodes"][1]["name"] == "worker-1"
    assert call("jobs", "-c", "other").out == ""


@pytest.mark.usefixtures("lab")
def test_a_module_is_listed_as_one(call: Call) -> None:
    program = Program(kind=ProgramKind.MODULE, target="timeit", args=("-n", "3"))
    open_store().save_job(job(what=spec(program=program), state=JobState.RUNNING))
    for verb in ("jobs", "status"):
        assert "-m timeit -n 3" in call(verb).out


def test_what_verify_runs_is_not_the_last_job(call: Call) -> None:
    """It is listed while it runs, and `cancel` ends it."""
    store, running = open_store(), JobState.RUNNING
    rows = ((7, "", JobState.FAILED), (8, "verify", JobState.FAILED), (9, "bench", running))
    for number, purpose, state_ in rows:
        store.save_job(job(id=number, purpose=purpose, state=state_, started=1.0))

    def list_numbers(*words: str) -> list[int]:
        return [item["id"] for item in call("jobs", *words, "--json").document["jobs"]]

    for verb in ("logs", "fetch", "doctor", "rerun", "top"):
        assert "job 7: train.py" in call(verb).err
    assert "job 9: train.py" in call("cancel").err
    assert list_numbers() == [7, 9]
    assert list_numbers("--all") == [7, 8, 9]
    assert list_numbers("8") == [8]


@pytest.mark.usefixtures("lab")
def test_logs_says_why_a_job_has_no_output(call: Call) -> None:
    store = open_store()
    store.save_job(job(state=JobState.CANCELLED, finished=2.0, reason="interrupted"))
    said = call("logs", "7", "-f")  # no node is asked, and none of this lab answers
    assert said.code == 130
    assert "job 7 never started: interrupted" in said.err


def test_nothing_there_is_no_error(call: Call) -> None:
    for verb in ("list", "jobs"):
        said = call(verb)
        assert (said.code, said.out) == (0, "")
        assert call(verb, "--quiet").err == ""
        assert call(verb, "--json").document["schema"] == 1
    said = call("down")
    assert said.code == 0
    assert call("down", "--json").document == {"schema": 1, "cluster": "default", "existed": False}


def test_jobs_outlive_their_cluster(call: Call) -> None:
    store = open_store()
    where = cluster(node("launcher", "10.0.0.10"), node())
    ran = job(where, spec(secret_names=("TOKEN",)), state=JobState.SUCCEEDED, program_exit_code=0)
    store.save_job(replace(ran, started=1.0, finished=2.0))
    out = store.locate_job_folder(7) / "out" / "worker-1"
    out.mkdir(parents=True)
    (out / "rank-0.out").write_bytes(b"one\n\xff\nlast")
    said = call("logs", "7")
    assert said.code == 0
    lines = [json.loads(line) for line in call("logs", "7", "--json").out.splitlines()]
    assert [line["line"] for line in lines if "line" in line] == [
        "one",
        "\N{REPLACEMENT CHARACTER}",
        "last",
    ]
    assert call("logs", "7", "--rank", "1").out == ""
    judge(call("fetch", "7"), 7, "gone", "logs 7")
    judge(call("rerun", "7"), 7, "lab", "up")


@rows("seconds, text", "cli.ago")
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text


HOSTILE = "\x1b]0;owned\x07\x1b[2Jname\rgone\u202e\udcff"
"""What a file, a device or a program on a node may be called."""


@pytest.mark.parametrize("way", ["result", "note", "report"])
def test_what_nodes_say_cannot_command_the_terminal(
    way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Control characters are shown as escapes. Lines and tabs of ours stay."""
    getattr(Console(), way)(f"first\t1\n{HOSTILE}")
    out, err = capfd.readouterr()
    said = out + err
    assert said.endswith("first\t1\n\\x1b]0;owned\\x07\\x1b[2Jname\\rgone\\u202e\\udcff\n")


def test_a_cell_of_a_table_stays_in_its_row() -> None:
    assert format_table([("a", "bb"), ("cccc", "d")]) == "a     bb\ncccc  d"
    rows = format_table([("node", "live"), (HOSTILE, "two\nlines")]).splitlines()
    assert len(rows) == 2
    assert rows[1].isprintable()
    assert rows[1].endswith("  two\\nlines")


def test_a_script_to_run_is_printed_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    Console().result("printf '\x1b[1m'\r", raw=True)
    assert capfd.readouterr().out == "printf '\x1b[1m'\r\n"


@pytest.mark.parametrize(("hangup", "code"), [("SIG_IGN", 0), ("SIG_DFL", 141)])
def test_a_terminal_that_closes_is_no_bug(hangup: str, code: int) -> None:
    """Under nohup the command goes on without it."""
    program = f"""
import os, pty, signal, sys
signal.signal(signal.SIGHUP, signal.{hangup})
ours, theirs = pty.openpty()
for number in 0, 1, 2:
    os.dup2(theirs, number)
os.close(theirs)
class Closes:
    def find_spec(name, *more):
        if name == "clusterctl.cli.status":
            os.close(ours)
sys.meta_path.insert(0, Closes)
sys.argv = ["clusterctl", "list"]
from clusterctl.__main__ import main
main()
"""
    open_store().save(cluster())
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == code
    assert not list(open_store().home.path.rglob("*.log"))
