"""The words of other launchers, as their documentation writes them, given to `run`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.launch.hostfile import drop_unknown_hosts, place
from clusterctl.project.words import Asked, fill, translate
from tests.unit.calling import Call
from tests.unit.making import cluster, node, spec
from tests.unit.scripts import write_program
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


@rows("text", "launch_words.ways_to_write_a_configuration_of_accelerate")
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
    with pytest.raises(UsageError, match="--use_fsdp is not supported") as caught:
        translate(["accelerate", "launch", "--use_fsdp", "t.py"])
    # A line without it would be read as accelerate's own again.
    assert "--machine_rank $RANK --main_process_ip $MASTER_ADDR" in str(caught.value.hint)


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


@rows("line, file, text, hint", "launch_words.a_task_is_named_with_its_command")
def test_a_task_is_named_with_its_command(
    line: str, file: str, text: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).write_text(text)
    (tmp_path / "src").mkdir()
    for folder in (tmp_path, tmp_path / "src"):
        monkeypatch.chdir(folder)
        with pytest.raises(
            UsageError, match=rf"is a task of .*{file}, and nodes have no "
        ) as caught:
            translate(line.split())
        assert caught.value.hint == hint
    runner = line.split()[:2]
    assert translate([*runner, "python", "t.py"]).command == ("python", "t.py")


@pytest.mark.parametrize("ahead", [(), ("--",)])
def test_a_run_has_the_ranks_that_the_words_say(
    ahead: tuple[str, ...], call: Call, lab: None
) -> None:
    words = ("run", "--dry-run", *ahead, "torchrun", "--nproc_per_node=3", "train.py", "--lr", "1")
    said = call(*words)
    note = "clusterctl starts the ranks itself instead of torchrun, with --ranks-per-node 3"
    assert f"# {note}\n" in said.out
    everywhere = "# torchrun names no number of nodes: 6 ranks on all 2; `run --nodes 1 …` uses one"
    assert everywhere in said.out
    assert "no number of nodes" not in call("run", "--nodes", "2", *words[1:]).out
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
    found = [note for note in said["notes"] if "itself, on each of 2 ranks" in note]
    assert [f"may start {launcher} itself" in note for note in found] == [True] * bool(launcher)


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
    write_program(Path("train.sh"), text)
    note = f"train.sh starts {launcher} itself, on each of 2 ranks"
    assert (note in call("run", "--dry-run", *words).out) == bool(launcher)
    assert "itself, on each" not in call("run", "--dry-run", "--once", *words).out
    for ahead in (["sh", "-c"], ["bash", "-lc"], ["bash", "--login", "-o", "pipefail", "-c"]):
        note = f"the command of {ahead[0]} -c starts {launcher} itself"
        said = call("run", "--dry-run", "--", *ahead, text)
        assert (note in said.out) == bool(launcher)


def test_a_makefile_that_starts_a_launcher_on_each_rank(call: Call, lab: None) -> None:
    rules = "\t@torchrun train.py\n\ntest: data\n\tpython t.py\n"
    Path("Makefile").write_text(f"all: train\n\ntrain: data\n\tcd .\n{rules}")
    note = "Makefile starts torchrun itself, on each of 2 ranks"
    for words, said in ((["train"], True), (["N=2", "train"], True), ([], True), (["test"], False)):
        assert (note in call("run", "--dry-run", "--", "make", *words).out) == said


# ------------------------------------------------------------------------------------------------
# Every option of other launchers: taken over, named as ignored, or refused with a way out.


CASES = Path(__file__).parents[1] / "cases" / "launchers"
"""One file for each version: `--a` has no value, `--a=` one, `--a==` two, `--a?` may have one."""
FILES = read_rows("launch_words", "files")
VALUES = read_rows("launch_words", "values")
"""By the option's name: a value that makes sense; else a number."""
PATHS = ("wdir", "wd", "chdir", "D")


def ask(words: list[str]) -> Asked | UsageError:
    try:
        return translate(words)
    except UsageError as error:
        return error


def choose_values(option: str, count: int) -> list[str]:
    name = option.lstrip("-").replace("_", "-")
    name = {"H": "host", "hosts": "host", "default-hostfile": "hostfile", "i": "include"}.get(
        name, name
    )
    value = os.getcwd() if name in PATHS else VALUES.get(name, "2")
    return [value, "1"][:count] if count < 2 else ["name", "value"]


def list_classes(asked: Asked, without: Asked) -> list[str]:
    """Of `taken` and `ignored`, which the words before the program are, by what they change."""
    changed = [
        name
        for name in ("command", "sizes", "hosts", "excluded", "env", "mpirun_args", "native")
        if getattr(asked, name) != getattr(without, name)
    ]
    changed += ["local_rank"] * (asked.local_rank != without.local_rank)
    return ["taken"] * bool(changed) + ["ignored"] * bool(asked.ignored)


def find_fault(launcher: str, line: str) -> str:
    """What is wrong about the outcome of the option in that line; "" for nothing."""
    option = line.rstrip("=?")
    values = choose_values(option, len(line) - len(option)) if line[-1] == "=" else []
    if launcher == "deepspeed" and option == "-H":
        values = ["hosts"]
    without = translate([*launcher.split(), "./prog", "2"])
    asked = ask([*launcher.split(), option, *values, "./prog", "2"])
    if isinstance(asked, UsageError):
        named = option in asked.message and not asked.message.startswith("unknown option")
        return "" if named and asked.hint else f"{asked.message}, {asked.hint}"
    if asked.command[-2:] != ("./prog", "2"):
        return f"starts {asked.command}"
    found = list_classes(asked, without)
    if len(found) != 1 and (found or option.lstrip("-") not in PATHS):
        return f"is {found}"
    if found == ["ignored"] and f"ignored: {option}" not in asked.note:
        return asked.note
    if option[:2] == "--" and (line[-1] == "?" or len(values) == 1):
        joined = ask([*launcher.split(), f"{option}={''.join(values) or 2}", "./prog", "2"])
        if not isinstance(joined, Asked) or list_classes(joined, without) != found:
            return f"with =: {joined}"
    return ""


@pytest.mark.parametrize("name", FILES)
def test_every_option_is_in_one_class(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("worker-1 slots=2\n")
    Path("accelerate.yaml").write_text("num_processes: 2\n")
    about, *lines = CASES.joinpath(name).read_text().splitlines()
    assert about.startswith("# ")
    faults = {line: find_fault(FILES[name], line) for line in lines}
    assert {line: fault for line, fault in faults.items() if fault} == {}


# ------------------------------------------------------------------------------------------------
# How many ranks there are, and on which nodes: `run` beside the words of other launchers.


FOUR = cluster(
    node("launcher", "10.0.0.10"),
    *(node(f"worker-{n}", f"10.0.0.1{n}", hostname=f"ip-1{n}.internal") for n in range(1, 5)),
    provider="local",
)


def count_ranks(
    line: str, own: dict[str, Any] | None = None, settings: tuple[str, ...] = ()
) -> str:
    """`1 2` for one rank on worker-1 and two on worker-2; `worker-3:1` for others, in order. There
    is no Slurm."""
    asked = translate(line.split()).limit_to("mpirun", ("mpirun", "torchrun"))
    found, _ = fill(asked, spec(**own or {}), settings, FOUR)
    placed = [(item.node, item.count) for item in place(FOUR, found)]
    if [name for name, _ in placed] == [f"worker-{n}" for n in range(1, len(placed) + 1)]:
        return " ".join(str(number) for _, number in placed)
    return " ".join(f"{name}:{number}" for name, number in placed)


OWN_PER_NODE = read_rows("launch_words", "own_per_node")
NODES = read_rows("launch_words", "nodes")
RANKS = ("accelerate launch --num_processes 4 t.py", "mpirun -np 4 ./a", "srun -n4 ./a")


@pytest.mark.parametrize("line", OWN_PER_NODE)
def test_ranks_on_each_node(line: str) -> None:
    assert count_ranks(line) == "2 2 2 2"
    assert count_ranks(line, {"nodes": 2}) == "2 2"
    assert count_ranks(line, {"ranks": 4}) == "2 2"
    assert count_ranks(line, {"ranks_per_node": 2, "nodes": 1}) == "2"
    assert count_ranks(line, {"ranks_per_node": 4}, ("ranks_per_node",)) == "2 2 2 2"
    assert count_ranks(line, {"ranks": 3, "nodes": 1}, ("ranks", "nodes")) == "2"
    assert count_ranks(line, {"hosts": ("worker-3",)}) == "worker-3:2"
    for own, word in (({"ranks_per_node": 3}, "--ranks-per-node 3"), ({"ranks": 3}, "--ranks 3")):
        with pytest.raises(UsageError, match=word):
            count_ranks(line, {"nodes": 2, **own})


@pytest.mark.parametrize("line", NODES)
def test_nodes(line: str) -> None:
    assert count_ranks(line) == "1 1"
    assert count_ranks(line, {"ranks": 6}) == "3 3"
    assert count_ranks(line, {"ranks_per_node": 3}) == "3 3"
    assert count_ranks(line, {"nodes": 3}, ("nodes",)) == "1 1"
    assert count_ranks(line, {"hosts": ("worker-3",)}, ("nodes",)) == "1 1"
    assert count_ranks(line, {"hosts": ("worker-3", "worker-2")}) == "worker-3:1 worker-2:1"
    for own in ({"nodes": 3}, {"hosts": ("worker-1",)}):
        with pytest.raises(UsageError, match=r"--nodes [13] and .* 2|-N2 contradict") as caught:
            count_ranks(line, own)
        assert line.split()[0] in caught.value.message
    with pytest.raises(UsageError, match="--nodes 2: only 1 rank"):
        count_ranks(line, {"ranks": 1})


@pytest.mark.parametrize("line", RANKS)
def test_ranks(line: str) -> None:
    assert count_ranks(line) == "1 1 1 1"
    assert count_ranks(line, {"nodes": 2}) == "2 2"
    assert count_ranks(line, {"ranks_per_node": 2}) == "2 2"
    assert count_ranks(line, {"ranks": 2}, ("ranks",)) == "1 1 1 1"
    assert count_ranks(line, {"ranks_per_node": 3}, ("ranks_per_node",)) == "1 1 1 1"
    assert count_ranks(line, {"nodes": 2}, ("nodes",)) == "2 2"
    with pytest.raises(UsageError, match=r"--ranks 2 and .*4 contradict each other"):
        count_ranks(line, {"ranks": 2})
    with pytest.raises(UsageError, match="--ranks 4 is not --ranks-per-node 3 x 2 nodes"):
        count_ranks(line, {"ranks_per_node": 3, "nodes": 2})


@pytest.mark.parametrize("case", read_rows("launcher-lines", "placed"), ids=itemgetter("words"))
def test_nodes_that_the_words_choose(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("# mine\nworker-3 slots=2 max_slots=4\n\n10.0.0.11 slots=1\n")
    Path("lines").write_text("worker-2:2\nworker-4:1\n")
    if case["counts"]:
        assert count_ranks(case["words"], case["own"]) == case["counts"]
        return
    with pytest.raises(UsageError) as caught:
        count_ranks(case["words"], case["own"])
    assert caught.value.hint


def test_nodes_by_name(call: Call, lab: None) -> None:
    words = ("run", "--json", "--dry-run", "--nodes", "worker-2", "--ranks", "3", "train.py")
    assert call(*words).document["placement"] == {"worker-2": [0, 1, 2]}
    said = call("run", "--dry-run", "--nodes", "worker-2,nope", "train.py")
    assert said.code == 2
    assert "cluster 'lab' has no worker nope" in said.err
    assert "worker-1, worker-2" in said.err
    assert call("run", "--dry-run", "--nodes", "worker 1", "train.py").code == 2


def test_a_foreign_line(call: Call, lab: None) -> None:
    line = "mpirun -np 2 -H {} -x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=1234 -x A=1 python train.py"
    said = call("run", "--dry-run", *line.format("10.9.9.1,10.9.9.2").split())
    assert said.code == 2
    assert "no worker 10.9.9.1" in said.err
    words = ("run", "--dry-run", *line.format("worker-1,worker-2").split())
    plan = call(*words[:1], "--json", *words[1:]).document
    assert (plan["env"]["A"], "MASTER_PORT" in plan["env"]) == ("1", False)
    assert plan["env"]["MASTER_ADDR"] != "10.0.0.1"
    note = "ignored: -x MASTER_ADDR=10.0.0.1, -x MASTER_PORT=1234\n"
    assert f"with --nodes worker-1,worker-2 --ranks 2 --env A=1; {note}" in call(*words).out


def test_networks_of_other_machines(call: Call, lab: None) -> None:
    line = "mpirun -x NCCL_SOCKET_IFNAME=ens9 -x GLOO_SOCKET_IFNAME=eth0 python train.py"
    said = call("run", "--dry-run", *line.split())
    assert "with --env GLOO_SOCKET_IFNAME=eth0; ignored: NCCL_SOCKET_IFNAME=ens9\n" in said.out


def test_a_launcher_as_a_module(call: Call, lab: None) -> None:
    words = ("run", "--json", "--dry-run", "-m", "torch.distributed.run", "--nproc_per_node", "2")
    plan = call(*words, "train.py", "-m").document
    assert plan["placement"] == {"worker-1": [0, 1], "worker-2": [2, 3]}
    assert plan["programs"]["worker-1"] == ["/opt/py/bin/python", "train.py", "-m"]


def test_settings_are_weaker_than_the_words(call: Call, lab: None) -> None:
    words = ("run", "--json", "--dry-run", "mpirun", "-np", "4", "-x", "A=1", "python", "train.py")
    settings = '[run]\nranks_per_node = 3\nnodes = "worker-2"\nenv = ["A=2", "B=2"]\n'
    Path("clusterctl.toml").write_text(settings)
    plan = call(*words).document
    assert plan["placement"] == {"worker-2": [0, 1, 2, 3]}
    assert (plan["env"]["A"], plan["env"]["B"]) == ("1", "2")
    said = call(*words[:3], "--env", "A=3", *words[3:])
    assert (said.code, "--env A=3 and mpirun with A=1 contradict" in said.err) == (2, True)
    said = call(*words[:3], "--once", *words[3:])
    assert (said.code, "--once cannot be combined with mpirun -np 4" in said.err) == (2, True)


def test_options_for_mpirun(call: Call, lab: None) -> None:
    words = ("run", "--json", "--dry-run", "mpirun", "-mca", "pml", "ucx", "python", "train.py")
    argv = " ".join(call(*words).document["argv"])
    assert "--mca pml_ucx_tls any --mca pml_ucx_devices any" in argv
    assert "--mca pml ob1" not in argv
    words = ("run", "--dry-run", "mpirun", "-np", "2", "--mca", "btl_tcp_if_include", "ib9")
    said = call(*words, "python", "train.py")
    assert (said.code, "has no network ib9" in said.err) == (2, True)
    words = ("run", "--json", "--dry-run", "mpirun", "--map-by", "node:pe=1", "python", "train.py")
    argv = call(*words).document["argv"]
    assert "slot:pe=1" in argv
    assert "none" not in argv
    argv = call(*words[:5], "core:oversubscribe", *words[6:]).document["argv"]
    assert "core:NOOVERSUBSCRIBE" in argv


def test_parameters_of_mpirun_that_contradict_options_of_run() -> None:
    line, own = "mpirun --mca pml cm --mca btl self ./a", {"mpirun_args": ("--mca pml ob1",)}
    with pytest.raises(UsageError, match="--mpirun-arg '--mca pml ob1' and mpirun --mca pml cm"):
        count_ranks(line, own)
    found, _ = fill(translate(line.split()), spec(**own), ("mpirun_args",), FOUR)
    assert found.mpirun_args == ("--mca pml cm", "--mca btl self")


def test_nodes_that_another_cluster_does_not_have() -> None:
    known = spec(hosts=("worker-1", "worker-4"), ranks=4)
    assert drop_unknown_hosts(known, FOUR) == (known, "")
    found, note = drop_unknown_hosts(spec(hosts=("worker-9", "worker-1", "worker-1")), FOUR)
    assert (found.hosts, found.nodes) == ((), 2)
    assert "--nodes 2 instead of worker-9,worker-1" in note
    short = node("gpu-1.site.org", "10.0.0.20", hostname="ip-20.internal")
    assert drop_unknown_hosts(spec(hosts=("gpu-1",)), cluster(FOUR.launcher, short))[1] == ""
