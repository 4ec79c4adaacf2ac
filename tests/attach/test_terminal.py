"""`run --interactive`: a shell on granted nodes, with the job's files, variables and mpirun."""

from __future__ import annotations

import sys

from tests.attach.conftest import Site
from tests.e2e.cli import Cli
from tests.terminal import Terminal

HELLO = """
import os, socket
rank = os.environ["OMPI_COMM_WORLD_RANK"]
print("rank", rank, socket.gethostname(), os.environ["LR"], flush=True)
open(f"made-{rank}", "w").close()
"""


def test_a_shell_has_files_and_variables_and_an_mpirun_that_knows_the_hosts(
    cli: Cli, site: Site
) -> None:
    """As typed on a site: a shell, then `mpirun -n 4 python dist_train.py`."""
    cli.script("dist_train.py", HELLO)
    words = ("run", "--interactive", "-e", "LR=0.1", "--venv", sys.prefix, *site.size(4))
    shell = Terminal(
        ["setsid", "-c", site.python, "-m", "clusterctl", *words],
        keyboard=True,
        width=200,
        cwd=cli.folder,
        env={**cli.environment(None), "SHELL": "/bin/sh"},
    )
    try:
        shell.until_shown("4 slots on 2 nodes", seconds=150)
        shell.send(b"mpirun -n 4 python dist_train.py; echo over $?\n")
        shell.until_shown("over 0")
        shell.send(b"exit 3\n")
        shown = shell.wait(60)
        assert shell.process.returncode == 3, shown
    except AssertionError as failed:
        columns = "pid,pgid,tpgid,stat,wchan:20,etime,args"
        hosts = site.lab.machines.hosts.values()
        waits = [host.run("ps", "-eo", columns, check=False) for host in hosts]
        raise AssertionError("\n".join([str(failed), *waits])) from None
    finally:
        shell.close()
    said = sorted(line.split()[1:] for line in shown if line.startswith("rank"))
    assert [rank for rank, *_ in said] == ["0", "1", "2", "3"], shown
    assert {host for _, host, _ in said} == {"c1", "c2"}
    assert {rate for *_, rate in said} == {"0.1"}
    [job] = cli.json("jobs")["jobs"][-1:]
    assert (job["state"], job["program_exit_code"]) == ("failed", 3)
    cli("fetch", job["id"])
    assert len(list((cli.folder / f"job-{job['id']}").glob("**/made-*"))) == 4


def test_a_command_gets_its_words_as_they_are(cli: Cli, site: Site) -> None:
    command = ("--", "sh", "-c", 'echo "$1; $HOME"', "x", "a  b")
    done = cli("run", "--interactive", *site.size(2), *command)
    assert "a  b; /" in done.out
