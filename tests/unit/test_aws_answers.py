"""Answers that are none of AWS, or none at all, and what each answer says of the time."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core.model import Cluster, Phase
from clusterctl.errors import ProviderError
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import preflight, refusals, remove
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.refusals import CapacityError, RefusedByAws
from tests.unit.answering import answering
from tests.unit.making import wish
from tests.unit.tables import rows


def go_on(api: Api) -> object:
    """A further `up`."""
    current = Cluster(id="lab-1", spec=wish(), phase=Phase.CREATING, created=0.0)
    return preflight.survey(api, current.spec, current, print)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("ask", [Api.find_account, remove.find_tagged, go_on])
def test_an_endpoint_that_is_silent_is_told_soon(
    ask: Callable[[Api], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual patience would take a minute and more, without a word."""
    monkeypatch.setitem(ec2_api.LIMITS, "sts", (0.2, 0.2, 2))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ProviderError, match="credentials: AWS did not answer") as caught:
            ask(Api("us-east-1"))
    assert caught.value.transient
    assert "AWS_ENDPOINT_URL" in caught.value.hint


UNREADABLE = (
    b"<html><body><form>Welcome to our network<br></form></body></html>",
    b"",
    b'{"Quota": [], "PriceList": ["<html>"]}',
)


@pytest.mark.parametrize(
    "ask",
    [
        Api.find_account,
        lambda api: api.find_quota("L-1216C47A"),
        lambda api: api.find_price("t3.xlarge"),
        lambda api: api.list_instances(),
        lambda api: api.read_image("ami-1"),
        go_on,
    ],
    ids=["account", "quota", "price", "instances", "image", "up"],
)
def test_an_answer_that_is_not_from_aws_is_no_bug_of_ours(
    ask: Callable[[Api], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login page of a hotel's network, say."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    with answering(iter(UNREADABLE)) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        api = Api("us-east-1")
        for _ in UNREADABLE:
            with pytest.raises(ProviderError, match="cannot be read") as caught:
                ask(api)
            assert caught.value.exit_code == 3
            assert "AWS_ENDPOINT_URL" in caught.value.hint


@rows("code, ahead, said", "aws_answers.a_wrong_clock_is_told_from_wrong_keys")
def test_a_wrong_clock_is_told_from_wrong_keys(
    code: str, ahead: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS says when it answered: EC2 itself speaks of credentials alone."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    body = f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"
    with answering(repeat(body.encode()), 403, ahead) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(ProviderError, match=said):
            Api("us-east-1").find_account()


def test_a_good_answer_tells_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within five minutes AWS accepts what a wrong clock signs."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    arn = "arn:aws:iam::123456789012:user/ana"
    answer = (
        "<GetCallerIdentityResponse><GetCallerIdentityResult>"
        f"<Arn>{arn}</Arn><UserId>A</UserId><Account>123456789012</Account>"
        "</GetCallerIdentityResult></GetCallerIdentityResponse>"
    )
    with answering(repeat(answer.encode()), 200, 200.0) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        api = Api("us-east-1")
        assert api.find_account() == "123456789012"
    assert api.ahead == pytest.approx(-200.0, abs=60)


def test_an_endpoint_that_is_no_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nowhere")
    doubts = {
        "us-east-1": "",
        "us-east-11": "is there a region 'us-east-11'? did you mean us-east-1? ",
        "mars-1": "is there a region 'mars-1'? ",
    }
    hints = {}
    for region in doubts:
        with pytest.raises(ProviderError, match="Invalid endpoint: nowhere") as caught:
            Api(region).find_account()
        hints[region] = caught.value.hint
    assert hints == {region: f"{doubt}{hints['us-east-1']}" for region, doubt in doubts.items()}


# -------------------------------------------------------------------------------------------------
# AWS's own words, as they were read elsewhere, and the line and hint that people get for them.


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
