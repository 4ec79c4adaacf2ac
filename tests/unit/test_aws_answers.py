"""Answers that are none of AWS, or none at all, and what each answer says of the time."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import repeat

import pytest

from clusterctl.core.model import Cluster, NodeGroup, Phase
from clusterctl.errors import ProviderError
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import preflight, remove
from clusterctl.machines.ec2.api import Api
from tests.unit.answering import answering
from tests.unit.tables import rows
from tests.unit.test_ec2_refusals import wanted


def go_on(api: Api) -> object:
    """A further `up`."""
    wish = wanted(NodeGroup(count=1, family="cpu"))
    current = Cluster(id="lab-1", spec=wish, phase=Phase.CREATING, created=0.0)
    return preflight.survey_cluster(api, wish, current, print)


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
    with pytest.raises(ProviderError, match="Invalid endpoint: nowhere"):
        Api("us-east-1").find_account()
