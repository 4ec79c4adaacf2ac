"""Builds a wheel of the sources in the current folder (PEP 517). Runs on a node, in an environment
with what the build asks for: build_wheel.py SETTINGS. Where the backend asks for more than that,
the last line says what, and the exit code is that of the settings."""

import importlib
import json
import os
import sys

settings = json.loads(sys.argv.pop())
sys.path[:0] = [os.path.abspath(path) for path in settings["paths"]]
module, _, inner = settings["backend"].partition(":")
backend = importlib.import_module(module)
for name in filter(None, inner.split(".")):
    backend = getattr(backend, name)
ask = getattr(backend, "get_requires_for_build_wheel", None)
more = [line for line in (ask() if ask else ()) if line not in settings["given"]]
if more:
    print("\n" + json.dumps(more), flush=True)
    sys.exit(settings["needs"])
os.makedirs(settings["out"], exist_ok=True)
backend.build_wheel(settings["out"])
