"""Builds a wheel of the sources in the current folder (PEP 517). Runs on a node, in an environment
with what the build asks for: build_wheel.py SETTINGS. Where the backend asks for more than that,
the last line says what, and the exit code is that of the settings."""

import importlib
import json
import os
import sys
import traceback


def build(paths, backend, given, needs, out):
    sys.path[:0] = [os.path.abspath(path) for path in paths]
    module, _, inner = backend.partition(":")
    hooks = importlib.import_module(module)
    for name in filter(None, inner.split(".")):
        hooks = getattr(hooks, name)
    ask = getattr(hooks, "get_requires_for_build_wheel", None)
    more = [line for line in (ask() if ask else ()) if line not in given]
    if more:
        print("\n" + json.dumps(more), flush=True)
        sys.exit(needs)
    os.makedirs(out, exist_ok=True)
    hooks.build_wheel(out)


try:
    build(**json.loads(sys.argv.pop()))
except Exception as error:
    last = traceback.extract_tb(error.__traceback__)[-1]
    sys.exit(f"{last.filename}:{last.lineno}: {type(error).__name__}: {error}")
