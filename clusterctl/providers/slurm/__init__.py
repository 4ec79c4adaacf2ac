"""A site that runs Slurm."""
