"""The words of other launchers, as their documentation writes them, given to `run`."""

from __future__ import annotations

import json

import pytest

from clusterctl.errors import UsageError
from clusterctl.jobs.launch_words import translate
from tests.unit.calling import Call

PER_NODE = {"ranks_per_node": 2}


@pytest.mark.parametrize(
    ("line", "command", "sizes"),
    [
        ("torchrun train.py --lr 1", "python train.py --lr 1", {}),
        (
            "torchrun --nproc_per_node=4 --nnodes 2 --rdzv_backend c10d --rdzv-endpoint=h:1 t.py",
            "python t.py",
            {"ranks_per_node": 4, "nodes": 2},
        ),
        ("torchrun --standalone --nproc-per-node gpu -m pkg.train 5", "python -m pkg.train 5", {}),
        ("torchrun --nnodes 1:4 --max-restarts=3 --tee 3 t.py", "python t.py", {"retries": 3}),
        ("deepspeed --hostfile=h --no_ssh t.py", "python t.py", {}),
        ("accelerate launch --multi_gpu --num_processes 8 t.py", "python t.py", {"ranks": 8}),
        (
            "deepspeed --num_gpus 2 t.py --deepspeed",
            "python t.py --deepspeed",
            {"ranks_per_node": 2},
        ),
        ("deepspeed --module pkg.train", "python -m pkg.train", {}),
        ("mpirun -np 4 --hostfile ~/hostfile python t.py 1", "python t.py 1", {"ranks": 4}),
        ("mpiexec --oversubscribe -n 4 -- ./solver", "./solver", {"ranks": 4}),
        ("python -m torch.distributed.run --nproc_per_node=2 t.py 1", "python t.py 1", PER_NODE),
        (
            "python3 -u -m torch.distributed.launch --use_env --nproc_per_node 2 t.py",
            "python t.py",
            PER_NODE,
        ),
        (
            "python -m accelerate.commands.launch --num_processes 8 t.py",
            "python t.py",
            {"ranks": 8},
        ),
        ("uv run t.py --lr 1", "t.py --lr 1", {}),
        ("uv run -- torchrun --nproc_per_node 2 t.py", "python t.py", PER_NODE),
        ("poetry run python t.py", "python t.py", {}),
        ("srun -N 2 --ntasks-per-node=8 ./a", "./a", {"nodes": 2, "ranks_per_node": 8}),
    ],
)
def test_what_people_write(line: str, command: str, sizes: dict[str, int]) -> None:
    asked = translate(line.split())
    assert " ".join(asked.command) == command
    assert asked.sizes == sizes


def test_what_programs_find_as_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = translate(["accelerate", "launch", "--cpu", "--mixed_precision", "bf16", "t.py"])
    assert asked.env == {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}
    monkeypatch.setenv("OTHER", "o")
    asked = translate(["mpirun", "-x", "MINE=a=b", "-x", "OTHER", "-np", "2", "./a"])
    assert (asked.env, asked.sizes) == ({"MINE": "a=b", "OTHER": "o"}, {"ranks": 2})


def test_variables_before_a_command_are_given_to_the_ranks() -> None:
    line = "OMP_NUM_THREADS=1 A=b=c torchrun --nproc_per_node 2 t.py C=d"
    for words in (line.split(), ["env", *line.split()]):
        asked = translate(words)
        assert asked.env == {"OMP_NUM_THREADS": "1", "A": "b=c"}
        assert (asked.command, asked.sizes) == (("python", "t.py", "C=d"), PER_NODE)
    assert translate(["A=1", "t.py"]).note.endswith("instead of env, with --env A=1")


@pytest.mark.parametrize("line", ["env", "uv pip list", "python -m pkg A=1", "x" * 5000])
def test_other_words_are_left_as_they_are(line: str) -> None:
    assert translate(line.split()).launcher == ""


@pytest.mark.parametrize("line", ["accelerate env", "train.py", "nvidia-smi -L", "", "python t.py"])
def test_what_is_no_launcher(line: str) -> None:
    assert translate(line.split()).launcher == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("HF_TOKEN=abc python t.py", "env HF_TOKEN: a secret has to be given to clusterctl"),
        ("python -m torch.distributed.launch t.py", "gives the program an option --local-rank"),
        ("uv run --with rich t.py", "uv run --with is not supported"),
        ("uv run", "uv run: nothing to run"),
        ("mpirun -x HF_TOKEN ./a", "mpirun -x HF_TOKEN: a secret has to be given to clusterctl"),
        ("mpirun --tag-output ./a", "mpirun --tag-output is not supported"),
        ("accelerate launch --use_fsdp t.py", "accelerate launch --use_fsdp is not supported"),
        ("torchrun --nnodes few t.py", "torchrun --nnodes few: expected a number"),
        ("mpirun -np", "expected a number"),
        ("torchrun --standalone", "torchrun: nothing to run"),
    ],
)
def test_what_has_no_meaning_here(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        translate(line.split())


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


def test_options_of_run_win(call: Call, lab: None) -> None:
    words = ("--json", "--dry-run", "--ranks", "2", "mpirun", "-np", "8", "python", "train.py")
    plan = json.loads(call("run", *words).out)
    assert plan["placement"] == {"worker-1": [0], "worker-2": [1]}


def test_once(call: Call, lab: None) -> None:
    plan = json.loads(call("run", "--json", "--dry-run", "--once", "--", "hostname").out)
    assert plan["placement"] == {"worker-1": [0]}
    said = call("run", "--once", "--ranks", "2", "train.py")
    assert (said.code, "--once cannot be combined with --ranks" in said.err) == (2, True)
