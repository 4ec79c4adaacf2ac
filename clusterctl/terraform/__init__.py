"""Drives the terraform or tofu binary: its JSON events in, typed results out.

python-terraform builds the command lines. Its own runner is left alone: it has no time limit,
cannot stream, shares our terminal's Ctrl-C, and its `destroy` adds `-force`, which Terraform
dropped in 0.15 (see docs/adr).
"""

from clusterctl.terraform.binary import Binary, find
from clusterctl.terraform.events import (
    Diagnostic,
    Event,
    Outputs,
    PlannedChange,
    ResourceChange,
    TerraformError,
    parse,
)
from clusterctl.terraform.folder import (
    VARIABLES,
    Interrupted,
    Terraform,
    find_tainted,
    list_resources,
)
from clusterctl.terraform.init_cache import InitCache

__all__ = [
    "VARIABLES",
    "Binary",
    "Diagnostic",
    "Event",
    "InitCache",
    "Interrupted",
    "Outputs",
    "PlannedChange",
    "ResourceChange",
    "Terraform",
    "TerraformError",
    "find",
    "find_tainted",
    "list_resources",
    "parse",
]
