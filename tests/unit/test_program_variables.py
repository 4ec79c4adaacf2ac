"""What a person's shell, a hook or a batch job has set changes no command of ours."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl import process
from clusterctl.batch.system import load_system
from clusterctl.core.variables import write_unset
from clusterctl.project import uv
from clusterctl.project.tree import find_tree
from clusterctl.terraform.binary import make_environment
from tests.unit.making import job

GIT = """
GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY GIT_NAMESPACE GIT_PREFIX
GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_CEILING_DIRECTORIES GIT_DEFAULT_HASH GIT_CONFIG
GIT_CONFIG_PARAMETERS GIT_INDEX_VERSION GIT_EXTERNAL_DIFF GIT_DIFF_OPTS GIT_PAGER GIT_EDITOR
GIT_LITERAL_PATHSPECS GIT_GLOB_PATHSPECS GIT_NOGLOB_PATHSPECS GIT_ICASE_PATHSPECS GIT_TRACE
GIT_TRACE_SETUP GIT_EXEC_PATH GIT_ATTR_SOURCE GIT_OPTIONAL_LOCKS GIT_REDIRECT_STDOUT GIT_FLUSH
GIT_GRAFT_FILE GIT_SHALLOW_FILE GIT_REPLACE_REF_BASE GIT_NO_REPLACE_OBJECTS GIT_QUARANTINE_PATH
GIT_IMPLICIT_WORK_TREE GIT_INTERNAL_SUPER_PREFIX GIT_MERGE_VERBOSITY GIT_REFLOG_ACTION
GIT_TEMPLATE_DIR GIT_AUTHOR_NAME GIT_COMMITTER_DATE
"""
"""git(1), ENVIRONMENT VARIABLES, and those of `git rev-parse --local-env-vars`."""


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
    for name in GIT.split():
        monkeypatch.setenv(name, value)
    assert sorted(find_tree(work / "pkg").files) == plain


PASSES = {
    "git": "GIT_CONFIG_GLOBAL GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "ssh": "SSH_AUTH_SOCK SSH_ASKPASS SSH_ASKPASS_REQUIRE SSH_SK_PROVIDER",
    "docker": "DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_CERT_PATH DOCKER_TLS_VERIFY",
    "terraform": "TF_CLI_CONFIG_FILE TF_TOKEN_example_com TF_PLUGIN_CACHE_DIR",
    "uv": "UV_INDEX UV_DEFAULT_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL UV_FIND_LINKS UV_NO_INDEX"
    " UV_INDEX_STRATEGY UV_INDEX_MINE_PASSWORD UV_INSECURE_HOST UV_CACHE_DIR UV_HTTP_TIMEOUT"
    " UV_KEYRING_PROVIDER UV_NATIVE_TLS UV_OFFLINE UV_EXCLUDE_NEWER",
    "srun": "SLURM_CONF SLURM_JWT SLURM_ACCOUNT SLURM_PARTITION",
}
"""And, for all of them, what they do not document as theirs."""
OTHERS = "HTTPS_PROXY no_proxy AWS_PROFILE AWS_SESSION_TOKEN SSL_CERT_FILE PIP_INDEX_URL TMPDIR"
FORBIDDEN = {
    "git": GIT,
    "ssh": "SSH_CONNECTION SSH_CLIENT SSH_TTY SSH_ORIGINAL_COMMAND SSH_USE_STRONG_RNG",
    "docker": "DOCKER_DEFAULT_PLATFORM DOCKER_BUILDKIT DOCKER_HIDE_LEGACY_COMMANDS DOCKER_STACK"
    " DOCKER_CLI_HINTS BUILDKIT_PROGRESS BUILDKIT_HOST BUILDX_BUILDER COMPOSE_FILE",
    "terraform": "TF_CLI_ARGS TF_CLI_ARGS_apply TF_DATA_DIR TF_WORKSPACE TF_VAR_region TF_LOG"
    " TF_LOG_PATH TF_INPUT TF_IGNORE TF_FORK TF_CLI_STATE",
    "uv": "UV_PROJECT UV_WORKING_DIR UV_WORKING_DIRECTORY UV_NO_SYNC UV_NO_DEV UV_NO_BINARY"
    " UV_NO_SOURCES UV_NO_EDITABLE UV_NO_GROUP UV_NO_DEFAULT_GROUPS UV_NO_ENV_FILE UV_FROZEN"
    " UV_LOCKED UV_ISOLATED UV_PYTHON UV_SYSTEM_PYTHON UV_PROJECT_ENVIRONMENT UV_ENV_FILE"
    " UV_REQUIRE_HASHES UV_MANAGED_PYTHON UV_COMPILE_BYTECODE UV_CUSTOM_COMPILE_COMMAND"
    " UV_PREVIEW UV_SHOW_RESOLUTION VIRTUAL_ENV CONDA_PREFIX PYTHONPATH RUST_LOG GIT_DIR",
    "srun": "SLURM_EXPORT_ENV SLURM_JOB_ID SLURM_NTASKS SLURM_CPU_BIND SLURM_MPI_TYPE SRUN_DEBUG",
}


@pytest.mark.parametrize("program", PASSES)
def test_a_program_sees_what_people_set_on_purpose_and_nothing_else(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "bin", program)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    passes = [*PASSES[program].split(), *OTHERS.split()]
    for name in (*FORBIDDEN[program].split(), *passes):
        monkeypatch.setenv(name, "1")
    seen = read_names(process.run([program], timeout=20).text)
    assert set(passes) <= seen
    assert not seen & set(FORBIDDEN[program].split())


def test_terraform_and_uv_get_our_settings_beside_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_DATA_DIR", "/nowhere")
    monkeypatch.setenv("UV_PROJECT", "/nowhere")
    made = make_environment(tmp_path, AWS_PROFILE="mine")
    assert "TF_DATA_DIR" not in made
    assert (made["TF_INPUT"], made["AWS_PROFILE"]) == ("0", "mine")
    assert "click==8" in uv.call("a file", "pip", "compile", "-q", str(write_pin(tmp_path)))


def write_pin(folder: Path) -> Path:
    path = folder / "requirements.txt"
    path.write_text("click==8.1.7\n")
    return path


SLURM = """
SBATCH_EXPORT SBATCH_ARRAY_INX SBATCH_BATCH SBATCH_CLUSTERS SBATCH_CONTAINER SBATCH_CPU_FREQ_REQ
SBATCH_CPUS_PER_GPU SBATCH_DEBUG SBATCH_DELAY_BOOT SBATCH_DISTRIBUTION SBATCH_ERROR
SBATCH_EXCLUSIVE SBATCH_GET_USER_ENV SBATCH_GPU_BIND SBATCH_GPUS SBATCH_GPUS_PER_NODE SBATCH_GRES
SBATCH_HINT SBATCH_IGNORE_PBS SBATCH_INPUT SBATCH_JOB_NAME SBATCH_MEM_BIND SBATCH_MEM_PER_CPU
SBATCH_NETWORK SBATCH_NO_KILL SBATCH_NO_REQUEUE SBATCH_OPEN_MODE SBATCH_OUTPUT SBATCH_OVERCOMMIT
SBATCH_PROFILE SBATCH_REQUEUE SBATCH_SIGNAL SBATCH_SPREAD_JOB SBATCH_THREAD_SPEC
SBATCH_THREADS_PER_CORE SBATCH_USE_MIN_NODES SBATCH_WAIT SBATCH_WAIT_ALL_NODES SLURM_EXIT_ERROR
SLURM_EXPORT_ENV SLURM_CPU_BIND SLURM_DISTRIBUTION SLURM_HINT SLURM_HOSTFILE SLURM_JOB_ID
SLURM_JOB_NODELIST SLURM_LABELIO SLURM_MPI_TYPE SLURM_NTASKS SLURM_NTASKS_PER_NODE
SLURM_OVERCOMMIT SLURM_PROCID SLURM_STDOUTMODE SLURM_TASK_PROLOG SLURM_TIME_FORMAT SLURM_UMASK
SLURM_WORKING_DIR SRUN_CPUS_PER_TASK SRUN_EXPORT_ENV SQUEUE_FORMAT SQUEUE_STATES SQUEUE_USERS
SCANCEL_STATE SCANCEL_INTERACTIVE SCONTROL_ALL SACCT_FORMAT SINFO_FORMAT
"""
"""sbatch(1), srun(1), squeue(1), scancel(1), scontrol(1): input environment variables."""


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_slurm_commands_see_neither_a_surrounding_job_nor_options_by_variable(
    shell: str, need: Callable[[str], str], tmp_path: Path
) -> None:
    need(shell)
    folder = tmp_path / "jobs" / "7"
    folder.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "scancel"):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n/usr/bin/env >{tmp_path}/{name}.env\necho 41\n")
        path.chmod(0o755)
    one = replace(job(None), scheduler="slurm")
    one = replace(one, spec=replace(one.spec, native={"partition": "big"}))
    passing = {"SLURM_CONF", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_QOS", "SLURM_PMIX_FENCE"}
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "MULTI": "a\nSLURM_NOT=1\nb"}
    env |= dict.fromkeys((*SLURM.split(), *passing, "SBATCH_PARTITION", "MINE"), "1")
    slurm = load_system("slurm")
    for argv in (slurm.submit_argv(one), slurm.end_argv(one)):
        subprocess.run([shell, *argv[1:]], cwd=folder, env=env, timeout=30)
    for name in ("sbatch", "scancel"):
        seen = read_names((tmp_path / f"{name}.env").read_text())
        assert passing | {"MINE", "MULTI"} <= seen
        assert not seen & set(SLURM.split())
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
