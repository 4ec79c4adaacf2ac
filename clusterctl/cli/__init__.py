"""The terminal: one module per group of verbs."""
