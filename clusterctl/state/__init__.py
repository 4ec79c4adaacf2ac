"""What we know about clusters and jobs: plain files, crash-safe.

<home>/clusters/<name>/    cluster.json, events.jsonl, ssh/, and what the provider keeps there
<home>/jobs/<id>/          job.json, stage.json, out/ (the ranks' output, once brought here)
<home>/stages/<digest>     archives of staged trees, shared by the jobs that ran them
<home>/fetched/            what `fetch` has put where, one file per folder
<home>/past/<cluster id>/  records of clusters that are gone
<home>/locks/              one file per cluster name; they stay, the lock on them does not
<home>/clusterctl.log      what happened, for the day when something went wrong
"""

from clusterctl.state.home import Home, find_home, name_client
from clusterctl.state.locks import ClusterLock
from clusterctl.state.store import Store

__all__ = ["ClusterLock", "Home", "Store", "find_home", "name_client"]
