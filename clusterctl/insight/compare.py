"""What differs between two jobs: how they were started, the files they ran with, how they ended.
Pure."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import asdict

from clusterctl.core.job import Job, Provenance
from clusterctl.core.text import count, format_seconds

MOST = 400
"""Lines of one file's differences that are kept."""


class Change(Struct, frozen=True):
    """One thing that is not the same; "" where a job does not have it."""

    what: str
    first: str
    second: str


class FileChange(Struct, frozen=True):
    """A file that is `added`, `removed` or `changed`, with the lines of a unified diff: none of
    what is no text, or is large."""

    path: str
    how: str
    lines: tuple[str, ...] = ()


def compare(first: Job, second: Job) -> tuple[Change, ...]:
    """All that the records say, but for times and numbers that always differ."""
    return _list_changes(_list_facts(first), _list_facts(second))


def compare_provenance(first: Provenance, second: Provenance) -> tuple[Change, ...]:
    """What the two were made from, without the lines of patches."""
    return _list_changes(_list_origin(first), _list_origin(second))


def _list_changes(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[Change, ...]:
    names = dict.fromkeys((*one, *other))
    changes = (Change(name, one.get(name, ""), other.get(name, "")) for name in names)
    return tuple(change for change in changes if change.first != change.second)


def _list_origin(found: Provenance) -> dict[str, str]:
    facts = {"commit": found.commit[:12]}
    if found.commit:
        facts["uncommitted changes"] = f"{found.patch_bytes} bytes" if found.patch_bytes else ""
    facts |= {f"image {kind}": image for kind, image in found.images.items()}
    for machine in found.machines:
        facts |= {f"{name} on {machine.name}": v for name, v in machine.packages.items()}
        facts[f"Python on {machine.name}"] = machine.python
        facts[f"type of {machine.name}"] = machine.instance_type
    for entry in found.requirements:
        name, _, version = entry.partition("==")
        facts[f"package {name}"] = version or entry
    return {name: value for name, value in facts.items() if value}


def _list_facts(job: Job) -> dict[str, str]:
    spec, program = asdict(job.spec), job.spec.program
    native = {f"option {name}": value or "yes" for name, value in job.spec.native.items()}
    variables = {f"variable {name}": value for name, value in job.spec.env.items()}
    secrets = {f"variable {name}": "***" for name in job.spec.secret_names}
    found = {
        "program": program.target,
        "arguments": shlex.join(program.args),
        "folder": program.folder if program.folder != "." else "",
        "cluster": f"{job.cluster} ({job.cluster_id})",
        "run by": job.scheduler,
        "ranks": str(job.ranks),
        "placement": ", ".join(f"{place.count} on {place.node}" for place in job.placement),
        **{name.replace("_", " "): _render(spec[name]) for name in spec if name not in _LISTED},
        **native,
        **variables,
        **secrets,
        "state": job.state.value,
        "reason": job.reason,
        "exit code": "" if job.program_exit_code is None else str(job.program_exit_code),
        "failed first": f"rank {job.failure.rank} on {job.failure.node}" if job.failure else "",
        "attempts": str(job.attempt),
        "took": format_seconds(job.finished - job.started) if job.started and job.finished else "",
    }
    return {name: value for name, value in found.items() if value}


_LISTED = {"program", "ranks", "native", "env", "secret_names", "env_files", "notice"}
"""What is listed in other words, or says no more than these."""


def _render(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "yes" if value is True else str(value or "")


FilesByPath = Mapping[str, tuple[str, bytes | None]]
"""By path: a digest of what the file is, and its content, if it is small."""


def compare_trees(first: FilesByPath, second: FilesByPath) -> tuple[FileChange, ...]:
    """The files that are not the same in both."""
    how = {(False, True): "added", (True, False): "removed", (True, True): "changed"}
    nothing = ("", None)
    return tuple(
        FileChange(
            path,
            how[path in first, path in second],
            compare_texts(path, first.get(path, nothing)[1], second.get(path, nothing)[1]),
        )
        for path in sorted({*first, *second})
        if first.get(path) != second.get(path)
    )


def compare_texts(path: str, first: bytes | None, second: bytes | None) -> tuple[str, ...]:
    """The differences of a text; () where one of the two is none."""
    try:
        before, after = ((data or b"").decode() for data in (first, second))
    except UnicodeDecodeError:
        return ()
    if "\0" in before + after:
        return ()
    texts = (before.splitlines(), after.splitlines())
    lines = [*difflib.unified_diff(*texts, path, path, lineterm="")]
    more = [f"… {count(len(lines) - MOST, 'more line')}"] if len(lines) > MOST else []
    return (*lines[:MOST], *more)
