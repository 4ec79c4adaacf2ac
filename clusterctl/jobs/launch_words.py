"""`torchrun …`, `accelerate launch …`, `mpirun …` as people write them: what they say about ranks
holds for the job, and clusterctl starts the ranks itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.job_model import PYTHONS
from clusterctl.user_variables import SECRET


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launcher:
    """Its options, spelled with dashes. `does`: what clusterctl does by itself instead."""

    ranks: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    retries: tuple[str, ...] = ()
    does: tuple[str, ...] = ()
    does_flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Options that its programs find as variables."""
    env_flags: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The same for options without a value."""
    variables: tuple[str, ...] = ()
    """Options whose values are variables: `-x NAME=VALUE`, or `-x NAME` for one of this shell."""
    python: bool = True
    """It starts a Python script or, with -m, a module; else any command."""


_MEETING = ("--master-addr", "--master-port")
_MPIRUN = _Launcher(
    ranks=("-np", "--np", "-n"),
    does=("--hostfile", "-hostfile", "--machinefile", "--host", "-H"),
    does_flags=("--allow-run-as-root", "--oversubscribe"),
    variables=("-x",),
    python=False,
)
_LAUNCHERS: dict[str, _Launcher] = {
    # https://docs.pytorch.org/docs/stable/elastic/run.html
    "torchrun": _Launcher(
        per_node=("--nproc-per-node",),
        nodes=("--nnodes",),
        does=(
            *(*_MEETING, "--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
            *("--rdzv-conf", "--local-addr", "--monitor-interval", "--start-method"),
            *("-r", "--redirects", "-t", "--tee", "--log-dir"),
        ),
        retries=("--max-restarts",),
        does_flags=("--standalone",),
    ),
    # https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-launch
    "accelerate launch": _Launcher(
        ranks=("--num-processes",),
        nodes=("--num-machines",),
        does=("--machine-rank", "--main-process-ip", "--main-process-port", "--rdzv-backend"),
        does_flags=("--multi-gpu", "--same-network"),
        env={
            "--mixed-precision": "ACCELERATE_MIXED_PRECISION",
            "--num-cpu-threads-per-process": "OMP_NUM_THREADS",
        },
        env_flags={"--cpu": ("ACCELERATE_USE_CPU", "true")},
    ),
    # https://www.deepspeed.ai/getting-started/#launching-deepspeed-training
    "deepspeed": _Launcher(
        per_node=("--num-gpus",),
        nodes=("--num-nodes",),
        does=(*_MEETING, "-H", "--hostfile", "--launcher", "--node-rank"),
        does_flags=("--no-ssh",),
    ),
    "mpirun": _MPIRUN,
    "mpiexec": _MPIRUN,
    "horovodrun": _MPIRUN,
    "srun": _Launcher(
        ranks=("-n", "--ntasks"),
        per_node=("--ntasks-per-node",),
        nodes=("-N", "--nodes"),
        python=False,
    ),
}
_ALL = re.compile(r"auto|gpu|cpu|\d+:\d+")
"""As many ranks as a node has GPUs or cores, or as many nodes as there are: what clusterctl starts
unless told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the words of another launcher program ask for: a command, numbers by their names in
    JobSpec, and variables. `launcher`: "" for words that are none of one."""

    launcher: str = ""
    command: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

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
        given += [f"--env {name}={value}" for name, value in self.env.items()]
        how = f", with {' '.join(given)}" if given else ""
        what = "ranks" if self.launcher in _LAUNCHERS else "program"
        return f"clusterctl starts the {what} itself instead of {self.launcher}{how}"


_AROUND = ("uv", "poetry", "pdm", "pipenv")
"""`uv run …` starts something in a project's environment, which the nodes have without it."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
_MODULES = {
    "torch.distributed.run": ("torchrun",),
    "torch.distributed.launch": ("torchrun",),
    "accelerate.commands.launch": ("accelerate", "launch"),
}
"""Launchers that are started by `python -m`: once per rank, each would start ranks of its own."""


def _read_variable(what: str, value: str) -> tuple[str, str]:
    variable, is_set, text = value.partition("=")
    if SECRET.search(variable):  # only --env keeps it out of records
        raise UsageError(
            f"{what} {variable}: a secret has to be given to clusterctl",
            hint=f"clusterctl run --env {variable} ...",
        )
    return variable, text if is_set else os.environ.get(variable, "")


def translate(words: Sequence[str]) -> Asked:
    """Raises UsageError for an option that has no meaning here."""
    with suppress(OSError):  # a name that no file can have
        if not words or Path(words[0]).is_file():
            return Asked()
    if tuple(words[1:2]) == ("run",) and words[0] in _AROUND:
        rest = words[2 + (words[2:3] == ["--"]) :]
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
        pairs = dict(_read_variable("env", word) for word in words[start:end])
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
    module, rest = plain[2], plain[3:]
    if module == "torch.distributed.launch":
        if not {"--use_env", "--use-env"}.intersection(rest):
            raise UsageError(
                f"{module} gives the program an option --local-rank, which clusterctl does not",
                hint="let the program read LOCAL_RANK (or add --use-env, if it does): torchrun …",
            )
        rest = [word for word in rest if word not in ("--use_env", "--use-env")]
    return [*_MODULES[module], *rest]


def _translate(words: Sequence[str]) -> Asked:
    name = " ".join(words[: 1 + (words[:1] == ["accelerate"])])
    launcher = _LAUNCHERS.get(name)
    if launcher is None:
        return Asked()
    sizes: dict[str, int] = {}
    env: dict[str, str] = {}
    rest = list(words[len(name.split()) :])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "--module", "--"):
        given, equals, value = rest.pop(0).partition("=")
        option = given if given[:2] != "--" else given.replace("_", "-")
        if option in launcher.does_flags:
            continue
        if option in launcher.env_flags:
            env |= [launcher.env_flags[option]]
            continue
        kinds = {
            **dict.fromkeys(launcher.ranks, "ranks"),
            **dict.fromkeys(launcher.per_node, "ranks_per_node"),
            **dict.fromkeys(launcher.nodes, "nodes"),
            **dict.fromkeys(launcher.retries, "retries"),
        }
        kind = kinds.get(option, "")
        with_value = (*launcher.does, *launcher.env, *launcher.variables)
        if not kind and option not in with_value:
            raise UsageError(
                f"{name} {given} is not supported: clusterctl starts the ranks itself",
                hint="clusterctl run [--ranks N] SCRIPT [ARGS...]; `run --help` lists the options",
            )
        if not equals:
            value = rest.pop(0) if rest else ""
        if option in launcher.env:
            env[launcher.env[option]] = value
        elif option in launcher.variables:
            env |= [_read_variable(f"{name} {given}", value)]
        elif kind and not _ALL.fullmatch(value):
            if not value.isdecimal() or not (int(value) or kind == "retries"):
                raise UsageError(f"{name} {given} {value}: expected a number", hint=f"{given} 2")
            sizes[kind] = int(value)
    if rest[:1] == ["--"]:
        rest.pop(0)
    if not rest:
        raise UsageError(f"{name}: nothing to run", hint="clusterctl run SCRIPT [ARGS...]")
    if launcher.python:
        module = rest[0] in ("-m", "--module")
        rest = ["python", *(["-m", *rest[1:]] if module else rest)]
    return Asked(launcher=name, command=tuple(rest), sizes=sizes, env=env)
