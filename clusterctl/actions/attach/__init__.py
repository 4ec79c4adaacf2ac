"""`attach`: clusters that exist already. Nothing is made, nothing is taken down."""

from __future__ import annotations

from clusterctl.actions.attach.hosts import Machines, attach_hosts
from clusterctl.actions.attach.site import SiteLogin, attach_site, suggest_size

__all__ = ["Machines", "SiteLogin", "attach_hosts", "attach_site", "suggest_size"]
