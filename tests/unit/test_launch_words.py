"""The words of other launchers, as their documentation writes them, given to `run`."""

from __future__ import annotations

import json
import shlex
import subprocess
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.project.words import translate
from tests.unit.calling import Call
from tests.unit.tables import read_rows, rows

PER_NODE = {"ranks_per_node": 2}


@pytest.mark.parametrize("case", read_rows("launcher-lines", "translated"), ids=itemgetter("line"))
def test_what_people_write(case: dict[str, Any]) -> None:
    asked = translate(shlex.split(case["line"]))
    assert shlex.join(asked.command) == case["command"]
    assert asked.sizes == case["sizes"]


def test_what_programs_find_as_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = translate(["accelerate", "launch", "--cpu", "--mixed_precision", "bf16", "t.py"])
    assert asked.env == {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}
    monkeypatch.setenv("OTHER", "o")
    asked = translate(["mpirun", "-x", "MINE=a=b", "-x", "OTHER", "-np", "2", "./a"])
    assert (asked.env, asked.sizes) == ({"MINE": "a=b", "OTHER": "o"}, {"ranks": 2})


# As `accelerate config` writes it.
CONFIG = """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: {kind}
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: {precision}
num_machines: 1
num_processes: 8
use_cpu: false
fsdp_config:
  num_processes: 3
"""


def test_the_configuration_of_accelerate(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(CONFIG.format(kind="MULTI_GPU", precision="bf16"))
    asked = translate(["accelerate", "launch", "--config_file", str(file), "t.py"])
    assert (asked.command, asked.sizes) == (("python", "t.py"), {"ranks": 8})
    assert asked.env == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    words = ["--num_processes", "2", "--mixed_precision=no", "--config_file", str(file), "t.py"]
    for line in (words, [*words[3:5], *words[:3], "t.py"]):
        asked = translate(["accelerate", "launch", *line])
        assert (asked.sizes, asked.env) == ({"ranks": 2}, {"ACCELERATE_MIXED_PRECISION": "no"})


@pytest.mark.parametrize(
    "text",
    [
        '{"num_processes": 3, "use_cpu": true, "dynamo_config": {"dynamo_backend": "INDUCTOR"}}',
        "---\r\nnum_processes: 3\r\nuse_cpu: true # yes\r\ndynamo_config:\r\n"
        "  dynamo_backend: INDUCTOR\r\n  dynamo_mode: default\r\n",
    ],
)
def test_ways_to_write_a_configuration_of_accelerate(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text.encode())
    asked = translate(["accelerate", "launch", "--config_file", str(file), "t.py"])
    assert asked.sizes == {"ranks": 3}
    wanted = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}
    assert asked.env.items() >= wanted.items()


def test_the_configuration_that_accelerate_finds_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.parent.mkdir()
    file.write_text(CONFIG.format(kind="MULTI_GPU", precision="bf16"))
    asked = translate(["accelerate", "launch", "t.py"])
    assert (asked.sizes, asked.env) == ({}, {"ACCELERATE_MIXED_PRECISION": "bf16"})
    assert f"num_processes in {file}" in asked.ignored  # of this machine
    file.write_text(CONFIG.format(kind="FSDP", precision="bf16"))
    with pytest.raises(UsageError, match=r"default_config\.yaml asks for FSDP"):
        translate(["accelerate", "launch", "t.py"])
    assert translate(["accelerate", "launch", "--multi_gpu", "t.py"]).env == asked.env
    assert translate(["accelerate", "launch", "--cpu", "t.py"]).ignored == ()


def test_a_configuration_of_accelerate_that_asks_for_more(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    with pytest.raises(UsageError, match=r"a\.yaml cannot be read"):
        translate(["accelerate", "launch", "--config_file", str(file), "t.py"])
    file.write_text(CONFIG.format(kind="FSDP", precision="'no'"))
    with pytest.raises(UsageError, match=r"a\.yaml asks for FSDP") as caught:
        translate(["accelerate", "launch", "--config_file", str(file), "t.py"])
    assert "--ranks-per-node 1 -- sh -c 'accelerate launch" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME"])
def test_paths_of_this_machine_stay_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/here")
    assert translate(["mpirun", "-x", name, "./a"]).env == {}
    assert translate(["mpirun", "-x", f"{name}=/there", "./a"]).env == {name: "/there"}


def test_a_variable_that_is_not_set_here_is_not_set_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # "" would hide all GPUs
    assert translate(["mpirun", "-x", "CUDA_VISIBLE_DEVICES", "./a"]).env == {}


def test_mapping_and_parameters_of_mpirun_are_passed_on(call: Call, lab: None) -> None:
    # As Horovod's documentation writes it.
    line = "mpirun -np 2 -bind-to none --map-by=slot -x A=1 -mca pml ob1 -mca btl ^openib t.py"
    asked = translate(line.split())
    passed = ("--bind-to none", "--map-by slot", "--mca pml ob1", "--mca btl '^openib'")
    assert asked.mpirun_args == passed
    words = line.replace("t.py", "python train.py").split()
    argv = " ".join(call("run", "--json", "--dry-run", *words).document["argv"])
    assert "--map-by slot" in argv
    assert "--mca btl ^openib" in argv
    assert call("run", "--dry-run", "--launcher", "torchrun", *words).code == 0


def test_options_of_srun_are_for_slurm(call: Call, lab: None) -> None:
    line = "srun -p gpu --gres=gpu:8 -n 2 --kill-on-bad-exit=1 -c 4 --label python train.py"
    asked = translate(line.split())
    assert asked.native == {"partition": "gpu", "gres": "gpu:8", "cpus-per-task": "4"}
    assert asked.limit_to("mpirun", ("mpirun", "torchrun")).native == {}
    assert asked.limit_to("auto", ("auto", "mpirun", "srun")).native == asked.native
    said = call("run", "--dry-run", *line.split())
    assert "instead of srun, with --ranks 2; ignored: " in said.out
    for word in ("-p gpu", "--gres gpu:8", "--kill-on-bad-exit", "-c 4", "--label"):
        assert word in said.out


@rows("line, option", "launch_words.a_program_gets_its_local_rank_as_its_launcher_gives_it")
def test_a_program_gets_its_local_rank_as_its_launcher_gives_it(
    line: str, option: str, call: Call, lab: None
) -> None:
    plan = call("run", "--json", "--dry-run", *line.split()).document
    program = plan["programs"]["worker-1"]
    if not option:
        assert program == ["/opt/py/bin/python", "train.py", "--lr", "1"]
        return
    show = ['python() { echo "$@"; }', program[2].replace("exec /opt/py/bin/python", "python")]
    shown = subprocess.run(
        [*program[:2], "\n".join(show), *program[3:]],
        env={"LOCAL_RANK": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == f"train.py {option}=3 --lr 1\n"
    assert f"{option}=N for each rank" in call("run", "--dry-run", *line.split()).out


def test_variables_before_a_command_are_given_to_the_ranks() -> None:
    line = "OMP_NUM_THREADS=1 A=b=c torchrun --nproc_per_node 2 t.py C=d"
    for words in (line.split(), ["env", *line.split()]):
        asked = translate(words)
        assert asked.env == {"OMP_NUM_THREADS": "1", "A": "b=c"}
        assert (asked.command, asked.sizes) == (("python", "t.py", "C=d"), PER_NODE)
    assert translate(["A=1", "t.py"]).note.endswith("instead of env, with --env A=1")


@rows("line", "launch_words.words_that_start_no_launcher")
def test_words_that_start_no_launcher(line: str) -> None:
    assert translate(line.split()).launcher == ""


def test_what_became_of_words_before_and_behind_a_launcher() -> None:
    note = translate(["sudo", "-E", "timeout", "60", "mpirun", "-np", "4", "./a"]).note
    assert note.endswith("mpirun, with --ranks 4, each rank behind timeout 60; ignored: sudo -E")
    asked = translate(["srun", "-c", "8", "torchrun", "--nproc_per_node=2", "--rdzv_id=7", "t.py"])
    assert "instead of srun and torchrun" in asked.note
    assert set(asked.ignored) == {"-c 8", "--rdzv_id 7"}


@pytest.mark.parametrize("case", read_rows("launcher-lines", "refused"), ids=itemgetter("line"))
def test_what_has_no_meaning_here(case: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=case["message"]):
        translate(case["line"].split())


@pytest.mark.parametrize("ahead", [(), ("--",)])
def test_a_run_has_the_ranks_that_the_words_say(
    ahead: tuple[str, ...], call: Call, lab: None
) -> None:
    words = ("run", "--dry-run", *ahead, "torchrun", "--nproc_per_node=3", "train.py", "--lr", "1")
    said = call(*words)
    note = "clusterctl starts the ranks itself instead of torchrun, with --ranks-per-node 3"
    assert f"# {note}\n" in said.out
    plan = call(*words[:1], "--json", *words[1:]).document
    assert plan["placement"] == {"worker-1": [0, 1, 2], "worker-2": [3, 4, 5]}
    assert plan["programs"]["worker-1"] == ["/opt/py/bin/python", "train.py", "--lr", "1"]


def test_once(call: Call, lab: None) -> None:
    plan = json.loads(call("run", "--json", "--dry-run", "--once", "--", "hostname").out)
    assert plan["placement"] == {"worker-1": [0]}
    said = call("run", "--once", "--ranks", "2", "train.py")
    assert (said.code, "--once cannot be combined with --ranks" in said.err) == (2, True)


def test_words_that_only_one_process_can_have_before_a_launcher(call: Call, lab: None) -> None:
    for words in (["strace", "-f", "mpirun", "-np", "2", "./a"], ["sh", "-c", "mpirun -np 2 ./a"]):
        plan = json.loads(call("run", "--json", "--dry-run", "--once", "--", *words).out)
        assert plan["programs"]["worker-1"] == words
    said = call("run", "--dry-run", "--", "strace", "-f", "mpirun", "-np", "2", "./a")
    assert "clusterctl run --ranks 2 -- strace -f ./a" in said.err


@rows("line, launcher", "launch_words.a_launcher_behind_a_command_that_is_not_known")
def test_a_launcher_behind_a_command_that_is_not_known(
    line: str, launcher: str, call: Call, lab: None
) -> None:
    said = call("run", "--json", "--dry-run", "--", *line.split()).document
    assert said["programs"]["worker-1"][1:] == line.split()[1:]
    assert any(
        f"starts {launcher} itself" in n or f"start {launcher} itself" in n for n in said["notes"]
    ) == bool(launcher)


TORCHRUN = """#!/usr/bin/env bash
# mpirun is not what this uses
GPUS=$1
PYTHONPATH="$(dirname $0)/..":$PYTHONPATH \\
python -m torch.distributed.launch --nproc_per_node=$GPUS \\
    train.py ${@:2}
"""


RUNNER = "python -m deepspeed.launcher.runner"


@pytest.mark.parametrize(
    ("text", "launcher"),
    [
        (TORCHRUN, "python -m torch.distributed.launch"),
        ("set -e\n  OMP_NUM_THREADS=1 torchrun --nproc_per_node 8 train.py\n", "torchrun"),
        ("accelerate launch train.py\n", "accelerate launch"),
        ("cd a; /b/python3.11 -W x -um deepspeed.launcher.runner t.py\n", RUNNER),
        ("python train.py --deepspeed ds.json\n", ""),
        ("# torchrun train.py\npython train.py\n", ""),
        ("cd code && mpirun -np 4 ./a\n", "mpirun"),
        ("time timeout -k 5 60 /opt/bin/mpirun.openmpi ./a | tee log\n", "mpirun.openmpi"),
        ("torchrun --nnodes 2 --node_rank $RANK --master_addr $MASTER_ADDR train.py\n", ""),
    ],
)
@pytest.mark.parametrize("words", [["bash", "train.sh", "8"], ["./train.sh"]])
def test_a_script_that_starts_a_launcher_on_each_rank(
    words: list[str], text: str, launcher: str, call: Call, lab: None
) -> None:
    path = Path("train.sh")
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    note = f"train.sh starts {launcher} itself, on each of 2 ranks"
    assert (note in call("run", "--dry-run", *words).out) == bool(launcher)
    assert "itself, on each" not in call("run", "--dry-run", "--once", *words).out
    for ahead in (["sh", "-c"], ["bash", "-lc"], ["bash", "--login", "-o", "pipefail", "-c"]):
        note = f"the command of {ahead[0]} -c starts {launcher} itself"
        said = call("run", "--dry-run", "--", *ahead, text)
        assert (note in said.out) == bool(launcher)
