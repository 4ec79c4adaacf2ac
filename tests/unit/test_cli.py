"""The command line: bad input, help, JSON, completion, what is logged and what is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

from clusterctl.actions import open_store
from clusterctl.cli import app, run
from clusterctl.cli.console import Console, ago, redact, redact_arguments, table
from clusterctl.cli.options import duration
from clusterctl.errors import UsageError
from clusterctl.model import JobState, Phase
from tests.unit.making import cluster, job, node, spec

ROOT = Path(__file__).resolve().parents[2]
COMMANDS: dict[str, Any] = typer.main.get_command(app()).commands  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        [line] = self.out.splitlines()
        return json.loads(line)


Call = Callable[..., Said]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    """One command line in this process, from a folder with a script."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)

    def one(*arguments: str) -> Said:
        monkeypatch.setattr(Console, "_instance", None)
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return one


@pytest.fixture
def lab() -> None:
    """A ready cluster in the records; its machines are not there, and nobody asks them."""
    open_store().save(cluster())


def state() -> list[str]:
    home = Path(os.environ["CLUSTERCTL_HOME"])
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def clusterctl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterctl", *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


# ------------------------------------------------------------------------------------ bad input

BAD: list[tuple[str, int, str, str]] = [
    # command line (| separates words), exit code, what is wrong, what to do
    ("rnu", 2, "rnu", "run"),
    ("statsu", 2, "statsu", "status"),
    ("frobnicate", 2, "frobnicate", "--help"),
    ("--frobnicate", 2, "--frobnicate", "--help"),
    ("up|--wrokers|3", 2, "--wrokers", "--workers"),
    ("up|--workers|0", 2, "--workers 0", "--workers"),
    ("up|--workers|-1", 2, "--workers -1", "--workers"),
    ("up|--workers|two", 2, "two", "--help"),
    ("up|--workers|100000", 2, "100000", ""),
    ("up|--provider|locla", 2, "locla", "local"),
    ("up|Upper", 2, "Upper", "a-z"),
    ("up|a;rm -rf b", 2, "a;rm -rf b", "a-z"),
    ("up|../../etc", 2, "../../etc", "a-z"),
    ("up|" + "x" * 31, 2, "x" * 31, "30"),
    ("up|9lives", 2, "9lives", "a-z"),
    ("up|--dry-run|", 2, "''", "name"),  # somebody's "$NAME" was empty
    ("down|", 2, "''", "name"),
    ("status|", 2, "''", "name"),
    ("up|a|b", 2, "b", "--help"),
    ("down|A_B", 2, "A_B", "a-z"),
    ("status", 7, "no cluster", "clusterctl up"),
    ("status|nope", 7, "nope", "clusterctl up"),
    ("status|-c|nope", 7, "nope", "clusterctl up"),
    ("ssh", 7, "no cluster", "clusterctl up"),
    ("cp|a|b", 7, "no cluster", "clusterctl up"),
    ("cp|a", 2, "target", "--help"),
    ("run", 2, "nothing to run", "SCRIPT"),
    ("run|train.py", 7, "no cluster", "clusterctl up"),
    ("run|--ranks|0|train.py", 2, "--ranks", "--help"),
    ("run|--ranks|many|train.py", 2, "many", "--help"),
    ("run|--retries|-1|train.py", 2, "--retries", "--help"),
    ("run|--backend|nccll|train.py", 2, "nccll", "nccl"),
    ("run|--launcher|mpiexec|train.py", 2, "mpiexec", "mpirun"),
    ("run|--emit|bat|train.py", 2, "bat", "sbatch"),
    ("run|--partitions|gpu|train.py", 2, "--partitions", "--help"),
    ("run|--env", 2, "--env", "--help"),
    ("logs", 2, "JOB", "--help"),
    ("logs|first", 2, "first", "--help"),
    ("logs|99", 7, "99", "clusterctl jobs"),
    ("logs|99|--rank|-1", 2, "--rank", "--help"),
    ("cancel|99", 7, "99", "clusterctl jobs"),
    ("fetch|99", 7, "99", "clusterctl jobs"),
    ("rerun|99", 7, "99", "clusterctl jobs"),
    ("jobs|--what", 2, "--what", "--help"),
    ("list|extra", 2, "extra", "--help"),
    ("check|extra", 2, "extra", "--help"),
]
BAD_WITH_A_CLUSTER: list[tuple[str, int, str, str]] = [
    ("run|nope.py", 2, "nope.py", "bundled"),
    ("run|multinode_ddp_mpy.py", 2, "multinode_ddp_mpy.py", "multinode_ddp_mpi.py"),
    ("run|.", 2, "folder", "script"),
    ("run|--stage|nowhere|train.py", 2, "nowhere", "folder"),
    ("run|--stage|/|train.py", 2, "whole file system", "--stage"),
    ("run|--ranks|99|train.py", 6, "99 ranks", "--ranks"),
    ("run|--nodes|9|train.py", 6, "--nodes 9", "--workers 9"),
    ("run|--ranks|3|--ranks-per-node|2|train.py", 2, "--ranks 3", ""),
    ("run|--timeout|soon|train.py", 2, "soon", "30m"),
    ("run|--timeout|-5|train.py", 2, "-5", "30m"),
    ("run|--timeout|0|train.py", 2, "0", "30m"),
    ("run|--dry-run|--timeout||train.py", 2, "''", "30m"),
    ("run|--env|1X=2|train.py", 2, "1X", ""),
    ("run|--env|UNSET_HERE|train.py", 2, "UNSET_HERE", "UNSET_HERE=VALUE"),
    ("run|--env-file|nowhere|train.py", 2, "nowhere", "file"),
    ("run|-c|nope|train.py", 7, "nope", "lab"),
    ("run|--launcher|torchrun|--ranks|3|train.py", 6, "torchrun", "--ranks-per-node"),
    ("ssh|worker-9|--|true", 7, "worker-9", "worker-1"),
    ("ssh|--timeout|0|worker-1", 2, "--timeout", "--help"),
    ("cp|a|b", 2, "", "NODE:"),
    ("cp|worker-1:a|worker-2:b", 2, "", ""),
    ("cp|nowhere|worker-1:b", 2, "nowhere", ""),
    ("cp|worker-9:a|b", 7, "worker-9", "worker-1"),
    ("status|-c|nope", 7, "nope", "lab"),
    ("down|nope", 7, "nope", "lab"),
]


def judge(said: Said, code: int, what: str, hint: str) -> None:
    """One line what is wrong, one line what to do, and where the log is if there is more to say."""
    assert said.code == code, said
    assert "Traceback" not in said.err
    assert said.out == ""
    first, *rest = said.err.rstrip("\n").split("\n")
    assert first.startswith("clusterctl: ")
    if code not in (2, 7):
        assert rest.pop() == f"  log: {os.environ['CLUSTERCTL_HOME']}/clusterctl.log"
    assert len(rest) == 1, said.err
    assert rest[0].startswith("  → ")
    assert what in first
    assert hint in said.err


@pytest.mark.parametrize(("line", "code", "what", "hint"), BAD, ids=[row[0] for row in BAD])
def test_bad_input(line: str, code: int, what: str, hint: str, call: Call) -> None:
    judge(call(*line.split("|")), code, what, hint)
    assert state() == []


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("line", "code", "what", "hint"),
    BAD_WITH_A_CLUSTER,
    ids=[row[0] for row in BAD_WITH_A_CLUSTER],
)
def test_bad_input_with_a_cluster(line: str, code: int, what: str, hint: str, call: Call) -> None:
    before = [name for name in state() if "lock" not in name]
    judge(call(*line.split("|")), code, what, hint)
    after = [name for name in state() if "lock" not in name and name != "clusterctl.log"]
    assert after == before
    assert open_store().cluster("lab") == cluster()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("status|--json", 7),
        ("run|--json", 2),
        ("up|--json|--workers|0", 2),
        ("up|--json|Upper", 2),
        ("ssh|--json|worker-1", 7),
        ("logs|--json|99", 7),
        # found by the parser, before a verb has begun
        ("logs|first|--json", 2),
        ("up|--workers|two|--json", 2),
        ("status|--json|--frobnicate", 2),
        ("cp|a|--json", 2),
    ],
)
def test_errors_are_json_too(line: str, code: int, call: Call) -> None:
    said = call(*line.split("|"))
    assert said.code == code
    document = said.document
    assert document["schema"] == 1
    assert document["error"]["code"] == code
    assert document["error"]["message"] in said.err
    assert document["error"]["hint"]


def test_several_clusters(call: Call) -> None:
    store = open_store()
    for name in ("one", "two"):
        store.save(cluster(name=name))
    said = call("status")
    judge(said, 2, "one, two", "--cluster")


def test_a_cluster_that_is_not_ready(call: Call) -> None:
    open_store().save(cluster(phase=Phase.CREATING))
    judge(call("run", "train.py"), 7, "creating", "clusterctl up lab")


@pytest.mark.usefixtures("lab")
def test_a_damaged_record(call: Call) -> None:
    path = open_store().folder("lab") / "cluster.json"
    path.write_text("{")
    for verb in (["status"], ["run", "train.py"], ["ssh"], ["up", "lab"]):
        judge(call(*verb), 7, str(path), "clusterctl down lab")
        assert path.read_text() == "{"


@pytest.mark.parametrize(
    "line", ["up", "down", "status", "jobs", "list", "run|train.py", "check"], ids=str
)
def test_a_home_that_cannot_be_written(line: str, call: Call, tmp_path: Path) -> None:
    """Verbs that only read find nothing there; the others say one line."""
    (tmp_path / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERCTL_HOME", str(tmp_path / "file" / "state"))
        said = call(*line.split("|"))
    assert "Traceback" not in said.err
    assert said.code in ({2} if line in ("up", "down") else {0, 2, 3, 7}), said


def test_a_mistake_in_the_settings(call: Call) -> None:
    Path("clusterctl.toml").write_text('[run]\nbakend = "mpi"\n')
    judge(call("status"), 2, "clusterctl.toml", "run.backend")
    assert call("--help").code == call("--version").code == 0


@pytest.mark.parametrize("text", ["[run]\nranks = 'many'", "[up]\nworkers = 'two'", "json = 3"])
def test_a_wrong_kind_of_value_in_the_settings(text: str, call: Call) -> None:
    Path("clusterctl.toml").write_text(text)
    for line in (["run", "train.py"], ["up", "--dry-run"]):
        said = call(*line)
        assert said.code in (0, 2, 3, 7)
        assert "Traceback" not in said.err


# -------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_of_every_verb(verb: str, call: Call) -> None:
    for flag in ("--help", "-h"):
        said = call(verb, flag)
        assert (said.code, said.err) == (0, "")
        assert said.out.startswith(f"Usage: clusterctl {verb}")
    assert COMMANDS[verb].help
    for parameter in COMMANDS[verb].params:
        described = parameter.name in ("help", "source", "target") or parameter.help
        assert described or parameter.opts == ["--ranks-per-node", "--ntasks-per-node"]


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("option", ["--json", "--quiet", "--verbose", "--cluster"])
def test_every_verb_takes(verb: str, option: str) -> None:
    assert any(option in parameter.opts for parameter in COMMANDS[verb].params)


def test_the_verbs_of_the_contract() -> None:
    wanted = "up down status list run jobs logs cancel fetch rerun ssh cp data check"
    assert set(wanted.split()) <= set(COMMANDS)


def test_version_and_help(call: Call) -> None:
    assert re.fullmatch(r"clusterctl \d\S*\n", call("--version").out)
    said = call("--help")
    assert said.code == 0
    assert all(f"  {verb} " in said.out for verb in COMMANDS)


def test_no_arguments_show_the_help(call: Call) -> None:
    said = call()
    text = said.out + said.err
    assert "Usage: clusterctl" in text
    assert "clusterctl: Usage" not in text  # help is no complaint
    assert said.code in (0, 2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = clusterctl(_CLUSTERCTL_COMPLETE=f"source_{shell}")
    assert done.returncode == 0, done.stderr
    assert "clusterctl" in done.stdout
    assert f"complete_{shell}" in done.stdout


def test_completion_knows_verbs() -> None:
    done = clusterctl(
        _CLUSTERCTL_COMPLETE="complete_bash", COMP_WORDS="clusterctl st", COMP_CWORD="1"
    )
    assert done.stdout.split() == ["status"]


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "xterm-256color"}])
def test_no_colours_without_a_terminal(environment: dict[str, str]) -> None:
    for arguments in (["--help"], ["run", "--help"], ["status"], ["rnu"]):
        done = clusterctl(*arguments, **environment)
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("30m", 1800),
        ("8h", 28800),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("0.1s", 0.1),
        ("1h 30m", None),
        ("", None),
        ("soon", None),
        ("-5m", None),
        ("+5", None),
        ("5x", None),
        ("h", None),
        ("1e3", None),
        (".5h", None),
        ("inf", None),
        ("nan", None),
        ("0", None),
        ("0h0m", None),
        ("5m\n", None),
    ],
)
def test_duration(text: str, seconds: float | None) -> None:
    if seconds is not None:
        assert duration(text, "--timeout") == pytest.approx(seconds)
        return
    with pytest.raises(UsageError) as caught:
        duration(text, "--timeout")
    assert "--timeout" in caught.value.message
    assert caught.value.hint


@pytest.mark.timeout(5)
def test_a_long_duration_is_refused_at_once() -> None:
    """A pattern with two nested repetitions would take years."""
    with pytest.raises(UsageError):
        duration("1" * 40 + "x", "--timeout")


# ------------------------------------------------------------------------------------------ run


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("line", "args"),
    [
        (["train.py"], []),
        (["train.py", "--json", "-c", "x", "--", "--ranks", "3"], None),
        (["--ranks", "2", "train.py", "--ranks", "7"], ["--ranks", "7"]),
        (["--", "train.py", "--lr", "1"], ["--lr", "1"]),
        (["train.py", "a b", "", "$HOME", "it's", "x\ny", "\\", '"', "*"], None),
        (["-m", "train", "--json", "-x"], ["--json", "-x"]),
        (["-m", "train", "--", "x"], ["--", "x"]),
        (["-m", "train", "--quiet"], ["--quiet"]),
        (["-mtrain", "--lr", "1"], ["--lr", "1"]),
        (["-c", "lab", "-m", "train", "-c", "mine"], ["-c", "mine"]),
        (["--env", "A=-m", "train.py", "-m"], ["-m"]),
        (["-q", "-m", "train", "-q"], ["-q"]),
        (["train.py", "-h"], ["-h"]),
        (["train.py", "--help"], ["--help"]),
        (["-m", "train", "--help"], ["--help"]),
    ],
    ids=lambda value: ascii(value)[:60],
)
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
    for word in (
        "hostfile",
        "mpirun",
        "10.0.0.11 slots=1",
        "MASTER_ADDR=10.0.0.11",
        "--map-by slot",
    ):
        assert word in said.out
    said = call("run", "--emit", "sh", "train.py", "1")
    assert said.out.startswith("#!/bin/sh\n")
    assert state() == before
    assert list(Path.cwd().iterdir()) == [Path.cwd() / "train.py"]


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


# ------------------------------------------------------------------------------ logs and secrets


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("API_TOKEN=hunter2", "API_TOKEN=***"),
        ("--env=AWS_SECRET_ACCESS_KEY=hunter2", "--env=AWS_SECRET_ACCESS_KEY=***"),
        ("my_password=hunter2", "my_password=***"),
        ("API_TOKEN=correct horse hunter2", "API_TOKEN=***"),
        ("API_TOKEN='a b' hunter2", "API_TOKEN=***"),
        ("PLAIN=value", "PLAIN=value"),
        ("train.py", "train.py"),
    ],
)
def test_arguments_in_the_log(word: str, shown: str) -> None:
    assert redact_arguments([word, "next"]) == [shown, "next"]


def test_redacting_text() -> None:
    text = redact("ran with DB_PASSWORD=hunter2, OPEN=1\nTOKEN=hunter2\n")
    assert "hunter2" not in text
    assert "OPEN=1" in text


BUG = """
import sys
from clusterctl.actions import show
from clusterctl.cli import run
def boom(*_, **__):
    raise ZeroDivisionError("MY_TOKEN=hunter2 exploded")
show.statuses = boom
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("flags", [[], ["--json"], ["--verbose"], ["--quiet"]], ids=str)
def test_a_bug(flags: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUG, "list", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 1
    log = Path(os.environ["CLUSTERCTL_HOME"]) / "clusterctl.log"
    assert str(log) in done.stderr
    assert ("Traceback" in done.stderr) == ("--verbose" in flags)
    assert "ZeroDivisionError" in log.read_text()
    assert "Traceback" in log.read_text()
    assert "hunter2" not in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    if "--json" in flags:
        assert json.loads(done.stdout)["error"]["code"] == 1
    else:
        assert done.stdout == ""


def test_a_bug_without_a_place_for_the_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUG, "list"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "CLUSTERCTL_HOME": "/dev/null/nowhere"},
        timeout=60,
    )
    assert done.returncode == 1
    assert "--verbose" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c() -> None:
    code = BUG.replace('ZeroDivisionError("MY_TOKEN=hunter2 exploded")', "KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-c", code, "list"], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_gone() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m clusterctl run --help | head -n 1"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert "Traceback" not in done.stderr


# ----------------------------------------------------------------------------- records and tables


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
    out = store.job_folder(7) / "out" / "worker-1"
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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (42, "42 s"), (100, "2 min"), (9000, "2.5 h"), (2e5, "2.3 d")],
)
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_table() -> None:
    assert table([("a", "bb"), ("cccc", "d")]) == "a     bb\ncccc  d"
