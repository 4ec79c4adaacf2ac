"""Grid Engine: qsub, qstat, qdel. http://gridscheduler.sourceforge.net/htmlman/manuals.html"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from clusterctl.agent import queues
from clusterctl.batch.queue import (
    QueueSystem,
    call_mpirun,
    check_value,
    choose_lead,
    list_arguments,
    make_job_name,
)
from clusterctl.core.job import Job, JobSpec, JobState
from clusterctl.core.model import Cluster
from clusterctl.core.sweep import parse_concurrency
from clusterctl.core.text import count
from clusterctl.errors import UsageError

GPUS = re.compile("(n|num_?)?gpus?|gpu_?(cards?|devs?|devices?|num|count)|cuda", re.I)
"""Names of resources that count GPUs."""
MAIL = {"BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "bea", "NONE": "n"}


def _check_time(text: str) -> str:
    """`12:00:00`. Slurm would read a bare number as minutes, Grid Engine as seconds."""
    if not re.fullmatch(r"\d+:\d\d?:\d\d?", text):
        raise UsageError(f"--time {text!r} is not HOURS:MINUTES:SECONDS", hint="--time 12:00:00")
    return text


def translate_mail_type(text: str) -> str:
    """Letters for -m, from Slurm's words (`BEGIN,END`) or as they are."""
    words = text.upper().split(",")
    if all(word in MAIL for word in words):
        letters = "".join(MAIL[word] for word in words)
        return "".join(dict.fromkeys(letters))
    if re.fullmatch("[beasn]+", text):
        return text
    raise UsageError(
        f"--mail-type {text!r} is unknown", hint=f"some of: {', '.join(MAIL)}, or letters of -m"
    )


OPTIONS: Sequence[tuple[str, str, Callable[[str], str]]] = (
    ("pe", "-pe ", lambda text: " ".join(check_value("-pe", word) for word in text.split())),
    ("l", "-l ", partial(check_value, "-l")),
    ("time", "-l h_rt=", _check_time),
    ("mail-type", "-m ", translate_mail_type),
    ("queue", "-q ", partial(check_value, "--queue")),
    ("project", "-P ", partial(check_value, "--project")),
    ("account", "-A ", partial(check_value, "--account")),
    ("mail-user", "-M ", partial(check_value, "--mail-user")),
)
"""What `run` passes on, Grid Engine's word for it, and what checks and renders its value."""

ARGUMENT = "qsub-arg"
WAITS = "-sync +y\\w*|-verify|-help|-w +v"

GONE = {"CANCELLED": JobState.CANCELLED, "FAILED": JobState.FAILED}


class Sge(QueueSystem):
    system = "sge"
    prefix = "#$"
    emits = "qsub"
    asks_for_more = ("-l h_vmem",)
    hands_in = queues.GridQueue.HAND_IN
    waits = WAITS
    end = queues.GridQueue.END
    example_size = "-pe NAME 2"
    down = queues.GridQueue.DOWN
    unconfigured = "commlib error|Unable to initialize environment"
    gone = GONE
    # -notify: USR2 comes before the end, whether by qdel or by a limit. A suspension is announced
    # by USR1, which is then taken for the end: better saved once too often.
    signals = (("USR1", "checkpoint"), ("USR2", "stopped"), ("TERM", "stopped"))
    ours = ("-o ", "-notify", "-S ", "-r n")
    number = queues.GridQueue.NUMBER
    puts_back = "code=99 # Grid Engine's word for it"
    launchers = ("auto", "mpirun")

    def check(self, spec: JobSpec) -> None:
        self.directives(spec, 0)

    def resolve_size(self, spec: JobSpec) -> JobSpec:
        """Grid Engine counts slots, one rank each. UsageError for more ranks than slots."""
        slots = count_slots(spec)  # of fewer, the script gives each a rank
        if not slots:
            name, _, given = spec.native["pe"].partition(" ")
            raise UsageError(
                f"-pe {name} {given}: without a limit, it works only with a batch script of your"
                " own",
                hint=f"give the most ranks, too: -pe {name} {given}16",
            )
        if spec.ranks > slots:
            raise UsageError(
                f"--ranks {spec.ranks} do not fit into {count(slots, 'slot')}",
                hint=f"ask for them with -pe NAME {spec.ranks}",
            )
        return replace(spec, ranks=spec.ranks or slots)

    def warn_of_sharing(self, spec: JobSpec, site_info: Mapping[str, str]) -> str:
        """Sites name their GPUs as they like, and count them per slot or once for a job."""
        slots = count_slots(spec)
        for item in spec.native.get("l", "").split(","):
            name, _, value = item.partition("=")
            if GPUS.fullmatch(name) and value.isdecimal():
                whole = name in site_info.get("per_job", "").split()
                total = int(value) * (1 if whole else slots)
                if 0 < total < spec.ranks:
                    return f"{count(total, 'GPU')} for {spec.ranks} ranks: several share one"
        return ""

    def directives(self, spec: JobSpec, number: int) -> list[str]:
        native, name = spec.native, make_job_name(spec, number)
        lines = [
            f"-N {name if name[:1].isalpha() else f'j{name}'}",
            "-S /bin/sh",
            "-cwd",
            "-j y",
            "-o batch.out",
            "-notify",
            f"-r {'y' if 'requeue' in native else 'n'}",
        ]
        if spec.is_sweep:
            lines.append(f"-t 1-{len(spec.points)}")
            if most := parse_concurrency(spec.array):
                lines.append(f"-tc {most}")
        return [*lines, *_list_native(spec)]

    def adapt_directives(self, lines: list[str], spec: JobSpec, warned: bool) -> list[str]:
        return ["-S /bin/bash", *super().adapt_directives(lines, spec, warned)]

    def write_start(self, job: Job, starter: str) -> str:
        if "pe" not in job.spec.native:
            return call_mpirun("1", job.spec)
        spread = job.ranks < count_slots(job.spec)
        ranks = str(job.ranks) if spread else '"$NSLOTS"'
        hosts = f'--hostfile "$TMPDIR/hosts"{" --map-by node" if spread else ""}'
        return f"{call_mpirun(ranks, job.spec)} {hosts}"

    def list_options(self, spec: JobSpec) -> list[str]:
        words = shlex.split("\n".join(_list_native(spec)))
        if name := spec.native.get("job-name"):
            words += ["-N", name]
        if "requeue" in spec.native:
            words += ["-r", "y"]
        tasks, _, most = spec.native.get("array", "").partition("%")
        words += ["-t", tasks] if tasks else []
        words += ["-tc", most] if most else []
        return [*words, "-v", ",".join(spec.env)] if spec.env else words

    def read_queue_state(self, state: str, reason: str) -> tuple[JobState, str]:
        """qstat's letters: `q` waits (`h` held, `E` in error), all else is some kind of running."""
        if "E" in state:
            why = reason or "`qstat -j` on the login node shows why"
            return JobState.QUEUED, f"in error ({state}): {why} (waiting does not help)"
        if "q" in state:
            return JobState.QUEUED, "held" if "h" in state else "waiting"
        return JobState.RUNNING, ""

    def advise(self, refusal: str, cluster: Cluster) -> str:
        if "Error reading answer list" in refusal:  # all that qsub says of `my job.sh`
            return "if the script's name has a space or a quote: --job-name NAME"
        return super().advise(refusal, cluster)

    def warn_after(self, spec: JobSpec) -> float:
        if spec.pass_signal:
            return 0  # as the site says: USR1 for -l s_rt, USR2 before the end
        limit = find_time_limit(spec)
        return max(1, limit - choose_lead(spec)) if limit else 0

    def pass_on(self, secrets: Sequence[str]) -> list[str]:
        return [f"-v {','.join(secrets)}"] if secrets else []

    def interactive_argv(
        self, spec: JobSpec, cluster: Cluster, words: Sequence[str]
    ) -> tuple[str, ...]:
        spec, _ = self.resolve(spec, cluster)
        ours = (*self.ours, "-j ", "-r ", "-cwd")
        lines = [line for line in self.directives(spec, 0) if not line.startswith(ours)]
        options = (word for line in lines for word in line.split())
        terminal = ("-pty", "y") if os.isatty(0) else ()
        # A shell of the job reads the words again.
        return ("qrsh", "-now", "no", *terminal, *options, *map(shlex.quote, words))


def _list_native(spec: JobSpec) -> list[str]:
    native = spec.native
    known = [f"{word}{render(native[name])}" for name, word, render in OPTIONS if name in native]
    arguments = list_arguments(spec, ARGUMENT, WAITS)
    if binary := next((line for line in arguments if re.match(r"-b +y", line)), ""):
        raise UsageError(
            f"--{ARGUMENT} '{binary}': with it, nodes look for a command instead of the script",
            hint=f"leave it out; for a command of the nodes: run -- {spec.program.target}",
        )
    return [*known, *arguments]


def count_slots(spec: JobSpec) -> int:
    """The most that -pe asks for, 1 without it; 0: there is no limit."""
    items = spec.native.get("pe", "1").rpartition(" ")[2].split(",")
    ends = [item.rpartition("-")[2] for item in items]
    return 0 if "" in ends else max(map(int, ends))


def find_time_limit(spec: JobSpec) -> int:
    """Seconds until the job is killed: `--time`, or h_rt in `-l`; 0 where none was asked for."""
    given = f"h_rt={spec.native['time']}" if "time" in spec.native else spec.native.get("l", "")
    match = re.search(r"\bh_rt=(?:(\d+):(\d+):)?(\d+)(?:,|$)", given)
    hours, minutes, seconds = (
        (int(number or 0) for number in match.groups()) if match else (0, 0, 0)
    )
    return hours * 3600 + minutes * 60 + seconds
