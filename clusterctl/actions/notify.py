"""`run --notify`: tells a command or an address how a job has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.request import Request, build_opener

from clusterctl import process

TIMEOUT = 30.0
"""Seconds that either may take."""


def is_address(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def notify(target: str, text: str, document: Mapping[str, object]) -> str:
    """Gives it the job as JSON, in which `text` says how it ended: an address by POST, a command of
    sh on its standard input, with the text in CLUSTERCTL_NOTE. Returns why that failed; ""."""
    body = json.dumps({"schema": 1, "text": text, **document}).encode()
    if is_address(target):
        head = {"Content-Type": "application/json"}
        try:
            with build_opener().open(Request(target, body, head), timeout=TIMEOUT):
                return ""
        except (OSError, ValueError) as error:
            return str(error)
    argv = ("/bin/sh", "-c", target)
    env = process.make_environment(argv[0], CLUSTERCTL_NOTE=text)
    result = process.run(argv, timeout=TIMEOUT, stdin=body, env=env)
    return "" if result.ok else result.why
