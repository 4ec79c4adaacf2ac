"""Machine images of one's own: made, used by the next cluster, listed, removed. No more stays."""

from __future__ import annotations

import pytest

from tests.ec2.conftest import World

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(400),
]


def test_an_image_is_made_used_and_removed(world: World) -> None:
    """The machines that it is made with are gone, and nothing of their keys is in it."""
    world.ec2.grant(64)
    made = world.ok("image", "ami", "nvidia", "--tag", "team=ml", "--yes", "--json")
    [image] = made.document()["images"]
    assert (image["kind"], image["state"], image["gib"]) == ("nvidia", "available", 135)
    assert "makes a machine image" not in made.err, "this is that command"
    # Said also where the machines cannot be removed.
    price = made.err.index("its snapshot costs $6.75 at most a month")
    assert price < made.err.index("worker-1: ends")
    left = world.ec2.left()
    assert sorted(line.split()[1] for line in left) == ["image", "snapshot"]
    assert not (world.home / "clusters").exists() or not list((world.home / "clusters").iterdir())
    [row] = world.ec2.client("ec2").describe_images(Owners=["self"])["Images"]
    tags = {tag["Key"]: tag["Value"] for tag in row["Tags"]}
    assert (tags["clusterctl:image"], tags["team"]) == ("nvidia", "ml")
    assert tags["clusterctl:cluster"] == image["name"]
    again = world.ok("image", "ami", "nvidia", "--yes")
    assert f"{image['name']} is available already" in again.err
    listed = world.ok("image", "ami").out
    assert f"{image['name']}  {image['id']}  available" in listed
    up = world.ok("up", "--gpu", "g4dn:1", "--yes")
    assert f"nvidia workers have nothing to install: your image {image['name']}" in up.err
    assert "installing on nvidia workers" not in up.err
    assert "installing on the launcher" in up.err
    worker = world.ec2.machine("worker-1")
    roots = worker.run("ls", "/home/ubuntu/.clusterctl").stdout.split()
    assert roots == [world.record()["id"]], "of the new cluster alone"
    keys = worker.run("cat", "/home/ubuntu/.ssh/authorized_keys").stdout
    assert len({line.split()[1] for line in keys.splitlines()}) == 2, "the user's and the nodes'"
    world.ok("down", "--yes", "--force")
    removed = world.ok("image", "ami", "nvidia", "--remove", "--yes")
    assert f"removed machine image {image['name']}" in removed.err
    assert "no machine image of your own" in world.ok("image", "ami").out
