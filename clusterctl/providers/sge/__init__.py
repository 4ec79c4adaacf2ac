"""A site that runs Grid Engine."""
