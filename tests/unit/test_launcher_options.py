"""Every option of other launchers: taken over, named as ignored, or refused with a way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.project.words import Asked, translate

CASES = Path(__file__).parents[1] / "cases" / "launchers"
"""One file for each version: `--a` has no value, `--a=` one, `--a==` two, `--a?` may have one."""
FILES = {
    "openmpi-4.1.4.txt": "mpirun",
    "openmpi-5.0.11.txt": "mpirun",
    "torch-2.13.0.txt": "torchrun",
    "slurm-22.05.8.txt": "srun",
    "accelerate-1.15.0.txt": "accelerate launch",
    "deepspeed-0.19.8.txt": "deepspeed",
    "horovod-0.28.1.txt": "horovodrun",
}
VALUES = {
    "hostfile": "hosts",
    "machinefile": "hosts",
    "config-file": "accelerate.yaml",
    "map-by": "slot",
    "host": "worker-1",
    "set-env": "A=1",
    "x": "A=1",
    "export": "A=1",
    "include": "worker-1",
}
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
