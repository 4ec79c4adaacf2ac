"""Nodes that are containers on this machine's engine."""
