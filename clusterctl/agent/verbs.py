"""The agent's command line: `python3 -I -S AGENT/__main__.py VERB JOB ARGUMENT…`. JOB: the job's
folder on this node.
"""

import json
import os
import sys
import time
from typing import Callable, Dict, List, Sequence

from . import messages, outputs, processes
from .processes import Processes

AWAITED = 3600.0
"""Seconds after which a wait begins anew."""
SHOWN = ("show", "show_gpus", "show_moves", "show_stacks", "show_use")
"""Verbs that are functions of views.py and stacks.py."""
STARTING = 3600.0
"""Seconds in which a job is started with the agent that was just put there."""


def _command(verb: str, job: str) -> List[str]:
    """This agent again, in a process of its own."""
    return [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0]), verb, job]


def _read_tag(job: str) -> str:
    """What the environment of each of its processes has."""
    return processes.read(os.path.join(job, "tag")).decode()


# ------------------------------------------------------------------------------- on the launcher


def _submit(job: str) -> None:
    from . import supervise

    sys.stdout.write(supervise.submit(job))


def _status(job: str, limit: str) -> None:
    from . import supervise

    sys.stdout.write(supervise.tell_status(job, _command("clean", job), float(limit)))


def _cancel(job: str) -> None:
    from . import supervise

    supervise.cancel(job, _command("clean", job))


def _save(job: str, *names: str) -> None:
    """Prints the nodes whose files are not all on the launcher then."""
    from . import supervise

    for name in supervise.load(job).save(names):
        print(name)


def _mirrored(job: str, *names: str) -> None:
    from . import supervise

    for item in supervise.list_copies(job, names):
        sys.stdout.buffer.write(item + b"\0")


def _points(job: str) -> None:
    from . import supervise

    sys.exit(not supervise.load(job).run_points())


def _clean(job: str) -> None:
    from . import supervise

    supervise.load(job).clean()


# ------------------------------------------------------------------------------- batch systems


def _survey(root: str, system: str, *numbers: str) -> None:
    from . import queues

    os.chdir(root)
    for line in queues.survey(system, numbers):
        print(line)


def _hand_in(job: str, system: str, name: str, patience: str) -> None:
    from . import queues

    try:
        queues.hand_in(job, system, name, float(patience))
    except queues.Refused as refused:
        sys.exit(str(refused))
    _survey(os.path.join(job, "..", ".."), system, os.path.basename(job))


def _batch(job: str, *early: str) -> None:
    """A job of a batch system, or a task of its array."""
    with open(os.path.join(job, "plan.json")) as file:
        plan = messages.read(messages.BatchPlan, json.load(file))
    if plan.job is None:
        from . import queues, tasks

        sys.exit(tasks.run(job, plan, queues.load(plan.system).find_point, list(early)))
    from . import batch

    sys.exit(batch.BatchSupervisor(job, plan, plan.job).see_through(early))


# ------------------------------------------------------------------------------------ processes


def _attend(job: str) -> None:
    from . import attend

    attend.serve(job, _read_tag(job))


def _ask(job: str, seconds: str) -> None:
    Processes(job, _read_tag(job)).ask(float(seconds))


def _answer(verb: str) -> Callable[..., None]:
    """Prints what a supervisor would be answered: a fact per line."""

    def print_facts(job: str, *numbers: str) -> None:
        from .attend import Attendant

        for fact in Attendant(job, _read_tag(job)).answer(verb, *map(float, numbers)):
            print(*fact)

    return print_facts


def _show(verb: str) -> Callable[[str, str], None]:
    """Prints what there is to see, as `doctor` and `top` take it."""

    def show(job: str, settings: str) -> None:
        from . import stacks, views

        module = stacks if hasattr(stacks, verb) else views
        views.write(getattr(module, verb)(job, **json.loads(settings)))

    return show


def _stop(job: str, seconds: str) -> None:
    Processes(job, _read_tag(job)).stop(float(seconds))


def _await(job: str) -> None:
    """Returns when nothing of the job is left."""
    while not Processes(job, _read_tag(job)).await_end(AWAITED):
        pass


def _halt(job: str, rank: str, seconds: str) -> None:
    from . import ranks

    ranks.halt(job, _read_tag(job), rank, float(seconds))


def _heed(job: str, first: str, count: str, seconds: str, wrapper: str) -> None:
    from . import ranks

    ranks.heed(job, _read_tag(job), first, int(count), float(seconds), int(wrapper))


def _linger(job: str, rank: str, world: str, seconds: str) -> None:
    from . import ranks

    ranks.linger(job, rank, int(world), float(seconds))


# ------------------------------------------------------------------------------------ outputs


def _list(job: str) -> None:
    """`SIZE MTIME CTIME ./PATH` and a NUL for each output. Fails where there may be more."""
    failed: List[OSError] = []
    for entry in outputs.list_outputs(job, failed):
        line = f"{entry.size} {entry.modified / 1e9:.9f} {entry.changed / 1e9:.9f} ./".encode()
        sys.stdout.buffer.write(line + os.fsencode(entry.path) + b"\0")
    sys.stdout.flush()
    if failed:
        raise failed[0]


def _pack(job: str) -> None:
    paths = [entry.path for entry in outputs.list_outputs(job)]
    outputs.pack(os.path.join(job, outputs.WORK), paths, sys.stdout.buffer)


def _link(job: str) -> None:
    """Those that stdin names, with a NUL behind each."""
    paths = sys.stdin.buffer.read().split(b"\0")[:-1]
    for path in outputs.link_outputs(job, map(os.fsdecode, paths)):
        text = f"left out ./{path}: neither a file, a folder nor a link\n"
        sys.stdout.buffer.write(os.fsencode(text))


def _send(job: str) -> None:
    from . import mirror

    os.nice(19)
    wish = messages.read(messages.MirrorWish, json.loads(sys.stdin.readline()))
    mirror.send(job, wish, sys.stdout.buffer)


def _send_output(job: str) -> None:
    from . import mirror

    mirror.send_output(job, sys.stdout.buffer)


def _hand(job: str, attempt: str, whole_folder: str) -> None:
    """The snapshot that an attempt goes on from."""
    from . import resume

    resume.send(job, int(attempt), bool(whole_folder), sys.stdout.buffer)


def _receive(job: str, attempt: str) -> None:
    from . import resume

    resume.receive(job, int(attempt), sys.stdin.buffer)


def _restore(job: str, rank: str) -> None:
    from . import resume

    resume.restore(job, int(rank), sys.stdin.buffer)


def _set_up(job: str, settings: str) -> None:
    from . import setup

    sys.exit(setup.set_up(job, **json.loads(settings)))


def _store(*words: str) -> None:
    from . import relay

    relay.serve(*words)


def _follow(job: str, *shared: str) -> None:
    from . import watch

    watch.follow(job, *shared)


# ------------------------------------------------------------------------------------ the agent


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


VERBS: Dict[str, Callable[..., None]] = {
    **{verb: _answer(verb) for verb in ("look", "tend", "written", "stacks", "again", "end")},
    **{verb: _show(verb) for verb in SHOWN},
    "ask": _ask,
    "attend": _attend,
    "await": _await,
    "batch": _batch,
    "built": outputs.note_built,
    "cancel": _cancel,
    "clean": _clean,
    "follow": _follow,
    "forget_others": _forget_others,
    "halt": _halt,
    "hand": _hand,
    "hand_in": _hand_in,
    "heed": _heed,
    "linger": _linger,
    "link": _link,
    "list": _list,
    "mirrored": _mirrored,
    "pack": _pack,
    "points": _points,
    "receive": _receive,
    "restore": _restore,
    "save": _save,
    "send": _send,
    "send_output": _send_output,
    "set_up": _set_up,
    "status": _status,
    "stop": _stop,
    "store": _store,
    "submit": _submit,
    "survey": _survey,
}


def main(words: Sequence[str]) -> None:
    if b"LC_CTYPE=" not in processes.read("/proc/self/environ"):
        os.environ.pop("LC_CTYPE", None)  # Python's own, in a C locale: no program is to have it
    try:
        VERBS[words[0]](*words[1:])
    except BrokenPipeError:
        os._exit(1)  # nobody reads it any more
    except EOFError as error:
        sys.exit(str(error))
    except OSError as error:
        name = os.fsdecode(error.filename or "")
        missing = os.path.basename(name) == outputs.STAGED
        said = "the list of what was staged is missing" if missing else f"{name}: {error.strerror}"
        sys.exit(said)
