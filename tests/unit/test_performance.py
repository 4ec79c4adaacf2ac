"""What scripts write into docs/performance.md and docs/doctor.md."""

from __future__ import annotations

import json
import shlex

import pytest

from bench import doctor
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
    for word in rest[: verb.count_leading(rest)]:
        assert not word.startswith("--") or word in verb.spellings(), word


def test_what_is_shown_of_a_long_output() -> None:
    text = "# A\n\n## Jobs\n\none\n\n## Cost\n\ntwo\n\n## Scaling\n\nthree\n"
    chosen = performance.choose(text, ("## Jobs", "## Scaling"))
    assert chosen == "#### Jobs\n\none\n\n#### Scaling\n\nthree"
    assert performance.choose("a\n\nb\n", None) == "    a\n\n    b"


def test_the_broken_jobs_are_those_of_the_result_file() -> None:
    document = json.loads((doctor.ROOT / "bench" / "results" / "doctor.json").read_text())
    _, _, rest = doctor.DOCUMENT.read_text().partition(doctor.BEGIN)
    shown = rest.partition(doctor.END)[0]
    assert shown == doctor.render(document), "python bench/doctor.py --table writes it"


def test_one_run_is_summed_up_with_what_was_missed_and_the_slowest_look() -> None:
    row = {
        "name": "a",
        "cause": "SIGSTOP",
        "kind": "stopped",
        "said": "rank 1 | on",
        "seconds": 4.5,
    }
    missed = {**row, "found": False, "kind": "", "said": "not judged:\nno answer", "seconds": 0.0}
    text = doctor.render(
        {"date": "2026-01-02", "machine": "m", "jobs": [{**row, "found": True}, missed]}
    )
    assert text.startswith("2026-01-02, m:\n\n1 of 2 found; `doctor` took 4.5 s at most.\n")
    assert "| SIGSTOP | yes | `stopped`: rank 1 \\| on | 4.5 |" in text
    assert "| SIGSTOP | **no** | not judged: no answer | 0.0 |" in text
