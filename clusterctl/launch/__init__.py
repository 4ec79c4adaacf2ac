"""From a job and its nodes to command lines, hostfiles and variables. Pure."""
