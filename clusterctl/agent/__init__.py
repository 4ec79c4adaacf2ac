"""What runs on a node: Python 3.6 or newer with its standard library alone. It imports nothing else
of clusterctl, which sends it there."""
