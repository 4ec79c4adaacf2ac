"""One archive of what `doctor` has seen, for an issue."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from clusterctl.errors import make_write_error
from clusterctl.insight import doctor
from clusterctl.insight.doctor import Evidence, Finding
from clusterctl.insight.node_views import NodeView
from clusterctl.job_model import Job
from clusterctl.state.home import replace_file


def write(
    job: Job,
    evidence: Evidence,
    findings: Sequence[Finding],
    path: Path,
    redact: Callable[[str], str],
) -> None:
    """All that was seen, without what `redact` takes out. UsageError where it cannot be written."""
    shown = _redact_outputs(evidence, redact)
    told = (*doctor.judge(shown), *(f for f in findings if f.kind == "hung"))
    record = asdict(job)
    program = record["spec"]["program"]
    program["args"] = [shlex.join(program["args"])]  # `--token VALUE` is told by its name
    texts = {
        "job.json": json.dumps(record, indent=1, default=str),
        "findings.json": json.dumps(
            # JSON escapes the quotes and lines by which secrets are told.
            [_redact_all(asdict(item), redact) for item in told],
            indent=1,
        ),
        "nodes.json": json.dumps(
            {name: _list_fields(view) for name, view in evidence.nodes.items()},
            indent=1,
            default=str,
        ),
    }
    for number, rank in shown.ranks.items():
        texts[f"rank-{number}.out"], texts[f"rank-{number}.err"] = rank.out, rank.err
        if rank.stack:
            texts[f"rank-{number}.stack"] = "".join(f"{frame}\n" for frame in rank.stack.frames)
    for name, view in evidence.nodes.items():
        if view.launcher_said:
            texts[f"launcher-program-{name}.txt"] = view.launcher_said
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in texts.items():
            content = redact(text).encode()
            member = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
            member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(content))
    try:
        replace_file(path, data.getvalue(), mode=0o600)
    except OSError as error:
        raise make_write_error(str(path), error, "choose another --bundle FILE") from error


def _redact_outputs(found: Evidence, redact: Callable[[str], str]) -> Evidence:
    """The same with the outputs of ranks redacted as a whole: a finding quotes some of their lines,
    which alone do not show that they are part of a secret."""
    ranks = {n: replace(r, out=redact(r.out), err=redact(r.err)) for n, r in found.ranks.items()}
    return replace(found, ranks=ranks)


def _redact_all(value: object, redact: Callable[[str], str]) -> object:
    """The same value with all its texts redacted."""
    if isinstance(value, dict):
        return {key: _redact_all(item, redact) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_all(item, redact) for item in value]
    return redact(value) if isinstance(value, str) else value


def _list_fields(view: NodeView) -> Mapping[str, object]:
    left_out = ("ranks", "launcher_said")
    return {key: value for key, value in asdict(view).items() if key not in left_out}
