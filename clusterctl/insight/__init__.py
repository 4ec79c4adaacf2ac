"""Judges what was collected: messages, metrics, money, why a job hangs. Pure."""
