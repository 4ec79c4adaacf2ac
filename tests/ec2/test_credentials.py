"""The real AWS provider takes the credentials that boto3 found, and new ones when those end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.machines.ec2.api import Api
from clusterctl.terraform import binary, folder
from tests.sim.ec2.client import Ec2
from tests.sim.lab import keypair

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(200),
]

MODULE = """
terraform {
  required_providers {
    aws = { source = "hashicorp/aws" }
  }
}
provider "aws" {}
variable "public_key" {}
resource "aws_key_pair" "this" {
  key_name   = "mine"
  public_key = var.public_key
}
"""
LOGIN = """#!/bin/sh
echo >>~/logins
echo '{"Version": 1, "AccessKeyId": "AKIA'$(wc -l <~/logins)'", "SecretAccessKey": "secret",'
echo '"SessionToken": "token", "Expiration": "'$(date -u -d '+5 min' +%FT%TZ)'"}'
"""


def test_credentials_that_end_during_terraform_are_replaced(
    ec2: Ec2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their program is asked by boto3, and by nobody else: Terraform sees neither profile nor
    program."""
    for name, value in ec2.env.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "login").write_text(LOGIN)
    (tmp_path / "login").chmod(0o755)
    (tmp_path / "config").write_text(f"[profile me]\ncredential_process = {tmp_path}/login\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "me")
    monkeypatch.setenv("HOME", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    (work / "main.tf").write_text(MODULE)
    runner = folder.Terraform(
        work,
        binary.find_terraform(),
        cluster="lab",
        cache=tmp_path / "plugins",
        lent=lambda: Api("us-east-1").lend_credentials(lease=1),
    )
    runner.init()
    variables = {"public_key": keypair(tmp_path / "user")}
    ec2.forget_calls()
    try:
        runner.apply(variables, lambda event: None, parallelism=10)
        keys = [call["key"] for call in ec2.calls]
        assert len(set(keys)) > 1, keys
        assert all(key.startswith("AKIA") and key[4:].isdigit() for key in keys), keys
        assert json.loads((work / "terraform.tfstate").read_text())["resources"]
    finally:
        ec2.reset()
