"""What `up` says of an --ami, and of who may connect, before it costs money."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.core.model import CloudSpec, ClusterSpec, NodeGroup
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import preflight
from clusterctl.machines.ec2.api import Api, Image
from clusterctl.machines.ec2.spec import PlannedMachine
from clusterctl.machines.protocol import LAUNCHER
from tests.unit.fake_ec2 import Offering
from tests.unit.tables import rows


class Described(Offering):
    """A region with Ubuntu, and an image of somebody's."""

    def __init__(self, **row: Any) -> None:
        super().__init__("us-east-1")
        self._row = row

    def read_image(self, id: str) -> Image | None:
        return Api.read_image(self, id)

    def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
        assert how == {"Filters": [{"Name": "image-id", "Values": ["ami-2"]}]}
        return [{"ImageId": "ami-2", "Architecture": "x86_64", "Name": "", **self._row}]


def survey(**row: Any) -> preflight.Survey:
    cloud = CloudSpec(region="us-east-1", ami="ami-2")
    groups = (NodeGroup(count=1, family="cpu"),)
    wish = ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=cloud)
    return preflight.survey(Described(**row), wish, None, print)


@rows("row, system", "ec2_machine_images.an_image_that_is_not_ubuntu_is_refused")
def test_an_image_that_is_not_ubuntu_is_refused(row: dict[str, str], system: str) -> None:
    """Nobody could log in as `ubuntu`, and the machines would be paid for until that is noticed."""
    with pytest.raises(UsageError, match=f"--ami ami-2: it runs {system}") as caught:
        survey(**{"PlatformDetails": "Linux/UNIX", **row})
    assert "Ubuntu" in caught.value.hint


@pytest.mark.parametrize("ami", ["", "ami-2"])
def test_an_image_that_an_account_does_not_allow_is_as_if_it_were_not_there(ami: str) -> None:
    """AWS shows none of those then, neither by name nor by id."""

    class Allowing(Offering):
        def find_image(self, owner: str, name: str) -> Image | None:
            return Image(id="ami-1") if ami else None

        def read_image(self, id: str) -> Image | None:
            return None

    groups = (NodeGroup(count=1, family="cpu"),)
    cloud = CloudSpec(region="us-east-1", ami=ami)
    wish = ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=cloud)
    with pytest.raises((ProviderError, UsageError), match="no machine image") as caught:
        preflight.survey(Allowing("us-east-1"), wish, None, print)
    assert "aws ec2 get-allowed-images-settings" in caught.value.hint


@rows("row", "ec2_machine_images.one_that_may_be_is_taken")
def test_one_that_may_be_is_taken(row: dict[str, str]) -> None:
    found = survey(**{"PlatformDetails": "Linux/UNIX", "OwnerId": "210987654321", **row})
    assert "ami-2" in {image.id for image in found.amis.values()}


def test_the_launcher_has_no_other_image_than_ubuntu() -> None:
    """Whatever --ami."""

    class Without(Offering):
        def find_image(self, owner: str, name: str) -> Image | None:
            return None

    machines = [PlannedMachine(name=LAUNCHER, instance_type="t3.micro", image=LAUNCHER, disk=30)]
    wish = ClusterSpec(name="lab", provider="ec2", groups=(), cloud=CloudSpec(ami="ami-2"))
    with pytest.raises(ProviderError, match="of 099720109477 is in eu-west-1") as no:
        preflight.choose_image(Without("eu-west-1"), wish, machines)
    assert no.value.hint.startswith("choose another --region; images")
    assert "--ami" not in no.value.hint
