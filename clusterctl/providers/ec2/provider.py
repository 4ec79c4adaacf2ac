"""The EC2 provider: from options to machines and back to none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl import assets, catalog, keys, terraform
from clusterctl.errors import NodeUnreachable, ProviderError
from clusterctl.model import Accelerator, Charge, Cluster, ClusterSpec, Node, Role, Runtime, clock
from clusterctl.providers.ec2 import (
    adoption,
    cleanup,
    diagnostics,
    failures,
    hostkeys,
    preflight,
    prices,
    provider_state,
    reconcile,
    report,
    ssh_cidr,
    update_rules,
    userdata,
)
from clusterctl.providers.ec2 import spec as layout
from clusterctl.providers.ec2.api import Api, Instance, Later, default_region
from clusterctl.providers.ec2.failures import CapacityError
from clusterctl.providers.ec2.preflight import Survey
from clusterctl.providers.ec2.provider_state import ProviderState
from clusterctl.providers.ec2.spec import LAUNCHER, Machine
from clusterctl.providers.protocol import (
    Created,
    Features,
    Finding,
    OnEvent,
    ProviderPlan,
    Resource,
)
from clusterctl.providers.shared import billing, deadlines
from clusterctl.state import Home
from clusterctl.state.locks import held
from clusterctl.transport.fold import fold
from clusterctl.transport.ssh import warm

JOB_PORT = 2222
"""Where the node container's sshd listens, beside the machine's own on 22."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """What goes on beside the preflight."""

    seed: terraform.Seed
    address: Later[str]
    """This machine's, as the internet sees it; "" where nobody has to know."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is known when `create` begins."""

    options: ClusterSpec
    found: Survey
    api: Api
    begun: _Begun


class Ec2Provider:
    """Implements `Creator` and all optional protocols of `clusterctl.providers.protocol`."""

    features = Features(
        runtime=Runtime.DOCKER,
        worker_family="cpu",
        fresh_machines=True,
        bootstrap_timeout=1800.0,  # it installs Docker and pulls gigabytes
    )

    def __init__(self) -> None:
        self._planned: dict[str, _Planned] = {}

    def plan(
        self,
        spec: ClusterSpec,
        current: Cluster | None = None,
        tell: OnEvent = lambda line: None,
        *,
        ahead: Path | None = None,
    ) -> ProviderPlan:
        update_rules.on_record(current)
        options = update_rules.resolved(spec, current)
        binary = terraform.find()
        begun = _begin(Home(ahead), binary, options) if ahead else None
        api = Api(options.cloud.region)
        found, instances = _survey(api, options, current, tell)
        present = _types(instances)
        update_rules.keep(options, current, found.machines, present)
        names = [machine.name for machine in found.machines if machine.name not in present]
        now = time.time()
        spot = options.cloud.spot and not _fell_back(instances)
        quotes = _quotes(api, found, spot, tell)
        old: tuple[Charge, ...] = ()
        if current:
            made = {node.name for node in current.nodes}
            if ahead:
                made |= self.made(Home(ahead).clusters / options.name)
            old = billing.settled(current, living=present, made=made, now=now)
        charges = prices.merge(old, prices.charges(found.machines, quotes, api.region, now), now)
        dear = charges
        if spot and options.cloud.spot_fallback:
            # What it may come to: the budget has to last for that too.
            quotes = _quotes(api, found, False, tell)
            most = prices.charges(found.machines, quotes, api.region, now)
            dear = prices.merge(old, most, now)
        deadline = update_rules.deadline(options, current, present, dear, now)
        others = f" (then {', '.join(found.zones[1:])})" if len(found.zones) > 1 else ""
        rate, unknown = prices.hourly(dear)
        worst = prices.money(rate * (deadline - now) / 3600, 2)
        known = [charge for charge in charges if charge.until is None]
        many = "1 machine" if len(names) == 1 else f"{len(names)} machines"
        if begun:
            self._planned[options.name] = _Planned(options, found, api, begun)
        return ProviderPlan(
            mode="ec2",
            mode_reason=_mode(api.region, spot),
            one_host=False,
            lines=(
                f"AWS account {found.account}, {api.region}, zone {found.zones[0]}{others};"
                f" {binary.name}",
                *prices.table(found.machines, known, found.zones[0], deadline - now),
                f"every node ends itself at {clock(deadline)}, whatever happens to this machine",
            ),
            spec=options,
            nodes=tuple(machine.name for machine in found.machines),
            charges=charges,
            deadline=deadline,
            account=found.account,
            question=f"start {many} for up to {worst}{' and more' * bool(unknown)}?"
            if names
            else "",
        )

    def create(self, cluster: Cluster, folder: Path, on_event: OnEvent) -> Created:
        runner = _terraform(folder, cluster.name, on_event)
        if not runner.resources() and cluster.nodes:
            raise ProviderError(
                f"the Terraform state of cluster {cluster.name} is lost: its folder"
                f" {runner.folder} holds none",
                hint=f"`clusterctl down {cluster.name}` finds the cluster by its tags and removes"
                " it without the state",
            )
        planned = self._planned.get(cluster.name) or _replan(cluster, folder, on_event)
        options, found, api = planned.options, planned.found, planned.api
        resumed = provider_state.load(folder) is not None
        memory = provider_state.load(folder) or ProviderState(id=cluster.id, region=api.region)
        memory.ssh_cidr = ssh_cidr.resolve(
            options.cloud.ssh_cidr, memory.ssh_cidr, planned.begun.address.get, on_event
        )
        runner.copy(_module())
        runner.init(planned.begun.seed)
        if resumed:
            # What was being made when Terraform was stopped may exist without its knowing.
            reconcile.remove_unknown(api, cluster.id, runner, on_event)
        host_keys = hostkeys.HostKeys(folder)
        warm()
        made = self._apply(cluster, planned, memory, folder, runner, host_keys, on_event)
        nodes = tuple(_node(row, options, found, cluster.id) for row in made)
        host_keys.forget([name for name in host_keys.known if name not in {n.name for n in nodes}])
        final, pool = host_keys.settle(
            nodes,
            limit=options.cloud.boot_timeout,
            on_up=lambda name, seconds: on_event(f"{name}: SSH answers after {seconds:.1f} s"),
        )
        charges = cluster.charges
        if options.cloud.spot and not memory.spot:
            charges = prices.requoted(charges, _quotes(api, found, False, on_event))
        reason = _mode(api.region, memory.spot)
        return Created(nodes=nodes, host_keys=final, pool=pool, charges=charges, mode_reason=reason)

    def billed(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        api = _api(cluster, folder)
        found = api.instances(cleanup.tagged(cluster.id), states=_USABLE)
        return {item.node: item.id for item in found if item.node}

    def made(self, folder: Path) -> frozenset[str]:
        try:
            known = terraform.resources(folder / "terraform", folder.name)
        except terraform.TerraformError:
            return frozenset()  # the nodes on record are all that is known
        return frozenset(filter(None, map(report.node, known)))

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        api = _api(cluster, folder)
        living = {item.node: item.state for item in api.instances(cleanup.tagged(cluster.id))}
        return {
            node.name: living.get(node.name, "gone: AWS has no such instance")
            for node in cluster.nodes
        }

    def ids(self, folder: Path) -> frozenset[str]:
        memory = provider_state.load(folder)
        return frozenset((memory.id,) if memory else ())

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        text = f"{int(deadline)}"
        command = f"exec sudo -n sh -c 'echo {text} >{_NEXT} && mv {_NEXT} {deadlines.FILE}'"
        host_keys = hostkeys.HostKeys(folder)
        with host_keys.pool(cluster.nodes) as pool:
            failed = [r for r in pool.run(command, timeout=EXTEND_TIMEOUT) if not r.ok]
        if failed:
            raise NodeUnreachable(
                f"the old deadline stays on {'; '.join(fold(failed))}",
                hint="`clusterctl status --live` shows each node's own; try again",
                transient=True,
            )

    def regions(self, more: Sequence[str] = ()) -> tuple[str, ...]:
        return tuple(dict.fromkeys((default_region(), *filter(None, more))))

    def find(self, region: str) -> tuple[Resource, ...]:
        return cleanup.find(Api(region))

    def remove(self, cluster_id: str, region: str, on_event: OnEvent) -> None:
        cleanup.remove(Api(region), cluster_id, on_event)

    def adopt(self, cluster_id: str, name: str, region: str) -> Cluster:
        return adoption.adopt(Api(region), cluster_id, name)

    def findings(self) -> tuple[Finding, ...]:
        return diagnostics.findings()

    def deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        return ""  # each node keeps its own deadline

    def destroy(self, cluster: Cluster, folder: Path, on_event: OnEvent) -> None:
        api = _api(cluster, folder)
        self._destroy_known(cluster, folder, on_event)
        cleanup.remove(api, cluster.id, on_event)
        on_event(
            f"asked AWS again: nothing tagged {cleanup.TAG}={cluster.id} is left in {api.region}"
        )

    def _destroy_known(self, cluster: Cluster, folder: Path, on_event: OnEvent) -> None:
        """What Terraform knows of, by Terraform. What it leaves is for `cleanup`."""
        try:
            runner = _terraform(folder, cluster.name, on_event)
            resources = runner.resources()
            if not resources:
                return
            runner.init()
            runner.destroy(
                report.reporter(on_event), parallelism=layout.parallelism(len(resources))
            )
        except ProviderError as error:
            on_event(f"{error.message}; removing by tag")

    def _apply(
        self,
        cluster: Cluster,
        planned: _Planned,
        memory: ProviderState,
        folder: Path,
        runner: terraform.Terraform,
        host_keys: hostkeys.HostKeys,
        on_event: OnEvent,
    ) -> list[dict[str, Any]]:
        """The node list, from the first zone that has room for the whole cluster."""
        options, found, api = planned.options, planned.found, planned.api
        public = keys.ensure(folder / "ssh" / "user")
        running = api.instances(cleanup.tagged(cluster.id), states=_USABLE)
        settled = bool({item.node for item in running} & {node.name for node in cluster.nodes})
        if not running:
            # What an earlier attempt came to says nothing about today.
            memory.zone, memory.spot = "", options.cloud.spot
        markets = [memory.spot]
        if memory.spot and options.cloud.spot_fallback:
            markets.append(False)
        zones = found.zones
        if memory.zone in zones:
            # Where an earlier attempt got to: the zones before it had no room.
            zones = zones[zones.index(memory.zone) :]
        attempts = [(spot, zone) for spot in markets for zone in zones]
        for index, (spot, zone) in enumerate(attempts):
            memory.zone, memory.spot = zone, spot
            provider_state.save(folder, memory)
            deadline = cluster.deadline or time.time() + catalog.DEFAULT_TTL
            living = {item.node for item in running}
            settled_keys = living - host_keys.booting
            news = [machine.name for machine in found.machines if machine.name not in settled_keys]
            pairs = host_keys.boot(news, living)
            user_data = {
                machine.name: userdata.render(
                    host_key=pairs[machine.name],
                    authorized=public,
                    deadline=deadline,
                    root=_root(machine, cluster.id),
                    spot=spot and machine.name != LAUNCHER,
                )
                for machine in found.machines
                if machine.name in pairs
            }
            variables = layout.variables(
                cluster_id=cluster.id,
                name=cluster.name,
                region=api.region,
                zone=zone,
                machines=found.machines,
                amis=found.amis,
                spot=spot,
                placement=found.placement,
                efa=options.cloud.efa,
                ssh_cidr=memory.ssh_cidr,
                public_key=public,
                user_data=user_data,
                # Whole minutes, so that asking again plans no change; and never nothing.
                hours=max(1, round((deadline - time.time()) / 60)) / 60,
            )
            try:
                outputs = reconcile.apply(runner, variables, api, cluster.id, on_event)
            except terraform.TerraformError as error:
                known = failures.from_terraform(item.text for item in error.diagnostics)
                if not isinstance(known, CapacityError):
                    raise known or error from error
                if settled or index + 1 == len(attempts):
                    no_room = _no_room(known, zones, settled, memory)
                    if not settled:
                        # The next `up` finds another day, and begins anew.
                        memory.zone, memory.spot = "", options.cloud.spot
                        provider_state.save(folder, memory)
                    raise no_room from error
                following = attempts[index + 1]
                on_event(
                    f"{zone} has no room{' for spot' if spot else ''} ({known.message}):"
                    f" the whole cluster moves to {following[1]}"
                    + ("" if following[0] == spot else ", on-demand")
                )
                running = api.instances(cleanup.tagged(cluster.id), states=_USABLE)
                continue
            return list(outputs["nodes"])
        raise ProviderError("there is no zone to try", hint="name some with --zones")


_ACCELERATORS = {"nvidia": Accelerator.NVIDIA, "amd": Accelerator.AMD}
"""What the machine image is for. The facts tell later whether it is there."""

_NEXT = f"{deadlines.FILE}.next"
EXTEND_TIMEOUT = 30.0

_USABLE = ("pending", "running", "stopping", "stopped")


def _no_room(
    known: CapacityError, zones: Sequence[str], settled: bool, memory: ProviderState
) -> CapacityError:
    if settled:
        return CapacityError(
            f"{memory.zone} has no room for more: {known.message}",
            hint="the nodes that run stay as they are: try later, or with fewer --workers",
        )
    return CapacityError(
        f"no zone has room for the whole cluster ({', '.join(zones)} were tried): {known.message}",
        hint=known.hint + (", or --spot-fallback" if memory.spot else ""),
    )


def _module() -> Path:
    return assets.folder("infra") / "ec2"


def _plugins(home: Path) -> Path:
    return home / "terraform-plugins"


def _begin(home: Home, binary: terraform.Binary, options: ClusterSpec) -> _Begun:
    """Lets Terraform fetch its provider while AWS is asked whether there is anything to make."""
    seed = terraform.Seed(_module(), binary, home.make(_plugins(home.path)))
    seed.begin()
    return _Begun(seed, Later(lambda: "" if options.cloud.ssh_cidr else ssh_cidr.my_address()))


def _replan(cluster: Cluster, folder: Path, tell: OnEvent) -> _Planned:
    options = update_rules.resolved(cluster.spec, cluster)
    begun = _begin(Home(folder.parent.parent), terraform.find(), options)
    api = Api(options.cloud.region)
    found, _ = _survey(api, options, cluster, tell)
    return _Planned(options, found, api, begun)


def _api(cluster: Cluster, folder: Path) -> Api:
    """Where the cluster is, and in its account."""
    memory = provider_state.load(folder)
    api = Api(memory.region if memory else cluster.spec.cloud.region or default_region())
    update_rules.account(cluster, api.account())
    return api


def _survey(
    api: Api, options: ClusterSpec, current: Cluster | None, tell: OnEvent
) -> tuple[Survey, list[Instance]]:
    """Also the machines there are: by AWS, for a record may have been cut off."""
    if current:
        # It tells soonest that nobody answers; the survey asks it again, beside other questions.
        update_rules.account(current, api.account())
    instances = api.instances(cleanup.tagged(current.id), states=_USABLE) if current else []
    instances = [item for item in instances if item.node]
    zone = instances[0].zone if instances else ""
    settled = bool(current and current.nodes)
    found = preflight.survey(api, options, _types(instances), zone if settled else "", tell)
    if zone in found.zones:
        # An `up` that was cut off goes on there, and may still leave for where there is room.
        others = (other for other in found.zones if other != zone)
        found = replace(found, zones=(zone, *others))
    return found, instances


def _types(instances: Sequence[Instance]) -> dict[str, str]:
    return {item.node: item.type for item in instances}


def _fell_back(instances: Sequence[Instance]) -> bool:
    """Whether workers are on-demand that were asked for as spot instances."""
    return any(not item.spot for item in instances if item.node != LAUNCHER)


def _quotes(api: Api, found: Survey, spot: bool, tell: OnEvent) -> dict[str, prices.Quote]:
    machines = found.machines
    return prices.quotes(
        api,
        [machine.instance_type for machine in machines],
        spot={m.instance_type for m in machines if m.name != LAUNCHER} if spot else (),
        zone=found.zones[0],
        tell=tell,
    )


def _mode(region: str, spot: bool) -> str:
    return f"{region}{', spot' if spot else ''}"


def _terraform(folder: Path, name: str, tell: OnEvent) -> terraform.Terraform:
    """In the cluster's own folder, with the lock of the cluster, which it inherits."""
    home = folder.parent.parent
    try:
        lock = held(home, name)
    except KeyError:
        lock = None
    return terraform.Terraform(
        folder / "terraform",
        terraform.find(),
        cluster=name,
        cache=_plugins(home),
        lock=lock.fileno() if lock else None,
        on_start=lock.lend if lock else lambda pid, command: None,
        tell=tell,
    )


def _node(row: dict[str, Any], options: ClusterSpec, found: Survey, cluster_id: str) -> Node:
    machine = next(item for item in found.machines if item.name == row["name"])
    launcher = machine.name == LAUNCHER
    kind = found.types[machine.instance_type]
    image = catalog.MACHINE_IMAGES[machine.image]
    return Node(
        name=machine.name,
        role=Role.LAUNCHER if launcher else Role.WORKER,
        address=row["address"] if launcher else row["private_address"],
        private_address=row["private_address"],
        ssh_port=22,
        job_port=JOB_PORT if options.runtime is Runtime.DOCKER else 22,
        user=image.user,
        root=_root(machine, cluster_id),
        via="" if launcher else LAUNCHER,
        slots=1 if launcher else kind.gpus or kind.vcpus,
        accelerator=_ACCELERATORS.get(machine.image, Accelerator.NONE),
        instance_type=row["instance_type"],
        machine=row["id"],
    )


def _root(machine: Machine, cluster_id: str) -> str:
    return f"{catalog.MACHINE_IMAGES[machine.image].home}/.clusterctl/{cluster_id}"
