"""A verb that waits for AWS says every five seconds that it still does."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.actions.common import open_store
from clusterctl.cli import console
from clusterctl.core.model import Charge, CloudSpec
from clusterctl.errors import ProviderError
from clusterctl.machines.ec2.provider import Ec2Provider
from tests.unit.calling import Call
from tests.unit.making import cluster
from tests.unit.provided import provide

SILENCE = 0.05


class Hanging(Ec2Provider):
    """An AWS that hangs the first time, and then does not answer."""

    waited = False

    def hang(self, *about: object, **more: object) -> Any:
        if not self.waited:
            time.sleep(10 * SILENCE)
        self.waited = True
        raise ProviderError("AWS did not answer", hint="check your network")

    plan = list_things = describe = allow = stop = check_pausing = extend = find = hang

    def find_usual_region(self) -> str:
        return "us-east-1"

    def list_regions(self) -> tuple[str, ...]:
        return ("us-east-1",)

    def find_owner(self) -> str:
        return ""


LINES = "|allow 192.0.2.1|extend --ttl 4h --yes|stop --yes|down --yes|gc --adopt other"


@pytest.mark.parametrize("line", LINES.split("|"))
def test_who_waits_for_aws_says_so(line: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "ec2", Hanging())
    monkeypatch.setattr(console, "SILENCE", SILENCE)
    now = time.time()
    charge = Charge(node="launcher", part="instance", item="x", hourly=1.0, source="", since=1.0)
    made = cluster(charges=(charge,), created=1.0, deadline=now + 3600)
    spec = replace(made.spec, cloud=CloudSpec(region="us-east-1", idle=60.0))
    open_store().save(replace(made, spec=spec))
    said = call(*line.split())
    assert "s  still working" in said.err
    assert "AWS did not answer" in said.err + said.out
