"""A person's project: the program, its tree, its packages, and launchers' command lines."""
