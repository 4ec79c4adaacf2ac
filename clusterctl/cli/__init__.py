"""The command line: parse, call one action, print. Typer; no logic."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import traceback

from clusterctl.cli import parser
from clusterctl.cli.console import Console, encode_ascii, escape, redact, redact_arguments
from clusterctl.errors import (
    ClusterctlError,
    NodeUnreachable,
    ProviderError,
    RecordError,
    UsageError,
)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A disk that takes no more: nobody's bug."""


def main() -> None:
    """Runs the command line and exits with the code that the contract promises."""
    _complete_streams()
    sys.exit(execute(sys.argv[1:]))


def _complete_streams() -> None:
    """A standard stream that the caller has closed (`>&-`) leads nowhere: else the next file that
    we open would be taken for it. What a stream's encoding does not have is written in ASCII."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    codecs.register_error("clusterctl", encode_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="clusterctl")


def execute(arguments: list[str]) -> int:
    """Runs one command line; never raises. Returns the exit code."""
    console = Console.begin()
    try:
        return _answer(console, arguments)
    except BrokenPipeError:
        return _end_unheard()
    except OSError as error:
        if error.errno not in FULL:
            return _report_other(console, arguments, error)
        _drop_output()
        place = error.filename or "the output"
        ours = error.filename and error.errno != errno.EROFS
        code = (ProviderError if ours else UsageError).exit_code
        path = _log(arguments, traceback.format_exc())
        hint = "free some space there"
        console.error(f"cannot write {place}: {error.strerror}", hint, code, path)
        return code


def _answer(console: Console, arguments: list[str]) -> int:
    """The exit code, after everything has been said. Raises OSError where it cannot be said, or
    where a disk is full."""
    try:
        _refuse_bytes(arguments)
        command = parser.make_command()
        if "_CLUSTERCTL_COMPLETE" in os.environ:
            command.main(args=arguments, prog_name="clusterctl")
        # Not main(): it would make a silent exit code of Ctrl-C.
        with command.make_context("clusterctl", list(arguments)) as context:
            outcome = command.invoke(context)
        return outcome if isinstance(outcome, int) else 0
    except ClusterctlError as raised:
        error = _explain_missing(raised)
        # What a person mistyped needs no log; what went wrong elsewhere does.
        elsewhere = error.exit_code not in (UsageError.exit_code, RecordError.exit_code)
        path = _log(arguments, "\n".join((*console.story, error.message))) if elsewhere else ""
        console.error(error.message, error.hint, error.exit_code, path)
        return error.exit_code
    except KeyboardInterrupt as stopped:
        # Python remembers a Ctrl-C that passed through an exec() of text, as dataclasses make while
        # they load, and would end by SIGINT instead of this code; any other exec() clears that.
        exec("")
        code: int = getattr(stopped, "exit_code", 130)
        console.error(
            f"stopped by {getattr(stopped, 'name', 'Ctrl-C')}", console.after_interrupt, code
        )
        return code
    except SystemExit as error:
        # Typer turns a broken pipe into an exit of its own.
        return (
            _end_unheard() if isinstance(error.__context__, BrokenPipeError) else _find_code(error)
        )
    except OSError:
        raise
    except Exception as error:
        return _report_other(console, arguments, error)


def _explain_missing(error: ClusterctlError) -> ClusterctlError:
    if not isinstance(error, NodeUnreachable) or not error.cluster:
        return error
    from clusterctl.actions import allow

    return allow.explain(error)


def _refuse_bytes(arguments: list[str]) -> None:
    """Records and JSON hold text: what is not UTF-8 could not come back as it was."""
    encoding = sys.getfilesystemencoding()
    for word in arguments:
        if encoding != "utf-8" and not word.isascii():
            raise UsageError(
                f"the argument '{escape(word)}' is not ASCII, and the locale is not UTF-8"
                f" ({encoding})",
                hint="choose a UTF-8 locale, for example LC_ALL=C.UTF-8",
            )
        if any("\udc80" <= char <= "\udcff" for char in word):
            raise UsageError(
                f"the argument '{escape(word)}' is not UTF-8",
                hint="rename the file, or pass the value through a file that the program reads",
            )


def _end_unheard() -> int:
    """The reader of our output has gone. The code is what a shell shows for SIGPIPE."""
    _drop_output()
    return 141


def _drop_output() -> None:
    """What is still in the buffers must not fail once more when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _find_code(error: SystemExit) -> int:
    return error.code if isinstance(error.code, int) else 1


def _report_other(console: Console, arguments: list[str], error: Exception) -> int:
    """What is not ours: a mistake on the command line, found by Typer's parser, or a bug."""
    show = getattr(error, "format_message", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(show() if show else "", flush=True)
        return 0
    if show is not None:
        if "--json" in arguments:
            console.set(json=True)  # the parser stopped before the verb could say so
        code = int(getattr(error, "exit_code", 2))
        console.error(*parser.explain(error, arguments), code)
        return code
    if type(error).__name__ == "Abort":
        console.error("stopped", "", 130)
        return 130
    if type(error).__name__ == "Exit":
        return int(getattr(error, "exit_code", 0))
    if found := explain_input(error, _is_in_a_folder()):
        path = _log(arguments, traceback.format_exc())
        console.error(found.message, found.hint, found.exit_code, path)
        return found.exit_code
    return _report_bug(console, arguments, error)


def _is_in_a_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def explain_input(error: Exception, in_a_folder: bool) -> UsageError | None:
    """What an input of the person's has done that no code has looked for; None for other errors.
    `in_a_folder`: whether the current folder still exists."""
    if isinstance(error, FileNotFoundError) and not error.filename and not in_a_folder:
        return UsageError("the current folder no longer exists", hint="cd to one that does")
    if isinstance(error, RecursionError):
        return UsageError("a file is nested too deeply to be read", hint="use a simpler one")
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        name = str(error.filename or "a name")
        shown = name if len(name) < 100 else f"{name[:100]}…"
        return UsageError(f"{shown}: {error.strerror}", hint="check the path")
    if isinstance(error, UnicodeDecodeError):
        return UsageError(f"a file is not {error.encoding}: {error.reason}", hint="save it anew")
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return UsageError("a name contains a NUL character", hint="check the files that you gave")
    if isinstance(error, ValueError) and "integer string conversion" in str(error):
        return UsageError("a number has too many digits", hint="check the files that you gave")
    return None


def _report_bug(console: Console, arguments: list[str], error: Exception) -> int:
    trace = traceback.format_exc()
    path = _log(arguments, trace)
    if console.verbose:
        sys.stderr.write(trace)
    console.error(
        f"a bug in clusterctl: {type(error).__name__}: {error}",
        f"details are in {path}" if path else "--verbose shows the details",
        1,
    )
    return 1


def _log(arguments: list[str], text: str) -> str:
    from clusterctl.actions import log

    return log.record(f"clusterctl {' '.join(redact_arguments(arguments))}\n{redact(text)}")
