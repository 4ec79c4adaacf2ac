"""What programs print when they fail: known messages of libraries with their causes and what to do
next, exceptions of Python, and the last words of programs in other languages. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from msgspec import Struct

from clusterctl.batch.system import load_system
from clusterctl.core import assets
from clusterctl.core.job import Job


class Message(Struct, frozen=True):
    """A row. `advice`: clauses with `; ` between them, of which those are left out that recommend
    what the job already has; `source`: where the message and its cause are described; `after`: a
    rank prints it because another one has already gone."""

    name: str
    pattern: str
    cause: str
    advice: str
    source: str
    after: bool = False


class Ending(Struct, frozen=True):
    """How programs in that language, or that kind of program, say why they end."""

    language: str
    pattern: str


class Tables(Struct, frozen=True):
    """messages.toml. `exits`: what to do about exit codes of programs that have said nothing that
    the table knows; `packages`: those of modules that have another name."""

    messages: tuple[Message, ...]
    exits: dict[int, str]
    packages: dict[str, str]
    endings: tuple[Ending, ...]


@cache
def load_tables() -> Tables:
    return assets.load_table("insight/messages.toml", Tables)


MEETINGS = frozenset({"gloo-size", "mpi-truncated"})
"""Rows that ranks print when they have met in a collective and do not fit together."""

BATCH_MEMORY = "batch-memory"
"""The row of a batch system that has killed a rank, which can print nothing itself."""

MODULE = "module"
"""The row of a package that is missing."""

_MODULE = re.compile(r"No module named '?(\w+)")

TIMEOUTS = frozenset({"gloo-timeout", "nccl-timeout"})
"""Rows that ranks print when they have waited for others in a collective for too long."""


class Match(Struct, frozen=True):
    """A row, and the line in which its pattern was found."""

    message: Message
    line: str

    @property
    def module(self) -> str:
        """The module of Python that it does not find; "" for other messages."""
        found = _MODULE.search(self.line) if self.message.name == MODULE else None
        return found[1] if found else ""

    @property
    def package(self) -> str:
        """The package that has this module."""
        return load_tables().packages.get(self.module, self.module)

    def advise(self, job: Job) -> str:
        advice = self.message.advice
        advice = advice.replace("list it", f"list {self.package}") if self.package else advice
        return advise(advice, job)


def find_known_message(text: str) -> Match | None:
    """The row for the first line that has one; a row that is only `after` yields to any other."""
    fallback: Match | None = None
    messages = load_tables().messages
    for line in text.splitlines():
        for message in messages:
            if re.search(message.pattern, line):
                match = Match(message, line.strip())
                if not message.after:
                    return match
                fallback = fallback or match
                break
    return fallback


_SET: Mapping[str, Callable[[Job, Mapping[str, str]], bool]] = {
    r"--backend gloo": lambda job, _: job.spec.backend == "gloo",
    r"--backend=gloo": lambda job, _: any("gloo" in word for word in job.spec.program.args),
    r"--device=cpu": lambda job, _: any("cpu" in word for word in job.spec.program.args),
    r"(?P<more>--disk|-l h_vmem|--mem\b)": lambda job, found: (
        found["more"] not in load_system(job.scheduler).asks_for_more
    ),
    r"--allow-cpu": lambda job, _: job.spec.allow_cpu or not job.spec.program.bundled,
    r"--ranks-per-node": lambda job, _: all(place.count <= 1 for place in job.placement),
    r"-e (?P<name>\w+)=(?P<value>\w+)": lambda job, found: (
        job.spec.env.get(found["name"]) == found["value"]
    ),
}
"""What advice may name, and whether a job already has it, or can have no use for it."""


def advise(advice: str, job: Job) -> str:
    """The clauses of the advice that recommend nothing the job already has."""

    def is_set(clause: str) -> bool:
        found = ((has, re.search(pattern, clause)) for pattern, has in _SET.items())
        return any(match and has(job, match.groupdict()) for has, match in found)

    return "; ".join(clause for clause in advice.split("; ") if not is_set(clause))


def explain_exit(code: int, job: Job) -> str:
    """A hint for that exit code of a job's rank; "" where it says nothing."""
    return advise(load_tables().exits.get(code, ""), job)


# -------------------------------------------------------------------------------------------------
# The failure in what a rank has printed: Python's last exception with what has led to it, and the
# line of the program that raised it; or the last words of a program in another language.


PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What PyTorch puts before each line of an exception, once there is a process group."""
WORK = re.compile(r'"[^"]*/jobs/\d+/work/')
"""The folder of a job on its nodes."""
_HEAD = "Traceback (most recent call last):"
_ERROR = re.compile(r"[\w.]+(Error|Exit|Interrupt|Group)\b|[\w.]*Exception\b")
_ODD_ERROR = re.compile(r"([A-Za-z_]\w*\.)+\w+(: |$)|[A-Z]\w*[a-z]\w*(: |$)")
"""An exception whose name does not say that it is one, such as bdb.BdbQuit, queue.Empty,
struct.error or BrokenProcessPool."""
_SYNTAX = re.compile(
    r'^(?=  File "[^"]+", line \d+\n(?: .*\n){1,4}(?:SyntaxError|IndentationError|TabError): .*$)',
    re.MULTILINE,
)
"""Of a script that Python cannot read, without a head."""
_MARGIN = re.compile(r"^ *(\+[-+]*( \d+ -+)?$|\| ?|\+ )", re.MULTILINE)
"""What Python draws on the left of a group of exceptions, and between them."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_LINKS = {
    "The above exception was the direct cause of the following": "caused by",
    "During handling of the above exception, another exception occurred": "while it handled",
}
_UNHEARD = re.compile(
    r"Exception ignored |Error in (atexit|sys\.)|--- Logging error|Exception in (callback|default)"
)
"""Before an exception that ends nothing."""
_ELSEWHERE = re.compile(r"Exception in thread |Process \S+:$|Unhandled exception in ")
"""Before one that ends a thread or a process that the program has started."""
_LOADER = "/torch/utils/data/dataloader.py"
_CUT = re.compile(r"(Connection\w*Error|BrokenPipeError|EOFError)\b")
"""What PyTorch sometimes raises there when a worker has been killed, and nothing else."""
_FOLLOWS = re.compile(r"(\w+\.)*(Connection\w*Error|BrokenPipeError|EOFError|KeyboardInterrupt)\b")
"""What these raise because the program has ended."""
_NEXT = re.compile(
    r"\[\w+|[-=*]{3}|\"\"\"|\d{4}-\d\d-\d\d|[\w.: -]*\b(WARNING|INFO|ERROR|DEBUG|CRITICAL)\b"
    r"|\S*Warning: |Fatal Python|Current thread|Thread 0x|terminate called|wandb:|srun|prterun"
    r"|mpirun|slurmstepd|libgomp"
)
"""A line that is not of a message any more."""
_LINES, _WIDTH, _LENGTH = 6, 200, 400
"""Lines of a message that are told, and characters of each and of all."""
_LAST_WORDS = re.compile(r"(?!\[[\w.-]+:\d+\]|[-*=]{3}|#\d+ |\s*$).*\w")


class Raised(Struct, frozen=True):
    """An exception, from line `start` to `end` of the text: `link` says what the one before is to
    it."""

    start: int
    end: int
    where: tuple[str, ...]
    message: str
    before: str = ""
    link: str = ""

    @property
    def name(self) -> str:
        return self.message.partition(":")[0].rpartition(".")[2]


def find_last_error(text: str) -> tuple[str, ...]:
    """The line of the program's own that raised the last exception, as its place and its source
    where that is printed, and what was raised: in one line, with what has led to it."""
    chains = _find_chains(_remove_marks(_keep_prefixed(text)))
    last = _choose(chains)
    return _describe(last, chains) if last else ()


def find_fatal(text: str) -> str:
    """What a program that is not Python's says of its end; "" where it does not."""
    text = PREFIX.sub("", _COLOUR.sub("", text))
    found = (re.search(e.pattern, text, re.MULTILINE) for e in load_tables().endings)
    first = min((match for match in found if match), key=lambda match: match.start(), default=None)
    if not first:
        return ""
    said = [" ".join(part.split()) for part in first.groupdict().values() if part]
    return _join([f"{said[0]}:", *said[1:]] if said[1:] else said)


def find_last_words(text: str) -> str:
    """The last line that may say something; "" if there is none."""
    lines = (line.strip() for line in reversed(_COLOUR.sub("", text).splitlines()))
    return next((line[:_WIDTH] for line in lines if _LAST_WORDS.match(line)), "")


def drop_handled(text: str) -> str:
    """The text without the exceptions that the program has caught, as far as that is known: those
    that were printed before the last one."""
    lines = _remove_marks(text)
    chains = _find_chains(lines)
    last = _choose(chains)
    for chain in reversed(chains):
        if chain is not last and not _ELSEWHERE.match(chain[0].before):
            del lines[chain[0].start : chain[-1].end]
    return "\n".join(lines)


def _keep_prefixed(text: str) -> str:
    """If the last exception has the prefix, all lines of it have, and none of what comes after."""
    before, head, after = text.rpartition(_HEAD)
    if not PREFIX.match(before.rpartition("\n")[2]):
        return text
    kept = (line for line in after.splitlines() if PREFIX.match(line))
    return "\n".join((before + head, *kept))


def _remove_marks(text: str) -> list[str]:
    text = PREFIX.sub("", _COLOUR.sub("", text))
    if f"Exception Group {_HEAD}" in text:
        text = _MARGIN.sub("", text)
    if _HEAD not in text:
        text = _SYNTAX.sub(f"{_HEAD}\n", text, count=1)
    return text.splitlines()


def _find_chains(lines: Sequence[str]) -> list[list[Raised]]:
    """Exceptions, each with those that have led to it before it."""
    heads = [number for number, line in enumerate(lines) if line.endswith(_HEAD)]
    chains: list[list[Raised]] = []
    for head, end in zip(heads, (*heads[1:], len(lines)), strict=False):
        raised = _read(lines, head, end)
        if raised is None:
            continue
        if chains and (raised.link or lines[head].startswith("Original ")):
            chains[-1].append(raised)
        else:
            chains.append([raised])
    return chains


def _read(lines: Sequence[str], head: int, end: int) -> Raised | None:
    body = list(lines[head + 1 : end])
    files = [number for number, line in enumerate(body) if line.startswith("  File ")]
    own = [number for number in files if not is_library(body[number])]
    where = tuple(
        line
        for number in (own or files)[-1:]
        for line in (WORK.sub('"', body[number].strip()), *_find_source(body[number + 1 :]))
    )
    after = [n for n in range(files[-1] + 1 if files else 0, len(body)) if body[n][:1].strip()]
    found = next((n for n in after if _ERROR.match(body[n])), None)
    if found is None and files:  # the first line that is not of a call
        found = next((n for n in after[:1] if _ODD_ERROR.match(body[n])), None)
    if found is None:
        return None
    count, message = _read_message(body[found:])
    if _CUT.match(message) and any(_LOADER in body[number] for number in files):
        message += ", because a worker process of its data loader has ended (was it killed?)"
    before = next((line for line in reversed(lines[:head]) if line.strip()), "")
    link = next((word for text, word in _LINKS.items() if before.startswith(text)), "")
    stop = head + 1 + found + count
    return Raised(head, stop, where, message, before, link)


def _read_message(lines: Sequence[str]) -> tuple[int, str]:
    """How many lines a message has, and all of them in one."""
    told = [lines[0].strip()]
    count = 1
    ends = (_NEXT, _UNHEARD, _ELSEWHERE)
    for number, line in enumerate(lines[1:], 2):
        if any(end.match(line) for end in ends) or line.startswith(tuple(_LINKS)):
            break
        if line.strip() and len(told) < _LINES:
            told.append(line.strip())
            count = number
    return count, _join(told)


def _join(lines: Sequence[str]) -> str:
    text = ""
    for line in lines:
        line = f"{line[: _WIDTH - 1]}…" if len(line) > _WIDTH else line
        text += f"{' ' if text[-1:] in (*':,;.!?(', '') else '; '}{line}" if text else line
    return f"{text[: _LENGTH - 1]}…" if len(text) > _LENGTH else text


def _choose(chains: Sequence[list[Raised]]) -> list[Raised] | None:
    """The last that ends the program, or a thread of it, not because the program has ended."""
    there = [chain for chain in chains if not _UNHEARD.match(chain[0].before)] or list(chains)
    own = [
        chain
        for chain in there
        if not (_ELSEWHERE.match(chain[0].before) and _FOLLOWS.match(chain[-1].message))
    ]
    return next(reversed(own or there), None)


def _describe(chain: Sequence[Raised], chains: Sequence[list[Raised]]) -> tuple[str, ...]:
    first, last = chain[0], chain[-1]
    if first is last or first.message == last.message:  # a worker's own, raised here once more
        where, text = first.where, last.message
    elif last.link:
        root = next(r for n, r in enumerate(chain) if all(item.link for item in chain[n + 1 :]))
        return (*last.where, *root.where, f"{last.message}, {last.link} {root.message}")
    else:
        where, text = last.where, last.message
    earlier = [c for c in chains if _ELSEWHERE.match(c[0].before) and c[0].start < first.start]
    if earlier:
        text += f", after a thread or process of it had failed: {earlier[-1][-1].message}"
    if last.name in _CHILDREN and first.before and _HEAD not in first.before:
        text += f", after the line: {first.before.strip()[:_WIDTH]}"
    return (*where, text)


_CHILDREN = ("CalledProcessError", "ChildFailedError")
"""Of a program that was started, and has said by itself why it failed."""


def is_library(line: str) -> bool:
    """Whether a line of a traceback is not of the program itself."""
    return any(part in line for part in ("-packages/", "/lib/python3", 'File "<', '.pyx"'))


def _find_source(after: Sequence[str]) -> tuple[str, ...]:
    line = after[0] if after else ""
    return (line,) if line.startswith("    ") and line.strip() else ()
