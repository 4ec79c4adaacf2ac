"""`torchrun …`, `accelerate launch …`, `mpirun …` as people write them: what they say about ranks
holds for the job, and clusterctl starts the ranks itself."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core.job import PYTHONS, SHELLS, JobSpec
from clusterctl.core.model import Cluster
from clusterctl.core.text import MAX_HOST_LINE, parse_yaml, read_input, read_toml
from clusterctl.core.variables import OURS, RANKS, SECRET, STARTERS, read_variables
from clusterctl.errors import UsageError
from clusterctl.launch.hostfile import deal, find_workers
from clusterctl.project.launchers import (
    IGNORED,
    REFUSED,
    OtherLauncher,
    Rule,
    Wrapper,
    load_launchers,
    load_tables,
    load_wrappers,
)

# -------------------------------------------------------------------------------------------------
# Hosts in the words of other launchers: lists, files, and what they come to on a cluster.


MOST_HOSTS = 10_000
"""Names that are read of a list with ranges: `node[1-999999999]` is a mistake."""


class NamedHost(NamedTuple):
    """`slots`: how many ranks it may have; 0: that is not said."""

    name: str
    slots: int = 0


_HOST = re.compile(r"(?:\[([^]]+)\]|([^:\s]+))(?::(\d+|\*))?")


def read_list(text: str, typed: str) -> tuple[NamedHost, ...]:
    """`a,b`, `a:2,b:*`, or `a,a,b`, as mpirun's -H has it. IPv6 addresses may be in brackets."""
    found = []
    for item in filter(None, text.split(",")):
        host = item.rpartition("@")[2]
        match = _HOST.fullmatch(host)
        bracketed, name, slots = match.groups("") if match else ("", host, "")
        found.append(NamedHost(bracketed or name, int(slots) if slots.isdecimal() else 0))
    return _require(found, typed)


def read_file(text: str, typed: str) -> tuple[NamedHost, ...]:
    """Open MPI's `a slots=2 max_slots=4`, MPICH's `a:2`, and a line for each slot."""
    path = Path(text).expanduser()
    hint = "check the path, or leave it out: clusterctl knows the nodes"
    text = read_input(path, f"{typed} (the file {path})", hint=hint, max_line=MAX_HOST_LINE)
    found: list[NamedHost] = []
    for line in text.splitlines():
        name, *more = line.partition("#")[0].split() or [""]
        slots = [word.removeprefix("slots") for word in more if word.startswith("slots=")]
        if name:
            found += read_list(name + "".join(slots[-1:]).replace("=", ":"), typed)
    return _require(found, typed)


def read_included(text: str, typed: str) -> tuple[NamedHost, ...]:
    """DeepSpeed's `a@b:0,1`: the numbers are GPUs."""
    found = []
    for item in filter(None, text.split("@")):
        name, colon, numbers = item.partition(":")
        given = set(numbers.split(",")) if colon else set()
        if given != {str(n) for n in range(len(given))}:
            raise UsageError(
                f"{typed}: {item} chooses GPUs by their numbers", hint=f"{name}, or {name}:0,1"
            )
        found.append(NamedHost(name, len(given)))
    return _require(found, typed)


def read_nodelist(text: str, typed: str) -> tuple[NamedHost, ...]:
    """Slurm's `a,b[1-3,5]`, or a file of names where there is a `/`."""
    if "/" in text:
        return read_file(text, typed)
    items = re.findall(r"(?:\[[^]]*\]|[^,\[])+", text)
    names = islice((name for item in items for name in _expand(item)), MOST_HOSTS)
    return tuple(NamedHost(name) for name in dict.fromkeys(names))


def _expand(item: str) -> Iterator[str]:
    match = re.fullmatch(r"(.*?)\[([\d,-]+)\](.*)", item)
    if match is None:
        yield item
        return
    head, ranges, tail = match.groups()
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first or 0), int(last or first or 0) + 1):
            yield from (f"{head}{number:0{len(first)}}{rest}" for rest in _expand(tail))


def _merge_hosts(hosts: Sequence[NamedHost]) -> tuple[NamedHost, ...]:
    """Each host once: one that is named several times has as many slots."""
    slots = dict.fromkeys((host.name for host in hosts), 0)
    repeats = len(slots) < len(hosts)
    for host in hosts:
        slots[host.name] += host.slots or repeats
    return tuple(NamedHost(name, count) for name, count in slots.items())


def _require(hosts: Sequence[NamedHost], typed: str) -> tuple[NamedHost, ...]:
    if not hosts:
        raise UsageError(f"{typed} names no host", hint="give the names of nodes")
    return tuple(hosts)


# -------------------------------------------------------------------------------------------------
# What words ask for.


OPTIONS = {
    "ranks": "--ranks",
    "ranks_per_node": "--ranks-per-node",
    "nodes": "--nodes",
    "retries": "--retries",
    "timeout": "--timeout",
}
"""By the names of sizes."""


class Asked(Struct, kw_only=True):
    """What the words of another launcher program ask for: a command, numbers by their names in
    JobSpec, nodes of the cluster, variables, options of our mpirun, and those of a batch system
    that has this launcher. `launcher`: "" for words that are none of one. `local_rank`: as in
    Program."""

    launcher: str = ""
    starts: str = ""
    """The launcher that this one starts on each node, as in `srun torchrun …`."""
    command: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    """Words of the command that were typed before the launcher, as in `timeout 60 mpirun …`."""
    sizes: dict[str, float] = field(default_factory=dict)
    node_range: tuple[int, int] = (0, 0)
    """The fewest and the most nodes that will do; 0: it says nothing of that kind."""
    hosts: tuple[NamedHost, ...] = ()
    excluded: tuple[str, ...] = ()
    by_turns: bool = False
    """Ranks are dealt out over the hosts, and do not fill one after the other."""
    env: dict[str, str] = field(default_factory=dict)
    mpirun_args: tuple[str, ...] = ()
    native: dict[str, str] = field(default_factory=dict)
    local_rank: str = ""
    ignored: tuple[str, ...] = ()
    """Words that have no effect."""
    typed: dict[str, str] = field(default_factory=dict)
    """The words that a size, `hosts` or a native option comes from, by its name."""

    @property
    def is_launcher(self) -> bool:
        """Whether ranks are started, and not only a program behind variables or `uv run`."""
        return self.launcher in load_launchers()

    def limit_to(self, launcher: str, launchers: Sequence[str]) -> Asked:
        """Without what means nothing to `launcher`, which starts the ranks, or to a cluster with
        these launcher programs: there, srun's words still choose nodes."""
        found = self
        if launcher != "mpirun":
            found = replace(found, mpirun_args=(), ignored=(*self.ignored, *self.mpirun_args))
        if self.launcher in launchers or not self.native:
            return found
        choices = ("nodelist", "exclude")
        hosts, excluded = (
            read_nodelist(self.native.get(name, ""), self.typed.get(name, "")) for name in choices
        )
        words = [f"{self.launcher} {self.typed[name]}" for name in choices if name in self.native]
        without = [self.typed[name] for name in self.native if name not in choices]
        return replace(
            found,
            native={},
            hosts=hosts,
            excluded=tuple(host.name for host in excluded),
            typed={**self.typed, "hosts": " ".join(words[:1])},
            ignored=(*found.ignored, *without),
        )

    @property
    def note(self) -> str:
        """For people: what became of the words."""
        sizes = {name: v for name, v in self.sizes.items() if name != "nodes" or not self.hosts}
        given = [f"--nodes {','.join(host.name for host in self.hosts)}"] * bool(self.hosts)
        given += [f"{OPTIONS[name]} {value:g}" for name, value in sizes.items()]
        given += [f"--{name} {value}".rstrip() for name, value in self.native.items()]
        given += [f"--mpirun-arg '{value}'" for value in self.mpirun_args]
        given += [f"--env {name}={value}" for name, value in self.env.items()]
        given += [f"{self.local_rank}=N for each rank"] * bool(self.local_rank)
        how = f", with {' '.join(given)}" if given else ""
        how += f", each rank behind {shlex.join(self.ahead)}" if self.ahead else ""
        what = "ranks" if self.is_launcher else "program"
        without = f"; ignored: {', '.join(self.ignored)}" if self.ignored else ""
        who = " and ".join(filter(None, (self.launcher, self.starts)))
        return f"clusterctl starts the {what} itself instead of {who}{how}{without}"


# -------------------------------------------------------------------------------------------------
# Words around a launcher: `uv run`, `sh -c`, `timeout 60`, `A=1`, `python -m`.


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
_PYTHON_OPTION = re.compile(r"-([bBdEiIOPqRsSuvx]*)([mWX]?)(.*)", re.DOTALL)
_SHELL_SYNTAX = set("$`;|&<>(){}*?[]~#!\\\n")


def translate(words: Sequence[str], *, once: bool = False) -> Asked:
    """`once`: one process by itself is wanted, so that words which only a job of one process can
    have before a launcher are left as they are. Raises UsageError for an option that has no meaning
    here."""
    with suppress(OSError):  # a name that no file can have
        if not words or (Path(words[0]).is_file() and not _is_installed(words[0])):
            return Asked()
    typed, words = words[0], [_name_command(words[0]), *words[1:]]
    if not once and (inner := _read_shell(words)).is_launcher:
        return inner
    name = " ".join(words[: 1 + (words[0] not in load_wrappers())])
    wrapper = load_wrappers().get(name)
    if wrapper and (count := _count_wrapping(name, wrapper, words)):
        return _read_wrapped(name, wrapper, words[:count], words[count:], once)
    start = int(words[0] == "env")
    end = next(
        (n for n, word in enumerate(words) if n >= start and not _ASSIGNMENT.fullmatch(word)),
        len(words),
    )
    if end > start:
        return _read_behind_variables(words[start:end], words[end:], once)
    dropped, plain = _unwrap(words)
    asked = _read_launcher(plain)
    if dropped and asked.launcher:
        asked.ignored = (shlex.join((words[0], *dropped)), *asked.ignored)
    if is_python(words[0]) and os.path.isabs(typed) and asked.command[:1] == ("python",):
        asked.command = (typed, *asked.command[1:])
    return asked


def _read_behind_variables(pairs: Sequence[str], words: Sequence[str], once: bool) -> Asked:
    if words and words[0].startswith("-"):
        raise UsageError(
            f"{words[0]} stands behind {pairs[-1]}, where the program begins",
            hint=f"options of `run` come first: run {words[0]} … {pairs[-1]} PROGRAM",
        )
    inner = _read_within("env", words, once)
    for pair in reversed(pairs):
        env, ignored = _read_variable("env", pair)
        inner.env = {**env, **inner.env}
        inner.ignored = (*(pair for _ in ignored), *inner.ignored)
    return inner


def _read_within(name: str, words: Sequence[str], once: bool) -> Asked:
    """What `uv run` or `env` starts, which may be a launcher."""
    if not words:
        raise UsageError(f"{name}: nothing to run", hint="clusterctl run SCRIPT [ARGS...]")
    inner = translate(words, once=once)
    inner.launcher = inner.launcher or name
    inner.command = inner.command or tuple(words)
    return inner


def _read_shell(words: Sequence[str]) -> Asked:
    """The launcher that a shell starts, where the shell would only split its words: others start
    one in their own way."""
    splits = words[0] == "env" and words[1:2] in (["-S"], ["--split-string"])
    place = 2 if splits else find_shell_text(words)
    text = "".join(words[place : place + 1]) if place else ""
    with suppress(UsageError, ValueError):  # quotes that are left open
        if text and not _SHELL_SYNTAX & set(text):
            inner = translate([*shlex.split(text), *(words[place + 1 :] if splits else ())])
            inner.ignored = (shlex.join(words[:place]), *inner.ignored)
            return inner
    return Asked()


def find_shell_text(words: Sequence[str]) -> int:
    """Which word of `bash -l -o pipefail -c 'mpirun …'` is the shell's command; 0: none is."""
    if words[0] not in SHELLS:
        return 0
    count, has_text = 1, False
    while count < len(words) and re.match("[-+].", words[count]):
        word = words[count]
        count += 1
        if word == "--":
            break
        if word.startswith("--"):
            count += word in ("--rcfile", "--init-file")
        else:
            has_text = has_text or (word[0] == "-" and "c" in word)
            count += len(re.findall("[oO]", word))  # the name of an option
    return count if has_text and count < len(words) else 0


def _count_wrapping(name: str, wrapper: Wrapper, words: Sequence[str]) -> int:
    """How many words of `timeout -k 5 60 mpirun …` stand before what is started; 0: they start
    nothing. Raises UsageError for an option that would change what any program runs in."""
    count, valued = len(name.split()), wrapper.values.split()
    while count < len(words) and re.match("-.", words[count]):
        word = words[count]
        if word in wrapper.other.split():
            return 0
        if wrapper.flags and word in ("-m", "--module"):
            break
        if wrapper.flags and word.partition("=")[0] not in (*wrapper.flags.split(), "--"):
            raise UsageError(
                f"{name} {word} is not supported: nodes have the project's packages",
                hint="leave it out; `--requirements FILE` names other packages",
            )
        count += 1 + (word in valued or (valued == ["*"] and "=" not in word and word != "--"))
        if word == "--":
            break
    count += wrapper.operands
    count += words[count : count + 1] == ["--"]
    is_env = words[0] == "env" and count == 1  # variables, which are read as such
    return 0 if is_env or (count >= len(words) and not wrapper.flags) else count


def _read_wrapped(
    name: str, wrapper: Wrapper, ahead: Sequence[str], words: Sequence[str], once: bool
) -> Asked:
    """A launcher behind other words: where these mean something to a rank, each rank gets them.
    Behind those with `flags`, any program."""
    if wrapper.flags:
        _check_task(name, wrapper.tasks.get(name, ""), "".join(words[:1]))
        module = words[:1] in (["-m"], ["--module"])
        inner = _read_within(name, ["python", "-m", *words[1:]] if module else words, once)
        if wrapper.values and len(ahead) > len(name.split()):  # `conda run -n NAME`
            inner.ignored = (shlex.join(ahead), *inner.ignored)
        return inner
    inner = translate(words, once=once)
    if not inner.launcher:
        return Asked()
    given = {word.partition("=")[0] for word in ahead}
    option = next((word for word in wrapper.refused.split() if word in given), "")
    command, hint = (*ahead, *inner.command), f"leave {name} out"
    refused = wrapper.use == REFUSED or option
    if refused and once:
        return Asked()
    if wrapper.use == IGNORED and not refused:
        inner.ignored = (shlex.join(ahead), *inner.ignored)
        return inner
    if refused:
        sizes = " ".join(f"{OPTIONS[size]} {value:g} " for size, value in inner.sizes.items())
        hint = (
            f"`clusterctl run {sizes}-- {shlex.join(command)}` starts each rank behind it;"
            " `clusterctl run --once …` runs your line once, on one node"
        )
    if refused or inner.local_rank:
        raise UsageError(
            f"{f'{name} {option}'.strip()} before {inner.launcher} is not supported: clusterctl"
            " starts the ranks itself",
            hint=hint,
        )
    inner.command, inner.ahead = command, (*ahead, *inner.ahead)
    return inner


def _check_task(runner: str, tables: str, word: str) -> None:
    """Raises UsageError for a task of a file here or above, as in `pixi run train`: nodes do not
    have the program that runs it."""
    for file, _, table in (item.partition(":") for item in tables.split()):
        path = next((p / file for p in (Path(), *Path.cwd().parents) if (p / file).is_file()), None)
        task: Any = {}
        with suppress(UsageError):  # as the packages of a file that is not understood
            task = read_toml(path) if path else {}
        for key in (*table.split("."), word):
            task = task.get(key) if isinstance(task, dict) else None
        if task is None:
            continue
        command = (task.get("cmd") or task.get("shell") or "") if isinstance(task, dict) else task
        line = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        shell = f"sh -c {shlex.quote(line)}" if _SHELL_SYNTAX & set(line) else f"-- {line}"
        raise UsageError(
            f"{word} is a task of {path}, and nodes have no {runner.split()[0]}",
            hint=f"run its command: `clusterctl run {shell}`"
            if line
            else "run what it consists of",
        )


def is_python(name: str) -> bool:
    return name in PYTHONS or bool(re.fullmatch(r"python3\.\d+", name))


def find_python_program(words: Sequence[str]) -> int:
    """Which word of `python -O -W error t.py` is its program; 0: none is (`-c`, `-m`)."""
    count = 1
    while count < len(words) and (match := _PYTHON_OPTION.fullmatch(words[count])):
        _, letter, value = match.groups()
        if letter == "m" or (value and not letter):
            return 0
        count += 1 + (bool(letter) and not value)
    return count if count < len(words) else 0


def _is_installed(word: str) -> bool:
    """`/usr/bin/mpirun`, `.venv/bin/torchrun`: a command of this machine, not a file of the
    program's."""
    path = Path(word)
    if not (path.is_absolute() or path.parent.parent.joinpath("pyvenv.cfg").is_file()):
        return False
    names = (*load_launchers(), *load_wrappers(), *load_tables().aliases, *SHELLS)
    return path.name in {name.split()[0] for name in names} or is_python(path.name)


def _name_command(word: str) -> str:
    return Path(word).name if _is_installed(word) else word


def _unwrap(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """`python -W error -m torch.distributed.run …` is `torchrun …`, and so is `python
    /usr/bin/torchrun …`: first the options of Python, which ranks do not get from it either."""
    aliases = load_tables().aliases
    if not is_python(words[0]):
        return [], [*aliases.get(words[0], words[0]).split(), *words[1:]]
    dropped, rest = list[str](), list(words[1:])
    while rest and (match := _PYTHON_OPTION.fullmatch(rest[0])):
        flags, letter, value = match.groups()
        if letter == "m":
            dropped += [f"-{flags}"] * bool(flags)
            rest = [value] * bool(value) + rest[1:]
            found = aliases.get("".join(rest[:1]), "")
            break
        if value and not letter:  # -c, --version
            return [], list(words)
        count = 1 + (bool(letter) and not value)
        dropped += rest[:count]
        rest = rest[count:]
    else:
        name = Path(rest[0]).name if rest and _is_installed(rest[0]) else ""
        found = aliases.get(name, name)
    if not found:
        return [], list(words)
    without = [word for word in dropped if word != "-u"]  # ranks have that anyway
    return without, [*found.split(), *rest[1:]]


# -------------------------------------------------------------------------------------------------
# Launchers that nobody reads: in a shell script.


_KNOWS = re.compile(r"MASTER_ADDR|OMPI_COMM_WORLD|CLUSTERCTL_|SLURM_")
"""In a script that starts a launcher as a part of a job."""


@cache
def _make_start_pattern() -> re.Pattern[str]:
    """A launcher at the beginning of a command, perhaps behind others and variables."""
    names = "|".join(map(re.escape, (*load_launchers(), *load_tables().aliases)))
    ahead = "|".join(map(re.escape, load_wrappers()))
    return re.compile(
        rf"""(?m)(?:^[ \t]*[@-]*|[;&|])[ \t]*(?:"""
        rf"""(?:[\w./-]*/)?(?:{ahead})(?:[ \t]+[-\d]\S*)*[ \t]+"""
        r"""|[A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|[^\s"'])*[ \t]+"""
        r"""|(?:[\w./-]*/)?python[\d.]*[ \t]+(?:-[a-zA-Z]+[ \t]+|-[WX][ \t]*\S+[ \t]+)*?"""
        r"""-[a-zA-Z]*m[ \t]+"""
        rf""")*(?:[\w./-]*/)?({names})\s"""
    )


def find_launcher(script: str) -> str:
    """The launcher program that a shell script starts as if it were alone; "" without one."""
    found = _make_start_pattern().search(re.sub(r"\\\n", " ", script))
    if found is None or _KNOWS.search(script):
        return ""
    is_module = "." in found[1] and found[1] in load_tables().aliases
    return f"python -m {found[1]}" if is_module else found[1]


def find_handed_on(words: Sequence[str]) -> str:
    """The launcher that a command which is not known may start with these words; "" without one."""
    for n, word in enumerate(words):
        if word in (*PYTHONS, *SHELLS) or os.path.isfile(word):
            break  # what follows are its arguments
        with suppress(UsageError):
            asked = translate([*(("python",) if word == "-m" else ()), *words[n:]])
            if asked.is_launcher:
                return asked.launcher
    return ""


# -------------------------------------------------------------------------------------------------
# Variables.


_OF_THIS_MACHINE = re.compile(r"(LD_LIBRARY_|LIBRARY_|PYTHON)?PATH|HOME|PYTHONHOME|VIRTUAL_ENV")
"""What `-x NAME` does not carry: nodes have paths of their own."""
_OF_A_RANK = re.compile(
    rf"MASTER_(ADDR|PORT)|NODE_RANK|(GROUP|ROLE)_(RANK|WORLD_SIZE)|PET_\w+|{STARTERS}"
    rf"|{'|'.join((*RANKS, *OURS))}"
)
"""Variables of a rank: which one it is, and where they meet. clusterctl sets them."""


def _read_variable(what: str, value: str) -> tuple[dict[str, str], list[str]]:
    """NAME=VALUE, or NAME with the value that it has here, if it has one; or NAM*. Then those that
    have no effect."""
    name, is_set, text = value.partition("=")
    pairs = {name: text}
    if not is_set:
        pairs = {other: os.environ[other] for other in os.environ if fnmatchcase(other, name)}
    for other in (name, *pairs):
        if SECRET.search(other):  # only --env keeps it out of records
            raise UsageError(
                f"{what} {other}: a secret has to be given to clusterctl",
                hint=f"clusterctl run --env {other} ...",
            )
    if not pairs:
        return {}, [f"{what} {name}"]
    ignored = [
        other
        for other in pairs
        if _OF_A_RANK.fullmatch(other) or not (is_set or not _OF_THIS_MACHINE.fullmatch(other))
    ]
    kept = [f"{other}={pairs[other]}" for other in pairs if other not in ignored]
    env, _ = read_variables(kept, ())
    return env, [f"{what} {value}" if is_set else f"{what} {other}" for other in ignored]


# -------------------------------------------------------------------------------------------------
# The options of a launcher, by its table.


_ALL = ("auto", "gpu", "cpu", "xpu")
"""torchrun's words for as many ranks as a node has GPUs or cores."""
_OUR_PARAMETERS = re.compile(
    r"(plm|oob|ras|rmaps|odls|ess|routed|grpcomm|orte|prte)(_\w+)?|btl_tcp_if_exclude"
)
"""Parameters of mpirun that say how it reaches nodes, and places ranks there."""


def _read_launcher(words: Sequence[str]) -> Asked:
    name = " ".join(words[: 1 + (words[:1] == ["accelerate"])])
    launcher = load_launchers().get(name)
    if launcher is None:
        return Asked()
    words = words[len(name.split()) :]
    if launcher.programs and ":" in words:
        raise UsageError(
            f"{name} with several programs (` : `) is not supported: a job runs one program",
            hint="run a script that chooses by the variable RANK what each rank does",
        )
    reader = _Reader(name, launcher)
    rest = reader.read(words)
    if not rest:
        raise UsageError(f"{name}: nothing to run", hint="clusterctl run SCRIPT [ARGS...]")
    asked = reader.asked
    asked.command = (*reader.starts, *rest)
    inner = translate(asked.command)
    return _merge(asked, inner) if inner.is_launcher else asked


def _merge(outer: Asked, inner: Asked) -> Asked:
    """`srun torchrun …`: the outer launcher starts the inner one once on each node. Where that says
    nothing about ranks, it starts one, as in `mpirun -np 4 accelerate launch …`."""
    sizes, typed = {**outer.sizes}, {**outer.typed, **inner.typed}
    hosts, native, ignored = outer.hosts, {**outer.native}, [*outer.ignored, *inner.ignored]
    if not inner.sizes.keys().isdisjoint(("ranks", "ranks_per_node")):
        ranks, nodes = sizes.pop("ranks", 0), sizes.pop("nodes", 0)
        each = sizes.pop("ranks_per_node", 0)
        if each > 1 or (nodes and ranks and ranks != nodes):
            said = outer.typed["ranks_per_node" if each > 1 else "ranks"]
            raise UsageError(
                f"{said} starts {inner.launcher} several times on each node",
                hint=f"leave {outer.launcher} out: {inner.launcher} says how many ranks there are",
            )
        if ranks or nodes:
            sizes["nodes"] = nodes or ranks
            typed["nodes"] = outer.typed["nodes" if nodes else "ranks"]
        hosts = tuple(NamedHost(host.name) for host in hosts)
        for name in ("cpus-per-task", "gpus-per-task"):  # of all the ranks that it starts
            if native.pop(name, ""):
                ignored.append(outer.typed[name])
    for name, size in inner.sizes.items():
        _refuse_other(sizes.get(name, size), size, typed[name], inner.typed[name])
    if hosts and inner.hosts and {h.name for h in hosts} != {h.name for h in inner.hosts}:
        raise make_contradiction(outer.typed["hosts"], inner.typed["hosts"])
    if "hosts" in outer.typed:
        typed["hosts"] = outer.typed["hosts"]
    return replace(
        inner,
        launcher=outer.launcher,
        starts=inner.launcher,
        sizes={**sizes, **inner.sizes},
        node_range=(0, 0) if "nodes" in sizes else inner.node_range,
        hosts=hosts or inner.hosts,
        excluded=(*outer.excluded, *inner.excluded),
        by_turns=outer.by_turns,
        env={**outer.env, **inner.env},
        mpirun_args=(*outer.mpirun_args, *inner.mpirun_args),
        native={**native, **inner.native},
        ignored=tuple(ignored),
        typed=typed,
    )


class _Reader:
    """Reads the options of a launcher, up to what it starts."""

    def __init__(self, name: str, launcher: OtherLauncher) -> None:
        self._name, self._launcher = name, launcher
        self.asked = Asked(launcher=name, local_rank=launcher.local_rank)
        self.starts: tuple[str, ...] = ("python",) if launcher.python else ()
        self._named: tuple[NamedHost, ...] = ()
        self._in_files: tuple[NamedHost, ...] = ()
        self._config: Path | None = None

    def read(self, words: Sequence[str]) -> list[str]:
        """What follows the options."""
        rest = list(words)
        while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
            self._take(*self._split(rest))
        if self._config:
            self._read_config(self._config, own=False)
        elif self._launcher.settings:
            self._read_config(_find_settings(self._launcher.settings), own=True)
        self.asked.hosts = self._choose_hosts()
        return rest[rest[:1] == ["--"] :]

    def _choose_hosts(self) -> tuple[NamedHost, ...]:
        """Those of the hosts in a file that are named beside it, or all; without a file, those
        named. Raises UsageError for a name that the file does not have."""
        named, slots = _merge_hosts(self._named), dict(_merge_hosts(self._in_files))
        if not (named and slots):
            return named or tuple(map(NamedHost, slots, slots.values()))
        if missing := [host.name for host in named if host.name not in slots]:
            raise UsageError(
                f"{self.asked.typed['hosts']}: the host file does not have {missing[0]}",
                hint="leave one of the two out",
            )
        return tuple(NamedHost(name, count or slots[name]) for name, count in named)

    def _split(self, rest: list[str]) -> tuple[str, Rule, list[str]]:
        """Takes the next option from `rest`, as it was typed, with its rule and values. Raises
        UsageError for one that is refused."""
        word = rest.pop(0)
        given, equals, value = word.partition("=")
        rule = self._launcher.find(given)
        if rule is None and not self._launcher.one_dash and word[:2] != "--":
            given, value = word[:2], word[2:]
            rule, equals = self._launcher.find(given), value
            if rule and rule.values == 0 and value:  # -lu
                rest.insert(0, f"-{value}")
                equals = ""
        if rule is None:
            raise UsageError(
                f"unknown option of {self._name}: {given}",
                hint="clusterctl run [--ranks N] SCRIPT [ARGS...]; `run --help` lists the options",
            )
        values = [value] if equals else []
        if values and not rule.values:
            raise UsageError(f"{self._name} {given} takes no value", hint=f"{self._name} {given}")
        if rule.use == REFUSED:
            raise self._make_unsupported(
                f"{self._name} {given}", "clusterctl starts the ranks itself", rule.why
            )
        wanted = 1 if rule.use == "pair" and "=" in "".join(values) else rule.values
        while len(values) < wanted:
            # The value may have been a variable that is not set.
            if not rest or (self._launcher.abbreviates and re.match("--|-[A-Za-z]$", rest[0])):
                raise UsageError(
                    f"{self._name} {given}: its value is missing", hint=f"{given} VALUE"
                )
            values.append(rest.pop(0))
            wanted = 1 if rule.use == "pair" and "=" in values[0] else rule.values
        return given, rule, values

    def _make_unsupported(self, typed: str, why: str, hint: str) -> UsageError:
        return UsageError(f"{typed} is not supported: {why}", hint=hint)

    def _take(self, given: str, rule: Rule, values: list[str]) -> None:
        asked, use, value = self.asked, rule.use, rule.name or " ".join(values)
        shown = shlex.join((given, *values))
        typed = f"{self._name} {shown}"
        if use == IGNORED or (use == "mca" and _OUR_PARAMETERS.fullmatch(values[0])):
            asked.ignored += (shown,)
        elif use in OPTIONS:
            self._take_size(use, typed, value)
        elif use == "native":
            name = rule.name or rule.option.lstrip("-")
            asked.native[name], asked.typed[name] = " ".join(values), shown
        elif use == "env":
            asked.env[rule.name] = values[0]
        elif use == "set":
            name, _, value = rule.name.partition("=")
            asked.env[name] = value
        elif use == "no-local-rank":
            asked.local_rank = ""
        elif use == "module":
            self.starts = ("python", "-m")
        elif use == "command":
            self.starts = ()
        elif use == "mca":
            self._pass_on(shlex.join(("--mca", *values)))
        elif use == "mpirun":
            self._pass_on(shlex.join((rule.name or rule.option).replace("=", " ").split() + values))
        elif use in ("map-by", "cores"):
            self._take_mapping(typed, f"slot:PE={value}" if use == "cores" else value)
        elif use in ("variables", "export", "pair"):
            self._take_variables(use, f"{self._name} {given}", values)
        elif use == "folder":
            if Path(value).resolve() != Path.cwd():
                why = "ranks start in a copy of your current folder"
                hint = "change to the folder first, and leave the option out"
                raise self._make_unsupported(typed, why, hint)
        elif use == "config":
            self._config = Path(value)  # the command line wins over it
        else:
            self._take_hosts(use, typed, value)

    def _take_size(self, kind: str, typed: str, value: str) -> None:
        asked = self.asked
        if kind == "ranks_per_node" and value in _ALL:
            asked.ignored += (typed.removeprefix(f"{self._name} "),)
            return
        if kind == "nodes" and (match := re.fullmatch(r"(\d+)[:-](\d+)", value)):
            least, most = int(match[1]), int(match[2])
            if not 0 < least <= most:
                raise UsageError(f"{typed}: expected FEWEST:MOST", hint="for example 1:4")
            asked.node_range, asked.typed[kind] = (least, most), typed
            return
        number = re.fullmatch(r"\d{1,9}(\.\d+)?" if kind == "timeout" else r"\d{1,9}", value)
        if not number or not (float(value) or kind in ("retries", "timeout")):
            raise UsageError(f"{typed}: expected a number", hint=f"{OPTIONS[kind]} 2")
        size = float(value)
        _refuse_other(asked.sizes.get(kind, size), size, asked.typed.get(kind, ""), typed)
        if size or kind != "timeout":  # no limit
            asked.sizes[kind], asked.typed[kind] = size if kind == "timeout" else int(size), typed

    def _take_hosts(self, use: str, typed: str, value: str) -> None:
        self.asked.typed["hosts"] = typed
        if use == "hostfile":
            self._in_files += read_file(value, typed)
        elif use == "include":
            self._named += read_included(value, typed)
        elif use == "hosts":
            self._named += read_list(value, typed)
        elif ":" in value:
            raise UsageError(f"{typed} excludes GPUs by their numbers", hint="exclude whole nodes")
        else:
            self.asked.excluded += tuple(filter(None, value.split("@")))

    def _pass_on(self, text: str) -> None:
        args = self.asked.mpirun_args
        if other := find_other_value(text, args):
            raise make_contradiction(f"{self._name} {other}", text)
        self.asked.mpirun_args = tuple(dict.fromkeys((*args, text)))

    def _take_mapping(self, typed: str, value: str) -> None:
        """`slot`, `node:PE=2`, `ppr:4:node`: what distributes ranks over nodes is ours to do."""
        place, *more = value.split(":")
        kind = place.lower()
        if kind == "ppr":
            number, unit, *more = [*more, "", ""][: max(2, len(more))]
            if unit.lower() != "node":
                raise self._make_unsupported(
                    typed, "ranks are counted by node", "ppr:N:node, or --ranks-per-node N"
                )
            self._take_size("ranks_per_node", typed, number)
        elif kind == "node":
            self.asked.ignored += (typed.removeprefix(f"{self._name} "),)
            self.asked.by_turns = True
        elif kind in ("seq", "rankfile", "dist") or kind.startswith("pe-list"):
            raise self._make_unsupported(
                typed,
                "clusterctl distributes the ranks itself",
                "--ranks-per-node sets how many ranks each node gets",
            )
        kept = [word for word in more if word.lower()[:3] == "pe=" or word.lower() == "span"]
        if left := [word for word in more if word not in kept]:
            self.asked.ignored += (":".join(("", *left)),)
        place = "" if kind in ("ppr", "node") else place
        if place or kept:
            self._pass_on(f"--map-by {':'.join((place or 'slot', *kept))}")

    def _take_variables(self, use: str, what: str, values: list[str]) -> None:
        pairs = ["=".join(values)] if use == "pair" else values
        if use == "export":
            pairs = [word for word in values[0].split(",") if word not in ("", "ALL")]
        for pair in pairs:
            ignored = [f"{what} {pair}"]
            if use != "export" or pair not in ("NONE", "NIL"):
                env, ignored = _read_variable(what, pair)
                self.asked.env |= env
            self.asked.ignored += tuple(w.removeprefix(f"{self._name} ") for w in ignored)

    def _read_config(self, path: Path, *, own: bool) -> None:
        """What accelerate's file says and the command line does not. Raises UsageError where it
        asks for more than ranks, which only the launcher itself can do. `own`: it is found by
        itself, if it is there: its numbers are those of this machine."""
        asked = self.asked
        if own and (not path.is_file() or "ACCELERATE_USE_CPU" in asked.env):
            return
        keys = _read_keys(path)
        kind = keys.pop("distributed_type", "NO").upper()
        plain = own and "--multi-gpu" in {word.replace("_", "-") for word in asked.ignored}
        if kind not in _PLAIN and not plain:
            raise UsageError(
                f"{path} asks for {kind}, which {self._name} sets up and clusterctl does not",
                hint="let it start the ranks of each node: clusterctl run --ranks-per-node 1 -- sh"
                f" -c '{self._name} --config_file {path} --num_machines $WORLD_SIZE --machine_rank"
                " $RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT …'"
                + f"; or `{self._name} --multi_gpu …` runs without it"
                * own,
            )
        for key, value in keys.items():
            rule = self._launcher.find(f"--{key.removeprefix('use_').replace('_', '-')}")
            use, name = (rule.use, rule.name.partition("=")[0]) if rule else ("", "")
            nothing = (key, value.lower()) in _USUAL or value.lower() in _NOTHING
            if nothing or use in asked.sizes or name in asked.env:
                continue
            if rule and use == "set" and value.lower() == "true":
                self._take(key, rule, [])
            elif rule and (use == "env" or (use in ("ranks", "nodes") and not own)):
                self._take(f"{path}: {key}", rule, [value])
            else:
                asked.ignored += (f"{key} in {path}",)


def find_other_value(option: str, args: Sequence[str]) -> str:
    """What options of mpirun say otherwise than this one, which may be there once: `--bind-to core`
    beside `--bind-to none`; "" if they do not."""
    words = shlex.split(option)
    name = words[: 1 + (words[0] in ("--mca", "--pmixmca"))]
    for arg in args:
        given = shlex.split(arg)
        for start in range(len(given)):
            other = given[start : start + len(words)]
            if other[: len(name)] == name and other != words:
                return shlex.join(other)
    return ""


def make_contradiction(one: str, other: str) -> UsageError:
    return UsageError(f"{one} and {other} contradict each other", hint="leave one of the two out")


def _refuse_other(one: object, other: object, typed: str, typed_too: str) -> None:
    if one != other:
        raise make_contradiction(typed, typed_too)


# -------------------------------------------------------------------------------------------------
# The configuration of accelerate.


_PLAIN = ("NO", "MULTI_GPU", "MULTI_CPU")
"""What accelerate calls one process, or one for each GPU, and nothing beyond."""
_NOTHING = ("false", "no", "null", "", "[]", "{}")
_USUAL = (
    ("compute_environment", "local_machine"),
    ("gpu_ids", "all"),
    ("machine_rank", "0"),
    ("main_training_function", "main"),
    ("num_machines", "1"),
    ("rdzv_backend", "static"),
    ("same_network", "true"),
)
"""What `accelerate config` writes where nothing else was asked for."""


def _find_settings(name: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    folder = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    return Path(folder, name).expanduser()


def _read_keys(path: Path) -> dict[str, str]:
    """The plain values of a YAML or JSON file, with those of `dynamo_config`; of another key with
    more below it, that it is there."""
    text = read_input(path, str(path), hint="check the path")
    rows = parse_yaml(text, str(path)) or {}  # JSON is YAML, too
    if not isinstance(rows, dict):
        raise UsageError(f"{path} has no settings", hint="correct the file")
    inner = rows.pop("dynamo_config", None)
    if isinstance(inner, dict):
        rows |= {f"dynamo_{key.removeprefix('dynamo_')}": value for key, value in inner.items()}
    found = {}
    for key, value in rows.items():
        text = value if isinstance(value, str) else json.dumps(value)
        found[key] = "more" if value and isinstance(value, dict | list) else text
    return found


# -------------------------------------------------------------------------------------------------
# What the options of `run` leave open, the words of another launcher fill. Settings are weaker
# than both; two that contradict each other are refused.


_COUNTS = ("ranks", "ranks_per_node")


def fill(
    asked: Asked, spec: JobSpec, settings: Collection[str], cluster: Cluster
) -> tuple[JobSpec, Asked]:
    """The job as the words want it, as far as its own options do not say, and the words with the
    nodes that they have chosen.

    Args:
        settings: Fields of `spec`, and native options, that come from settings.
    """
    own: dict[str, Any] = {name: value for name in OPTIONS if (value := getattr(spec, name))}
    typed = {name: value for name, value in own.items() if name not in settings}
    weak = {name: value for name, value in own.items() if name in settings}
    says_nodes = asked.hosts or asked.excluded or "nodes" in asked.typed
    hosts = () if "nodes" in settings and says_nodes else spec.hosts
    asked = _drop_foreign_devices(_choose_hosts(asked, hosts, cluster), cluster)
    if asked.hosts:
        weak.pop("nodes", None)
    elif hosts and "nodes" not in settings:
        typed["nodes"] = len(hosts)
    sizes = fill_sizes(typed, weak, asked, len(asked.hosts or hosts or cluster.workers))
    if asked.hosts:
        hosts, sizes = place_on_hosts(sizes, asked, cluster)
        asked = replace(asked, hosts=tuple(map(NamedHost, dict.fromkeys(hosts))))
    elif hosts:
        sizes.pop("nodes", None)
    elif any(asked.node_range):
        asked = replace(asked, sizes={**asked.sizes, "nodes": sizes["nodes"]})
    native = {name: value for name, value in spec.native.items() if name not in settings}
    for name in native.keys() & asked.native.keys():
        said = f"{asked.launcher} {asked.typed[name]}"
        _refuse_other(native[name], asked.native[name], f"--{name} {native[name]}", said)
    env = {} if "env" in settings else spec.env
    for name in env.keys() & asked.env.keys():
        said = f"{asked.launcher} with {name}={asked.env[name]}"
        _refuse_other(env[name], asked.env[name], f"--env {name}={env[name]}", said)
    if "mpirun_args" not in settings:
        for option in asked.mpirun_args:
            if other := find_other_value(option, spec.mpirun_args):
                raise make_contradiction(f"--mpirun-arg '{other}'", f"{asked.launcher} {option}")
    mpirun_args = [arg for arg in spec.mpirun_args if not find_other_value(arg, asked.mpirun_args)]
    filled = replace(
        spec,
        env={**spec.env, **asked.env} if "env" in settings else {**asked.env, **spec.env},
        native={**spec.native, **asked.native},
        mpirun_args=(*asked.mpirun_args, *mpirun_args),
        hosts=hosts,
        **{**dict.fromkeys(own, 0), **sizes},
    )
    return filled, asked


def fill_sizes(
    typed: Mapping[str, float], settings: Mapping[str, float], asked: Asked, workers: int = 0
) -> dict[str, Any]:
    """Sizes by their names in JobSpec: what was typed, what the words say, and of the settings
    those that contradict neither."""
    words = dict(asked.sizes)
    least, most = asked.node_range
    if least:
        nodes = typed.get("nodes", 0)
        if nodes and not least <= nodes <= most:
            raise make_contradiction(f"--nodes {nodes:g}", asked.typed["nodes"])
        words["nodes"] = nodes or max(least, min(most, workers or most))
    said = {name: f"{OPTIONS[name]} {value:g}" for name, value in typed.items()}
    for name, value in words.items():
        _refuse_other(typed.get(name, value), value, said.get(name, ""), asked.typed[name])
    found = {**typed, **words}
    ranks, each = (found.get(name, 0) for name in _COUNTS)
    for name, value in settings.items():
        weaker = name in _COUNTS and bool(ranks or each)
        weaker |= name == "nodes" and bool(ranks) and (bool(each) or value > ranks)
        if name not in found and not weaker:
            found[name] = value
    return found


def _choose_hosts(asked: Asked, own: Sequence[str], cluster: Cluster) -> Asked:
    """With the hosts by their names on the cluster, and without the excluded ones."""
    if not (asked.hosts or asked.excluded):
        return asked
    typed = asked.typed["hosts"]
    if not cluster.workers:  # those of the queue
        if asked.excluded:
            raise UsageError(f"{typed}: the queue chooses the nodes", hint="leave it out")
        return asked
    nodes = find_workers(cluster, [host.name for host in asked.hosts], typed) or cluster.workers
    slots = [host.slots for host in asked.hosts] or [0] * len(nodes)
    without = {node.name for node in find_workers(cluster, asked.excluded, typed)}
    hosts: dict[str, int] = {}
    for node, count in zip(nodes, slots, strict=True):
        if node.name not in without:
            hosts[node.name] = hosts.get(node.name, 0) + count
    if not hosts:
        raise UsageError(f"{typed} leaves no worker", hint="exclude fewer")
    if own and {node.name for node in find_workers(cluster, own, "--nodes")} != set(hosts):
        raise make_contradiction(f"--nodes {','.join(own)}", typed)
    return replace(asked, hosts=tuple(NamedHost(name, count) for name, count in hosts.items()))


def _drop_foreign_devices(asked: Asked, cluster: Cluster) -> Asked:
    """Without `NCCL_SOCKET_IFNAME=ens5` and the like where workers have no such network device:
    programs would not find each other."""
    devices = [[item.device for item in node.facts.interfaces] for node in cluster.workers]
    foreign = {
        name: f"{name}={value}"
        for name, value in asked.env.items()
        if name.endswith("_SOCKET_IFNAME") and not value.startswith("^")
        for there in devices
        if not any(device.startswith(tuple(value.lstrip("=").split(","))) for device in there)
    }
    env = {name: value for name, value in asked.env.items() if name not in foreign}
    return replace(asked, env=env, ignored=(*asked.ignored, *foreign.values()))


def place_on_hosts(
    sizes: Mapping[str, Any], asked: Asked, cluster: Cluster
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The nodes, one of them several times where they get unlike numbers of ranks, and the sizes
    that go with them: as mpirun does it, all slots are taken unless a number of ranks is given."""
    typed, found = asked.typed["hosts"], {**sizes}
    names = [host.name for host in asked.hosts]
    nodes = found.pop("nodes", 0)
    if nodes > len(names):
        raise make_contradiction(asked.typed.get("nodes", f"--nodes {nodes:g}"), typed)
    each, ranks = int(found.get("ranks_per_node", 0)), int(found.get("ranks", 0))
    names = names[: int(nodes) or (-(-ranks // each) if each and ranks else len(names))]
    if not cluster.workers or not any(host.slots for host in asked.hosts):
        return tuple(names), found
    known = dict(asked.hosts)
    slots = [known[name] or cluster.node(name).slots or 1 for name in names]
    if each > min(slots) or ranks > sum(slots):
        said = "ranks_per_node" if each > min(slots) else "ranks"
        raise make_contradiction(asked.typed.get(said, f"{OPTIONS[said]} {found[said]}"), typed)
    if each:
        return tuple(names), found
    counts = deal(ranks or sum(slots), slots, by_turns=asked.by_turns or bool(nodes))
    used = {name: count for name, count in zip(names, counts, strict=True) if count}
    found["ranks"] = sum(counts)
    if [*used.values()] == deal(sum(counts), [sum(counts)] * len(used), by_turns=True):
        return tuple(used), found
    return tuple(name for name, count in used.items() for _ in range(count)), found
