"""What an error says: its exit code, its hint, and one line without the exception's name."""

from __future__ import annotations

import pytest

from clusterctl import errors


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.ProviderError("no quota", hint="ask for more"), "no quota"),
        (errors.NodeUnreachable("worker-1 is away"), "worker-1 is away"),
        (OSError(2, "No such file or directory", "a.txt"), "a.txt: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("odd"), "odd"),
        (ValueError("not a number"), "not a number"),
        (TimeoutError(), "TimeoutError"),
    ],
    ids=repr,
)
def test_a_reason_is_one_line(error: Exception, said: str) -> None:
    assert errors.describe_reason(error) == said
