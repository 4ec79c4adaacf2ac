"""Nodes as containers of a Docker engine."""
