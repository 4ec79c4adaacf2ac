"""SSH to nodes: one connection each, commands and copies over it."""
