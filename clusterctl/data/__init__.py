"""Data sets, and where they come from."""
