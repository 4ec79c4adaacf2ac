"""Records of clusters and jobs on this machine."""
