"""--dry-run prints what is shipped, and --emit sh prints what runs without us."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.e2e.cli import Cli

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]

ENV = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv]), flush=True)"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--ranks-per-node", "2", "--backend", "gloo", "--env", "A=b c", "--allow-cpu"),
        ("--launcher", "torchrun"),
    ],
)
def test_a_dry_run_is_exactly_what_is_shipped(cli: Cli, options: tuple[str, ...]) -> None:
    """The plan's command line, hostfile, environment and programs are those of the real run."""
    cli.script("env.py", ENV)
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
    assert [word.replace('"', "") for word in shlex.split(command)] == plan["argv"]
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


def test_a_dry_run_leaves_no_job(cli: Cli) -> None:
    cli.script("env.py", ENV)
    before = cli.jobs()
    cli("run", "--dry-run", "env.py")
    assert cli.jobs() == before


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_emitted_script_runs_on_the_launcher_without_clusterctl(cli: Cli, ranks: int) -> None:
    """It says how to use it, and its ranks see what those of `run` see."""
    cli.script("sub/env.py", ENV)
    arguments = ["two words", "it's", "$HOME", "", "new\nline"]
    options = ("--ranks", ranks, "--env", "ODD=a 'b' $c", "sub/env.py", *arguments)
    emitted = cli("run", "--emit", "sh", *options)
    assert emitted.out.startswith("#!/bin/sh\n")
    assert cli.json("run", "--emit", "sh", *options)["script"].strip() == emitted.out.strip()
    launcher = cli.status()["nodes"][0]
    for node in cli.status()["nodes"]:
        cli("cp", "sub", f"{node['name']}:/tmp/../{launcher['root']}/emitted/".replace("//", "/"))
    cli("ssh", "worker-1", "--", "true")
    cli("ssh", "worker-2", "--", "true")
