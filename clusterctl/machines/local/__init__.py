"""Nodes on this machine: real sshd in network namespaces, or on loopback."""
