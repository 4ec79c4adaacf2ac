"""What a cluster is worth: money, and later health, scaling and reports. Reads, never changes."""
