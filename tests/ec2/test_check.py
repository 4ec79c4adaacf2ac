"""`check` says what EC2 would say to `up`, and makes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ec2.conftest import World

pytestmark = [pytest.mark.netns, pytest.mark.sshd]


def rows(world: World) -> dict[str, dict[str, Any]]:
    found = world.run("check", "--json", timeout=100).document()["findings"]
    return {row["subject"]: row for row in found}


def test_credentials_quotas_zones_and_images(world: World) -> None:
    world.ec2.grant(64)
    world.ec2.grant_cpus()
    found = rows(world)
    assert found["AWS"]["level"] == "ok"
    assert "account 123456789012, us-east-1" in found["AWS"]["text"]
    assert found["quota G and VT"]["level"] == "ok"
    assert "0 in use" in found["quota G and VT"]["text"]
    assert found["quota Standard"]["level"] == "ok"
    assert "quota P" not in found, "no family of ours counts towards it"
    for family, kind in {"cpu": "c7i.xlarge", "g4dn": "g4dn.xlarge", "g4ad": "g4ad.xlarge"}.items():
        row = found[f"EC2 {family}"]
        assert row["level"] == "ok"
        assert f"{kind} in us-east-1a" in row["text"]
        assert "image ami-" in row["text"]
    assert world.ec2.left() == []
    assert not (world.home / "clusters").exists()


def test_expired_credentials_are_one_row(world: World) -> None:
    world.ec2.fault("expired")
    found = rows(world)
    assert "have expired" in found["AWS"]["text"]
    assert "aws sso login" in found["AWS"]["hint"]
    assert not [subject for subject in found if subject.startswith(("quota", "EC2"))]


def test_a_profile_that_is_not_there_is_named(world: World) -> None:
    """The region would come from it, the credentials too."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        del world.env[name]
    world.env["AWS_PROFILE"] = "nobody"
    row = rows(world)["AWS"]
    assert "no such AWS profile" in row["text"]
    assert "AWS_PROFILE" in row["hint"]
    up = world.run("up", "--gpu", "g4dn", "--yes", timeout=60)
    assert up.code == 3, up.err
    assert "no such AWS profile" in up.err


def test_silence_is_told_and_not_waited_for(world: World) -> None:
    """One service that hangs does not hide what the others say."""
    world.ec2.fault("delay", action="GetServiceQuota", seconds=40)
    found = rows(world)
    assert found["quota Standard"]["level"] == "warning"
    assert "AWS did not answer" in found["quota Standard"]["text"]
    assert found["EC2 g4dn"]["level"] == "ok"


@pytest.mark.all
@pytest.mark.terraform
@pytest.mark.timeout(400)
def test_a_real_cluster_comes_and_goes(world: World) -> None:
    """In a new account: one worker beside the launcher, and an all-reduce on it in between; `world`
    finds what is left in the cloud. AWS shows late what is new, and machines that end hold their
    network: Terraform bears both."""
    refused = world.run("check", "--real", "--runtime", "host", timeout=100)
    assert refused.code == 2, refused.err
    assert "Cannot ask without a terminal" in refused.err
    world.ec2.fault("late", seconds=3)
    world.ec2.fault("slow_end", seconds=8)
    done = world.ok("check", "--real", "--runtime", "host", "--yes", timeout=300)
    assert "EC2 works from here; it cost $0.0" in done.out
    assert "checking with 1 worker" in done.err
    assert "all-reduce ok: 2 of 2 ranks answered" in done.err, "the launcher has taken one"
    assert "nothing tagged clusterctl:cluster=" in done.err
