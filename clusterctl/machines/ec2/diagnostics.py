"""`check` for EC2: what `up` would look at, as rows for people. Nothing is made.

Every question has one short attempt, and all of them together a deadline: without a network this
is told, not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from clusterctl.core import catalog
from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.errors import ProviderError
from clusterctl.machines.ec2 import quotas
from clusterctl.machines.ec2.answers import InstanceType
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.client import choose_region
from clusterctl.machines.protocol import CheckRow

LIMIT = 12.0
"""Seconds for everything together."""

WORKERS = 2
"""As many as `up` makes where nobody says it."""

T = TypeVar("T")


class _Asked:
    """Answers by the deadline; what goes wrong is a finding."""

    def __init__(self, subject: str, end: Deadline) -> None:
        self._subject = subject
        self._end = end
        self.wrong: CheckRow | None = None

    def get(self, future: Future[T]) -> T | None:
        try:
            return self._end.await_result(future)
        except ProviderError as error:
            self.wrong = CheckRow("warning", self._subject, error.message, error.hint)
        except TimeoutError:
            self.wrong = CheckRow(
                "warning",
                self._subject,
                f"AWS did not answer within {LIMIT:g} s",
                "check your network, your proxy and AWS_ENDPOINT_URL",
            )
        return None


def diagnose() -> tuple[CheckRow, ...]:
    """Credentials; then every quota, and for every family its zones and its machine image."""
    end = Deadline(LIMIT)
    asked = _Asked("AWS", end)
    region = asked.get(run_in_background(choose_region))
    api = Api(region or "", hurried=True)
    account = asked.get(run_in_background(api.find_account)) if region else None
    if account is None:
        assert asked.wrong
        return (_make_row(asked.wrong),)
    names = {row.instance_type for row in catalog.FAMILIES.values()} | {catalog.LAUNCHER_TYPE}
    types = run_in_background(partial(api.list_instance_types, names))
    used = run_in_background(
        lambda: quotas.count_used(api, api.list_instances(states=("pending", "running")))
    )
    rows: list[Callable[[], CheckRow]] = []
    others: dict[str, dict[str, str]] = {"quotas of other types": {}, "spot quotas": {}}
    for quota in catalog.QUOTAS:
        if quota.spot:
            name = quota.spot_name or quota.name
            others["spot quotas"][name.partition(" (")[0]] = quota.spot
        if any(catalog.find_quota(name) == quota for name in names):
            limit = run_in_background(partial(api.find_quota, quota.on_demand))
            rows.append(partial(_check_quota, api, quota, limit, types, used, end))
        else:
            others["quotas of other types"][quota.name] = quota.on_demand
    found_others = run_in_background(
        lambda: [_describe_quotas(api, codes) for codes in others.values()]
    )
    rows += [
        partial(_check_others, found_others, n, subject, end) for n, subject in enumerate(others)
    ]
    for family in catalog.FAMILIES.values():
        zones = run_in_background(
            partial(api.list_zones, (family.instance_type, catalog.LAUNCHER_TYPE))
        )
        image = catalog.MACHINE_IMAGES[family.image]
        found = run_in_background(partial(api.find_image, image.owner, image.name))
        rows.append(partial(_check_family, api, family, zones, found, end))
    return (CheckRow("ok", "AWS", f"account {account}, {api.region}"), *(row() for row in rows))


def _make_row(finding: CheckRow) -> CheckRow:
    text = f"{finding.text}; needed for clusters on EC2"
    return CheckRow(finding.level, finding.subject, text, finding.hint)


def _check_quota(
    api: Api,
    quota: catalog.Quota,
    limit: Future[float],
    types: Future[dict[str, InstanceType]],
    used: Future[dict[str, int]],
    end: Deadline,
) -> CheckRow:
    """Whether the largest of the default clusters that count towards it would fit."""
    subject = f"quota {quota.name.partition(' (')[0]}"
    asked = _Asked(subject, end)
    vcpus, known, running = asked.get(limit), asked.get(types), asked.get(used)
    if vcpus is None or known is None or running is None:
        assert asked.wrong
        return asked.wrong
    taken = running.get(quota.on_demand, 0)
    command, needs = max(_list_defaults(quota, known), key=lambda row: row[1], default=("", 0))
    text = f"{vcpus:g} vCPUs in {api.region}, {taken} in use"
    if taken + needs <= vcpus:
        return CheckRow("ok", subject, text)
    hint = quotas.render_request(quota.on_demand, taken + needs)
    return CheckRow("warning", subject, f"{text}; `{command}` takes {needs}", hint)


def _describe_quotas(api: Api, codes: dict[str, str]) -> str:
    """What these quotas are, one asked after the other: AWS lets few such questions through at a
    time, and what a default cluster needs is asked beside them."""
    said = []
    for name, code in codes.items():
        try:
            said.append(f"{name} {api.find_quota(code):g}")
        except ProviderError:
            said.append(f"{name} ?")
    return ", ".join(said)


def _check_others(found: Future[list[str]], row: int, subject: str, end: Deadline) -> CheckRow:
    """Quotas that no cluster needs which people make by default."""
    asked = _Asked(subject, end)
    texts = asked.get(found)
    if texts is None:
        assert asked.wrong
        return asked.wrong
    return CheckRow("ok", subject, f"vCPUs: {texts[row]}")


def _list_defaults(
    quota: catalog.Quota, known: dict[str, InstanceType]
) -> Iterable[tuple[str, int]]:
    """What a person would type, and the vCPUs that it counts towards this quota."""
    for family in catalog.FAMILIES.values():
        option = f"--cpu {family.instance_type}" if family.name == "cpu" else f"--gpu {family.name}"
        counted = [
            number * known[name].vcpus
            for name, number in ((family.instance_type, WORKERS), (catalog.LAUNCHER_TYPE, 1))
            if name in known and catalog.find_quota(name) == quota
        ]
        yield f"clusterctl up {option}", sum(counted)


def _check_family(
    api: Api,
    family: catalog.Family,
    zones: Future[tuple[str, ...]],
    image: Future[str],
    end: Deadline,
) -> CheckRow:
    subject = f"EC2 {family.name}"
    asked = _Asked(subject, end)
    offering, ami = asked.get(zones), asked.get(image)
    if offering is None or ami is None:
        assert asked.wrong
        return asked.wrong
    if not offering:
        text = f"no zone of {api.region} offers {family.instance_type}"
        return CheckRow("warning", subject, text, "choose another --region or --instance-type")
    where = f"{family.instance_type} in {', '.join(offering)}"
    if not ami:
        row = catalog.MACHINE_IMAGES[family.image]
        text = f"{where}, but no machine image {row.name!r} of {row.owner}"
        return CheckRow("warning", subject, text, "name one with --ami, or choose another --region")
    return CheckRow("ok", subject, f"{where}; image {ami}")
