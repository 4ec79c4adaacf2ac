"""What a person's shell, a hook or a batch job has set changes no command of ours."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl import process
from clusterctl.batch.system import load_system
from clusterctl.core.model import Role
from clusterctl.core.text import read_toml
from clusterctl.core.variables import write_unset
from clusterctl.project.own_project import call_uv
from clusterctl.project.tree import find_tree
from clusterctl.terraform.binary import make_environment
from tests.unit.making import cluster, job, node
from tests.unit.scripts import write_agent

NAMES = {
    program: {key: set(names.split()) for key, names in row.items()}
    for program, row in read_toml(Path(__file__).with_name("program_variables.toml")).items()
}


def write_program(folder: Path, name: str) -> None:
    """A program that prints its environment."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\nexec /usr/bin/env\n")
    (folder / name).chmod(0o755)


def read_names(text: str) -> set[str]:
    return set(re.findall(r"(?m)^(\w+)=", text))


@pytest.mark.parametrize("value", ["/nowhere", "1", ""])
def test_no_variable_of_git_changes_which_files_are_copied(
    value: str, need: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = need("git")
    work = tmp_path / "work"
    (work / "pkg").mkdir(parents=True)
    for name in ("a.txt", "pkg/b.txt", "secret.env"):
        (work / name).write_text("x")
    (work / ".gitignore").write_text("*.env\n")
    subprocess.run([git, "init", "-q", work], check=True)
    plain = sorted(find_tree(work).files)
    assert "secret.env" not in plain
    for name in NAMES["git"]["stays"]:
        monkeypatch.setenv(name, value)
    assert sorted(find_tree(work / "pkg").files) == plain


OTHERS = {"HTTPS_PROXY", "no_proxy", "AWS_PROFILE", "SSL_CERT_FILE", "PIP_INDEX_URL", "TMPDIR"}
"""What no program documents as its own."""


@pytest.mark.parametrize("program", [name for name in NAMES if "passes" in NAMES[name]])
def test_a_program_sees_what_people_set_on_purpose_and_nothing_else(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "bin", program)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    passes, stays = NAMES[program]["passes"] | OTHERS, NAMES[program]["stays"]
    for name in passes | stays:
        monkeypatch.setenv(name, "1")
    seen = read_names(process.run([program], timeout=20).text)
    assert passes <= seen
    assert not seen & stays


def test_terraform_and_uv_get_our_settings_beside_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_DATA_DIR", "/nowhere")
    monkeypatch.setenv("UV_PROJECT", "/nowhere")
    made = make_environment(tmp_path, AWS_PROFILE="mine")
    assert "TF_DATA_DIR" not in made
    assert (made["TF_INPUT"], made["AWS_PROFILE"]) == ("0", "mine")
    assert "click==8" in call_uv("a file", "pip", "compile", "-q", str(write_pin(tmp_path)))


def write_pin(folder: Path) -> Path:
    path = folder / "requirements.txt"
    path.write_text("click==8.1.7\n")
    return path


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_slurm_commands_see_neither_a_surrounding_job_nor_options_by_variable(
    shell: str, need: Callable[[str], str], tmp_path: Path
) -> None:
    need(shell)
    folder = tmp_path / "jobs" / "7"
    folder.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue", "scancel"):  # the machine's own may look for a real queue
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n/usr/bin/env >{tmp_path}/{name}.env\necho 41\n")
        path.chmod(0o755)
    write_agent(folder)
    one = replace(job(None), scheduler="slurm")
    one = replace(one, spec=replace(one.spec, native={"partition": "big"}))
    passing = {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_QOS", "SLURM_PMIX_FENCE"}
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "MULTI": "a\nSLURM_NOT=1\nb"}
    env |= dict.fromkeys((*NAMES["sbatch"]["stays"], *passing, "SBATCH_PARTITION", "MINE"), "1")
    slurm = load_system("slurm")
    [survey] = slurm.status_commands(
        [one], cluster(node("login", role=Role.LOGIN, root=str(tmp_path)))
    )
    for argv in (slurm.submit_argv(one), ("sh", "-c", survey), slurm.end_argv(one)):
        subprocess.run([shell, *argv[1:]], cwd=folder, env=env, timeout=30)
    for name in ("sbatch", "squeue", "scancel"):
        seen = read_names((tmp_path / f"{name}.env").read_text())
        assert passing | {"MINE", "MULTI"} <= seen
        assert not seen & NAMES["sbatch"]["stays"]
    # What the job itself asks for wins.
    assert "SBATCH_PARTITION" not in read_names((tmp_path / "sbatch.env").read_text())


def test_mpirun_gets_settings_of_mpi_and_none_of_its_own(
    need: Callable[[str], str], tmp_path: Path
) -> None:
    kept = {"OMPI_MCA_btl_vader_single_copy_mechanism", "OMPI_MCA_pml", "UCX_TLS", "OPAL_PREFIX"}
    gone = {"OMPI_MCA_plm", "OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_iof_base_redirect"}
    gone |= {"OMPI_MCA_btl_tcp_if_exclude", "PRTE_MCA_plm_ssh_agent", "PMIX_MCA_ptl"}
    gone |= {"PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_hwloc_base_binding_policy"}
    template = tmp_path / "script"
    template.write_text(f"{write_unset('mpirun')}\n/usr/bin/env\n")
    for shell in ("sh", need("bash")):
        done = subprocess.run(
            [shell, template], env=dict.fromkeys(kept | gone, "1"), capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert kept <= read_names(done.stdout)
        assert not gone & read_names(done.stdout)
