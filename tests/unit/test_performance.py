"""The report in docs/performance.md, which scripts/performance.py writes."""

from __future__ import annotations

import shlex

import pytest

from clusterctl.options.verbs import FAMILIES, VERBS
from scripts import performance


def written() -> str:
    _, _, rest = performance.DOCUMENT.read_text().partition(performance.BEGIN)
    return rest.partition(performance.END)[0]


def test_it_is_made_by_the_commands_that_it_lists() -> None:
    listed = [line.strip() for line in written().splitlines() if line.startswith("    clusterctl ")]
    assert listed == [f"clusterctl {command}" for command in performance.COMMANDS]
    for command in performance.COMMANDS[1:]:
        assert f"`clusterctl {command}` prints:" in written()


@pytest.mark.parametrize("command", performance.COMMANDS)
def test_each_command_exists(command: str) -> None:
    """With all its options before the program."""
    words = shlex.split(command)
    end = 2 if words[0] in FAMILIES else 1
    verb = VERBS[" ".join(words[:end])]
    rest = words[end:]
    for word in rest[: verb.leading(rest)]:
        assert not word.startswith("--") or word in verb.spellings(), word


def test_what_is_shown_of_a_long_output() -> None:
    text = "# A\n\n## Jobs\n\none\n\n## Cost\n\ntwo\n\n## Scaling\n\nthree\n"
    chosen = performance.choose(text, ("## Jobs", "## Scaling"))
    assert chosen == "#### Jobs\n\none\n\n#### Scaling\n\nthree"
    assert performance.choose("a\n\nb\n", None) == "    a\n\n    b"
