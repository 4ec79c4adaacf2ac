"""What libraries print is explained by the right row of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.core.text import read_toml
from clusterctl.insight import messages
from clusterctl.insight.messages import Message, drop_handled, find_fatal, find_last_error
from tests.unit.making import cluster, job, program, spec
from tests.unit.tables import rows

CASES: dict[str, str] = read_toml(Path(__file__).with_name("messages.toml"))["cases"]


@pytest.mark.parametrize("name", CASES)
def test_a_message_is_explained(name: str) -> None:
    noise = "epoch 3: loss 0.41\n[W socket.cpp:464] warning: reverse lookup\n"
    found = messages.find_known_message(f"{noise}{CASES[name]}\n")
    assert found
    assert (found.message.name, found.line) == (name, CASES[name])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/opt/venv/bin/python3.11: No module named package.train\n", "module"),
        (
            "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
            "torch-without-cuda",
        ),
        (f"{CASES['gloo-closed']}\n{CASES['cuda-memory']}\n", "cuda-memory"),
    ],
    ids=["started", "no-cuda", "cause"],
)
def test_other_forms_of_messages(text: str, name: str) -> None:
    """Of a consequence and its cause, the cause counts."""
    found = messages.find_known_message(text)
    assert found
    assert found.message.name == name
    assert name != "torch-without-cuda" or "--device=cpu" in found.message.advice


def test_every_row_has_a_case_a_source_and_advice() -> None:
    assert [row.name for row in messages.load_tables().messages] == list(CASES)
    for row in messages.load_tables().messages:
        assert row.source.startswith("https://")
        assert row.cause
        assert row.advice


SET = {"NCCL_DEBUG": "WARN", "CUDA_LAUNCH_BLOCKING": "1", "PYTHONBREAKPOINT": "0"}


@pytest.mark.parametrize("row", messages.load_tables().messages, ids=lambda row: row.name)
def test_no_hint_recommends_what_the_job_has(row: Message) -> None:
    """And something is left to do."""
    words = program("--backend=gloo", "--device=cpu")
    own = job(cluster(), spec(program=words, backend="gloo", allow_cpu=True, env=SET))
    advice = messages.advise(row.advice, own)
    assert advice
    for word in ("backend gloo", "backend=gloo", "device=cpu", "allow-cpu", "-e ", "per-node"):
        assert word not in advice.replace("with -e, in", "")


def test_a_program_that_chooses_nccl_has_an_option_of_its_own() -> None:
    """`run --backend gloo` was given, or would have no effect."""
    found = messages.find_known_message(CASES["no-nccl"])
    assert found
    advice = messages.advise(found.message.advice, job(cluster(), spec(backend="gloo")))
    assert "use --backend gloo" not in advice
    assert "--backend=gloo" in advice


def test_a_program_that_is_one_process_without_rank_is_told_how() -> None:
    """nanoGPT chooses NCCL and cuda:0 wherever RANK is set, whatever its own options say."""
    for name in ("no-nccl", "torch-without-cuda"):
        found = messages.find_known_message(CASES[name])
        assert found
        words = program("--device=cpu", "--backend=gloo")
        advice = messages.advise(found.message.advice, job(cluster(), spec(program=words)))
        assert "--ranks 1 -- env -u RANK python" in advice


@rows("line", "messages.ordinary_output_has_no_row")
def test_ordinary_output_has_no_row(line: str) -> None:
    assert messages.find_known_message(line) is None


# ------------------------------------------------------------------------------------------------
# The line and the exception that `doctor` reads from what a rank has printed.


RECORDED: dict[str, dict[str, str]] = read_toml(Path(__file__).with_name("last_words.toml"))


@rows("printed, found", "messages.tracebacks_in_other_forms")
def test_tracebacks_in_other_forms(printed: str, found: list[str]) -> None:
    assert list(find_last_error(printed)) == found


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
