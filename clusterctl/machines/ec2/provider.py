"""The EC2 provider: from options to machines and back to none."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from msgspec.structs import replace

from clusterctl.core import assets, catalog
from clusterctl.core.clock import run_in_background
from clusterctl.core.model import (
    SHARED,
    Charge,
    Cluster,
    ClusterSpec,
    Node,
    Phase,
    Reporter,
    Runtime,
    Thing,
)
from clusterctl.core.progress import NodePhases
from clusterctl.errors import ProviderError, RecordError, UsageError
from clusterctl.machines import bootstrap, charges
from clusterctl.machines import ledger as machines_ledger
from clusterctl.machines.ec2 import create as ec2_create
from clusterctl.machines.ec2 import ledger, network, preflight, saved, schedules, tunnels
from clusterctl.machines.ec2 import plan as ec2_plan
from clusterctl.machines.ec2 import remove as ec2_remove
from clusterctl.machines.ec2 import spec as ec2_spec
from clusterctl.machines.ec2.api import STOPPED, Api, choose_region
from clusterctl.machines.ec2.preflight import Survey
from clusterctl.machines.protocol import (
    LAUNCHER,
    CheckRow,
    Cloud,
    Created,
    Features,
    ProviderPlan,
    RegistryLogin,
    Resource,
    SavedImage,
)
from clusterctl.state.home import Home
from clusterctl.terraform import binary as terraform_binary

ECR = re.compile(r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
"""The hosts of AWS's own registries."""


class Ec2Provider(Cloud):
    """Machines of AWS, which Terraform makes."""

    features = Features(
        runtime=Runtime.DOCKER,
        worker_family="cpu",
        fresh_machines=True,
        shared_folder=f"{SHARED} on the launcher's disk, by NFS; `down` deletes it",
        deadline_unit=ec2_create.UNIT,
        bootstrap_timeout=1800.0,  # it installs Docker and pulls gigabytes
    )

    def __init__(
        self,
        connect: Callable[[str], Api] = Api,
        clock: Callable[[], float] = time.time,
        my_address: Callable[[], str] = network.ask_my_address,
    ) -> None:
        """`connect`: makes what we ask AWS with, in a region."""
        self._connect = connect
        self._clock = clock
        self._my_address = my_address
        self._surveys: dict[str, Survey] = {}
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
        ec2_spec.require_record(current)
        found = self._survey(spec, current, report)
        options, api = found.options, found.api
        present = {item.node: item.type for item in found.instances}
        stopped = {item.node for item in found.instances if item.state in STOPPED}
        names = [m.name for m in found.machines if m.name not in present or m.name in stopped]
        now = self._clock() - preflight.check_clock(api.ahead, report)
        old: tuple[Charge, ...] = ()
        if current:
            # The last answer shows most: what a killed `up` launched a moment ago has no end.
            mine = Home(ahead).clusters / current.name if ahead else None
            things = ledger.list_things(api, current, mine)
            old = machines_ledger.settle(current, machines_ledger.add(mine, current, things, now))
        restarted = {i.node for i in found.instances if i.node in stopped and not i.spot}
        spot = options.cloud.spot and not ec2_plan.has_fallen_back(found.instances)
        cost = ec2_plan.estimate(found, old, now, spot=spot, on_demand=restarted, report=report)
        charges.check_hourly(options.cloud.max_hourly, cost.dear)
        if options.cloud.instance_connect:
            ssh = tunnels.describe_endpoints(found.endpoint)
        else:
            before = "the same networks" * bool(current)
            _, ssh = network.resolve_ssh_cidr(options.cloud.ssh_cidr, before, found.address)
        deadline = ec2_spec.choose_deadline(options, current, present, cost.dear, now, stopped)
        lines = ec2_plan.describe_plan(
            found, cost, ssh=ssh, stopped=stopped, deadline=deadline, now=now
        )
        if ahead:
            self._surveys[options.name] = found
        return ProviderPlan(
            mode="ec2",
            mode_reason=ec2_plan.name_mode(api.region, spot),
            one_host=False,
            lines=tuple(lines),
            spec=options,
            kinds=tuple(dict.fromkeys(machine.image for machine in found.machines)),
            saved=found.saved,
            disks={kind: image.disk for kind, image in found.amis.items() if kind != LAUNCHER},
            speeds={m.image: catalog.INSTALLS.disk + m.faster for m in found.machines if m.faster},
            nodes=tuple(machine.name for machine in found.machines),
            charges=cost.charges,
            deadline=deadline,
            account=found.account,
            owner=found.owner,
            question=ec2_plan.render_question(len(names), cost.dear, deadline - now),
        )

    def create(self, cluster: Cluster, folder: Path, report: Reporter) -> Created:
        found = self._surveys.get(cluster.name) or self._survey(cluster.spec, cluster, report)
        return ec2_create.create(found, cluster, folder, self._nodes, report)

    def list_left(self, cluster: Cluster, folder: Path) -> tuple[Resource, ...]:
        return ec2_remove.find_tagged(self._open_api(cluster, folder), cluster.id)

    def list_things(self, cluster: Cluster, folder: Path) -> tuple[Thing, ...]:
        return ledger.list_things(self._open_api(cluster, folder), cluster, folder)

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return ledger.describe_instances(self._open_api(cluster, folder), cluster)

    def read_consoles(
        self, cluster: Cluster, folder: Path, names: Collection[str]
    ) -> dict[str, tuple[str, ...]]:
        api = self._open_api(cluster, folder)
        found = ledger.find_newest(api, cluster)
        return ec2_create.read_consoles(api, {n: found[n].id for n in names if n in found})

    def list_dead(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        told = self.describe(cluster, folder).items()
        return {name: what for name, what in told if what not in ("pending", "running")}

    def list_ending(
        self, cluster: Cluster, folder: Path, reclaimed: Collection[str]
    ) -> frozenset[str]:
        return ledger.list_ending(self._open_api(cluster, folder), cluster, reclaimed)

    def find_ids(self, folder: Path) -> frozenset[str]:
        known = ec2_spec.load_state(folder)
        if known is None and (folder / "terraform").exists():
            raise RecordError(
                f"{folder} belongs to a cluster on EC2, but nothing in it shows which one",
                hint="`clusterctl gc` finds it in AWS, by its tags, and removes it;"
                f" `clusterctl down {folder.name} --force` then removes the folder",
            )
        return frozenset((known.id,) if known else ())

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        ec2_spec.require_record(cluster)
        schedules.extend(self._open_api(cluster, folder), cluster, folder, deadline)

    def measure_clock(self, cluster: Cluster, folder: Path, report: Reporter) -> float:
        return preflight.check_clock(self._open_api(cluster, folder).ahead, report)

    def check_pausing(self, cluster: Cluster, folder: Path) -> None:
        self._open_api(cluster, folder)
        state = ec2_spec.load_state(folder)
        if state.spot if state else cluster.spec.cloud.spot:
            raise UsageError(
                f"the workers of cluster {cluster.name} are spot instances, and EC2 does not stop"
                " those",
                hint=f"`clusterctl down {cluster.name} --fetch` saves the outputs and removes it",
            )

    def stop(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        ec2_create.stop(self._open_api(cluster, folder), cluster.id, report)

    def allow(self, cluster: Cluster, folder: Path, networks: Sequence[str]) -> tuple[str, ...]:
        if cluster.spec.cloud.instance_connect:
            raise UsageError(
                f"cluster {cluster.name} accepts SSH only through its EC2 Instance Connect Endpoint"
                " (--instance-connect)",
                hint="there is nothing to allow: your rights in AWS let you in, whatever your"
                " address is",
            )
        said = network.parse_networks("network", ",".join(networks)) if networks else ""
        try:
            wanted = said or f"{self._my_address()}/32"
        except (OSError, ValueError) as error:
            raise ProviderError(
                f"{network.WHO_AM_I} did not return this machine's public address: {error}",
                hint="give it: clusterctl allow 203.0.113.7/32",
            ) from error
        network.change(self._open_api(cluster, folder), cluster.id, wanted.split(","))
        if state := ec2_spec.load_state(folder):
            state.ssh_cidr = wanted
            ec2_spec.save_state(folder, state)
        return tuple(wanted.split(","))

    def explain_shut_out(self, cluster: Cluster, folder: Path) -> str:
        state = ec2_spec.load_state(folder)
        if state is None or cluster.spec.cloud.instance_connect:
            return ""
        return network.explain_shut_out(state.ssh_cidr, self._my_address)

    def find_usual_region(self) -> str:
        return choose_region()

    def list_regions(self) -> tuple[str, ...]:
        api = self._connect(choose_region())
        api.find_account()  # says soon where nobody answers
        return api.list_regions()

    def find_owner(self) -> str:
        api = self._connect(choose_region())
        api.find_account()
        return api.owner

    def label_deadline(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        schedules.label(self._open_api(cluster, folder), cluster, folder, deadline)

    def find(self, region: str) -> tuple[Resource, ...]:
        return ec2_remove.find_priced(self._connect(region))

    def remove(self, cluster_id: str, region: str, report: Reporter) -> None:
        ec2_remove.remove_all(self._connect(region), cluster_id, report)

    def adopt(self, cluster_id: str, name: str, region: str) -> Cluster:
        return ledger.adopt(self._connect(region), cluster_id, name)

    def name_saved(self, options: ClusterSpec, kind: str) -> str:
        return saved.name_image(options, kind)

    def list_saved(self, region: str) -> tuple[SavedImage, ...]:
        return saved.list_images(self._connect(region))

    def render_forgetting(self, node: Node) -> str:
        return assets.render("ec2/forget.sh.j2", root=node.root, container=bootstrap.CONTAINER)

    def save_image(
        self, cluster: Cluster, folder: Path, name: str, kind: str, report: Reporter
    ) -> SavedImage:
        machine, tags = cluster.workers[0].machine, ec2_create.make_tags(cluster)
        return saved.save(self._open_api(cluster, folder), machine, name, kind, tags, report)

    def remove_saved(self, image: SavedImage, region: str, report: Reporter) -> None:
        saved.remove(self._connect(region), image, report)

    def diagnose(self, name: str) -> tuple[CheckRow, ...]:
        return preflight.diagnose()

    def find_deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        state = ec2_spec.load_state(folder)
        if cluster.phase is not Phase.STOPPED or (state and state.guarded):
            return ""  # each node keeps its own deadline
        return "stopped machines keep no deadline, and AWS does not remove their disks"

    def find_registry_login(self, host: str) -> RegistryLogin | None:
        if found := ECR.fullmatch(host):
            return RegistryLogin(*Api(found["region"]).ask_registry_login(found["account"]))
        return None

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        ec2_create.destroy(self._open_api(cluster, folder), cluster, folder, report)

    def _survey(self, spec: ClusterSpec, current: Cluster | None, report: Reporter) -> Survey:
        """What has to be known before anything is made."""
        options = ec2_spec.resolve_rules(spec, current)
        binary = terraform_binary.find_terraform()
        if options.cloud.instance_connect:
            tunnels.require_aws_cli()
        known = options.cloud.ssh_cidr or options.cloud.instance_connect
        address = run_in_background(lambda: "" if known else self._my_address())
        api = self._connect(options.cloud.region)
        found = preflight.survey(api, options, current, report)
        return replace(found, engine=binary.name, address=address.result)

    def _open_api(self, cluster: Cluster, folder: Path) -> Api:
        """Where the cluster is, and in its account."""
        known = ec2_spec.load_state(folder)
        region = known.region if known else cluster.spec.cloud.region or choose_region()
        api = self._connect(region)
        ec2_spec.check_account(cluster, api.find_account())
        return api
