"""AWS's own words, as they were read elsewhere, and the line and hint that people get for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import ProviderError
from clusterctl.machines.ec2 import refusals
from clusterctl.machines.ec2.refusals import CapacityError, RefusedByAws
from tests.unit.tables import rows

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES: dict[str, list[dict[str, Any]]] = tomllib.loads(
    Path(__file__).with_name("aws_errors.toml").read_text()
)


def cases(kind: str) -> list[Any]:
    return [pytest.param(case, id=case.get("code", case["says"])) for case in CASES[kind]]


def check(error: ProviderError, case: dict[str, Any]) -> None:
    assert case["says"] in error.message
    assert case["hint"] in error.hint
    assert "\n" not in error.message
    assert error.exit_code == 3


@rows("answer, said", "aws_errors.an_answer_of_many_lines_becomes_one")
def test_an_answer_of_many_lines_becomes_one(answer: str, said: str) -> None:
    error = refusals.make_refusal("tag resource", "500", answer, "us-east-1")
    assert said in error.message
    assert "\n" not in error.message


def test_there_are_many_and_each_has_a_source() -> None:
    found = [case for kind in CASES.values() for case in kind]
    assert len(found) >= 60
    assert all(case["source"] for case in found)


@pytest.mark.parametrize("case", [*cases("answer"), *cases("documented")])
def test_an_answer_of_the_api(case: dict[str, Any]) -> None:
    error = refusals.make_refusal("run instances", case["code"], case["text"], "us-east-1")
    check(error, case)
    assert case["text"] in error.message, "people search for AWS's own words"
    quoted = f"creating EC2 Instance: api error {case['code']}: {case['text']}"
    known = refusals.from_terraform([quoted])
    assert known
    check(known, case)
    assert isinstance(known, CapacityError) == isinstance(error, CapacityError)


@pytest.mark.parametrize("case", cases("terraform"))
def test_a_diagnostic_of_terraform(case: dict[str, Any]) -> None:
    known = refusals.from_terraform([case["text"]])
    assert known
    check(known, case)


DENIED = (
    "You are not authorized to perform this operation. User: arn:aws:sts::123456789012:"
    "assumed-role/AWSReservedSSO_MachineLearning_0123456789abcdef/ana@example.org is not authorized"
    " to perform: ec2:RunInstances on resource:"
    " arn:aws:ec2:us-east-1:123456789012:network-interface/* with an explicit deny"
    " in a service control policy."
)
CODED = f"Encoded authorization failure message: {'g4oZPBqZ4Bni8dE5' * 40}"
SENT = (
    "operation error EC2: RunInstances, https response error StatusCode: 403, RequestID: b1543c77"
)


def test_what_was_denied_and_by_whom_is_on_the_line() -> None:
    """Not the number of the request, nor what AWS repeats in a code of a thousand letters."""
    denied = f"api error UnauthorizedOperation: {DENIED} {CODED}"
    quoted = f'aws_instance.this["worker-1"]: creating EC2 Instance: {SENT}, {denied}'
    known = refusals.from_terraform([quoted])
    assert known
    asked = refusals.make_refusal("run instances", "UnauthorizedOperation", f"{DENIED} {CODED}", "")
    for error in (known, asked):
        assert DENIED in error.message
        assert "g4oZ" not in error.message
    assert "RequestID" not in known.message
    old = "You are not authorized to perform this operation."
    asked = refusals.make_refusal("run instances", "UnauthorizedOperation", f"{old} {CODED}", "")
    assert CODED in asked.message, "all that AWS has said"


@rows("code, text, account", "aws_errors.what_a_dry_run_tells_about_the_account")
def test_what_a_dry_run_tells_about_the_account(code: str, text: str, account: bool) -> None:
    """Anything else depends on what is not made yet."""
    refused: RefusedByAws = refusals.make_refusal("run instances", code, text, "us-east-1")
    assert refusals.is_account_error(refused) is account


def test_what_may_be_different_in_a_moment() -> None:
    throttled = "RunInstances, api error RequestLimitExceeded: Request limit exceeded."
    unknown = "api error InvalidInstanceID.NotFound: The instance ID 'i-1' does not exist"
    final = "api error VpcLimitExceeded: The maximum number of VPCs has been reached."
    assert refusals.is_transient([throttled, unknown])
    assert not refusals.is_transient([throttled, final])
    assert not refusals.is_transient(["nothing that we know"])
    assert not refusals.is_transient([])


def test_a_capacity_error_wins() -> None:
    error = refusals.from_terraform(
        ["api error UnauthorizedOperation: x", "api error InsufficientInstanceCapacity: y"]
    )
    assert isinstance(error, CapacityError)
