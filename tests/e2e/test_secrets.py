"""A planted secret is where the program reads it, and nowhere else."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, wait_for

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

# Other tests of this file may run at the same time: their searches are not this secret.
HEAD, TAIL = (f"{word}-{os.getpid()}" for word in ("planted", "end"))
VALUE = f"{HEAD} 'q' \"d\" $5 {TAIL}"
MARKS = (HEAD.encode(), TAIL.encode())

PROGRAM = """
import hashlib, os, pathlib, time
print(hashlib.sha256(os.environ["APP_SETTING"].encode()).hexdigest())
folder = pathlib.Path.cwd()
while folder.name != "work":
    folder = folder.parent
print(oct((folder.parent / "env").stat().st_mode & 0o777), flush=True)
time.sleep(1)
"""


@contextmanager
def watched() -> Iterator[list[bytes]]:
    """Collects every command line of the machine that holds the secret, meanwhile."""
    seen: list[bytes] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                except OSError:
                    continue
                if any(mark in line for mark in MARKS):
                    seen.append(line)
            time.sleep(0.002)  # to leave a core to those who are watched

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def holding(folder: Path) -> list[str]:
    """Files below a folder with a part of the secret in them."""
    found = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                found += [str(path) for mark in MARKS if mark in data]
    return found


def forgotten(folder: Path) -> None:
    """`run` may return a moment before the nodes have been swept."""
    wait_for(lambda: not holding(folder), 10, lambda: f"still in {holding(folder)}")


def test_a_secret_is_in_no_argv_record_log_or_output(cli: Cli) -> None:
    """From --env-file, all are secret: only the ranks see them, through a 0600 file that goes."""
    secrets = cli.folder.parent / "app.env"
    secrets.write_text(f"APP_SETTING={VALUE}\n")
    secrets.chmod(0o600)
    cli.script("uses.py", PROGRAM)
    options = ("--env-file", str(secrets), "uses.py")
    with watched() as seen:
        plans = [
            cli("run", "--dry-run", *options),
            cli("run", "--dry-run", "--verbose", *options),
            cli("run", "--dry-run", "--json", *options),
            cli("run", "--emit", "sh", *options),
        ]
        done = cli("run", "--verbose", *options)
        shown = [cli("jobs", "--json"), cli("jobs"), cli("logs", done.job), cli("status", "-v")]
    for rank in (0, 1):
        assert done.of(rank) == [hashlib.sha256(VALUE.encode()).hexdigest(), "0o600"]
    assert seen == []
    for said in (*plans, done, *shown):
        assert not any(mark.decode() in said.out + said.err for mark in MARKS), said
    assert "APP_SETTING" in plans[0].out
    forgotten(cli.home)
    for node in cli.status()["nodes"]:
        folder = f"{node['root']}/jobs/{done.job}"
        search = f"grep -rl -e {HEAD} -e {TAIL} '{folder}'; test ! -e '{folder}/env'"
        assert cli("ssh", node["name"], "--", search).out == ""


def test_the_name_makes_a_secret_too(cli: Cli) -> None:
    """--env with TOKEN, KEY, SECRET or PASSWORD in its name, wherever the mistake was made."""
    env = {"MY_TOKEN": VALUE, "apiKey": VALUE, "DB_PASSWORD": VALUE, "Top_Secret": VALUE}
    cli.script("fails.py", "import os, sys; sys.exit(len(os.environ['DB_PASSWORD']) and 3)")
    by_name = [word for name in env for word in ("--env", name)]
    by_value = [word for name in env for word in ("--env", f"{name}={VALUE}")]
    with watched() as seen:
        done = cli("run", *by_name, "fails.py", code=3, env=env)
    assert seen == []
    shown = [
        done,
        cli("run", *by_value, "fails.py", code=3),
        cli("run", "--dry-run", *by_value, "fails.py"),
        cli("run", "--verbose", *by_value, "nothing.py", code=2),
        cli("run", *by_value, "--ranks", 0, "fails.py", code=2),
        cli("run", *by_value, "--no-such-option", "fails.py", code=2),
        cli("jobs", "--json"),
    ]
    for said in shown:
        assert not any(mark.decode() in said.out + said.err for mark in MARKS), said
    forgotten(cli.home)


def test_a_cancelled_job_forgets_its_secrets_too(cli: Cli) -> None:
    secrets = cli.folder.parent / "app.env"
    secrets.write_text(f"APP_SETTING={VALUE}\n")
    cli.script("waits.py", "import time; print('on', flush=True); time.sleep(300)")
    running = cli.start("run", "--env-file", secrets, "waits.py")
    running.until("on", times=2)
    number = running.now().job
    cli("cancel", number)
    running.wait(20)
    for node in cli.status()["nodes"]:
        cli("ssh", node["name"], "--", f"test ! -e '{node['root']}/jobs/{number}/env'")


def test_a_job_that_cannot_start_leaves_no_secret(cli: Cli) -> None:
    """Neither in its environment file on the nodes, nor in the tree, where the file lay."""
    secrets = cli.script("app.env", f"APP_SETTING={VALUE}\n")
    cli.script("bad.c", "int main(void) { return }\n")
    cli("run", "--env-file", secrets, "bad.c", code=6)
    secrets.unlink()
    forgotten(cli.home)
    for node in cli.status()["nodes"]:
        assert holding(Path(node["root"])) == []
