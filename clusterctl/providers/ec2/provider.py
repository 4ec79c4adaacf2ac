"""The EC2 provider: from options to machines and back to none."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl import assets, catalog, terraform
from clusterctl.errors import NodeUnreachable, ProviderError, RecordError, UsageError
from clusterctl.model import (
    GATEWAY,
    SHARED,
    Accelerator,
    Charge,
    Cluster,
    ClusterSpec,
    Node,
    Phase,
    Reporter,
    Role,
    Runtime,
)
from clusterctl.node_phases import NodePhases
from clusterctl.node_results import fold
from clusterctl.providers.ec2 import (
    adoption,
    cleanup,
    diagnostics,
    eventbridge,
    hostkeys,
    launches,
    plan,
    preflight,
    prices,
    provider_state,
    reconcile,
    reservations,
    ssh_cidr,
    terraform_events,
    update_rules,
    userdata,
)
from clusterctl.providers.ec2 import spec as layout
from clusterctl.providers.ec2.answers import ENDED, LIVING, Instance
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.attempts import Order, arm, make
from clusterctl.providers.ec2.client import default_region
from clusterctl.providers.ec2.failures import WrongClock
from clusterctl.providers.ec2.preflight import Survey
from clusterctl.providers.ec2.provider_state import ProviderState
from clusterctl.providers.protocol import (
    CheckRow,
    Created,
    Ended,
    Features,
    Life,
    ProviderPlan,
    Resource,
)
from clusterctl.providers.shared import charges as measured
from clusterctl.providers.shared import deadlines
from clusterctl.providers.shared.nodes import LAUNCHER
from clusterctl.registry import RegistryLogin
from clusterctl.state import Home
from clusterctl.state.locks import find_held
from clusterctl.timeouts import background
from clusterctl.transport.ssh import preload

JOB_PORT = 2222
"""Where the node container's sshd listens, beside the machine's own on 22."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """What goes on beside the preflight."""

    init_cache: terraform.InitCache
    address: Future[str]
    """This machine's, as the internet sees it; "" where nobody has to know."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is known when `create` begins."""

    options: ClusterSpec
    found: Survey
    api: Api
    begun: _Begun
    spot: bool
    """Whether new workers are priced as spot instances."""


class Ec2Provider:
    """Implements `Creator` and all optional protocols of `clusterctl.providers.protocol`."""

    features = Features(
        runtime=Runtime.DOCKER,
        worker_family="cpu",
        fresh_machines=True,
        shared_folder=f"{SHARED} on the launcher's disk, by NFS; `down` deletes it",
        deadline_unit=userdata.UNIT,
        bootstrap_timeout=1800.0,  # it installs Docker and pulls gigabytes
    )

    def __init__(
        self,
        connect: Callable[[str], Api] = Api,
        clock: Callable[[], float] = time.time,
        my_address: Callable[[], str] = ssh_cidr.my_address,
    ) -> None:
        """`connect`: makes what we ask AWS with, in a region."""
        self._connect = connect
        self._clock = clock
        self._my_address = my_address
        self._planned: dict[str, _Planned] = {}
        self._nodes = NodePhases()

    def observe(self, nodes: NodePhases) -> None:
        self._nodes = nodes

    def plan(
        self,
        spec: ClusterSpec,
        current: Cluster | None = None,
        report: Reporter = lambda line: None,
        *,
        ahead: Path | None = None,
    ) -> ProviderPlan:
        update_rules.require_record(current)
        options = update_rules.resolve(spec, current)
        binary = terraform.find()
        address = self._ask_address(options)
        begun = _begin(Home(ahead), binary, address) if ahead else None
        api = self._connect(options.cloud.region)
        found, instances = preflight.survey_cluster(api, options, current, report, address.result)
        present = {item.node: item.type for item in instances}
        update_rules.check_kept(options, current, found.machines, present)
        stopped = {item.node for item in instances if item.state in reconcile.STOPPED}
        names = [m.name for m in found.machines if m.name not in present or m.name in stopped]
        now = self._clock() - preflight.check_clock(api.ahead, report)
        spot = options.cloud.spot and not plan.has_fallen_back(instances)
        old = self._settle(current, instances, ahead, now) if current else ()
        cost = plan.estimate(api, found, options.cloud, old, now, spot=spot, report=report)
        prices.check_hourly(options.cloud.max_hourly, cost.dear)
        update_rules.check_stopped(current, present, stopped, now)
        reserved = found.reservation
        latest = reserved.latest if reserved else None
        deadline = update_rules.deadline(options, current, present, cost.dear, now, latest)
        if begun:
            self._planned[options.name] = _Planned(options, found, api, begun, spot)
        return ProviderPlan(
            mode="ec2",
            mode_reason=plan.mode(api.region, spot),
            one_host=False,
            lines=(
                *plan.place(api, found, binary.name, options.cloud.tag),
                ssh_cidr.describe(options.cloud.ssh_cidr, address.result, old=bool(current)),
                *prices.table(
                    found.machines,
                    cost.charges,
                    found.zones[0],
                    deadline - now,
                    cost.traffic,
                    cost.nat_traffic,
                ),
                *plan.ends(api, found.machines, deadline, stopped, options.cloud, nat=found.nat),
            ),
            spec=options,
            kinds=tuple(dict.fromkeys(machine.image for machine in found.machines))
            if options.runtime is Runtime.DOCKER
            else (),
            nodes=tuple(machine.name for machine in found.machines),
            charges=cost.charges,
            deadline=deadline,
            account=found.account,
            owner=found.owner,
            question=plan.question(len(names), cost.dear, deadline - now),
        )

    def _settle(
        self, current: Cluster, instances: Sequence[Instance], ahead: Path | None, now: float
    ) -> tuple[Charge, ...]:
        """The charges so far, as the machines that there are bear them out. Also an interrupted
        `stop` has stopped some, and EC2 may have."""
        made = {node.name for node in current.nodes}
        if ahead:
            made |= self.list_made(Home(ahead).clusters / current.name)
        living = {item.node for item in instances}
        ends = {
            item.node: Ended(item.ended, stopped=True)
            for item in instances
            if item.ended and item.state in reconcile.STOPPED
        }
        return measured.settle(current, living=living, made=made, now=now, ends=ends)

    def create(self, cluster: Cluster, folder: Path, report: Reporter) -> Created:
        state_folder = folder / "terraform"
        if not terraform.resources(state_folder, cluster.name) and cluster.nodes:
            raise ProviderError(
                f"the Terraform state of cluster {cluster.name} is lost: its folder"
                f" {state_folder} holds none",
                hint=f"`clusterctl down {cluster.name}` finds the cluster by its tags and removes"
                " it without the state",
            )
        planned = self._planned.get(cluster.name) or self._replan(cluster, folder, report)
        options, found, api = planned.options, planned.found, planned.api
        runner = _terraform(api, folder, cluster.name, report)
        known = provider_state.load(folder)
        state = known or ProviderState(id=cluster.id, region=api.region)
        state.ssh_cidr = ssh_cidr.resolve(
            options.cloud.ssh_cidr, state.ssh_cidr, planned.begun.address.result, report
        )
        runner.copy(_module())
        runner.init(planned.begun.init_cache)
        if known:
            # What was being made when Terraform was stopped may exist without its knowing.
            reconcile.remove_unknown(api, cluster.id, runner, report)
            reconcile.start_stopped(api, cluster.id, report)
        host_keys = hostkeys.HostKeys(folder)
        preload()
        order = Order(
            cluster=cluster,
            options=options,
            found=found,
            api=api,
            folder=folder,
            state=state,
            host_keys=host_keys,
            rate=lambda names: prices.rate(
                plan.requote(api, found, cluster.charges, names, "", report)
            ),
            nodes=self._nodes,
        )
        made: list[dict[str, Any]] = []
        try:
            made = make(order, runner, report)
        finally:
            # What came to be in an `up` that breaks off has its end, too.
            arm(order, {str(row["id"]) for row in made}, report)
        nodes = tuple(_node(row, options, found, cluster.id) for row in made)
        host_keys.forget([name for name in host_keys.known if name not in {n.name for n in nodes}])
        final, pool = host_keys.settle(
            nodes,
            limit=options.cloud.boot_timeout,
            report=report,
            phases=self._nodes,
        )
        charges = cluster.charges
        if options.cloud.spot:
            charges = _reprice(cluster, planned, state, nodes, report)
        reason = plan.mode(api.region, state.spot, state.on_demand)
        return Created(
            nodes=nodes,
            host_keys=final,
            pool=pool,
            charges=charges,
            mode_reason=reason,
            shared=SHARED if cluster.spec.shared else "",
        )

    def list_billed(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        api = self._api(cluster, folder)
        found = cleanup.instances(api, cluster.id)
        return {item.node: item.id for item in found if item.node}

    def reprice(self, cluster: Cluster, folder: Path, report: Reporter) -> tuple[Charge, ...]:
        if not cluster.spec.cloud.spot:
            return cluster.charges
        api = self._api(cluster, folder)
        return plan.reprice(api, cluster, cleanup.instances(api, cluster.id), report)

    def list_lives(self, cluster: Cluster, folder: Path) -> tuple[Life, ...]:
        found = self._api(cluster, folder).instances(
            cleanup.tagged(cluster.id), states=(*LIVING, *ENDED)
        )
        return tuple(
            Life(item.node, item.launched, item.ended if item.state in ENDED else None)
            for item in found
            if item.node
        )

    def list_made(self, folder: Path) -> frozenset[str]:
        state = provider_state.load(folder)
        launched = frozenset(state.launched if state else ())
        try:
            known = terraform.resources(folder / "terraform", folder.name)
        except terraform.TerraformError:
            return launched  # with the nodes on record, all that is known
        return launched.union(filter(None, map(terraform_events.node, known)))

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        found = self._instances(cluster, folder)
        return {
            node.name: terraform_events.describe(found[node.name])
            if node.name in found
            else "gone: AWS has no such instance"
            for node in cluster.nodes
        }

    def list_ended(self, cluster: Cluster, folder: Path) -> dict[str, Ended]:
        return self._gateway_end(cluster, folder) | {
            name: Ended(item.ended, item.state in reconcile.STOPPED)
            for name, item in self._instances(cluster, folder).items()
            if item.ended and item.state not in ("pending", "running")
        }

    def list_ending(
        self, cluster: Cluster, folder: Path, reclaimed: Collection[str]
    ) -> frozenset[str]:
        return frozenset(
            name
            for name, item in self._instances(cluster, folder).items()
            if item.state == "shutting-down"
            or (name in reclaimed and item.state in ("pending", "running"))
        )

    def _gateway_end(self, cluster: Cluster, folder: Path) -> dict[str, Ended]:
        """When AWS has removed the NAT gateway of a cluster whose deadline is over."""
        over = cluster.deadline is not None and self._clock() > cluster.deadline
        if not (over and _has_gateway(cluster)):
            return {}
        search = [cleanup.tagged(cluster.id)]
        api = self._api(cluster, folder)
        found = api.all("describe_nat_gateways", "NatGateways", Filter=search)
        if any(item["State"] in ("pending", "available") for item in found):
            return {}
        return {GATEWAY: Ended((cluster.deadline or 0.0) + eventbridge.LATER)}

    def _instances(self, cluster: Cluster, folder: Path) -> dict[str, Instance]:
        """By node, while EC2 shows them: for an hour after their end."""
        api = self._api(cluster, folder)
        states = (*LIVING, "terminated")
        found = api.instances(cleanup.tagged(cluster.id), states=states)
        # One that was made anew has the name of the one that is gone.
        machines = {node.machine for node in cluster.nodes}
        found.sort(key=lambda item: (item.state != "terminated", item.id in machines))
        return {item.node: item for item in found}

    def find_ids(self, folder: Path) -> frozenset[str]:
        known = provider_state.identify(folder)
        if known is None and (folder / "terraform").exists():
            raise RecordError(
                f"{folder} is that of a cluster on EC2, and nothing in it can be read that tells"
                " which one",
                hint="`clusterctl gc` finds it in AWS, by its tags, and removes it;"
                f" `clusterctl down {folder.name} --force` then removes the folder",
            )
        return frozenset((known.id,) if known else ())

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        if reserved := cluster.spec.cloud.reservation:
            reservations.check_end(self._api(cluster, folder), reserved, deadline)
        state = provider_state.load(folder)
        guarded = state.guarded if state else None
        try:
            # First: where AWS keeps an earlier end, a later one of the nodes would be a lie.
            self._extend_in_aws(cluster, folder, deadline, guarded)
        except WrongClock:
            raise
        except ProviderError:
            if guarded is not False:
                raise
        text = f"{int(deadline)}"
        command = f"exec sudo -n sh -c 'echo {text} >{_NEXT} && mv {_NEXT} {deadlines.FILE}'"
        host_keys = hostkeys.HostKeys(folder)
        with host_keys.pool(cluster.nodes) as pool:
            failed = [r for r in pool.run(command, timeout=EXTEND_TIMEOUT) if not r.ok]
        if failed:
            with suppress(ProviderError):  # nodes have been told by now: it is for the next look
                running = self.list_billed(cluster, folder)  # unused workers may have ended
                failed = [result for result in failed if result.node in running]
        if failed:
            raise NodeUnreachable(
                f"the old deadline still applies on {'; '.join(fold(failed))}",
                hint="`clusterctl status --live` shows each node's own; try again",
                transient=True,
            )

    def check_pausing(self, cluster: Cluster, folder: Path) -> None:
        self._api(cluster, folder)
        state = provider_state.load(folder)
        if state.spot if state else cluster.spec.cloud.spot:
            raise UsageError(
                f"the workers of cluster {cluster.name} are spot instances, and EC2 does not stop"
                " those",
                hint=f"`clusterctl down {cluster.name} --fetch` saves the outputs and removes it",
            )

    def stop(self, cluster: Cluster, folder: Path, report: Reporter) -> float:
        return reconcile.stop(self._api(cluster, folder), cluster.id, report)

    def allow(self, cluster: Cluster, folder: Path, networks: Sequence[str]) -> tuple[str, ...]:
        said = ssh_cidr.networks("network", ",".join(networks)) if networks else ""
        try:
            wanted = said or f"{self._my_address()}/32"
        except (OSError, ValueError) as error:
            raise ProviderError(
                f"{ssh_cidr.WHO_AM_I} did not return this machine's public address: {error}",
                hint="give it: clusterctl allow 203.0.113.7/32",
            ) from error
        ssh_cidr.change(self._api(cluster, folder), cluster.id, wanted.split(","))
        if state := provider_state.load(folder):
            state.ssh_cidr = wanted
            provider_state.save(folder, state)
        return tuple(wanted.split(","))

    def shut_out(self, cluster: Cluster, folder: Path) -> str:
        state = provider_state.load(folder)
        return ssh_cidr.shut_out(state.ssh_cidr, self._my_address) if state else ""

    def usual_region(self) -> str:
        return default_region()

    def regions(self) -> tuple[str, ...]:
        api = self._connect(default_region())
        api.account()  # says soon where nobody answers
        return api.regions()

    def owner(self) -> str:
        api = self._connect(default_region())
        api.account()
        return api.owner

    def label_deadline(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        value = cleanup.render_deadline(deadline)
        cleanup.label(self._api(cluster, folder), cluster.id, cleanup.DEADLINE_TAG, value)

    def find(self, region: str) -> tuple[Resource, ...]:
        return cleanup.find_priced(self._connect(region), prices.rates)

    def remove(self, cluster_id: str, region: str, report: Reporter) -> None:
        cleanup.remove(self._connect(region), cluster_id, report)

    def adopt(self, cluster_id: str, name: str, region: str) -> Cluster:
        return adoption.adopt(self._connect(region), cluster_id, name)

    def diagnose(self) -> tuple[CheckRow, ...]:
        return diagnostics.diagnose()

    def deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        state = provider_state.load(folder)
        if cluster.phase is not Phase.STOPPED or (state and state.guarded):
            return ""  # each node keeps its own deadline
        return "stopped machines keep no deadline, and AWS does not remove their disks"

    def registry_login(self, host: str) -> RegistryLogin | None:
        found = ECR.fullmatch(host)
        return (
            RegistryLogin(*Api(found["region"]).registry_login(found["account"])) if found else None
        )

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        api = self._api(cluster, folder)
        self._destroy_known(api, cluster, folder, report)
        if not cleanup.instances(api, cluster.id):
            with suppress(ProviderError):  # the search below finds what is left
                eventbridge.remove(api, eventbridge.group_of(cluster.id))
        state = provider_state.load(folder)
        # An `up` was cut off: what it made last may have no tags yet, and no Terraform knows of it.
        settle = cleanup.SETTLE if state and state.unfinished else 0.0
        cleanup.remove(api, cluster.id, report, settle=settle)
        report(
            f"asked AWS again: nothing tagged {cleanup.TAG}={cluster.id} is left in {api.region}"
        )

    def _ask_address(self, options: ClusterSpec) -> Future[str]:
        """This machine's, as the internet sees it; "" where nobody has to know."""
        return background(lambda: "" if options.cloud.ssh_cidr else self._my_address())

    def _replan(self, cluster: Cluster, folder: Path, report: Reporter) -> _Planned:
        options = update_rules.resolve(cluster.spec, cluster)
        address = self._ask_address(options)
        begun = _begin(Home(folder.parent.parent), terraform.find(), address)
        api = self._connect(options.cloud.region)
        found, instances = preflight.survey_cluster(api, options, cluster, report, address.result)
        spot = options.cloud.spot and not plan.has_fallen_back(instances)
        return _Planned(options, found, api, begun, spot)

    def _api(self, cluster: Cluster, folder: Path) -> Api:
        """Where the cluster is, and in its account."""
        known = provider_state.identify(folder)
        region = known.region if known else cluster.spec.cloud.region or default_region()
        api = self._connect(region)
        update_rules.check_account(cluster, api.account())
        return api

    def _extend_in_aws(
        self, cluster: Cluster, folder: Path, deadline: float, guarded: bool | None
    ) -> None:
        """`guarded`: whether AWS keeps one, None where the file that tells is lost. AWS is asked
        in any case: it knows the time. Raises ProviderError; WrongClock."""
        api = self._api(cluster, folder)
        preflight.check_clock(api.ahead)
        if guarded or (guarded is None and eventbridge.find(api, cluster.id)):
            there = [item.id for item in cleanup.instances(api, cluster.id)]
            eventbridge.arm(api, cluster.id, there, deadline, nat=_has_gateway(cluster))

    def _destroy_known(self, api: Api, cluster: Cluster, folder: Path, report: Reporter) -> None:
        """What Terraform knows of, by Terraform. What it leaves is for `cleanup`."""
        try:
            runner = _terraform(api, folder, cluster.name, report)
            resources = runner.resources()
            if not resources:
                return
            if cleanup.managed(api, cluster.id):
                report("AWS has endpoints of its own in the cluster's VPC; removing by tag")
                return
            state = provider_state.load(folder)
            if state and state.unfinished and cluster.spec.cloud.private:
                # Killed while AWS made it, Terraform does not know it, and waits for its network.
                report("AWS may have a NAT gateway that Terraform does not know; removing by tag")
                return
            runner.init()
            settle = cleanup.SETTLE if state and state.launching else 0.0
            launches.end_unknown(api, cluster.id, runner.state, report, settle=settle)
            at_a_time = layout.parallelism(len(resources))
            if len(resources) > at_a_time:
                # Terraform waits for each: the others would be billed meanwhile.
                cleanup.terminate(api, cluster.id)
            runner.destroy(terraform_events.reporter(report), parallelism=at_a_time)
        except ProviderError as error:
            report(f"{error.message}; removing by tag")


def _reprice(
    cluster: Cluster,
    planned: _Planned,
    state: ProviderState,
    nodes: Sequence[Node],
    report: Reporter,
) -> tuple[Charge, ...]:
    """The charges where new machines are not what was planned: in another zone, or on-demand."""
    known = {node.machine for node in cluster.nodes}
    new = {node.name for node in nodes if node.machine not in known}
    on_demand = new.intersection(state.on_demand) if state.spot else new
    charges, found = cluster.charges, planned.found
    for names, zone in ((new - on_demand, state.zone), (on_demand, "")):
        as_planned = planned.spot and zone == found.zones[0] if zone else not planned.spot
        if names and not as_planned:
            charges = plan.requote(planned.api, found, charges, names, zone, report)
    return charges


def _has_gateway(cluster: Cluster) -> bool:
    """Whether it pays for a NAT gateway of its own."""
    return any(item.part == GATEWAY and item.until is None for item in cluster.charges)


_ACCELERATORS = {"nvidia": Accelerator.NVIDIA, "amd": Accelerator.AMD}
"""What the machine image is for. The facts tell later whether it is there."""

ECR = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?")
"""The hosts of AWS's own registries."""

_NEXT = f"{deadlines.FILE}.next"
EXTEND_TIMEOUT = 30.0


def _module() -> Path:
    return assets.folder("infra") / "ec2"


def _plugins(home: Path) -> Path:
    return home / "terraform-plugins"


def _begin(home: Home, binary: terraform.Binary, address: Future[str]) -> _Begun:
    """Lets Terraform fetch its provider while AWS is asked whether there is anything to make."""
    init_cache = terraform.InitCache(_module(), binary, home.make(_plugins(home.path)))
    init_cache.begin()
    return _Begun(init_cache, address)


def _terraform(api: Api, folder: Path, name: str, report: Reporter) -> terraform.Terraform:
    """In the cluster's own folder, with the lock of the cluster, which it inherits."""
    home = folder.parent.parent
    try:
        lock = find_held(home, name)
    except KeyError:
        lock = None
    return terraform.Terraform(
        folder / "terraform",
        terraform.find(),
        cluster=name,
        cache=_plugins(home),
        lock=lock.fileno() if lock else None,
        on_start=lock.lend if lock else lambda pid, command: None,
        report=report,
        lent=api.lent,
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
        root=layout.root(machine, cluster_id),
        via="" if launcher else LAUNCHER,
        slots=1 if launcher else kind.gpus or kind.vcpus,
        accelerator=_ACCELERATORS.get(machine.image, Accelerator.NONE),
        instance_type=row["instance_type"],
        machine=row["id"],
    )
