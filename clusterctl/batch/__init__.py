"""Who runs jobs: a launcher over SSH, Slurm or Grid Engine."""
