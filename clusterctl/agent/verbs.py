"""The agent's command line: `python3 -I -S AGENT/__main__.py VERB JOB ARGUMENT…`. JOB: the job's
folder on this node.
"""

import json
import math
import os
import sys
import time
from importlib import import_module
from typing import IO, Any, Callable, Dict, Iterator, List, Sequence, Union

from . import messages, outputs, processes
from .processes import Processes

STARTING = 3600.0
"""Seconds in which a job is started with the agent that was just put there."""


def _load(job: str) -> Any:
    from . import supervise

    return supervise.load(job)


def _batch(job: str, *early: str) -> int:
    """A job of a batch system, or a task of its array."""
    from . import batch, queues, tasks

    plan = messages.load(messages.BatchPlan, os.path.join(job, "plan.json"))
    if plan.job is None:
        return tasks.run(job, plan, queues.SYSTEMS[plan.system].find_point, list(early))
    return batch.BatchSupervisor(job, plan, plan.job).see_through(early)


def _answer(verb: str) -> Callable[..., Iterator[str]]:
    """What a supervisor would be answered: a fact per line."""

    def list_facts(job: str, tag: str, *numbers: str) -> Iterator[str]:
        from .attend import Attendant

        for fact in Attendant(job, tag).answer(verb, *map(float, numbers)):
            yield " ".join(map(str, fact))

    return list_facts


def _show(module: str, verb: str) -> Callable[[str, str], None]:
    """Prints what there is to see, as `doctor` and `top` take it."""

    def show(job: str, settings: str) -> None:
        from . import views

        views.write(getattr(_import(module), verb)(job, **json.loads(settings)))

    return show


def _list(job: str) -> None:
    """`SIZE MTIME CTIME ./PATH` and a NUL for each output; on stderr, what else a program has made.
    Fails where there may be more."""
    failed: List[OSError] = []
    others: List[str] = []
    for entry in outputs.list_outputs(job, failed, others):
        line = f"{entry.size} {entry.modified / 1e9:.9f} {entry.changed / 1e9:.9f} ./".encode()
        sys.stdout.buffer.write(line + os.fsencode(entry.path) + b"\0")
    sys.stdout.flush()
    for path in sorted(others):
        name = os.fsencode(path).replace(b"\n", b"?")
        sys.stderr.buffer.write(b"left out ./%b: neither a file, a folder nor a link\n" % name)
    if failed:
        raise failed[0]


def _pack(job: str, out: IO[bytes]) -> None:
    paths = [entry.path for entry in outputs.list_outputs(job)]
    outputs.pack(os.path.join(job, outputs.WORK), paths, out)


def _link(job: str, stream: IO[bytes]) -> None:
    """Those that it names, with a NUL behind each."""
    outputs.link_outputs(job, map(os.fsdecode, stream.read().split(b"\0")[:-1]))


def _send(job: str, stream: IO[bytes], out: IO[bytes]) -> None:
    from . import mirror

    os.nice(19)
    wish = messages.read(messages.MirrorWish, json.loads(stream.readline().decode()))
    mirror.send(job, wish, out)


def _send_output(job: str, out: IO[bytes]) -> None:
    """What the ranks here have printed."""
    os.stat(os.path.join(job, "out"))
    outputs.pack(job, [entry.path for entry in outputs.walk(job, "out")], out)


def _forget_others(root: str) -> None:
    """Removes the agents of other versions that no job on this node was started with, unless one
    is just starting."""
    import glob
    import shutil

    jobs = glob.glob(os.path.join(glob.escape(root), "jobs", "*", "agent.sh"))
    used = b"".join(map(processes.read, jobs))
    own = os.path.basename(os.path.dirname(os.path.abspath(sys.argv[0])))
    for entry in list(os.scandir(os.path.join(root, "agent"))):
        is_new = entry.stat().st_mtime > time.time() - STARTING
        if not (entry.name == own or is_new or os.fsencode(entry.name) in used):
            shutil.rmtree(entry.path, ignore_errors=True)


VERBS: Dict[str, Union[str, Callable[..., Any]]] = {
    **{verb: _answer(verb) for verb in ("look", "tend", "written", "stacks", "again", "end")},
    **{verb: _show("views", verb) for verb in ("show", "show_gpus", "show_use")},
    **{verb: _show("stacks", verb) for verb in ("show_moves", "show_stacks")},
    "ask": lambda job, tag, seconds: Processes(job, tag).ask(float(seconds)),
    "attend": "attend.serve",
    "await": lambda job, tag: Processes(job, tag).await_end(math.inf),
    "batch": _batch,
    "build": lambda place, settings: _import("setup").build(place, **json.loads(settings)),
    "built": outputs.note_built,
    "cancel": "supervise.cancel",
    "clean": lambda job: _load(job).clean(),
    "follow": "watch.follow",
    "forget_others": _forget_others,
    "granted": "granted.open_terminal",
    "halt": "ranks.halt",
    "hand": "resume.send",
    "hand_in": "queues.hand_in",
    "heed": "ranks.heed",
    "idle": "idle.watch",
    "inherit": "resume.inherit",
    "inside": "granted.enter",
    "linger": "ranks.linger",
    "link": _link,
    "list": _list,
    "mirrored": "supervise.list_copies",
    "pack": _pack,
    "points": lambda job: int(not _load(job).run_points()),
    "receive": "resume.receive",
    "request": "requests.check",
    "restore": "resume.restore",
    "save": lambda job, *names: _load(job).save(names),
    "send": _send,
    "send_output": _send_output,
    "set_up": lambda job, settings: _import("setup").set_up(job, **json.loads(settings)),
    "status": "supervise.tell_status",
    "stop": lambda job, tag, seconds: Processes(job, tag).stop(float(seconds)),
    "store": "relay.serve",
    "submit": "supervise.submit",
    "survey": "queues.survey",
}
"""Functions, or where they are. A number that one returns is the exit code; a text, or lines, are
printed."""

GIVEN: Dict[str, Callable[[str], Any]] = {
    "tag": lambda job: processes.read_text(os.path.join(job, "tag")),
    "out": lambda job: sys.stdout.buffer,
    "stream": lambda job: sys.stdin.buffer,
}
"""Parameters of verbs that are no words of the command line, by the job's folder."""


def _import(module: str) -> Any:
    return import_module("." + module, __package__)


def _call(verb: str, words: Sequence[str]) -> Any:
    """With each word as the annotation of its parameter says."""
    found = VERBS[verb]
    if isinstance(found, str):
        module, _, name = found.partition(".")
        found = getattr(_import(module), name)
    rest, args, code = list(words), [], found.__code__
    for name in code.co_varnames[: code.co_argcount]:
        if name in GIVEN:
            args.append(GIVEN[name](words[0]))
        elif rest:
            args.append(found.__annotations__.get(name, str)(rest.pop(0)))
    return found(*args, *rest)


def main(words: Sequence[str]) -> None:
    if b"LC_CTYPE=" not in processes.read("/proc/self/environ"):
        os.environ.pop("LC_CTYPE", None)  # Python's own, in a C locale: no program is to have it
    try:
        said = _call(words[0], words[1:])
        if isinstance(said, bool):
            return
        if isinstance(said, int):
            sys.exit(said)
        for line in said.splitlines() if isinstance(said, str) else said or ():
            print(line)
    except BrokenPipeError:
        os._exit(1)  # nobody reads it any more
    except EOFError as error:
        sys.exit(str(error))
    except OSError as error:
        name = os.fsdecode(error.filename or "")
        missing = os.path.basename(name) == outputs.STAGED
        said = "the list of what was staged is missing" if missing else f"{name}: {error.strerror}"
        sys.exit(said)
