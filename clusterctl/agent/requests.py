"""Whether a batch system could ever run a job: asked on its login node before anything is sent
there. A node that is away, or a limit for what runs now, is no reason: that may change.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

from . import processes, queues, scripts
from .processes import SILENT, call

LIMIT = 6
"""Seconds that the queue has to say whether it could run a job."""
GOOD_FOR = 600.0
"""Seconds for which the same request is not looked at again."""
CHECKED = "checked"
MODULE_LIMIT = 20
RUNTIMES = ("apptainer", "singularity")
"""What runs containers at sites."""
_MODULES = """
for init in "${MODULESHOME-}/init/sh" "${LMOD_PKG-}/init/sh" /etc/profile.d/lmod.sh \\
    /etc/profile.d/modules.sh /usr/share/modules/init/sh; do
    command -v module >/dev/null && break
    [ ! -r "$init" ] || . "$init"
done
for name; do module load "$name" || { echo "@@$name"; exit 1; }; done
"""


class Refusal(NamedTuple):
    """`hint`: what to do, "" where nobody knows better than the options. `closed`: the site may
    open what is asked for. `doubtful`: the nodes of the job may have what this one lacks."""

    why: str
    hint: str = ""
    closed: bool = False
    doubtful: bool = False


def check(root: str, settings: str) -> Iterator[str]:
    """As JSON, the first reason why the job cannot run; nothing where none is known."""
    given = json.loads(settings)
    digest = hashlib.sha256(settings.encode()).hexdigest()
    path = os.path.join(root, CHECKED)
    for refusal in _list_refusals(given, path, digest):
        yield json.dumps(refusal._asdict())
        return
    processes.write(path, digest)


def _list_refusals(given: Dict[str, Any], path: str, digest: str) -> Iterator[Refusal]:
    venv, image = given["venv"], given["container"]
    if _is_missing(os.path.join(venv, "bin")):
        hint = f"if only the compute nodes have it: run -- {venv}/bin/python PROGRAM"
        yield Refusal(f"--venv {venv}: there is no such virtual environment", hint)
    if _is_missing(image):
        hint = "give its path on the nodes, or docker://IMAGE"
        yield Refusal(f"--container {image}: there is no such image", hint)
    if processes.read_text(path) == digest and time.time() - os.stat(path).st_mtime < GOOD_FOR:
        return
    if given["modules"]:
        yield from _check_modules(given["modules"])
    words, lines = given["words"], given["lines"]
    slurm = queues.SYSTEMS[given["system"]].HAS_PARTITIONS
    options = scripts.join_options(lines, words)
    yield from _check_outputs(given["folder"], options, slurm)
    yield from (_ask_slurm if slurm else _ask_grid)(words, lines, options)
    if image and not (given["modules"] or given["pyxis"] or any(map(shutil.which, RUNTIMES))):
        why = "no apptainer or singularity on the login node"
        yield Refusal(why, "the nodes of the job need one, or --module loads it", doubtful=True)


def _is_missing(path: str) -> bool:
    return path.startswith(("/", "~")) and not os.path.exists(os.path.expanduser(path))


def _check_outputs(folder: str, options: str, slurm: bool) -> Iterator[Refusal]:
    """Of folders that are named: the nodes share those of this one. A copy of the tree, in which
    other paths begin, is made later, with the folders that it needs."""
    if folder and not (slurm or "\0-cwd" in options):
        folder = os.path.expanduser("~")
    start = _find(options, "-D|--chdir" if slurm else "-wd")
    folder = os.path.join(folder, start)
    yield from _require_folder("the job cannot start in", start, folder)
    joined = not slurm and _find(options, "-j").startswith("y")
    for path in (_find(options, "-o|--output"), "" if joined else _find(options, "-e|--error")):
        place = os.path.dirname(os.path.join(folder, path.rpartition(":")[2]))
        yield from _require_folder("the output cannot go to", path, place)


def _require_folder(what: str, path: str, place: str) -> Iterator[Refusal]:
    cut = re.search(r"[%$\\]", place)
    if cut:  # what follows is known when the job runs
        place = os.path.dirname(place[: cut.start()])
    if not (path and os.path.isabs(place)):
        return
    # A disk that this node lacks may be one of the compute nodes.
    if os.path.isdir(os.sep + place.split(os.sep)[1]) and not os.path.isdir(place):
        hint = f"mkdir -p {shlex.quote(place)}; if only the compute nodes have it: cd or exec >FILE"
        yield Refusal(f"{what} {path}: there is no folder {place}", f"{hint} in the script")


def _check_modules(names: Sequence[str]) -> Iterator[Refusal]:
    said = call("/bin/bash", "-lc", _MODULES, "sh", *names, limit=MODULE_LIMIT)
    if said.code == 1 and "@@" in said.out:
        name = said.out.rpartition("@@")[2].strip()
        why = re.sub(r"^sh: line \d+: ", "", said.err.strip().rpartition("\n")[2])
        hint = "`module avail` on the login node shows those there are"
        yield Refusal(f"the module {name} cannot be loaded: {why}", hint)


# -------------------------------------------------------------------------------------------------
# Slurm.

_AWAY = re.compile("down|drain|fail|maint|unk|boot|power|reserved|resv|inval|error|block|future")
"""States of nodes that come back, when jobs of their size can run again."""
_LATER = re.compile(
    "not available|busy|DOWN|contact|timed out|[Tt]imeout|Zero Bytes|again|temporar|connect"
)
"""Of what sbatch says where it would take the job all the same."""
_NEVER = "node configuration is not available"


def _ask_slurm(words: Sequence[str], lines: Sequence[str], options: str) -> Iterator[Refusal]:
    """`--test-only` knows no limit of time and no closed partition."""
    if any(re.match(r"\s*(het|pack)job", line) for line in lines) or ":" in words:
        return  # of several parts, each with options of its own
    said = call("scontrol", "show", "partition", "-o", limit=LIMIT)
    if said.code == SILENT:
        return
    lines_of = [line for line in said.out.splitlines() if line.startswith("PartitionName=")]
    rows = [*map(scripts.read_fields, lines_of)]
    usual = [row["PartitionName"] for row in rows if row.get("Default") == "YES"]
    names = _find(options, "-p|--partition", ",".join(usual)).split(",")
    chosen = [row for row in rows if row["PartitionName"] in names]
    up = [row["PartitionName"] for row in rows if row.get("State") == "UP"]
    if rows and names != [""] and not chosen:
        why = f"there is no partition {','.join(names)} that you may use"
        yield Refusal(why, f"one of: {', '.join(up)}")
    obstacles = [_find_obstacle(row, options) for row in chosen]
    if obstacles and all(obstacles):
        closed = all(obstacle.endswith("is down") for obstacle in obstacles)
        hint = f"partitions that are up: {', '.join(up)}"
        yield Refusal("; ".join(obstacles), hint, closed)
        return
    script = "\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines), ":", ""])
    said = call("sbatch", "--test-only", *words, limit=LIMIT, stdin=script)
    complaints = re.findall("(?m)^(?:sbatch: error|allocation failure): (.*)", said.err)
    if said.code in (0, SILENT) or not complaints:
        return
    why = complaints[-1]
    if _NEVER in why:
        asked = ("sinfo", "-h", "-N", "-o", "%T", "-p", ",".join(names))
        states = call(*asked, limit=LIMIT)
        if states.code or _AWAY.search(states.out):
            return
        yield Refusal(
            f"no nodes of partition {','.join(names)} are as the job asks for them ({why})",
            "`sinfo -o '%P %D %c %m %G %f'` shows nodes, cores, memory, GPUs and features",
        )
    elif not _LATER.search(why):
        yield Refusal(f"Slurm refuses the job: {why}")


def _find(options: str, pattern: str, usual: str = "") -> str:
    """What the last one of these options says; `options`: a NUL before each word."""
    found: List[str] = re.findall(f"\0(?:{pattern})[\0=]*([^\0]+)", options)
    return found[-1] if found else usual


def _find_obstacle(row: Dict[str, str], options: str) -> str:
    """Why no job with these options starts in that partition; "" where it may."""
    name, state = row["PartitionName"], row.get("State", "UP")
    if state != "UP":
        return f"partition {name} is {state.lower()}"
    asked, most = _find(options, "-t|--time(?!-)"), row.get("MaxTime", "")
    least = asked and _find(options, "--time-min", asked)  # as little as that will do
    if _read_minutes(least) > _read_minutes(most) > 0:
        return f"partition {name} allows jobs of {most}, not --time {asked}"
    nodes = re.match(r"\d+", _find(options, "-N|--nodes(?!-)"))
    for key, what in (("MaxNodes", "allows"), ("TotalNodes", "has")):
        limit = row.get(key, "")
        if nodes and limit.isdigit() and int(nodes.group()) > int(limit):
            noun = "node" if limit == "1" else "nodes"
            return f"partition {name} {what} {limit} {noun}, not {nodes.group()}"
    for key, pattern in (("Accounts", "-A|--account"), ("Qos", "-q|--qos")):
        asked, allowed = _find(options, pattern), row.get("Allow" + key, "ALL").split(",")
        if asked and "ALL" not in allowed and asked not in allowed:
            return f"partition {name} takes {key.lower()} {', '.join(allowed)}, not {asked}"
    return ""


def _read_minutes(text: str) -> float:
    """`90`, `90:00`, `1:30:00`, `1-2`, `1-2:30`, `1-2:30:00`; 0: none or no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        return 0.0
    days, first, second, third = (float(part or 0) for part in found.groups())
    hours = found.group(1) or found.group(4)  # else minutes and seconds
    minutes = first * 60 + second + third / 60 if hours else first + second / 60
    return days * 1440 + minutes


# -------------------------------------------------------------------------------------------------
# Grid Engine.

_UNKNOWN = r"requests unknown resource \((\w+)\)"
"""It looks at no load: `mem_free` is unknown to it, and may be met."""


def _ask_grid(words: Sequence[str], lines: Sequence[str], options: str) -> Iterator[Refusal]:
    script = "\n".join(["#!/bin/sh", *(f"#$ {line}" for line in lines), ":", ""])
    said = call("qsub", "-w", "v", *words, limit=LIMIT, stdin=script)
    why = said.out + said.err
    if said.code in (0, SILENT) or re.search(queues.GridQueue.DOWN, why):
        return
    unknown = set(re.findall(_UNKNOWN, why))
    if unknown and not any(map(_is_nowhere, unknown)):
        return
    found = re.search(r"Unable to run job: (?:job rejected: )?(?:Job \d+ )?(.*)", why)
    if found:
        hint = "`qconf -spl` shows parallel environments, `qstat -F` what queues have"
        yield Refusal(f"Grid Engine refuses the job: {found.group(1).rstrip('.')}", hint)


def _is_nowhere(resource: str) -> bool:
    """Whether all hosts say what they have, and none of them has that."""
    said = call("qstat", "-F", resource, limit=LIMIT)
    rows = re.findall(r"(?m)^\S+@\S+ +[A-Z]+ .*", said.out)
    away = any("-NA-" in row or re.search(r" [a-zA-Z]*u[a-zA-Z]* *$", row) for row in rows)
    return bool(rows) and not away and f":{resource}=" not in said.out
