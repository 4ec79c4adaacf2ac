"""Nodes that are instances on EC2: Terraform makes them, we make sure that they are paid for on
purpose.

Pure: `spec`, `userdata`, `update_rules`. `provider` starts from there.
"""
