"""Questions of the supervisor to another node."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.agent.attend import There


def test_an_ssh_that_cannot_be_started_is_a_node_that_does_not_answer(tmp_path: Path) -> None:
    node = There(["no-such-ssh"], dict(os.environ), str(tmp_path / "log"))
    answer = node.ask(9.0, "survivors")
    assert answer.code == 127
    assert "no-such-ssh" in answer.why


def test_a_node_that_takes_a_question_and_never_answers_has_a_limit(tmp_path: Path) -> None:
    node = There(["sleep", "99"], dict(os.environ), str(tmp_path / "log"))
    assert node.ask(0.2, "survivors").code == 124
