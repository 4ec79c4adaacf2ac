"""--dry-run prints what is shipped, and --emit sh prints what runs without us."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.e2e.cli import Cli

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

ENV = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv]), flush=True)"


def test_a_dry_run_is_exactly_what_is_shipped(cli: Cli) -> None:
    """The plan's command line, hostfile, environment and programs are those of the real run."""
    cli.script("env.py", ENV)
    options = ("--ranks-per-node", "2", "--backend", "gloo", "--env", "A=b c", "--allow-cpu")
    words = (*options, "env.py", "an argument")
    plan = cli.json("run", "--dry-run", *words)
    text = cli("run", "--dry-run", *words).out
    before = cli.jobs()
    done = cli("run", *words)
    assert done.job not in before
    launcher = cli.status()["nodes"][0]
    folder = f"{launcher['root']}/jobs/{done.job}"
    shipped = cli("ssh", "launcher", "--", "cat", f"{folder}/launch.sh").out
    command = shipped.rstrip("\n").rpartition("\nexec ")[2]
    assert command in text
    assert shlex.split(command) == plan["argv"]
    for name, content in plan["files"].items():
        assert cli("ssh", "launcher", "--", "cat", f"{folder}/{name}").out == content
        assert content.strip() in text
    for node, ranks in plan["placement"].items():
        for rank in ranks:
            environment, argv = json.loads(done.of(rank)[0])
            expected = {**plan["env"], **plan["node_env"][node]}
            assert {name: environment.get(name) for name in expected} == expected
            assert argv == plan["programs"][node][1:]
    reasons = {reason["item"]: reason["why"] for reason in plan["reasons"]}
    assert all(reasons.values())
    for flag in ("-np", "--hostfile", "--bind-to"):
        assert any(item.startswith(flag) for item in reasons)


def emitted(cli: Cli, folder: str, *words: object, code: int = 0) -> list[str]:
    """Runs `--emit sh` of these words on the launcher; its lines, sorted. Local nodes all see our
    folder: it is the same path on every node, as the script asks."""
    script = cli("run", "--emit", "sh", *words).out
    assert script.startswith("#!/bin/sh\n")
    path = cli.script("emitted.sh", script)
    said = cli("ssh", "launcher", "--", "sh", path, cli.folder / folder, code=code)
    return sorted(said.out.splitlines())


def test_an_emitted_script_runs_on_the_launcher_without_clusterctl(cli: Cli) -> None:
    """Its ranks see what those of `run` see: numbers, arguments, variables."""
    cli.script(
        "sub/env.py",
        "import json, os, sys\n"
        "print(json.dumps([os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1:],"
        " os.environ['ODD'], os.environ['MASTER_ADDR'], os.environ['CLUSTERCTL_DATA'],"
        " os.environ['GLOO_SOCKET_IFNAME']]), flush=True)",
    )
    arguments = ["two words", "it's", "$HOME", "", "`id`", "{{ 1 }}"]
    mine = ("--env", "ODD=a 'b' $c", "--env", "GLOO_SOCKET_IFNAME=mine0")
    options = ("--ranks", 4, *mine, "sub/env.py", *arguments)
    found = [json.loads(line) for line in emitted(cli, "sub", *options)]
    assert [row[0] for row in found] == ["0", "1", "2", "3"]
    assert all(row[1:4] == ["4", arguments, "a 'b' $c"] for row in found)
    same = cli("run", *options)
    assert json.loads(same.of(0)[0]) == found[0]
    assert {row[6] for row in found} == {"mine0"}


def test_an_emitted_script_passes_the_exit_code_and_needs_its_folder(cli: Cli) -> None:
    cli.script("sub/fails.py", "import sys; sys.exit(9)")
    emitted(cli, "sub", "sub/fails.py", code=9)
    said = cli("ssh", "launcher", "--", "sh", cli.folder / "emitted.sh", code=None)
    assert said.code not in (0, 9)
    assert "usage" in said.err
