"""`torchrun …`, `accelerate launch …`, `mpirun …` as people write them: what they say about ranks
holds for the job, and clusterctl starts the ranks itself."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.job_model import PYTHONS
from clusterctl.jobs.launcher_options import LAUNCHERS, OtherLauncher
from clusterctl.user_variables import SECRET

_ALL = re.compile(r"auto|gpu|cpu|\d+:\d+")
"""As many ranks as a node has GPUs or cores, or as many nodes as there are: what clusterctl starts
unless told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the words of another launcher program ask for: a command, numbers by their names in
    JobSpec, variables, options of our mpirun, and those of a batch system that has this launcher.
    `launcher`: "" for words that are none of one. `local_rank`: as in Program."""

    launcher: str = ""
    command: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mpirun_args: tuple[str, ...] = ()
    native: Mapping[str, str] = field(default_factory=dict)
    local_rank: str = ""

    def limit_to(self, launcher: str, launchers: Sequence[str]) -> Asked:
        """Without what means nothing to `launcher`, which starts the ranks, or to a cluster with
        these launcher programs."""
        args = self.mpirun_args if launcher == "mpirun" else ()
        native = self.native if self.launcher in launchers else {}
        return replace(self, mpirun_args=args, native=native)

    @property
    def note(self) -> str:
        """For people: what became of the words."""
        texts = {
            "ranks": "--ranks",
            "ranks_per_node": "--ranks-per-node",
            "nodes": "--nodes",
            "retries": "--retries",
        }
        given = [f"{texts[name]} {value}" for name, value in self.sizes.items()]
        given += [f"--{name} {value}" for name, value in self.native.items()]
        given += [f"--mpirun-arg '{value}'" for value in self.mpirun_args]
        given += [f"--env {name}={value}" for name, value in self.env.items()]
        given += [f"{self.local_rank}=N for each rank"] * bool(self.local_rank)
        how = f", with {' '.join(given)}" if given else ""
        what = "ranks" if self.launcher in LAUNCHERS else "program"
        return f"clusterctl starts the {what} itself instead of {self.launcher}{how}"


_AROUND = ("uv", "poetry", "pdm", "pipenv")
"""`uv run …` starts something in a project's environment, which the nodes have without it."""
_UV_FLAGS = ("-s", "--script", "--frozen", "--locked", "--no-sync", "--no-dev", "-q", "--quiet")
"""Those that ask for what holds here anyway."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
_MODULES = {
    "torch.distributed.run": ("torchrun",),
    "torch.distributed.launch": ("torch.distributed.launch",),
    "accelerate.commands.launch": ("accelerate", "launch"),
}
"""Launchers that are started by `python -m`: once per rank, each would start ranks of its own."""


_STARTS = re.compile(
    r"""(?mx)^[ \t]*
    (?:exec[ \t]+|uv[ ]run[ \t]+|[A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|[^\s"'])*[ \t]+
      |python3?[ \t]+(?:-u[ \t]+)?-m[ \t]+)*
    (torchrun|accelerate[ ]launch|deepspeed|mpirun|mpiexec|horovodrun|srun
      |torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch)\s"""
)
_KNOWS = re.compile(r"MASTER_ADDR|OMPI_COMM_WORLD|CLUSTERCTL_|SLURM_")
"""In a script that starts a launcher as a part of a job."""


def find_launcher(script: str) -> str:
    """The launcher program that a shell script starts as if it were alone; "" without one."""
    found = _STARTS.search(re.sub(r"\\\n", " ", script))
    if found is None or _KNOWS.search(script):
        return ""
    return f"python -m {found[1]}" if "." in found[1] else found[1]


_OF_THIS_MACHINE = re.compile(r"(LD_LIBRARY_|LIBRARY_|PYTHON)?PATH|HOME|PYTHONHOME|VIRTUAL_ENV")
"""What `-x NAME` does not carry: nodes have paths of their own."""


def _read_variable(what: str, value: str) -> dict[str, str]:
    """NAME=VALUE, or NAME with the value that it has here, if it has one."""
    variable, is_set, text = value.partition("=")
    if SECRET.search(variable):  # only --env keeps it out of records
        raise UsageError(
            f"{what} {variable}: a secret has to be given to clusterctl",
            hint=f"clusterctl run --env {variable} ...",
        )
    if is_set:
        return {variable: text}
    if variable not in os.environ or _OF_THIS_MACHINE.fullmatch(variable):
        return {}
    return {variable: os.environ[variable]}


def translate(words: Sequence[str]) -> Asked:
    """Raises UsageError for an option that has no meaning here."""
    with suppress(OSError):  # a name that no file can have
        if not words or Path(words[0]).is_file():
            return Asked()
    if tuple(words[1:2]) == ("run",) and words[0] in _AROUND:
        rest = list(words[2:])
        while rest and rest[0] in _UV_FLAGS:
            rest.pop(0)
        if rest[:1] == ["--"]:
            rest.pop(0)
        elif rest[:1] in (["-m"], ["--module"]):
            rest[:1] = ["python", "-m"]
        if rest and rest[0].startswith("-"):
            raise UsageError(
                f"{words[0]} run {rest[0]} is not supported: nodes have the project's packages",
                hint="leave it out; `--requirements FILE` names other packages",
            )
        return _read_within(f"{words[0]} run", rest, {})
    start = int(words[0] == "env")
    end = next(
        (n for n, word in enumerate(words) if n >= start and not _ASSIGNMENT.fullmatch(word)),
        len(words),
    )
    if end > start:
        pairs = {k: v for word in words[start:end] for k, v in _read_variable("env", word).items()}
        return _read_within("env", words[end:], pairs)
    return _translate(_unwrap(words))


def _read_within(name: str, words: Sequence[str], env: Mapping[str, str]) -> Asked:
    """What `uv run` or `env` starts, which may be a launcher."""
    if not words:
        raise UsageError(f"{name}: nothing to run", hint="clusterctl run SCRIPT [ARGS...]")
    inner = translate(words)
    return replace(
        inner,
        launcher=inner.launcher or name,
        command=inner.command or tuple(words),
        env={**env, **inner.env},
    )


def _unwrap(words: Sequence[str]) -> list[str]:
    """`python -m torch.distributed.run …` as `torchrun …`."""
    plain = [word for n, word in enumerate(words) if n != 1 or word != "-u"]
    if plain[0] not in PYTHONS or plain[1:2] != ["-m"] or not set(plain[2:3]) & set(_MODULES):
        return list(words)
    return [*_MODULES[plain[2]], *plain[3:]]


def _translate(words: Sequence[str]) -> Asked:
    name = " ".join(words[: 1 + (words[:1] == ["accelerate"])])
    launcher = LAUNCHERS.get(name)
    if launcher is None:
        return Asked()
    reader = _Reader(name, launcher)
    rest = reader.read(words[len(name.split()) :])
    if not rest:
        raise UsageError(f"{name}: nothing to run", hint="clusterctl run SCRIPT [ARGS...]")
    if launcher.python:
        module = rest[0] in ("-m", "--module")
        rest = ["python", *(["-m", *rest[1:]] if module else rest)]
    return Asked(
        launcher=name,
        command=tuple(rest),
        sizes=reader.sizes,
        env=reader.env,
        mpirun_args=tuple(reader.mpirun_args),
        native=reader.native,
        local_rank=reader.local_rank,
    )


class _Reader:
    """Reads the options of a launcher, up to what it starts."""

    def __init__(self, name: str, launcher: OtherLauncher) -> None:
        self._name, self._launcher = name, launcher
        self._kinds = {
            **dict.fromkeys(launcher.ranks, "ranks"),
            **dict.fromkeys(launcher.per_node, "ranks_per_node"),
            **dict.fromkeys(launcher.nodes, "nodes"),
            **dict.fromkeys(launcher.retries, "retries"),
        }
        self.sizes: dict[str, int] = {}
        self.env: dict[str, str] = {}
        self.native: dict[str, str] = {}
        self.mpirun_args: list[str] = []
        self.local_rank = launcher.local_rank

    def read(self, words: Sequence[str]) -> list[str]:
        """What follows the options."""
        rest = list(words)
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "--module", "--"):
            given, equals, value = rest.pop(0).partition("=")
            option = given if given[:2] != "--" else given.replace("_", "-")
            if self._read_flag(option):
                continue
            # Open MPI takes its long options with one dash, too.
            long = option if option[:2] == "--" else f"-{option}"
            if long in self._launcher.mpirun:
                values = [value] if equals else []
                while len(values) < self._launcher.mpirun[long] and rest:
                    values.append(rest.pop(0))
                self.mpirun_args.append(shlex.join((long, *values)))
                continue
            self._require_known(option, given)
            if not equals:
                value = rest.pop(0) if rest else ""
            self._read_value(option, given, value)
        return rest[rest[:1] == ["--"] :]

    def _read_flag(self, option: str) -> bool:
        if option in self._launcher.no_local_rank:
            self.local_rank = ""
        elif option in self._launcher.env_flags:
            self.env |= [self._launcher.env_flags[option]]
        else:
            return option in self._launcher.does_flags
        return True

    def _require_known(self, option: str, given: str) -> None:
        launcher = self._launcher
        with_value = (*launcher.does, *launcher.env, *launcher.variables, *launcher.native)
        with_value += launcher.config
        if option not in self._kinds and option not in with_value:
            raise UsageError(
                f"{self._name} {given} is not supported: clusterctl starts the ranks itself",
                hint="clusterctl run [--ranks N] SCRIPT [ARGS...]; `run --help` lists the options",
            )

    def _read_value(self, option: str, given: str, value: str) -> None:
        kind = self._kinds.get(option, "")
        if option in self._launcher.env:
            self.env[self._launcher.env[option]] = value
        elif option in self._launcher.variables:
            self.env |= _read_variable(f"{self._name} {given}", value)
        elif option in self._launcher.config:
            self._read_config(Path(value))
        elif option in self._launcher.native:
            self.native[self._launcher.native[option]] = value
        elif kind and not _ALL.fullmatch(value):
            if not value.isdecimal() or not (int(value) or kind == "retries"):
                raise UsageError(
                    f"{self._name} {given} {value}: expected a number", hint=f"{given} 2"
                )
            self.sizes[kind] = int(value)

    def _read_config(self, path: Path) -> None:
        """What the command line says wins. Raises UsageError where the file asks for more than
        ranks, which only the launcher itself can do."""
        keys = _read_keys(path)
        kind = keys.get("distributed_type", "NO").upper()
        if kind not in _PLAIN:
            raise UsageError(
                f"{path} asks for {kind}, which {self._name} sets up and clusterctl does not",
                hint="let it start the ranks of each node: clusterctl run --ranks-per-node 1 -- sh"
                f" -c '{self._name} --config_file {path} --num_machines $WORLD_SIZE --machine_rank"
                " $RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT …'",
            )
        typed_sizes, typed_env = dict(self.sizes), dict(self.env)
        for key, value in keys.items():
            option = f"--{key.replace('_', '-')}"
            if option in self._launcher.env or self._kinds.get(option) == "ranks":
                self._read_value(option, f"{path}: {key}", value)
            elif option in self._launcher.env_flags and value.lower() == "true":
                self.env |= [self._launcher.env_flags[option]]
        self.sizes |= typed_sizes
        self.env |= typed_env


_PLAIN = ("NO", "MULTI_GPU", "MULTI_CPU")
"""What accelerate calls one process, or one for each GPU, and nothing beyond."""


def _read_keys(path: Path) -> dict[str, str]:
    """The plain values at the top of a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read", hint="check the path") from error
    pairs = re.findall(r"(?m)^(\w+):[ \t]*(.*?)[ \t]*(?:[ \t]#.*)?$", text)
    return {key: value.strip("'\"") for key, value in pairs if value and value != "null"}
