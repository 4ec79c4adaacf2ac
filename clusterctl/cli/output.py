"""Ranks' output as people and programs see it: every line is tagged with its rank.

A progress bar is a line that its program writes again and again after a carriage return. On a
terminal it is redrawn in place, elsewhere its state is shown at intervals.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct

from clusterctl.cli.console import BAD, GOOD, Console, can_redraw, escape, make_plain, pick
from clusterctl.core.job import UNPLACED, Job, JobState, ProgramKind, format_duration
from clusterctl.core.text import count, describe_exit
from clusterctl.core.variables import redact, redact_arguments
from clusterctl.errors import ClusterctlError, NodeUnreachable, ProviderError, UsageError

if TYPE_CHECKING:
    from clusterctl.actions.jobs import Fetched
    from clusterctl.options.verbs import Cancel, Doctor, Fetch, Logs, Rerun, Top
    from clusterctl.state.store import Store

LINE_LIMIT = 4 << 20
"""Bytes of a line that are kept until its end is there. What is longer becomes several lines."""
INTERVAL = 5.0
"""Seconds between two states of a progress bar in a file, in a pipe and in JSON."""
FRAME = 0.1
"""The same on a terminal."""

COLOURS = (36, 33, 32, 35, 34, 31)
"""Of the tags of ranks: cyan, yellow, green, magenta, blue, red."""

_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[^\[\]])")
_COLOUR = re.compile(rb"(\x1b\[[0-9;:]*m)")
_UP = b"\x1b[A"
_UP_AND_DOWN = _UP + b"\n"
"""Between two states of a bar that stands below another one, as tqdm writes it."""
_CONTROL = re.compile(
    rb"[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]"  # U+0080 to U+009F, a second set of control characters
    # Characters that turn the order of others: U+061C, U+200E and F, U+202A to E, U+2066 to F;
    # and U+2028 and 9, which begin lines.
    rb"|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xaf]"
)
_STRAY = re.compile(
    rb"^[\x80-\xbf]{1,3}|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}"
    rb"|[\xf0-\xf4][\x80-\xbf]{3}|([\x80-\x9f])"
)
"""The same bytes outside a character of UTF-8, or of its rest, where a line comes in parts: some
terminals obey them, the others show that they are wrong."""


class RankStream(Struct, eq=False):
    """One stream of one rank, and its line that is not complete yet."""

    rank: int | None
    stream: str
    rest: bytes = b""
    is_bar: bool = False
    """The line has a carriage return in it."""
    bar: bytes = b""
    """What a terminal would show of such a line."""
    shown: bytes = b""
    """The state of the bar that was shown last, and when."""
    shown_at: float = -math.inf

    @property
    def tag(self) -> bytes:
        return b"[agent] " if self.rank is None else b"[%d] " % self.rank

    def overwrite(self, text: bytes) -> None:
        """Follows what carriage returns in `text` leave to be seen."""
        self.is_bar = True
        for part in text.split(b"\r"):
            if part:
                text = part.replace(_UP, b"")
                self.bar = text if _ESCAPE.sub(b"", text).strip() else b""


class Printer:
    """Prints what ranks write: stdout to stdout, stderr to stderr, or an object per line with
    --json, where `cut` marks a line that is too long to wait for its end, and `progress` the state
    of a progress bar, whose line comes when it ends. On a terminal, bars stand below everything
    else, and go up into the text when they end.

    A context manager: leaving it prints lines that have no end. `only`: this rank alone.
    """

    def __init__(
        self,
        console: Console,
        *,
        only: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._only, self._clock = console, only, clock
        self._streams = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        screens = [name for name, stream in self._streams.items() if stream.isatty()]
        self._screens = [] if console.json else screens
        self._terminals = [] if console.json else _find_terminals(self._streams)
        self._texts: dict[str, list[bytes]] = {name: [] for name in self._streams}
        self._sources: dict[tuple[int | None, str, str], RankStream] = {}
        self._changed: dict[RankStream, None] = {}
        """Bars whose state has changed since it was shown."""
        self._drawn: dict[RankStream, None] = {}
        """Bars that stand on a terminal."""
        self._redraws = False

    def __enter__(self) -> Printer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError) and error.errno:
            return  # perhaps it was this output that failed
        for source in self._sources.values():
            if source.rest or source.bar:
                self._complete(source, source.rest)
        self._drawn.clear()
        self._write_texts()

    def __call__(self, pieces: Iterable[Any]) -> None:
        for piece in pieces:
            if self._only is None or piece.rank == self._only:
                key = (piece.rank, piece.node, piece.stream)
                if key not in self._sources:
                    self._sources[key] = RankStream(piece.rank, piece.stream)
                self._feed(self._sources[key], piece.data)
        self._show_progress(self._clock())
        if self._redraws or any(self._texts.values()):
            self._write_texts()
        if self._drawn and not self._console.drawn:
            bars = (self._render_tag(bar) + _make_printable(bar.shown) for bar in self._drawn)
            self._console.draw([bar.decode(errors="surrogateescape") for bar in bars])
        self._redraws = False

    def _feed(self, source: RankStream, data: bytes) -> None:
        text = source.rest + data
        while _UP_AND_DOWN in text:
            text = text.replace(_UP_AND_DOWN, b"")
        *lines, rest = text.split(b"\n")
        plain = not source.is_bar and b"\r" not in text
        if plain and all(len(line) <= LINE_LIMIT for line in lines):
            if lines:
                self._write(source, lines)
        else:
            for line in lines:
                self._complete(source, line)
        if source.is_bar or b"\r" in rest:
            source.overwrite(rest)
            self._changed[source] = None
            rest = rest.rpartition(b"\r")[2]
        source.rest = self._cut(source, rest)

    def _complete(self, source: RankStream, line: bytes) -> None:
        if source.is_bar or b"\r" in line.removesuffix(b"\r"):
            source.overwrite(line)
            line = source.bar
        text = self._cut(source, line)
        drawn = self._drawn.pop(source, source) is None
        self._redraws |= drawn
        # Elsewhere the last state of a bar stands there already.
        if drawn or self._console.json or not (source.is_bar and source.shown == text):
            self._write(source, [text])
        source.is_bar, source.bar, source.shown = False, b"", b""

    def _cut(self, source: RankStream, text: bytes) -> bytes:
        """Shows all of a text that is too long but its last part, which is returned."""
        start = 0
        while len(text) - start > LINE_LIMIT:
            end = start + LINE_LIMIT
            while end > start + LINE_LIMIT - 3 and text[end] & 0xC0 == 0x80:
                end -= 1  # not within a character
            self._write(source, [text[start:end]], cut=True)
            start = end
        return text[start:]

    def _show_progress(self, now: float) -> None:
        for source in tuple(self._changed):
            redraws = source.stream in self._terminals
            if source.bar == source.shown:
                del self._changed[source]
            elif now >= source.shown_at + (FRAME if redraws else INTERVAL):
                del self._changed[source]
                source.shown, source.shown_at = source.bar, now
                if redraws:
                    self._redraws = True
                    self._drawn[source] = None
                    if not source.bar:
                        del self._drawn[source]
                elif source.bar:
                    self._write(source, [source.bar], progress=True)

    def _write(self, source: RankStream, lines: list[bytes], **more: bool) -> None:
        if self._console.json:
            head = {"rank": source.rank, "stream": source.stream}
            rows = ({**head, "line": line.decode(errors="replace"), **more} for line in lines)
            self._texts["stdout"] += (json.dumps(row).encode() + b"\n" for row in rows)
            return
        if source.stream in self._screens:
            lines = [_make_printable(line) for line in lines]
        tag = self._render_tag(source)
        self._texts[source.stream].append(tag + (b"\n" + tag).join(lines) + b"\n")

    def _render_tag(self, source: RankStream) -> bytes:
        """On a terminal in a colour, by which neighbouring ranks can be told apart."""
        if source.stream not in self._terminals or os.environ.get("NO_COLOR"):
            return source.tag
        colour = COLOURS[(source.rank or 0) % len(COLOURS)]
        return b"\x1b[%dm%b\x1b[0m " % (colour, source.tag.rstrip())

    def _write_texts(self) -> None:
        self._console.clear()
        for name, texts in self._texts.items():
            if texts:
                self._streams[name].write(b"".join(texts))
                self._streams[name].flush()
                texts.clear()


def _find_terminals(streams: Mapping[str, BinaryIO]) -> list[str]:
    """The streams on which bars can be redrawn in place."""
    found = [name for name, stream in streams.items() if stream.isatty() and can_redraw()]
    # What `tee` writes to the terminal itself would land among the bars.
    modes = [os.fstat(s.fileno()).st_mode for name, s in streams.items() if name not in found]
    return [] if any(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in modes) else found


def _make_printable(text: bytes) -> bytes:
    """A line without what would move the cursor or turn the order of characters; colours stay, and
    end with it."""
    if not text.isascii():
        text = _STRAY.sub(lambda found: b"" if found[1] else found[0], text)
    parts = _COLOUR.split(text)  # each odd one is a colour
    parts[::2] = [_CONTROL.sub(b"", _ESCAPE.sub(b"", part)) for part in parts[::2]]
    return b"".join(parts) + b"\x1b[0m" * (len(parts) > 1)


# -------------------------------------------------------------------------------------------------
# A job as people and programs see it: its start, its end, its record.


EXIT_TIMEOUT = 124
"""As coreutils' timeout(1)."""
EXIT_CANCELLED = 130


def show_staging(console: Console) -> ExitStack:
    """Tells how far the copies of a job's files are. Close it when the job starts: from then on,
    the screen is the job's."""
    from clusterctl.actions import common

    stack = ExitStack()
    stack.enter_context(console.show_waiting(moved=common.count_copied, only_copies=True))
    return stack


def announce(console: Console, job: Job, detach: bool) -> None:
    where = ", ".join(
        f"{place.count} on {place.node}" if place.count > 1 else place.node
        for place in job.placement
        if place.node != UNPLACED
    )
    places = f" ({where})" if where else ""
    native = f" ({job.scheduler} {job.native_id})" if job.native_id else ""
    unit = "task" if job.spec.program.kind is ProgramKind.BATCH else "rank"
    size = "1 process" if job.spec.once else count(job.ranks, unit)
    if job.spec.is_sweep:
        size = f"{count(len(job.processes), 'point')}, {job.ranks} at a time"
    console.report(f"job {job.id}: {size}{places}, {job.state.value}{native}")
    if detach:
        console.note(f"follow it with `clusterctl logs {job.id} -f`")
        console.document(**pick(job, "id", "cluster", "state", "native_id"))


def describe_end(job: Job) -> str:
    """How a job has ended, in a line for who did not follow it."""
    why = job.failure.text if job.failure else job.reason
    program = " ".join(redact_arguments(job.spec.program.words))
    how = f"{job.state.value} after {format_duration(job)}" + (f": {why}" if why else "")
    return f"job {job.id} on {job.cluster} {how} ({program})"


def finish(console: Console, job: Job) -> int:
    """The summary, and the exit code of `run`."""
    from clusterctl.actions.run import explain_failure

    code, error = job.program_exit_code, explain_failure(job)
    how = job.state.value
    failure = job.failure
    if job.state is JobState.SUCCEEDED:
        console.report(f"job {job.id} succeeded in {format_duration(job)}", GOOD)
        if job.never_met:
            console.note(
                f"none of the {job.ranks} ranks joined a process group of torch.distributed or used"
                " MPI: unless they share the work in another way, each did all of it; to train"
                " together, call init_process_group() in every rank"
                ' (Lightning: Trainer(strategy="ddp", num_nodes=…)); for one process: --once'
            )
        result = 0
    elif job.state is JobState.FAILED:
        if failure and job.spec.is_sweep:
            how = f"{job.reason}; `clusterctl rerun {job.id} --failed` runs them again"
        elif failure:
            how = failure.text + (f"; {job.reason}" if job.reason else "")
        else:
            how = job.reason or describe_exit(code or 1)
        console.report(f"job {job.id} failed after {format_duration(job)}: {how}", BAD)
        result = error.exit_code if error else code or 1
    elif job.state is JobState.TIMEOUT:
        from clusterctl.actions.jobs import describe_survivors

        limit = f"--timeout of {job.spec.timeout:g} s"
        if not job.spec.timeout:
            limit = "time limit in the queue"
        left = describe_survivors(job)
        console.report(f"job {job.id} was stopped after its {limit}: {left}", BAD)
        result = EXIT_TIMEOUT
    else:
        why = f": {job.reason}" if job.reason else ""
        console.report(f"job {job.id} was {how}{why}", BAD)
        result = error.exit_code if error else EXIT_CANCELLED
    _write_result(console, job, result)
    return result


def document_fetched(fetched: Fetched) -> dict[str, Any]:
    from clusterctl.actions.jobs import GONE

    brought = fetched.brought
    return {
        **pick(fetched, "job", "folder"),
        "missing": {**fetched.missing, **dict.fromkeys(fetched.gone, GONE)},
        "files": brought.outputs,
        **pick(brought, "kept", "left_out", "core_dumps"),
        "failed": [error.message for error in fetched.failed],
    }


@contextmanager
def report_result(console: Console, latest: Callable[[], Job | None]) -> Iterator[None]:
    """With --json, a run that ends by an error or by Ctrl-C still ends with a result object.

    One that is told to end (SIGTERM, a closed terminal), or that can no longer write, leaves its
    job alone, and says so.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        _say_it_goes_on(console, latest())
        os._exit(128 + number)  # raising here could leave locks of the SSH library held

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, leave)
    try:
        yield
    except (ClusterctlError, KeyboardInterrupt, OSError) as error:
        job, ours = latest(), isinstance(error, (ClusterctlError, KeyboardInterrupt))
        if job and isinstance(error, (UsageError, ProviderError)) and not job.state.ended:
            # The record could not be written, so it does not tell how the job is.
            console.note(
                f"no longer following job {job.id}; `clusterctl jobs` shows whether it still runs"
            )
        elif not isinstance(error, (NodeUnreachable, KeyboardInterrupt)):
            _say_it_goes_on(console, job)
        if job and ours:
            _write_result(console, job, getattr(error, "exit_code", EXIT_CANCELLED))
        raise


def _say_it_goes_on(console: Console, job: Job | None) -> None:
    if job and not job.state.ended:
        doing = "stays queued" if job.state is JobState.QUEUED else "keeps running"
        console.note(f"job {job.id} {doing}; follow it with `clusterctl logs {job.id} -f`")


def _write_result(console: Console, job: Job, code: int) -> None:
    if console.json:
        sys.stdout.write(json.dumps({"schema": 1, **document(job), "exit_code": code}) + "\n")
        sys.stdout.flush()
        console.reported = True


def describe_size(job: Job) -> str:
    """The number of ranks; of a sweep, how many of its points have ended, and failed."""
    if not job.spec.is_sweep:
        return str(job.ranks)
    failed = sum(code != 0 for code in job.points_ended.values())
    text = f"{len(job.points_ended)}/{len(job.processes)}"
    return f"{text} ({failed} failed)" if failed else text


def document(job: Job) -> dict[str, Any]:
    seconds, ended = job.seconds, job.points_ended
    points = {
        "total": len(job.processes),
        "ended": len(ended),
        "failed": [int(number) for number, code in ended.items() if code],
    }
    found = {
        **pick(job, "id", "cluster", "cluster_id", "state", "native_id"),
        "program": job.spec.program.target,
        "args": redact_arguments(job.spec.program.args),
        "ranks": job.ranks,
        **({"points": points} if job.spec.is_sweep else {}),
        "placement": {place.node: list(place.ranks) for place in job.placement},
        **pick(job, "program_exit_code", "failure", "reason", "created", "started", "finished"),
        "seconds": None if seconds is None else round(seconds, 3),
        **pick(job, "attempt", "survivors", "rerun_of", "purpose"),
        "env": {name: redact(value) for name, value in job.spec.env.items()},
        "secrets": dict.fromkeys(job.spec.secret_names, "***"),
    }
    return {name: make_plain(value) for name, value in found.items()}


def choose_number(
    given: Logs | Cancel | Fetch | Doctor | Top | Rerun, console: Console
) -> tuple[Store, int]:
    """The records, and the number of the job that is meant; which one it is is said where none was
    named."""
    from clusterctl.actions import common, jobs
    from clusterctl.options.verbs import Cancel, Rerun

    store = common.open_store()
    if not isinstance(given, Cancel) and given.job is not None:
        return store, given.job
    # `rerun` names the cluster where it is to run, not the one where it ran.
    where = None if isinstance(given, Rerun) else given.cluster
    last = jobs.find_last_job(store, where, open_first=isinstance(given, Cancel))
    console.report(f"job {last.id}: {quote_command(last)}")
    return store, last.id


def quote_command(job: Job) -> str:
    """In one cell: nothing in a command line can reach the terminal as a command."""
    return format_cell(shlex.join(job.spec.program.words))


def format_cell(text: str) -> str:
    text = escape(text)
    return text if len(text) <= 60 else f"{text[:59]}…"
