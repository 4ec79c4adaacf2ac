"""The reconcile loop: every running instance of moto's has a machine, and nothing else has one."""

from __future__ import annotations

import base64
import gzip
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from socket import socket
from subprocess import CalledProcessError
from typing import Any

from tests.sim.ec2 import dns, gaps, images, imds
from tests.sim.ec2.faults import Faults, Where
from tests.sim.ec2.firewall import Firewall, Members, members, rules
from tests.sim.ec2.forward import forward
from tests.sim.ec2.full import control_groups, sweep
from tests.sim.ec2.light import LightHost
from tests.sim.ec2.machines import Machine, Order
from tests.sim.ec2.nat import reaches_internet
from tests.sim.ec2.network import Vpc, configure, subnet_of

_ALIVE = ("pending", "running")

Build = Callable[[Order], Machine]


class Loop:
    """All state of it belongs to the thread that calls `turn`."""

    def __init__(self, folder: Path, world: gaps.World, faults: Faults, prefix: str) -> None:
        self.folder = folder
        self.world = world
        self.faults = faults
        self.build: Build = LightHost
        self.ports: dict[int, int] = {}  # of the internet: a VPC's port → this machine's
        self.failures: dict[str, str] = {}  # instance → why its machine ended
        self._prefix = prefix
        self._machines: dict[str, Machine] = {}
        self._plugged: dict[str, tuple[Vpc, str]] = {}
        self._connected: set[str] = set()  # instances whose machine has had a cable once
        self._vpcs: dict[str, Vpc] = {}
        self._services: dict[str, imds.Service] = {}
        self._notices: dict[str, tuple[float, str]] = {}  # instance → its end, by the clock
        self._firewall = Firewall()
        self._ports = 0
        self._groups: set[Path] | None = None

    def full(self, build: Build, ports: dict[int, int]) -> None:
        """From now on machines are containers, of an engine that makes control groups."""
        self.build, self.ports = build, ports
        if self._groups is None:
            self._groups = control_groups()

    def turn(self) -> None:
        found = [one for one in instances() if one.id in self.world.complete]
        alive = {one.id: one for one in found if one.state in _ALIVE}
        stopped = {one.id for one in found if one.state == "stopped"}
        for id, machine in list(self._machines.items()):
            if id in alive and alive[id].public_ip_address == machine.order.public:
                continue
            # Its disk has to last, and light hosts have theirs in memory: it loses its cable. One
            # with another address was stopped and started since the last turn.
            kept = id in self._connected and (id in alive or id in stopped)
            self._unplug(id, machine) if kept else self._remove(id)
        for instance in alive.values():
            if instance.id not in self._machines and self._may_boot(instance):
                self._start(instance)
        groups = members(one for one in found if one.id in self._machines)
        for group, addresses in self.world.endpoints.members().items():
            groups.setdefault(group, []).extend(addresses)
        for id, machine in list(self._machines.items()):
            if id not in alive:
                continue
            if machine.pid:
                self._connect(alive[id], machine, groups)
            if how := machine.ended():
                self._ended(alive[id], how)
        self._notify(alive)
        for id in [id for id, vpc in self._vpcs.items() if vpc.empty and not self._machines]:
            self._services.pop(id).shutdown()
            self._vpcs.pop(id).close()

    def state(self) -> dict[str, Any]:
        """Instance → its machine, for the tests. One that was stopped and started since the last
        turn is not up: it still has the address of before."""
        addresses = {one.id: one.public_ip_address for one in instances()}
        found = {}
        for id, machine in list(self._machines.items()):
            order = machine.order
            found[id] = {
                "id": id,
                "name": order.name,
                "private": order.private,
                "public": order.public,
                "hostname": order.hostname,
                "pid": machine.pid,
                "up": machine.up and id in self._plugged and addresses.get(id) == order.public,
                "log": str(order.folder),
            }
        return found

    def close(self) -> None:
        for id in list(self._machines):
            self._remove(id)
        for service in self._services.values():
            service.shutdown()
        for vpc in self._vpcs.values():
            vpc.close()
        if self._groups is not None:
            sweep(self._groups)

    def _may_boot(self, instance: Any) -> bool:
        where = Where(names=names_of(instance))
        return not (instance.id in self.failures or self.faults.take("never_boot", where=where))

    def _start(self, instance: Any) -> None:
        folder = self.folder / instance.id
        shutil.rmtree(folder, ignore_errors=True)
        order = Order(
            id=instance.id,
            name=tag_of(instance, "clusterctl:node") or tag_of(instance, "Name"),
            private=instance.private_ip_address,
            public=instance.public_ip_address,
            subnet=subnet_of(instance),
            keys=tuple(keys_of(instance)),
            user_data=user_data_of(instance),
            docker=images.has_docker(image_of(instance)),
            files=self.world.saved.find_files(instance.image_id),
            folder=folder,
        )
        self._machines[instance.id] = self.build(order)

    def _connect(self, instance: Any, machine: Machine, groups: Members) -> None:
        """Its groups are in force before anything reaches it."""
        assert machine.pid
        try:
            self._firewall.keep(instance.id, machine.pid, rules(instance, groups))
            if instance.id not in self._plugged:
                self._plug(instance, machine)
        except (OSError, CalledProcessError):
            if not machine.ended():
                raise

    def _plug(self, instance: Any, machine: Machine) -> None:
        vpc = self._vpc(instance.vpc_id)
        machine.order = replace(machine.order, public=instance.public_ip_address)
        self._ports += 1
        port = f"m{self._ports}"
        assert machine.pid
        private, again = IPv4Address(machine.order.private), instance.id in self._connected
        try:
            vpc.plug(port, machine.pid, machine.order.subnet, private, machine.order.public)
            if again:
                configure(machine.pid, private, machine.order.subnet)
        except (OSError, CalledProcessError):
            vpc.unplug(port, machine.order.public)  # half of it would be in the way next time
            raise
        self._plugged[instance.id] = (vpc, port)
        if not again:
            self._connected.add(instance.id)
            machine.connected()
        else:
            machine.restarted()

    def _vpc(self, id: str) -> Vpc:
        if id not in self._vpcs:
            vpc = self._vpcs[id] = Vpc(id, self._prefix)
            self._services[id] = imds.Service(
                vpc.listen(80), lambda address: self._asked(id, address)
            )
            dns.serve(vpc.resolver(), lambda address: self._asked(id, address) is not None)
            for there, here in self.ports.items():
                forward(vpc.listen(there), here, partial(self._reaches, id))
        return self._vpcs[id]

    def connect(self, vpc: str, source: str, address: str, port: int, seconds: float) -> socket:
        """A connection to a machine of a VPC, from an address in it. Called by other threads.
        OSError."""
        if vpc not in self._vpcs:
            raise OSError("the VPC has no machine")
        return self._vpcs[vpc].connect(source, address, port, seconds)

    def _reaches(self, vpc: str, address: str) -> bool:
        """Whether the instance at this address reaches the internet. Called by other threads."""
        here = [one for one in instances() if one.state in _ALIVE and one.vpc_id == vpc]
        return any(address == one.private_ip_address and reaches_internet(one) for one in here)

    def _asked(self, vpc: str, address: str) -> imds.Document | None:
        """What the instance at this address may read. Called by threads of the service."""
        for instance in instances():
            here = instance.state in _ALIVE and instance.vpc_id == vpc
            if here and address == instance.private_ip_address:
                notice = None
                if instance.id in self._notices:
                    end = time.gmtime(self._notices[instance.id][0])
                    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", end)
                    notice = {"action": self._notices[instance.id][1], "time": when}
                return imds.describe(instance, notice)
        return None

    def _notify(self, alive: dict[str, Any]) -> None:
        told = self.faults.known("spot_notice")  # names are tags, which moto takes long to find
        for instance in alive.values():
            if instance.id in self._notices:
                end, action = self._notices[instance.id]
                if time.time() >= end:
                    del self._notices[instance.id]
                    end_of(instance, action, "Server.SpotInstanceTermination")
                continue
            where = Where(names=names_of(instance)) if told else Where()
            if told and (notice := self.faults.take("spot_notice", where=where)):
                seconds = notice.get("seconds", 120)
                self._notices[instance.id] = (time.time() + seconds, "terminate")

    def _ended(self, instance: Any, how: str) -> None:
        """Switched off from inside: EC2 does what the instance was told to do then."""
        if how == "poweroff":
            behavior = instance.instance_initiated_shutdown_behavior
            end_of(instance, behavior, "Client.InstanceInitiatedShutdown")
        else:
            self.failures[instance.id] = how
            print(f"{instance.id} {how}", file=sys.stderr, flush=True)
        self._remove(instance.id)

    def _remove(self, id: str) -> None:
        machine = self._machines.pop(id)
        machine.kill()
        self._connected.discard(id)
        self._firewall.forget(id)
        self._unplug(id, machine)

    def _unplug(self, id: str, machine: Machine) -> None:
        if id in self._plugged:
            vpc, port = self._plugged.pop(id)
            vpc.unplug(port, machine.order.public)


def instances() -> list[Any]:
    """All of moto's, in all regions."""
    for _ in range(10):
        try:
            return [
                one for region in gaps.regions() for one in gaps.backend(region).all_instances()
            ]
        except RuntimeError:
            continue  # changed by a request meanwhile
    return []


def end_of(instance: Any, action: str, reason: str) -> None:
    instance.terminate() if action == "terminate" else instance.stop()
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    words = f"Service initiated ({now} GMT)" if reason.startswith("Server.") else ""
    instance.other_words = {instance.state_transition_reason: words}
    instance.state_reason.code = reason
    instance.state_reason.message = reason


def tag_of(instance: Any, key: str) -> str:
    return str(next((tag["value"] for tag in instance.get_tags() if tag["key"] == key), ""))


def names_of(instance: Any) -> frozenset[str]:
    names = {instance.id, tag_of(instance, "clusterctl:node"), tag_of(instance, "Name")}
    return frozenset(names - {""})


def keys_of(instance: Any) -> list[str]:
    pair = instance.ec2_backend.key_pairs.get(instance.key_name)
    return [pair.public_key.strip()] if pair else []


def user_data_of(instance: Any) -> str:
    """Its text; packed with gzip is allowed, as cloud-init allows it."""
    raw = base64.b64decode(str(instance.user_data or ""))
    return (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode()


def image_of(instance: Any) -> str | None:
    image = instance.ec2_backend.amis.get(instance.image_id)
    return str(image.name) if image else None
