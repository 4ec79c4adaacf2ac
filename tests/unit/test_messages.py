"""What libraries print is explained by the right row of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.core.text import read_toml
from clusterctl.insight import messages
from clusterctl.insight.messages import Message
from tests.unit.making import cluster, job, program, spec
from tests.unit.tables import rows

CASES: dict[str, str] = read_toml(Path(__file__).with_name("messages.toml"))["cases"]


@pytest.mark.parametrize("name", CASES)
def test_a_message_is_explained(name: str) -> None:
    noise = "epoch 3: loss 0.41\n[W socket.cpp:464] warning: reverse lookup\n"
    found = messages.find_known_message(f"{noise}{CASES[name]}\n")
    assert found
    assert (found.message.name, found.line) == (name, CASES[name])


def test_a_module_that_python_is_to_start_is_explained_too() -> None:
    found = messages.find_known_message("/opt/venv/bin/python3.11: No module named package.train\n")
    assert found
    assert found.message.name == "module"


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


def test_a_gpu_build_is_not_all_that_a_node_without_gpus_may_need() -> None:
    found = messages.find_known_message(
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'"
    )
    assert found
    assert found.message.name == "torch-without-cuda"
    assert "--device=cpu" in found.message.advice


def test_a_consequence_yields_to_a_cause() -> None:
    text = f"{CASES['gloo-closed']}\n{CASES['cuda-memory']}\n"
    found = messages.find_known_message(text)
    assert found
    assert found.message.name == "cuda-memory"


@rows("line", "messages.ordinary_output_has_no_row")
def test_ordinary_output_has_no_row(line: str) -> None:
    assert messages.find_known_message(line) is None
