"""Where the command and `python -m clusterctl` begin."""

import os

try:
    import _thread
    import atexit
    import gc
    import signal
    import sys
    import threading
    import time
except KeyboardInterrupt:
    os._exit(130)


def main() -> None:
    """Ctrl-C while Python still loads our modules ends us without a traceback: nothing has been
    begun. What comes before our first line, the start of Python itself and what the installer put
    around us, ends as Python ends it. A shell that ignores SIGINT for us keeps doing so."""
    listening = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listening:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    gc.set_threshold(100_000, 20, 100)  # else an eighth of `up` on EC2 looks for garbage in modules
    from clusterctl.cli import main as cli_main

    sys.unraisablehook = keep_interrupt
    try:
        if listening:
            # All is done and said by then: a late Ctrl-C must not change the exit code.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli_main.main()
    except KeyboardInterrupt:
        exec("")  # as cli.main does, for Python would end by SIGINT
        raise SystemExit(130) from None
    except SystemExit as ending:
        _leave(ending.code)
        raise


def keep_interrupt(dropped: "sys.UnraisableHookArgs") -> None:
    """Python drops what a finalizer or a callback of a weak reference raises, such as those that
    run while modules are loaded: a Ctrl-C or a signal that is raised there comes once more."""
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    number = getattr(dropped.exc_value, "exit_code", 128 + signal.SIGINT) - 128
    main = threading.main_thread().ident or 0

    def repeat() -> None:
        time.sleep(0.02)  # until that is over
        signal.pthread_kill(main, number)

    _thread.start_new_thread(repeat, ())  # waits for nothing, where another Ctrl-C would be lost


def _leave(code: object) -> None:
    """Ends this process without taking its modules apart, which would take as long as loading a
    third of them. Returns where Python has something to say or to wait for, and where somebody
    measures: what a profiler has seen is written when Python ends."""
    if sys.getprofile() or sys.gettrace():
        return
    others = (one for one in threading.enumerate() if one is not threading.main_thread())
    if not isinstance(code, int) or not all(one.daemon for one in others):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    atexit._run_exitfuncs()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
