"""From a plan to machines that answer."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from clusterctl.core import assets, catalog, keys
from clusterctl.core.keys import KeyPair
from clusterctl.core.model import (
    SHARED,
    Accelerator,
    Cluster,
    Node,
    Reporter,
    Role,
    Runtime,
    shorten,
)
from clusterctl.core.progress import NodePhases
from clusterctl.core.text import list_last_lines
from clusterctl.errors import NodeUnreachable, ProviderError
from clusterctl.machines import deadlines
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import host_keys as ec2_host_keys
from clusterctl.machines.ec2 import (
    ledger,
    network,
    plan,
    prices,
    refusals,
    remove,
    schedules,
    spec,
    tunnels,
)
from clusterctl.machines.ec2.api import (
    SETTLE,
    STOPPED,
    Api,
    Instance,
    find_instances,
    terminate_instances,
)
from clusterctl.machines.ec2.host_keys import HostKeys
from clusterctl.machines.ec2.network import ZoneSubnets
from clusterctl.machines.ec2.preflight import Survey
from clusterctl.machines.ec2.refusals import CapacityError, RefusedByAws
from clusterctl.machines.ec2.spec import ProviderState
from clusterctl.machines.protocol import LAUNCHER, Created, Resource
from clusterctl.terraform import folder as terraform_folder
from clusterctl.terraform.binary import TerraformError
from clusterctl.transport.ssh import preload

# -------------------------------------------------------------------------------------------------
# Terraform's state against the cloud: what a cluster has without Terraform's knowing.
#
# It is made where Terraform is stopped in the middle of a call, and where AWS's answer gets lost.
# So the end of a cluster, too, is first Terraform's, and then by tag.


START_LIMIT = 300.0
"""Seconds that stopping and starting again may take."""

EARLY = 5.0
"""Seconds to wait until IAM knows the tags of what was just made."""

_NAMED_BY_US = {"key pair": "aws_key_pair", "placement group": "aws_placement_group"}
"""Their names are the cluster's id, which is all over the state: their type tells."""


def apply(
    runner: terraform_folder.Terraform,
    variables: dict[str, Any],
    api: Api,
    cluster_id: str,
    report: Reporter,
    may_go: Callable[[], Collection[str]],
    nodes: NodePhases | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Terraform's outputs. Asks again where AWS was too busy for a part, or refused it while tags
    were new, as long as each attempt makes something; and once without what it failed over because
    it is there already. `may_go`: the addresses of the machines that may be destroyed or replaced,
    asked for before each attempt: what the last one has half made is among them. `nodes` is told
    which of them run.

    Raises TerraformError, and LeftoverError as `remove_unknown` does.
    """
    at_a_time = spec.choose_parallelism(len(variables["user_data"]))
    known, tidied = len(runner.list_resources()), False
    while True:
        show = spec.make_reporter(report, nodes)
        try:
            return runner.apply(variables, show, parallelism=at_a_time, may_go=may_go())
        except TerraformError as error:
            said = [item.text for item in error.diagnostics]
            before, known = known, len(runner.list_resources())
            if isinstance(refusals.from_terraform(said), CapacityError):
                raise
            if refusals.is_transient(said) and known > before:
                report(f"{refusals.from_terraform(said)}: continuing")
            elif refusals.may_be_early(said) and known > before:
                report(
                    f"{refusals.from_terraform(said)}: perhaps the tags of what was just made are"
                    " not yet known; trying again"
                )
                sleep(EARLY)
            elif refusals.is_repeated(said) and not tidied:
                report(
                    "AWS already has resources that are not in Terraform's state:"
                    " creating them again"
                )
                remove_unknown(api, cluster_id, runner, report)
                tidied = True
            else:
                raise


def start_stopped(api: Api, cluster_id: str, report: Reporter) -> None:
    """Starts machines again that were stopped, in the console or by EC2. Terraform would replace
    them: a stopped one has no public address, and that cannot be given to it. Raises ProviderError
    naming those that do not start."""
    down = [item for item in find_instances(api, cluster_id) if item.state in STOPPED]
    if not down:
        return
    names, ids = _name_all(down), [item.id for item in down]
    report(f"{names}: stopped; starting again")
    try:
        api.wait("instance_stopped", START_LIMIT, InstanceIds=ids)
        api.call("start_instances", InstanceIds=ids)
        api.wait("instance_running", START_LIMIT, InstanceIds=ids)
    except ProviderError as error:
        # Their disks are in one zone, and so are they.
        hint = "try again later" if isinstance(error, CapacityError) else error.hint
        raise ProviderError(
            f"{names} was stopped and cannot be started again: {error.message}",
            hint=f"{hint}; no machine was replaced",
        ) from error


def stop(api: Api, cluster_id: str, report: Reporter) -> None:
    """Stops all machines: from then on only disks cost money. Raises ProviderError naming those
    that do not stop."""
    found = find_instances(api, cluster_id)
    if going := [item for item in found if item.state not in STOPPED]:
        report(f"stopping {_name_all(going)}")
        api.call("stop_instances", InstanceIds=[item.id for item in going])
    if found:
        api.wait("instance_stopped", START_LIMIT, InstanceIds=[item.id for item in found])


def _name_all(instances: Sequence[Instance]) -> str:
    return shorten(sorted(item.node or item.id for item in instances))


def remove_unknown(
    api: Api, cluster_id: str, runner: terraform_folder.Terraform, report: Reporter
) -> None:
    """Removes what the cluster has without Terraform's knowing. Raises LeftoverError."""
    remove.remove_cluster(api, cluster_id, report, keep=make_is_known(runner))
    state = runner.state
    tables = api.list_all(
        "describe_route_tables", "RouteTables", Filters=[ec2_api.filter_by_cluster(cluster_id)]
    )
    # Associations have no tags of their own.
    for link in (link for table in tables for link in table.get("Associations", ())):
        name = link["RouteTableAssociationId"]
        if not link.get("Main") and name not in state:
            api.call("disassociate_route_table", AssociationId=name)


def make_is_known(runner: terraform_folder.Terraform) -> Callable[[Resource], bool]:
    """Whether Terraform's state speaks of a thing, or it never made such a one: schedules are ours,
    and AWS and people may have put endpoints into the network. A NAT gateway that Terraform would
    replace is not known: `cleanup` notes whether it was there, and so is to be paid for."""
    state = runner.state
    types = {address.partition(".")[0] for address in runner.list_resources()}
    tainted = runner.find_tainted()
    return lambda left: (
        left.managed
        or left.kind in ("VPC endpoint", schedules.KIND)
        or (
            _NAMED_BY_US[left.kind] in types
            if left.kind in _NAMED_BY_US
            else left.id in state and not (left.kind == remove.GATEWAY and left.id in tainted)
        )
    )


def destroy(api: Api, cluster: Cluster, folder: Path, report: Reporter) -> None:
    """Raises ProviderError, and LeftoverError where something is left."""
    _destroy_known(api, cluster, folder, report)
    if not find_instances(api, cluster.id):
        with suppress(ProviderError):  # the search below finds what is left
            schedules.remove_schedule(api, schedules.name_group(cluster.id))
    state = spec.load_state(folder)
    # An `up` was cut off: what it made last may have no tags yet, and no Terraform knows of it.
    settle = SETTLE if state and state.unfinished else 0.0
    remove.remove_all(api, cluster.id, report, settle=settle)


def _destroy_known(api: Api, cluster: Cluster, folder: Path, report: Reporter) -> None:
    """What Terraform knows of, by Terraform. What it leaves is for `cleanup`."""
    try:
        runner = spec.open_terraform(api, folder, cluster.name, report)
        resources = runner.list_resources()
        if not resources:
            return
        state, why = spec.load_state(folder), ""
        if remove.is_managed(api, cluster.id):
            why = "AWS has endpoints of its own in the cluster's VPC"
        elif state and state.unfinished:
            # Terraform would wait for a network that is held by what it does not know.
            why = "the last `up` did not finish: AWS may have more than Terraform knows"
        elif unknown := [i for i in find_instances(api, cluster.id) if i.id not in runner.state]:
            why = f"{_name_all(unknown)}: not in Terraform's state"
        if why:
            report(f"{why}; removing by tag")
            return
        runner.init()
        at_a_time = spec.choose_parallelism(len(resources))
        if len(resources) > at_a_time:
            # Terraform waits for each: the others would be billed meanwhile.
            terminate_instances(api, cluster.id)
        runner.destroy(spec.make_reporter(report), parallelism=at_a_time)
    except ProviderError as error:
        report(f"{error.message}; removing by tag")


# -------------------------------------------------------------------------------------------------
# What a node does at its first boot: cloud-init's configuration, as JSON. Pure.
#
# JSON is YAML, and cannot be badly indented: a private key that is leaves a node without sshd and
# cloud-init's status `done`.


AGENT = f"/etc/clusterctl/{deadlines.AGENT}"
UNIT = "clusterctl-deadline.service"
END = "shutdown -P now || poweroff -f"

LIMIT = 16384
"""Bytes of user data that EC2 takes."""


def render_userdata(
    *, host_key: KeyPair, authorized: str, deadline: float, root: str, spot: bool
) -> str:
    """`root`: the node root, where the agent finds jobs; `deadline`: seconds since the epoch."""
    config = {
        "disable_root": True,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": host_key.private,
            "ed25519_public": host_key.public,
        },
        "ssh_authorized_keys": [authorized],
        "write_files": [
            {
                "path": AGENT,
                "permissions": "0755",
                "content": deadlines.render_agent(root=root, end=END, metadata=True, spot=spot),
            },
            {"path": deadlines.FILE, "permissions": "0644", "content": f"{int(deadline)}\n"},
            {
                "path": f"/etc/systemd/system/{UNIT}",
                "permissions": "0644",
                "content": assets.render("ec2/deadline.service.j2", agent=AGENT),
            },
        ],
        "runcmd": [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", UNIT],
        ],
    }
    return "#cloud-config\n" + json.dumps(config)


# -------------------------------------------------------------------------------------------------
# Makes the machines of a cluster where there is room for all of them: in one zone of the region,
# on the spot market or on demand.


class Order(Struct, frozen=True, kw_only=True):
    """What has to be made, and what is known of it. `state` is changed, and kept in `folder`."""

    cluster: Cluster
    found: Survey
    folder: Path
    state: ProviderState
    host_keys: HostKeys
    nodes: NodePhases = field(default_factory=NodePhases)


def make_attempts(
    order: Order, runner: terraform_folder.Terraform, report: Reporter
) -> list[dict[str, Any]]:
    """Terraform's list of nodes. Raises CapacityError where no zone has room for all; what runs
    already never moves. Zones that AWS names as having room are tried first. In others, after the
    first, the workers come before the launcher: that one would be made and ended in each. (In the
    first, workers that wait for it would cost more than a minute of it does.)"""
    state, api, zones = order.state, order.found.api, order.found.zones
    cloud = order.found.options.cloud
    running = find_instances(api, order.cluster.id)
    settled = any(order.cluster.has(item.node) for item in running)
    if settled:
        state.spot = state.spot or any(item.spot for item in running)
    elif not running:
        # What an earlier attempt came to says nothing about today.
        state.zone, state.spot = "", cloud.spot
    keeps_spot = settled and state.spot
    markets = (True, False) if state.spot and cloud.spot_fallback else (state.spot,)
    # The zones before the one that an earlier attempt got to had no room.
    first = zones.index(state.zone) if state.zone in zones else 0
    todo = [(spot, zone) for spot in markets for zone in zones[first:]]
    tried: list[str] = []
    named = Counter[str]()
    while todo:
        spot, zone = todo.pop(0)
        stays = any(item.node == LAUNCHER and item.zone == zone for item in running)
        workers_first = bool(tried) and not (settled or stays or named[zone])
        tried.append(zone)
        state.zone, state.spot = zone, spot or keeps_spot
        state.on_demand = _list_on_demand(order, spot, running) if keeps_spot else ()
        state.unfinished = True
        spec.save_state(order.folder, state)
        variables = _build_variables(order, running)
        try:
            for launcher in ({"launcher_type": ""}, {})[not workers_first :]:
                made = apply(
                    runner,
                    {**variables, **launcher},
                    api,
                    order.cluster.id,
                    report,
                    may_go=partial(_list_removable, order, runner),
                    nodes=order.nodes,
                )
        except TerraformError as error:
            said = [item.text for item in error.diagnostics]
            known = refusals.from_terraform(said)
            if not isinstance(known, CapacityError):
                raise known or error from error
            named = refusals.count_named_zones(said)
            # What it says of one market says nothing of the other.
            todo.sort(key=lambda to: (1, 0) if to[0] != spot else (0, -named[to[1]]))
            # What goes now costs, too.
            ledger.record_sighting(api, order.cluster, order.folder)
            if not todo:
                raise _give_up(order, tried, known, settled) from error
        else:
            state.unfinished = False
            spec.save_state(order.folder, state)
            return list(made["nodes"])
        running = find_instances(api, order.cluster.id)
        if settled:
            there = {item.node for item in running}
            new = [n for n in _list_on_demand(order, todo[0][0], running) if n not in there]
            dear = plan.requote(order.found, order.cluster.charges, new, "", report)
            report(
                f"{zone} has no capacity for spot ({known.said}): {shorten(new)} on-demand"
                f" instead, the cluster then costs {prices.render_rate(dear)}/h"
            )
        else:
            report(
                f"{zone} has no capacity{' for spot' * spot} ({known.said}): the whole cluster"
                f" moves to {todo[0][1]}" + ", on-demand" * (todo[0][0] != spot)
            )
    raise ProviderError("no zone to try", hint="name some with --zones")


def _give_up(
    order: Order, zones: Sequence[str], why: CapacityError, settled: bool
) -> CapacityError:
    """The error after the last attempt. `settled`: some workers run, which stay where they are."""
    state, name = order.state, order.cluster.name
    if settled:
        what = f"{state.zone} has no capacity for more"
        instead = "with fewer --workers"
        if state.spot and not order.found.options.cloud.spot_fallback:
            instead = f"`clusterctl up {name} --spot-fallback` starts on-demand ones instead"
        hint = f"running nodes are unchanged: try later, or {instead}"
        state.unfinished = False  # the refusal is all that EC2 made of it
    else:
        tried = ", ".join(dict.fromkeys(zones))
        what = f"no zone has capacity for the whole cluster (tried {tried})"
        # All zones were tried, unless the user has named some.
        hint = why.hint if order.found.options.cloud.zones else why.hint.replace("--zones, ", "")
        hint += ", or --spot-fallback" * state.spot
        # The next `up` finds another day, and begins anew.
        state.zone, state.spot = "", order.found.options.cloud.spot
    spec.save_state(order.folder, state)
    return CapacityError(f"{what}: {why.said}", hint=hint)


def _list_on_demand(order: Order, new_spot: bool, running: Sequence[Instance]) -> tuple[str, ...]:
    """The workers of a cluster of spot instances that are none: those that run so, and the new
    ones unless they are to be (`new_spot`)."""
    spot = {item.node: item.spot for item in running}
    workers = [machine.name for machine in order.found.machines if machine.name != LAUNCHER]
    return tuple(name for name in workers if not spot.get(name, new_spot))


def _list_removable(order: Order, runner: terraform_folder.Terraform) -> list[str]:
    """The machines that Terraform may destroy or replace: surplus ones, whose removal was agreed
    to, and those that never became nodes, on which nothing ever ran."""
    nodes = {node.machine for node in order.cluster.nodes}
    wanted = {machine.name for machine in order.found.machines}
    return [
        address
        for address, machine in runner.list_resources().items()
        if (name := spec.find_node(address)) and (machine not in nodes or name not in wanted)
    ]


def make_tags(cluster: Cluster) -> dict[str, str]:
    """Tags of all that is made: the user's own, the cluster's name, and who made it."""
    names = (ec2_api.NAME_TAG, ec2_api.OWNER_TAG, ec2_api.CLIENT_TAG)
    values = (cluster.name, cluster.owner, cluster.client)
    ours = {name: value for name, value in zip(names, values, strict=True) if value}
    return {**ec2_api.parse_tags(cluster.spec.cloud.tag), **ours}


def _build_variables(order: Order, running: Sequence[Instance]) -> dict[str, Any]:
    """Terraform's. Machines that boot get host keys of ours with their user data."""
    cluster, found, state = order.cluster, order.found, order.state
    deadline = cluster.deadline or time.time() + catalog.DEFAULT_TTL
    living = {item.node for item in running}
    booted = living - order.host_keys.booting
    booting = [machine for machine in found.machines if machine.name not in booted]
    pairs = order.host_keys.make_boot_keys([machine.name for machine in booting], living)
    public_key = keys.ensure(order.folder / "ssh" / "user")
    place = found.subnets.get(state.zone, ZoneSubnets("", ""))
    cloud = order.found.options.cloud
    return {
        "cluster_id": cluster.id,
        "cluster_name": cluster.name,
        "owner": cluster.owner,
        "client": cluster.client,
        "shared": SHARED if cluster.spec.shared else "",
        "deadline": ec2_api.render_deadline(deadline),
        "tags": ec2_api.parse_tags(cloud.tag),
        "region": order.found.api.region,
        "zone": state.zone,
        "groups": spec.group_machines(found.machines, found.placement),
        "launcher_type": found.machines[0].instance_type,
        "amis": {kind: image.id for kind, image in found.amis.items()},
        "spot": state.spot,
        "on_demand": sorted(state.on_demand),
        "efa": cloud.efa,
        # Of types with several network cards.
        "efa_cards": {
            name: list(kind.efa)
            for name, kind in found.types.items()
            if cloud.efa and len(kind.efa) > 1
        },
        "private": cloud.private,
        "cidr": spec.choose_cidr(cluster.id),
        "subnet_id": place.workers,
        "launcher_subnet_id": place.launcher,
        "ssh_cidr": state.ssh_cidr,
        "instance_connect": cloud.instance_connect,
        "endpoint_groups": list(found.endpoint.groups) if found.endpoint else [],
        "public_key": public_key,
        "user_data": {
            machine.name: render_userdata(
                host_key=pairs[machine.name],
                authorized=public_key,
                deadline=deadline,
                root=spec.name_root(machine, cluster.id),
                spot=state.spot and machine.name not in (LAUNCHER, *state.on_demand),
            )
            for machine in booting
        },
        # Whole minutes, so that asking again plans no change; and never nothing.
        "ttl_hours": max(1, round((deadline - time.time()) / 60)) / 60,
    }


def schedule_ends(order: Order, made: set[str], report: Reporter) -> None:
    """Gives the machines that there are an end outside of themselves.

    `made`: instances that Terraform knows of, which AWS may not yet find by their tags.
    """
    state, api, id = order.state, order.found.api, order.cluster.id
    guarded = state.guarded
    try:
        there = made | {item.id for item in find_instances(api, id)}
        nat = order.found.nat
        # A NAT gateway costs money without machines, and ends itself even less.
        if not order.cluster.deadline or not (there or (nat and schedules.find_network(api, id))):
            return
        until = {ec2_api.DEADLINE_TAG: ec2_api.render_deadline(order.cluster.deadline)}
        schedules.prepare(api, id, {**make_tags(order.cluster), **until})
        state.guarded = True
        spec.save_state(order.folder, state)
        schedules.schedule_ends(api, id, there, order.cluster.deadline, nat=nat)
    except ProviderError as error:
        if isinstance(error, RefusedByAws) and refusals.is_account_error(error):
            state.guarded = guarded
            spec.save_state(order.folder, state)
        report(
            f"AWS itself does not terminate the machines ({error.message}): {schedules.UNGUARDED}"
        )


# -------------------------------------------------------------------------------------------------

JOB_PORT = 2222
"""Where the node container's sshd listens, beside the machine's own on 22."""

_ACCELERATORS = {"nvidia": Accelerator.NVIDIA, "amd": Accelerator.AMD}
"""What the machine image is for. The facts tell later whether it is there."""


def create(
    found: Survey, cluster: Cluster, folder: Path, phases: NodePhases, report: Reporter
) -> Created:
    """Makes what is missing, and waits until it answers. Raises ProviderError, NodeUnreachable."""
    options, api = found.options, found.api
    runner = spec.open_terraform(api, folder, cluster.name, report)
    known = spec.load_state(folder)
    state = known or ProviderState(id=cluster.id, region=api.region)
    if not options.cloud.instance_connect:
        state.ssh_cidr, _ = network.resolve_ssh_cidr(
            options.cloud.ssh_cidr, state.ssh_cidr, found.address
        )
    _check_nodes(api, cluster, runner)
    runner.copy(assets.find_folder("infra") / "ec2")
    runner.init()
    if known:
        # What was being made when Terraform was stopped may exist without its knowing. It goes into
        # the ledger with its beginning, and then with its end: nobody else will be told.
        ledger.record_sighting(api, cluster, folder)
        remove_unknown(api, cluster.id, runner, report)
        ledger.record_sighting(api, cluster, folder)
        start_stopped(api, cluster.id, report)
    host_keys = ec2_host_keys.HostKeys(folder)
    preload()
    order = Order(
        cluster=cluster, found=found, folder=folder, state=state, host_keys=host_keys, nodes=phases
    )
    made: list[dict[str, Any]] = []
    try:
        made = make_attempts(order, runner, report)
    finally:
        # What came to be in an `up` that breaks off has its end, too.
        schedule_ends(order, {str(row["id"]) for row in made}, report)
    nodes = tuple(_build_node(row, found, cluster.id) for row in made)
    host_keys.forget([name for name in host_keys.known if name not in {n.name for n in nodes}])
    try:
        final, pool = host_keys.settle(
            nodes,
            limit=options.cloud.boot_timeout,
            report=report,
            phases=phases,
        )
    except NodeUnreachable as error:
        silent = {node.name: node.machine for node in nodes if node.name in error.nodes}
        for name, lines in read_consoles(api, silent).items():
            for line in (f"{name}: the end of its console", *(f"  {line}" for line in lines)):
                report(line)
        raise
    reason = plan.name_mode(api.region, state.spot, state.on_demand)
    return Created(
        nodes=nodes,
        host_keys=final,
        pool=pool,
        mode_reason=reason,
        shared=SHARED if cluster.spec.shared else "",
    )


CONSOLES = 3
"""Machines whose consoles are shown: one reason is often that of all."""


def read_consoles(api: Api, machines: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The end of each console, or why there is none. `machines`: instances by the name of their
    node."""
    found = {}
    for name, machine in list(machines.items())[:CONSOLES]:
        try:
            lines = list_last_lines(api.read_console(machine))
            found[name] = lines or ("(nothing on it yet)",)
        except ProviderError as error:
            found[name] = (f"(cannot be read: {error.message})",)
    return found


def _check_nodes(api: Api, cluster: Cluster, runner: terraform_folder.Terraform) -> None:
    """Raises ProviderError where Terraform would make all machines a second time, and where a node
    runs that it does not know: what is unknown is removed, and jobs may run on nodes."""
    if cluster.nodes and not runner.list_resources():
        raise ProviderError(
            f"the Terraform state of cluster {cluster.name} is lost: its folder"
            f" {runner.folder} holds none",
            hint=f"`clusterctl down {cluster.name}` finds the cluster by its tags and removes it"
            " without the state",
        )
    state = runner.state
    nodes = {node.machine: node.name for node in cluster.nodes if node.machine not in state}
    if lost := [nodes[item.id] for item in find_instances(api, cluster.id) if item.id in nodes]:
        raise ProviderError(
            f"{shorten(lost)} of cluster {cluster.name} is not in Terraform's state, which `up`"
            " needs; nothing was changed",
            hint=f"`clusterctl fetch` saves outputs, then `clusterctl down {cluster.name}` removes"
            " the whole cluster",
        )


def _build_node(row: dict[str, Any], found: Survey, cluster_id: str) -> Node:
    machine = next(item for item in found.machines if item.name == row["name"])
    launcher = machine.name == LAUNCHER
    kind = found.types[machine.instance_type]
    image = catalog.MACHINE_IMAGES[machine.image]
    hidden, tunnel = found.options.cloud.instance_connect, ""
    if launcher and hidden:
        # Through the endpoint of the VPC, else that of the cluster.
        theirs = found.endpoint
        id, dns = (theirs.id, theirs.dns_name) if theirs else row["endpoint"].split("/", 1)
        tunnel = tunnels.build_command(found.api.region, id, dns, row["private_address"])
    return Node(
        name=machine.name,
        role=Role.LAUNCHER if launcher else Role.WORKER,
        address=row["address"] if launcher and not hidden else row["private_address"],
        private_address=row["private_address"],
        ssh_port=22,
        job_port=JOB_PORT if found.options.runtime is Runtime.DOCKER else 22,
        user=image.user,
        root=spec.name_root(machine, cluster_id),
        via="" if launcher else LAUNCHER,
        tunnel=tunnel,
        slots=1 if launcher else kind.gpus or kind.vcpus,
        accelerator=_ACCELERATORS.get(machine.image, Accelerator.NONE),
        instance_type=row["instance_type"],
        machine=row["id"],
    )
