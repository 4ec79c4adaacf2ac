"""Jobs from their start to their outputs, on nodes that are there."""
