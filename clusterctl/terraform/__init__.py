"""Drives the terraform or tofu binary: its JSON events in, typed results out."""
