"""The outermost frame of a program: errors become one line and an exit code."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn, TextIO

from trainlib.errors import Stopped, WorkloadError
from trainlib.ranks import guess_rank

#: Seconds that a rank other than 0 leaves rank 0 for printing an error that all ranks have: the
#: launcher kills everything as soon as the first rank ends with an error. Nobody waits for it where
#: rank 0 has printed its line and ended.
_LEAD_S = 3.0

#: When garbage is looked for while a program starts, and otherwise: a fifth of the time that torch
#: takes to import would go into a search of modules, which stay.
_STARTING, _USUAL = (100_000, 20, 100), gc.get_threshold()


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Write one line to stdout (or `stream`), now, and in one piece.

    `print` hands over text and line end separately, which unbuffered become two writes: lines of
    ranks that share a file would then run into each other.
    """
    stream = sys.stdout if stream is None else stream
    stream.write(line + "\n")
    stream.flush()


def print_metrics(**values: float) -> None:
    """Write one line with numbers, which `clusterctl logs --metrics` collects."""
    print_line(json.dumps({"clusterctl": {**values, "time": round(time.time(), 3)}}))


def print_error(error: WorkloadError) -> None:
    """Print the error to stderr as one line, once per error object."""
    if not error.said:
        error.said = True
        program = os.path.basename(sys.argv[0]) or "python"
        print_line(f"{program}: error: {error.line}", sys.stderr)


def run_program(main: Callable[[], int]) -> NoReturn:
    """Run `main` and end the process with its exit code; known mistakes give no traceback.

    By then `main` has torn down what it opened (see `trainlib.session`).
    """
    gc.set_threshold(*_STARTING)
    try:
        code = main()
    except WorkloadError as error:
        if error.everywhere and not error.said and guess_rank() != 0:
            time.sleep(_LEAD_S)
        else:
            print_error(error)
        code = error.code
    except Stopped as stop:
        code = 128 + stop.signum
    except KeyboardInterrupt:
        code = 130
    _end(code)


def end_start() -> None:
    """From here on garbage is looked for as usual, but never again in what there is by now."""
    if gc.get_threshold() == _STARTING:
        gc.freeze()
        gc.set_threshold(*_USUAL)


def _end(code: int) -> NoReturn:
    """Exit handlers, what is still to be written, and out."""
    if "torch" not in sys.modules:
        sys.exit(code)
    # Not through the end of the interpreter: what still refers to a process group then (a model in
    # a traceback, a cycle) takes gloo's threads down unjoined, and the finished program aborts
    # with "terminate called without an active exception" (torch 2.13, one run in four of a busy
    # machine).
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # Nobody reads any more: nothing to be done about it, and the exit code is worth more.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
