"""What several providers use: no provider itself."""
