"""Scripts for people who run a job without us, run here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterctl import __version__
from clusterctl.actions.run import Prepared, emit
from clusterctl.batch.direct import Direct
from clusterctl.core import assets
from clusterctl.core.job import LaunchPlan, ProgramKind
from clusterctl.core.model import Node
from clusterctl.errors import UsageError
from clusterctl.launch import launcher
from clusterctl.project.tree import Tree
from tests.unit.making import cluster, job, node, program, request, spec
from tests.unit.scripts import HOSTILE, PLAIN, SEES, WEIRD, seen_by_program, write_program


def prepared(
    root: Path,
    *args: str,
    secrets: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    **changes: Any,
) -> Prepared:
    where = cluster(
        node("launcher", "10.0.0.10", root=str(root), mpi_prefix=str(root)),
        node("worker-1", root=str(root), mpi_prefix=str(root)),
    )
    what = spec(
        program=program(*args, **{"kind": ProgramKind.BINARY, "target": "./program", **changes}),
        ranks=2,
        env=env or {"MINE": "it's\n$HOME"},
        secret_names=tuple(secrets or ()),
    )
    plan: LaunchPlan = launcher.plan_launch("mpirun", request(where, what))
    return Prepared(
        job=job(where, what),
        cluster=where,
        plan=plan,
        tree=Tree(root, (), 0, False),
        secrets=secrets or {},
    )


def emitted(root: Path, *args: str, **changes: Any) -> str:
    return emit(prepared(root, *args, **changes))


def with_mpirun(tmp_path: Path) -> Path:
    """A node's root with an mpirun that starts two ranks here."""
    root = tmp_path / "root"
    write_program(
        root / "bin" / "mpirun",
        'while [ "$1" != /bin/sh ]; do shift; done\n'
        "for r in 0 1; do OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_LOCAL_RANK=$r"
        ' OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 "$@" || exit; done',
    )
    (root / "bin" / "free-port").write_text("echo 29000\n")
    return root


@pytest.mark.parametrize(
    "argument", [*(word for word in WEIRD if "\n" not in word), "\ntouch PWNED\n#"]
)
def test_an_emitted_script_runs_without_us(argument: str, tmp_path: Path) -> None:
    """Arguments reach the program as they are, and
    nothing else: an argument with a newline must not become a line of the script."""
    root = with_mpirun(tmp_path)
    folder = tmp_path / "my program"
    show = 'printf "%s\\n" "$RANK/$WORLD_SIZE" "$MINE" "$TOKEN" "$@"'
    write_program(folder / "program", show)
    text = emitted(root, argument, secrets={"TOKEN": "hunter2"})
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
    tail = f"it's\n$HOME\nhunter2\n{argument}\n"
    assert done.stdout == f"0/2\n{tail}1/2\n{tail}"
    done = run()
    assert done.returncode != 0
    assert "TOKEN" in done.stderr


def test_no_argument_ends_the_text_that_holds_it(tmp_path: Path) -> None:
    """Not even one that knows how that text ends in another script."""
    end = ends(emitted(tmp_path, "argument"))[-1]
    assert end not in ends(emitted(tmp_path, f"\n{end}\ntouch PWNED\n#"))


def ends(script: str) -> list[str]:
    """The words that end its here-documents."""
    return re.findall(r"<<'(\w+)'", script)


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


def test_an_emitted_script_gives_a_rank_what_its_node_has(tmp_path: Path) -> None:
    root = with_mpirun(tmp_path)
    (tmp_path / "sub").mkdir()
    target, *args = SEES
    script = tmp_path / "script.sh"
    script.write_text(emitted(root, *args, target=target, folder="sub"))
    subprocess.run(["/bin/sh", script, tmp_path], env={"PATH": os.environ["PATH"]}, check=True)
    seen = seen_by_program(tmp_path / "sub")
    assert (seen["CLUSTERCTL_DATA"], seen["GLOO_SOCKET_IFNAME"]) == (f"{root}/data", "eth0")


def test_an_emitted_script_calls_mpirun_as_the_job_would(tmp_path: Path) -> None:
    """With a hostfile of its own."""
    root = with_mpirun(tmp_path)
    (root / "bin" / "mpirun").write_text(
        '#!/bin/sh\nprintf "%s\\0" "$@"\nwhile [ "$1" != --hostfile ]; do shift; done\ncat "$2"\n'
    )
    made = prepared(root)
    script = tmp_path / "script.sh"
    script.write_text(emit(made))
    environment = {"PATH": os.environ["PATH"], "MASTER_PORT": "29123"}
    said = subprocess.check_output(["/bin/sh", script, tmp_path], env=environment, text=True)
    *words, hostfile = said.split("\0")
    late = {"MASTER_PORT=$MASTER_PORT": "MASTER_PORT=29123"}
    late["CLUSTERCTL_ATTEMPT=$CLUSTERCTL_ATTEMPT"] = "CLUSTERCTL_ATTEMPT=1"
    late["hostfile"] = words[words.index("--hostfile") + 1]
    wanted = [late.get(word, word) for word in made.plan.argv[1:]]
    shell = wanted.index("/bin/sh")
    assert words[: shell + 1] == wanted[: shell + 1]
    assert hostfile == made.plan.files["hostfile"]


def test_an_emitted_script_says_what_it_needs_and_why(tmp_path: Path) -> None:
    """In comments, whatever a file is called."""
    odd = {"kind": ProgramKind.SOURCE, "target": "./hello", "source": "a\nb.c"}
    made = prepared(tmp_path, "it's", "\udcff", **odd)
    head, _, rest = emit(made).partition("set -eu\n")
    assert head.startswith("#!/bin/sh\n")
    assert all(line.startswith("#") for line in head.splitlines())
    for needed in (__version__, "./hello it", "launcher (ubuntu@10.0.0.10)", "mpicc", "a b.c"):
        assert needed in head
    for reason in made.plan.reasons:
        assert f"\n#   {reason.item}: {reason.why}\n" in rest
    assert "compiled" not in emitted(tmp_path)
    text = Direct().emit(made.job, made.cluster, made.plan, beside="cp -r /far/trainlib .")
    assert "cp -r /far/trainlib ." in text.partition("set -eu\n")[0]


def test_no_script_is_emitted_for_torchrun() -> None:
    what = spec(launcher="torchrun")
    plan = launcher.plan_launch("torchrun", request(what=what))
    with pytest.raises(UsageError, match="torchrun") as caught:
        Direct().emit(job(what=what), cluster(), plan, beside="")
    assert caught.value.hint


def place_ssh(root: Path, other: Node) -> Path:
    script = root / "bin" / "clusterctl-ssh"
    script.parent.mkdir(exist_ok=True)
    script.write_text(assets.render("bootstrap/agent.sh.j2", root=str(root), nodes=[other]))
    return script


@pytest.mark.parametrize("tag", ["", "lab-1/7;"])
def test_ssh_between_nodes_brings_its_own_path(tag: str, tmp_path: Path) -> None:
    """Open MPI 4's daemons start ssh by name, also in a script of `--emit sh`, which has no tag."""
    root = tmp_path / "root"
    (root / "ssh").mkdir(parents=True)
    write_program(tmp_path / "ssh", 'printf "%s" "$4"')
    where = node("worker-1", root="/far/root", mpi_prefix="/far/mpi")
    script = place_ssh(root, where)
    done = subprocess.run(
        ["/bin/sh", script, "worker-1", "command", "word"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CLUSTERCTL_JOB": tag},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "PATH=/far/root/bin:/far/mpi/bin:$PATH" in done.stdout.replace("'", "")
    told = "the MPI daemon on worker-1 was killed" in done.stdout
    assert (done.stdout.removesuffix("'").endswith("command word"), told) == (not tag, bool(tag))
    assert ("CLUSTERCTL_JOB" in done.stdout) == bool(tag)


def test_start_files_of_a_node_name_no_job_to_its_ranks(tmp_path: Path) -> None:
    names = "SLURM_PROCID SLURM_JOB_ID PBS_NODENUM PMI_RANK JOB_ID SLURM_CONF OMPI_MCA_pml MINE"
    (tmp_path / "ssh").mkdir()
    exports = " ".join(f"{name}=old" for name in names.split())
    login = write_program(tmp_path / "bin" / "ssh", f'export {exports}\nexec sh -c "$4"')
    script = place_ssh(tmp_path, node("worker-1"))
    done = subprocess.run(
        ["/bin/sh", script, "worker-1", "PMI_RANK=1; export PMI_RANK; env"],
        env={"PATH": f"{login.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    found = {name: seen[name] for name in names.split() if name in seen}
    kept = dict.fromkeys(("SLURM_CONF", "OMPI_MCA_pml", "MINE"), "old")
    assert found == {"PMI_RANK": "1", **kept}
