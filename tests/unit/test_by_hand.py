"""What a person finds on a node who types ssh, mpirun and python there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.batch.system import load_system
from clusterctl.core.model import Cluster, render_hostfile_mark
from clusterctl.errors import UsageError
from clusterctl.launch import mpirun
from clusterctl.launch.hostfile import render_whole_hostfile
from tests.unit.making import cluster, node, request, spec
from tests.unit.scripts import write_program
from tests.unit.tables import rows


def written(made: Cluster, name: str, folder: Path) -> Path:
    """The files of that node, on disk; programs on PATH say what they were called with."""
    chosen = replace(made.node(name), root=str(folder), mpi_prefix=str(folder / "mpi"))
    chosen = replace(chosen, python=str(folder / "py" / "bin" / "python"))
    nodes = tuple(chosen if item.name == name else item for item in made.nodes)
    texts = mpirun.render_files(replace(made, nodes=nodes), chosen)
    texts["../bin/free-port"] = ("echo 23456\n", 0o755)
    for program in ("../mpi/bin/mpirun", "../py/bin/python"):
        said = 'echo "$MASTER_ADDR:$MASTER_PORT" "$@"; env >"$0.env"\n'
        texts[program] = (f"#!/bin/sh\n{said}", 0o755)
    for path, (text, mode) in texts.items():
        target = folder / "shell" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
    (folder / "shell" / "programs").mkdir()
    (folder / "shell" / "programs" / "bundled.py").touch()
    (folder / "ssh").mkdir()
    return folder


def inside(folder: Path, *words: str, **variables: str) -> str:
    """What that command prints in the shell of a node."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    done = subprocess.run(
        ["/bin/sh", str(folder / "shell" / "enter"), *words],
        capture_output=True,
        text=True,
        timeout=20,
        env=env,
        cwd=folder,
    )
    assert done.returncode == 0, done
    return done.stdout


@rows("words, address", "by_hand.ranks_meet_at_the_first_host")
def test_ranks_meet_at_the_first_host(words: list[str], address: str, tmp_path: Path) -> None:
    folder = written(cluster(), "launcher", tmp_path)
    (folder / "hosts").write_text("# mine\n\n10.0.0.12 slots=2\n")
    assert inside(folder, "mpirun", *words) == f"{address}:23456 {' '.join(words)}\n"
    chosen = inside(folder, "mpirun", *words, MASTER_ADDR="10.9.9.9", MASTER_PORT="7")
    assert chosen.startswith("10.9.9.9:7 ")


@pytest.mark.parametrize(("version", "prefix"), [("5.0.11", "PRTE"), ("4.1.4", "OMPI")])
def test_mpirun_gets_what_jobs_tell_it(version: str, prefix: str, tmp_path: Path) -> None:
    names = (("launcher", "10.0.0.10"), ("worker-1", "10.0.0.11"), ("worker-2", "10.0.0.12"))
    made = cluster(*(node(name, address, mpi=version) for name, address in names))
    folder = written(made, "launcher", tmp_path)
    inside(folder, "mpirun")
    env = dict(
        line.split("=", 1)
        for line in (folder / "mpi/bin/mpirun.env").read_text().splitlines()
        if "=" in line
    )
    agent = "plm_ssh_agent" if version[0] == "5" else "plm_rsh_agent"
    assert env[f"{prefix}_MCA_{agent}"] == "clusterctl-mpi-ssh"
    assert env["OMPI_MCA_btl_tcp_if_include"] == "10.0.0.0/24"
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"
    # What belongs to one job would be wrong in the next.
    assert not {"CLUSTERCTL_WORLD_SIZE", "CLUSTERCTL_JOB"} & set(env)
    assert not [name for name in env if "mapping_policy" in name or "oversubscribe" in name]
    path = env["PATH"].split(":")
    assert path[:2] == [f"{folder}/shell/bin", f"{folder}/mpi/bin"]


def test_a_shell_has_what_the_cluster_shares_and_who_may_start_ranks() -> None:
    nodes = [node("launcher", "10.0.0.10", user="root"), node("worker-1", "10.0.0.11", user="root")]
    theirs = cluster(*nodes, shared="/shared")
    for made, root in ((theirs, True), (cluster(), False)):
        for name in ("launcher", "worker-1"):
            files = mpirun.render_files(made, made.node(name))
            text, mode = files["env"]
            assert f"CLUSTERCTL_DATA={made.node(name).root}/data" in text
            assert ("CLUSTERCTL_SHARED=/shared" in text) is root
            assert ("OMPI_ALLOW_RUN_AS_ROOT=1" in text) is root
            assert "GLOO_SOCKET_IFNAME=eth0" in text
            assert "OMPI_MCA_btl_tcp_if_include=" in text
            assert "hwloc_default_binding_policy" not in text
            assert (mode, files["hostfile"][1], files["ssh_config"][1]) == (0o644,) * 3
            programs = {"ssh", "scp", "sftp", "mpirun", "mpiexec", "python", "python3"}
            assert {f"bin/{program}" for program in programs} < set(files)
            assert files["bin/mpiexec"][1] == 0o755


def test_slots_are_advice_and_no_rank_is_bound_where_nodes_share_a_machine() -> None:
    nodes = [node("launcher", "10.0.0.10"), node("worker-1", "10.0.0.11")]
    made = cluster(*nodes, provider="local")
    text = mpirun.render_files(made, made.launcher)["env"][0]
    assert "PRTE_MCA_hwloc_default_binding_policy=none" in text
    assert "PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe" in text


@rows("python, mpi, more", "by_hand.programs_of_a_shell_are_those_of_the_nodes_python")
def test_programs_of_a_shell_are_those_of_the_nodes_python(
    python: str, mpi: str, more: str
) -> None:
    made = cluster()
    chosen = replace(made.launcher, python=python, mpi_prefix=mpi)
    text = mpirun.render_files(made, chosen)["env"][0]
    assert f"{chosen.root}/shell/bin{more}:" in text.replace("'", "")


def test_a_bundled_program_is_found_by_its_name(tmp_path: Path) -> None:
    folder = written(cluster(), "worker-1", tmp_path)
    bundled = f"{folder}/shell/programs/bundled.py"
    assert inside(folder, "python", "bundled.py", "a b") == f": {bundled} a b\n"
    assert inside(folder, "python3", "-c", "x") == ": -c x\n"
    assert inside(folder, "python", "other.py") == ": other.py\n"
    (folder / "bundled.py").touch()  # a file of the person's own
    assert inside(folder, "python", "bundled.py") == ": bundled.py\n"


def test_words_go_on_to_the_container_in_which_jobs_run(tmp_path: Path) -> None:
    nodes = [replace(item, job_port=2222, machine="i-1") for item in cluster().nodes]
    folder = written(cluster(*nodes), "launcher", tmp_path)
    ssh = write_program(tmp_path / "tools/ssh", 'for last; do :; done\nexec /bin/sh -c "$last"')
    path = f"{ssh.parent}:{os.environ['PATH']}"
    words = ["a  b", "it's", "$HOME", 'say "x"', "new\nline\n", "", "\\"]
    said = inside(folder, "printf", "<%s>", *words, PATH=path)
    assert said == "".join(f"<{word}>" for word in words)
    said = inside(folder, "-c", 'echo "it\'s"; command -v python', PATH=path)
    assert said == f"it's\n{folder}/shell/bin/python\n"


def test_the_hostfile_has_all_workers_and_says_whose_it_is() -> None:
    made = cluster()
    assert render_whole_hostfile(made).splitlines() == [
        render_hostfile_mark(made.id),
        "10.0.0.11 slots=4 # worker-1",
        "10.0.0.12 slots=4 # worker-2",
    ]
    assert "localhost slots=8\n" in render_whole_hostfile(replace(made, one_host=True))


def test_plain_ssh_checks_host_keys_of_nodes_and_knows_other_hosts_as_before(
    tmp_path: Path,
) -> None:
    home = tmp_path / "a %h"
    home.mkdir()
    folder = written(cluster(), "launcher", home)

    def asked(host: str) -> list[str]:
        return inside(folder, "ssh", "-G", host).splitlines()

    known = asked("worker-1")
    assert "hostname 10.0.0.11" in known
    assert {"stricthostkeychecking true", "hostkeyalias worker-1"} <= set(known)
    assert f"userknownhostsfile {folder}/ssh/known_hosts" in known
    assert not any(line.startswith("hostkeyalias") for line in asked("elsewhere"))


def test_without_mpi_the_rest_works(tmp_path: Path) -> None:
    nodes = [node("launcher", "10.0.0.10", mpi=""), node("worker-1", "10.0.0.11", mpi="")]
    made = cluster(*(replace(item, mpi_prefix="") for item in nodes))
    assert "bin/mpirun" not in mpirun.render_files(made, made.launcher)
    assert inside(written(made, "launcher", tmp_path), "python", "-V") == ": -V\n"


def argv(*args: str) -> list[str]:
    return list(mpirun.plan_mpirun(request(cluster(), spec(mpirun_args=args))).argv)


def test_mpirun_args_come_beside_ours_and_win() -> None:
    found = argv("--map-by slot:PE=2 --report-bindings", "--mca btl_base_verbose '30 x'")
    assert found.count("--map-by") == 1
    assert found[found.index("--map-by") + 1] == "slot:PE=2"
    assert "--report-bindings" in found
    assert found[found.index("btl_base_verbose") + 1] == "30 x"
    assert found.index("--report-bindings") < found.index("/bin/sh")
    assert argv("--mca pml ucx").count("pml") == 1


@rows("given, hint", "by_hand.mpirun_args_that_clusterctl_decides_are_refused")
def test_mpirun_args_that_clusterctl_decides_are_refused(given: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        argv(given)
    assert hint in caught.value.hint
    assert given.split()[0] in caught.value.message


@rows("given, said", "by_hand.mpirun_args_that_are_passed_on")
def test_mpirun_args_that_are_passed_on(given: str, said: str) -> None:
    """And each of ours stays that they do not set."""
    found = argv(given)
    assert said in " ".join(found)
    assert {"--hostfile", "btl"} <= set(found)


@rows("given, name, times", "by_hand.mpirun_args_that_replace_ours")
def test_mpirun_args_that_replace_ours(given: str, name: str, times: int) -> None:
    assert argv(given).count(name) == times


def test_mpirun_args_need_mpirun() -> None:
    system = load_system("direct")
    with pytest.raises(UsageError, match="--mpirun-arg works only with --launcher mpirun"):
        system.resolve(spec(launcher="torchrun", mpirun_args=("--report-bindings",)), cluster())
    assert system.resolve(spec(mpirun_args=("--report-bindings",)), cluster())
