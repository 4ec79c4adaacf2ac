"""SSH hosts that people have already."""
