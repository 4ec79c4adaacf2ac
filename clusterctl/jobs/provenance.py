"""What a job was made from, for its record: the commit and the changes beside it, the exact
command, the packages, images and machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clusterctl import process
from clusterctl.job_model import Job, Machine, Provenance
from clusterctl.jobs import packages, stage
from clusterctl.launch_plan import LaunchPlan
from clusterctl.model import Cluster
from clusterctl.redaction import redact_patch
from clusterctl.state import Store

GIT_TIMEOUT = 20.0
PATCH = 1_000_000
"""Bytes of a patch that are kept."""


def describe(
    job: Job, cluster: Cluster, plan: LaunchPlan, tree: stage.Tree, store: Store
) -> Provenance:
    """Of a job that was started from `tree`, or from the files of the job that it runs again."""
    if job.rerun_of is not None:
        source = store.read_provenance(job.rerun_of)
    else:
        source = read_git(tree.root) if tree.by_git else Provenance()
    rank_nodes = [cluster.node(p.node) for p in job.placement if cluster.has(p.node)]
    chosen = packages.choose(cluster, job.spec.python)
    versions = (
        packages.read_versions(job.spec.packages, chosen.node(node.name), store.home)
        for node in rank_nodes
    )
    return replace(
        source,
        command=plan.argv,
        machines=tuple(
            _describe_machine(cluster, place.node, place.count) for place in job.placement
        ),
        images=dict(cluster.images) or _list_images(job, cluster),
        site=dict(cluster.site_info),
        requirements=next(versions, ()),
    )


def read_git(root: Path) -> Provenance:
    """Commit, branch, and what the tracked files differ by; nothing without commits."""

    def ask(*words: str) -> bytes:
        result = process.run(["git", "-C", str(root), *words], timeout=GIT_TIMEOUT)
        return result.stdout if result.ok else b""

    commit = ask("rev-parse", "--verify", "--quiet", "HEAD").decode(errors="replace").strip()
    if not commit:
        return Provenance()
    branch = ask("rev-parse", "--abbrev-ref", "HEAD").decode(errors="replace").strip()
    # Not as the user's own settings would show it: colours, and programs that compare.
    patch = ask("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".")
    text = redact_patch(patch.decode(errors="replace"))[:PATCH]
    return Provenance(commit=commit, branch=branch, patch=text, patch_bytes=len(patch))


def _describe_machine(cluster: Cluster, name: str, ranks: int) -> Machine:
    if not cluster.has(name):  # a batch system says later where the ranks run
        return Machine(name=name, ranks=ranks)
    node = cluster.node(name)
    facts = node.facts
    packages = dict(facts.python.packages) if facts.python else {}
    if facts.mpi:
        packages[facts.mpi.flavour] = facts.mpi.version
    return Machine(
        name=name,
        ranks=ranks,
        address=node.private_address,
        instance_type=node.instance_type,
        arch=facts.arch,
        cores=facts.cores,
        gpus=facts.gpus,
        python=facts.python.version if facts.python else "",
        packages=packages,
    )


def _list_images(job: Job, cluster: Cluster) -> dict[str, str]:
    image = job.spec.container or cluster.spec.image
    return {"all": image} if image else dict(cluster.spec.images)
