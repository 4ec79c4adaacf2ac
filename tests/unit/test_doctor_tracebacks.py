"""The line and the exception that `doctor` reads from what a rank has printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.core.text import read_toml
from clusterctl.insight.messages import drop_handled, find_fatal, find_last_error

RECORDED: dict[str, dict[str, str]] = read_toml(Path(__file__).with_name("last_words.toml"))

BOX = """\
[rank1]: ╭────────────────── Traceback (most recent call last) ───────────────────╮
[rank1]: │ /home/ubuntu/.clusterctl/lab-1a2b/jobs/7/work/train.py:9 in <module>   │
[rank1]: │                                                                        │
[rank1]: │ ❱  9 │   label("b")                                                    │
[rank1]: │                                                                        │
[rank1]: │ /home/ubuntu/.clusterctl/lab-1a2b/jobs/7/work/train/data/labels/imagen │
[rank1]: │ et.py:7 in                                                             │
[rank1]: │ label                                                                  │
[rank1]: │                                                                        │
[rank1]: │    6 def label(i):                                                     │
[rank1]: │ ❱  7 │   │   return json.loads(i)                                      │
[rank1]: │                                                                        │
[rank1]: │ /usr/lib/python3.11/json/decoder.py:355 in raw_decode                  │
[rank1]: │                                                                        │
[rank1]: │ ❱ 355 │   │   │   raise JSONDecodeError("Expecting value", s)          │
[rank1]: ╰────────────────────────────────────────────────────────────────────────╯
[rank1]: JSONDecodeError: Expecting value: line 1 column 1 (char 0)
"""
SYNTAX = """\
  File "/home/ubuntu/.clusterctl/lab-1a2b/jobs/7/work/train.py", line 4
    return x +* 2
              ^
SyntaxError: invalid syntax
"""


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (
            BOX,
            (
                'File "train/data/labels/imagenet.py", line 7, in label',
                "    return json.loads(i)",
                "JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            ),
        ),
        (
            f"loading\n{SYNTAX}",
            ('File "train.py", line 4', "    return x +* 2", "SyntaxError: invalid syntax"),
        ),
        ("SyntaxError: is what the linter said\n", ()),
        ("╭─ Traceback (most recent call last) ─╮\n", ()),
    ],
    ids=["rich", "syntax", "no traceback", "a box that is not yet complete"],
)
def test_tracebacks_in_other_forms(printed: str, found: tuple[str, ...]) -> None:
    assert find_last_error(printed) == found


@pytest.mark.parametrize("name", RECORDED)
def test_the_line_that_matters(name: str) -> None:
    case = RECORDED[name]
    error = find_last_error(case["printed"])
    assert (error[-1] if error else find_fatal(case["printed"])) == case["says"]
    if "line" in case:
        assert error[1].strip() == case["line"]


def test_exceptions_that_were_caught_say_nothing_of_the_end() -> None:
    caught = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: no cache\n'
    last = caught.replace("OSError: no cache", "ValueError: no words")
    assert drop_handled(f"loading\n{caught}{last}") == f"loading\n{last}".strip()
    assert drop_handled(caught) == caught.strip()
    thread = f"Exception in thread Thread-1:\n{caught}"
    assert drop_handled(thread + last) == (thread + last).strip()
