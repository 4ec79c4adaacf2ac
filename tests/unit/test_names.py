"""Functions and methods are named by verbs: `find_node`, `_render_row`, `list_jobs`.

A name begins with a verb of `verbs.txt` (a new verb is a new line there, in alphabetical order),
asks a question (`is_ready`, `holds`), or converts (`from_json`, `to_csv`). A few names are given by
others: by Python, by torch, or by the user's commands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.options.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]

KNOWN = Path(__file__).with_name("verbs.txt").read_text(encoding="utf-8").split()
"""All verbs that names begin with."""

QUESTIONS = ["are", "can", "has", "have", "is", "may", "needs", "should", "was"]
"""First words of questions: `is_ready`, `has_gpu`."""

STATEMENTS = [
    "begins",
    "changes",
    "computes",
    "emulates",
    "finds",
    "goes",
    "holds",
    "keeps",
    "lacks",
    "lets",
    "looks",
    "matches",
    "resolves",
    "shares",
    "stays",
    "takes",
    "times",
    "wants",
]
"""Verbs in the third person are questions, too: `holds`, `takes_device_pointers`."""

PREFIXES = ["as", "from", "of", "on", "to", "with"]
"""Conversions (`as_list`, `from_json`, `to_csv`), handlers (`on_exit`), variants (`with_mpi`)."""

FIRST_WORDS = {*KNOWN, *QUESTIONS, *STATEMENTS, *PREFIXES}

COMMANDS = {re.sub("[ -]", "_", verb) for verb in VERBS}
"""What the user types: functions of clusterctl/cli/ and of the Python API have the same names."""

GIVEN = {
    "clusterctl/": {
        "do_GET": "http.server",
        "fileno": "select",
        "getpeername recv settimeout": "paramiko, of a socket",
        "missing_host_key": "paramiko, of a policy",
        "readable readinto": "io.RawIOBase",
    },
    "workloads/": {
        "all_reduce autocast backward barrier forward main_hook modules no_sync parameters"
        " post_hook state_dict step": "torch",
        "data_parallel": "torch, of what wraps a model",
        "maximum": "numpy",
    },
    "": {"main": "the entry point of a program"},
}
"""Names that others have chosen, and who; by where they may be used."""

EXCEPTIONS = {
    "clusterctl/api.py": {"metrics": "users call it"},
    "clusterctl/cli/console.py": {"detail error result step": "as in logging: what is said"},
    "clusterctl/model.py": {"node": "`cluster.node(name)`, as an item of a mapping"},
    "clusterctl/options/checks.py": {"*": "what an option holds: `check=duration`"},
    "clusterctl/options/table.py": {"*": "they declare options: `workers = number(…)`"},
    "clusterctl/schedulers/": {
        "directives reasons script": "parts of a batch job, asked of each batch system",
        "interactive_argv status_argv": "beside `submit_argv` and `cancel_argv`",
    },
    "workloads/trainlib/models.py": {"*": "models, as torchvision names them"},
    "workloads/trainlib/options.py": {"*": "argparse shows them: `invalid positive value`"},
    "workloads/trainlib/tagi/models.py": {"*": "models, as torchvision names them"},
}
"""File or folder → names of functions that keep a noun there (`*`: all), and why."""

PLACES = ("clusterctl", "workloads")


@dataclass(frozen=True)
class Function:
    path: str
    line: int
    name: str

    def is_verb(self) -> bool:
        first = self.name.lstrip("_").split("_")[0]
        # `name_of` and `index_of` name a thing, whatever their first word is.
        return first in FIRST_WORDS and not (first in KNOWN and self.name.endswith("_of"))

    def is_given(self) -> bool:
        given = {
            name
            for place, names in GIVEN.items()
            if self.path.startswith(place)
            for name in " ".join(names).split()
        }
        if self.path.startswith(("clusterctl/cli/", "clusterctl/api.py")):
            given |= COMMANDS
        for place, names in EXCEPTIONS.items():
            if self.path.startswith(place):
                given |= set(" ".join(names).split())
        return self.name in given or "*" in given

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}"


def find_functions(path: str, text: str) -> Iterator[Function]:
    """All functions and methods, without properties, context managers and `__dunder__`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
            named_by_nouns = any(word in marks for word in ("property", "setter", "contextmanager"))
            if not named_by_nouns and not node.name.startswith("__"):
                yield Function(path, node.lineno, node.name)


def find_nouns(path: str, text: str) -> list[str]:
    found = find_functions(path, text)
    return [str(item) for item in found if not (item.is_verb() or item.is_given())]


def list_functions(place: str) -> Iterator[Function]:
    for file in sorted((ROOT / place).rglob("*.py")):
        yield from find_functions(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))


@pytest.mark.parametrize("place", PLACES)
def test_functions_are_named_by_verbs(place: str) -> None:
    nouns = [str(item) for item in list_functions(place) if not (item.is_verb() or item.is_given())]
    assert not nouns, "begin with a verb:\n" + "\n".join(nouns)


@pytest.mark.parametrize(
    "name",
    ["_rank_lines", "quota", "boot_time", "_never", "name_of", "_index_of"],
)
def test_a_noun_is_found(name: str) -> None:
    assert find_nouns("a.py", f"class A:\n    def {name}(self): ...\n") == [f"a.py:2: {name}"]


@pytest.mark.parametrize(
    "name",
    ["find_node", "_render", "list_jobs", "is_ready", "holds", "from_json", "__len__", "main"],
)
def test_a_verb_is_not(name: str) -> None:
    assert find_nouns("a.py", f"def {name}(): ...\n") == []


def test_properties_and_context_managers_may_be_nouns() -> None:
    text = (
        "class A:\n    @property\n    def quota(self): ...\n\n@contextmanager\ndef phase(): ...\n"
    )
    assert find_nouns("a.py", text) == []


def test_commands_are_named_as_the_user_types_them() -> None:
    assert find_nouns("clusterctl/cli/clusters.py", "def up(): ...\n") == []
    assert find_nouns("clusterctl/jobs/start.py", "def up(): ...\n")


def test_the_verbs_are_in_order() -> None:
    assert sorted(set(KNOWN)) == KNOWN


@pytest.mark.parametrize("place", EXCEPTIONS)
def test_every_exception_is_needed(place: str) -> None:
    found = [item for item in list_functions(place.split("/")[0]) if item.path.startswith(place)]
    nouns = {item.name for item in found if not item.is_verb()}
    assert set(" ".join(EXCEPTIONS[place]).split()) <= {*nouns, "*"}
    assert nouns
