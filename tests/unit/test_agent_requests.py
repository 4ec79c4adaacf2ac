"""What a login node is asked before a job is sent there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent import requests
from tests.unit.scripts import write_program
from tests.unit.tables import rows

PARTITIONS = """\
PartitionName=main AllowAccounts=ALL AllowQos=ALL Default=YES MaxNodes=UNLIMITED \
MaxTime=UNLIMITED State=UP TotalNodes=2
PartitionName=short AllowAccounts=ALL AllowQos=ALL Default=NO MaxNodes=1 \
MaxTime=1-00:00:00 State=UP TotalNodes=2
PartitionName=closed AllowAccounts=ALL AllowQos=ALL Default=NO MaxNodes=UNLIMITED \
MaxTime=UNLIMITED State=DOWN TotalNodes=2
PartitionName=lab AllowAccounts=physics,bio AllowQos=ALL Default=NO MaxNodes=UNLIMITED \
MaxTime=UNLIMITED State=UP TotalNodes=2
"""
FAKES = {
    "scontrol": f"cat <<'END'\n{PARTITIONS}END\n",
    "sbatch": 'cat >"$0.script"; [ ! -e "$0.says" ] || { cat "$0.says" >&2; exit 1; }',
    "qsub": 'cat >"$0.script"; [ ! -e "$0.says" ] || { cat "$0.says" >&2; exit 1; }',
    "sinfo": 'cat "$0.says"',
    "qstat": 'cat "$0.says"',
}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tools"
    for name, text in FAKES.items():
        write_program(folder / name, text)
    (folder / "sinfo.says").write_text("idle\nmixed\n")
    (folder / "qstat.says").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def ask(root: Path, system: str = "slurm", **given: Any) -> dict[str, Any]:
    settings = {"system": system, "words": [], "lines": [], "venv": "", "container": ""}
    settings |= {"modules": [], "folder": "", "pyxis": False, **given}
    found = list(requests.check(str(root), json.dumps(settings)))
    return json.loads(found[0]) if found else {}


@rows("lines, words, why", "requests.partitions_that_no_job_gets")
def test_partitions_that_no_job_gets(
    lines: list[str], words: list[str], why: str, tools: Path, tmp_path: Path
) -> None:
    """Options before a script count more than its own."""
    refusal = ask(tmp_path, lines=lines, words=words)
    assert refusal.get("why", "") == why
    assert refusal.get("closed", False) == why.endswith("is down")


@pytest.mark.parametrize(
    "given",
    [{}, {"modules": ["apptainer"]}, {"pyxis": True}, {"container": ""}, {"has": True}],
    ids=lambda given: "-".join(given) or "missing",
)
def test_a_login_node_without_what_runs_containers(
    given: dict[str, Any], tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "sh").write_text("module() { :; }\n")
    monkeypatch.setenv("MODULESHOME", str(tmp_path))
    if given.pop("has", False):
        (tools / "singularity").symlink_to("sbatch")
    elif not given:
        assert ask(tmp_path, container="docker://x").get("doubtful")
        return
    assert not ask(tmp_path, **{"container": "docker://x", **given})


@rows("system, says, why", "requests.what_the_queue_says_of_a_request")
def test_what_the_queue_says_of_a_request(
    system: str, says: str, why: str, tools: Path, tmp_path: Path
) -> None:
    command = {"slurm": "sbatch", "sge": "qsub"}[system]
    (tools / f"{command}.says").write_text(says + "\n")
    found = ask(tmp_path, system, lines=["-l x"]).get("why", "")
    assert why in found
    assert bool(found) == bool(why)
    assert "-l x" in (tools / f"{command}.script").read_text()


@pytest.mark.parametrize("system", ["slurm", "sge"])
def test_the_folder_of_an_output_is_there(system: str, tools: Path, tmp_path: Path) -> None:
    where: dict[str, Any] = {"system": system, "folder": str(tmp_path), "words": ["job.sh"]}
    head = ["-cwd"] * (system == "sge")
    found = ask(tmp_path, lines=[*head, "-o logs/%x.out"], **where)
    assert found["why"].endswith(f"there is no folder {tmp_path}/logs")
    assert not ask(tmp_path, lines=[*head, "-o logs-%j/out"], **where)
    assert not ask(tmp_path, lines=[*head, "-o logs/%x.out"], **{**where, "folder": ""})
    assert not ask(tmp_path, lines=[*head, "-o logs/%x.out"], **{**where, "words": ["-o", "x"]})
    (tmp_path / "logs").mkdir()
    assert not ask(tmp_path, lines=[*head, "-o logs/%x.out"], **where)


@rows("system, lines, words, why", "requests.folders_that_nobody_has")
def test_folders_that_nobody_has(
    system: str, lines: list[str], words: list[str], why: str, tools: Path, tmp_path: Path
) -> None:
    """Of a script that comes from another machine."""
    assert ask(tmp_path, system, lines=lines, words=words).get("why", "") == why


@rows("resource, lines, says", "requests.resources_that_are_loads")
def test_resources_that_are_loads(
    resource: str, lines: list[str], says: bool, tools: Path, tmp_path: Path
) -> None:
    """`qsub -w v` looks at none, and knows none of them."""
    why = f'Job 1 cannot run in queue "q" because job requests unknown resource ({resource})'
    (tools / "qsub.says").write_text(f"Unable to run job: {why}\n")
    (tools / "qstat.says").write_text("\n".join(["queuename  qtype  states", *lines, ""]))
    assert (f"({resource})" in ask(tmp_path, "sge").get("why", "")) == says


def test_a_node_that_is_away_is_no_reason(tools: Path, tmp_path: Path) -> None:
    (tools / "sbatch.says").write_text(
        "allocation failure: Requested node configuration is not available"
    )
    assert ask(tmp_path)
    (tools / "sinfo.says").write_text("idle\ndrained\n")
    assert not ask(tmp_path)


def test_the_same_request_is_looked_at_once(tools: Path, tmp_path: Path) -> None:
    assert not ask(tmp_path)
    (tools / "sbatch.says").write_text("allocation failure: Invalid feature specification")
    assert not ask(tmp_path)
    assert ask(tmp_path, words=["-N1"])


def test_what_a_job_needs_is_there(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tools / "apptainer").symlink_to("sbatch")
    assert not ask(tmp_path, venv=f"{tmp_path}/env", container="docker://debian")
    assert "no such virtual environment" in ask(tmp_path, venv="/opt/none")["why"]
    assert "no such image" in ask(tmp_path, container="~/none.sif")["why"]
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "sh").write_text("module() { [ $2 = good ]; }\n")
    monkeypatch.setenv("MODULESHOME", str(tmp_path))
    assert not ask(tmp_path, modules=["good"])
    assert "the module bad cannot be loaded" in ask(tmp_path, modules=["good", "bad"])["why"]
