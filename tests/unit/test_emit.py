"""Scripts for people who run a job without us, run here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterctl import assets, launch
from clusterctl.actions.run import Prepared, emit
from clusterctl.jobs.stage import Tree
from clusterctl.model import LaunchPlan, ProgramKind
from tests.unit.making import cluster, job, node, program, request, spec
from tests.unit.scripts import HOSTILE, PLAIN, SEES, WEIRD, seen_by_program


def emitted(
    root: Path,
    *args: str,
    secrets: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    target: str = "./program",
) -> str:
    where = cluster(
        node("launcher", "10.0.0.10", root=str(root), mpi_prefix=str(root)),
        node("worker-1", root=str(root), mpi_prefix=str(root)),
    )
    what = spec(
        program=program(*args, kind=ProgramKind.BINARY, target=target),
        ranks=2,
        env=env or {"MINE": "it's\n$HOME"},
        secret_names=tuple(secrets or ()),
    )
    plan: LaunchPlan = launch.load("mpirun").plan(request(where, what))
    return emit(
        Prepared(
            job=job(where, what),
            cluster=where,
            plan=plan,
            tree=Tree(root, (), 0, False),
            secrets=secrets or {},
        )
    )


def with_mpirun(tmp_path: Path) -> Path:
    """A node's root with an mpirun that starts two ranks here."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    mpirun = root / "bin" / "mpirun"
    mpirun.write_text(
        '#!/bin/sh\nwhile [ "$1" != /bin/sh ]; do shift; done\n'
        "for r in 0 1; do OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_LOCAL_RANK=$r"
        ' OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 "$@" || exit; done\n'
    )
    mpirun.chmod(0o755)
    (root / "bin" / "free-port").write_text("echo 29000\n")
    return root


@pytest.mark.parametrize(
    "args",
    [*([word] for word in WEIRD if "\n" not in word), ["\ntouch PWNED\n#"]],
    ids=lambda args: ascii(args[0]),
)
def test_an_emitted_script_runs_without_us(args: list[str], tmp_path: Path) -> None:
    """Arguments reach the program as they are, and
    nothing else: an argument with a newline must not become a line of the script."""
    root = with_mpirun(tmp_path)
    folder = tmp_path / "my program"
    folder.mkdir()
    show = '#!/bin/sh\nprintf "%s\\n" "$RANK/$WORLD_SIZE" "$MINE" "$TOKEN" "$@"\n'
    (folder / "program").write_text(show)
    (folder / "program").chmod(0o755)
    text = emitted(root, *args, secrets={"TOKEN": "hunter2"})
    assert "hunter2" not in text
    script = tmp_path / "script.sh"
    script.write_text(text)

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", script, folder],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": "/root", **environment},
            cwd=tmp_path,
        )

    done = run(TOKEN="hunter2")
    assert not (tmp_path / "PWNED").exists()
    assert done.returncode == 0, done.stderr
    tail = f"it's\n$HOME\nhunter2\n{args[0]}\n"
    assert done.stdout == f"0/2\n{tail}1/2\n{tail}"
    done = run()
    assert done.returncode != 0
    assert "TOKEN" in done.stderr


def test_an_emitted_script_hands_on_any_variable(tmp_path: Path) -> None:
    root = with_mpirun(tmp_path)
    target, *args = SEES
    script = tmp_path / "script.sh"
    script.write_text(emitted(root, *args, target=target, env=HOSTILE))
    for mine in ({}, dict.fromkeys(PLAIN, "inherited")):
        subprocess.run(
            ["/bin/sh", script, tmp_path],
            env={"PATH": os.environ["PATH"], "HOME": "/root", **mine},
            check=True,
        )
        seen = seen_by_program(tmp_path)
        assert {name: seen.get(name) for name in HOSTILE} == HOSTILE
        assert (seen["RANK"], seen["WORLD_SIZE"]) == ("1", "2")


@pytest.mark.parametrize("tag", ["", "lab-1/7;"])
def test_ssh_between_nodes_brings_its_own_path(tag: str, tmp_path: Path) -> None:
    """Open MPI 4's daemons start ssh by name, also in a script of `--emit sh`, which has no tag."""
    root = tmp_path / "root"
    (root / "ssh").mkdir(parents=True)
    (tmp_path / "ssh").write_text('#!/bin/sh\nprintf "%s" "$4"\n')
    (tmp_path / "ssh").chmod(0o755)
    where = node("worker-1", root="/far/root", mpi_prefix="/far/mpi")
    script = assets.render("bootstrap/agent.sh.j2", root=str(root), nodes=[where])
    done = subprocess.run(
        ["/bin/sh", "-c", script, "agent", "worker-1", "command", "word"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CLUSTERCTL_JOB": tag},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PATH=/far/root/bin:/far/mpi/bin:$PATH" in done.stdout.replace("'", "")
    assert done.stdout.endswith("command word")
    assert ("CLUSTERCTL_JOB" in done.stdout) == bool(tag)
