"""Nodes that are real sshd on this machine. As root they have namespaces of their own."""
