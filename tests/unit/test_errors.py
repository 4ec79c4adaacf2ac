"""What an error says: its exit code, its hint, and one line without the exception's name."""

from __future__ import annotations

import errno
import os
import sys
import traceback

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


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python knows no notes")
def test_python_shows_the_hint_of_an_error_that_nobody_caught() -> None:
    error = errors.UsageError("a cluster on EC2 costs money", hint="add yes=True")
    assert "add yes=True" in "".join(traceback.format_exception(error))
    assert str(error) == "a cluster on EC2 costs money"


@pytest.mark.parametrize(
    ("number", "kind", "hint"),
    [
        (errno.ENOSPC, errors.ProviderError, "free some space there"),
        (errno.EDQUOT, errors.ProviderError, "free some space there"),
        (errno.EACCES, errors.UsageError, "choose another folder"),
    ],
)
def test_what_cannot_be_written(number: int, kind: type, hint: str) -> None:
    error = OSError(number, os.strerror(number), "a.txt")
    made = errors.make_write_error("a.txt", error, "choose another folder")
    assert (type(made), made.hint) == (kind, hint)
    assert made.message == f"cannot write a.txt: {os.strerror(number)}"
    assert str(errors.make_write_error("a.txt", OSError("odd"))) == "cannot write a.txt: odd"
    assert errors.make_local_error("odd", None).hint == ""
    assert errors.make_write_error("a.txt", OSError("odd")).hint == ""
    assert (errors.UsageError("odd").hint, errors.UsageError("odd").transient) == ("", False)


def test_a_failed_job_shows_its_traceback() -> None:
    error = errors.JobError("job 3 failed", hint="look", job=3, rank=0, node="a", traceback="at 7")
    assert str(error) == "job 3 failed\n\nat 7"
    assert (error.job, error.rank, error.node, error.hint) == (3, 0, "a", "look")
    bare = errors.JobError("job 3 failed")
    assert (str(bare), bare.hint) == ("job 3 failed", "")
    assert (bare.job, bare.rank, bare.node, bare.traceback) == (0, None, "", "")
