"""Nodes on EC2, made by Terraform."""
