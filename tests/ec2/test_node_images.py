"""Images of nodes: asked for at registries before machines are, with AWS's own logins too."""

from __future__ import annotations

import pytest

from clusterctl.machines.ec2.provider import Ec2Provider
from tests.ec2.conftest import World
from tests.unit.tables import rows

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
]


def test_the_plan_names_every_image_with_digest_and_size(world: World) -> None:
    world.ec2.grant(64)
    mixed = ("up", "--gpu", "g4dn:1", "--cpu", "t3.xlarge:1", "--dry-run")
    plan = world.ok(*mixed, "--runtime", "docker").out
    for kind in ("the launcher", "nvidia workers", "cpu workers"):
        assert f"image of {kind}: built there from the recipe" in plan
    assert plan.count("on debian:bookworm-20250520-slim (sha256:90522eeb7e59)") == 3
    digest = world.hub.serve("me/gpu", "1", size=3_000_000_000)
    plan = world.ok("up", "--gpu", "g4dn", "--image", "nvidia=me/gpu:1", "--dry-run").out
    assert f"image of nvidia workers: me/gpu:1 ({digest[:19]}, 3,000 MB)" in plan
    assert "image of the launcher: built there" in plan


@rows("words, says", "node_images.what_no_node_could_get_is_refused_and_nothing_made")
def test_what_no_node_could_get_is_refused_and_nothing_made(
    world: World, words: tuple[str, ...], says: str
) -> None:
    world.ec2.grant(64)
    world.hub.serve("me/hidden", "1", login="me:secret")
    up = world.run("up", "--yes", *words)
    assert up.code == 3, up.err
    assert says in up.err
    assert "RunInstances" not in {call["action"] for call in world.ec2.calls}
    assert world.ec2.left() == []
    assert not (world.home / "clusters").exists()


def test_amazons_own_registries_take_the_credentials_of_aws(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked in the registry's region. What it calls is in the policy: see `world`."""
    for name, value in world.env.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    provider = Ec2Provider()
    login = provider.find_registry_login("123456789012.dkr.ecr.eu-west-1.amazonaws.com")
    assert login is not None
    assert login.user == "AWS"
    assert login.password
    assert "ecr:GetAuthorizationToken" in world.ec2.actions
    for host in ("docker.io", "ghcr.io", "123456789012.dkr.ecr.eu-west-1.amazonaws.com.evil.org"):
        assert provider.find_registry_login(host) is None
