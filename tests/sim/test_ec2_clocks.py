"""A clock of this machine that AWS does not accept."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from clusterctl.errors import ProviderError
from clusterctl.machines.ec2.api import Api
from tests.sim.lab import Lab
from tests.unit.calling import clusterctl

pytestmark = [pytest.mark.netns, pytest.mark.sshd]


@pytest.mark.parametrize(
    ("seconds", "codes", "said"),
    [
        (240, {}, ""),
        (-240, {}, ""),
        (600, {"ec2": "RequestExpired"}, "10 min behind AWS's"),
        (-600, {"ec2": "AuthFailure"}, "10 min ahead of AWS's"),
        (1200, {"sts": "SignatureDoesNotMatch", "ec2": "RequestExpired"}, "20 min behind AWS's"),
        (-1200, {"sts": "SignatureDoesNotMatch", "ec2": "AuthFailure"}, "20 min ahead of AWS's"),
    ],
)
def test_aws_refuses_signatures_of_another_time(
    seconds: int, codes: dict[str, str], said: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lab.ec2.env.items():
        monkeypatch.setenv(name, value)
    lab.ec2.fault("clock", seconds=seconds)
    calls = {"sts": "get_caller_identity", "ec2": "describe_instances"}
    for service, action in calls.items():
        if service not in codes:
            Api("us-east-1").call(action, service)
            continue
        with pytest.raises(ClientError) as refused:
            getattr(lab.ec2.client(service), action)()
        assert refused.value.response["Error"]["Code"] == codes[service]
        with pytest.raises(ProviderError, match=f"this machine's clock is {said}") as caught:
            Api("us-east-1").call(action, service)
        assert "timedatectl set-ntp" in caught.value.hint


def test_one_line_says_that_the_clock_is_wrong(lab: Lab, tmp_path: Path) -> None:
    lab.ec2.fault("clock", seconds=600)
    env = {**lab.ec2.env, "CLUSTERCTL_HOME": str(tmp_path / "home")}
    for line in (("up", "--cpu", "t3.xlarge", "--dry-run"), ("gc", "--yes")):
        done = clusterctl(*line, **env)
        assert done.returncode == 3, done.stderr
        [told] = [text for text in done.stderr.splitlines() if "clock" in text and "→" not in text]
        assert "this machine's clock is 10 min behind AWS's" in told
