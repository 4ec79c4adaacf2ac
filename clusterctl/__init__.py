"""clusterctl: from nothing to a measured multi-node training job, and no bill left behind."""

__version__ = "0.1.0"
