"""Every kind of AWS credentials: what boto3 finds is what Terraform gets, while it runs."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clusterctl.errors import ProviderError
from clusterctl.machines.ec2.api import Api
from tests.sim import logins
from tests.sim.logins import PROCESS, ROLES, SSO, Aws, keep_session, log_in_with_sso, printed
from tests.unit.scripts import write_program


@pytest.fixture
def aws() -> Iterator[Aws]:
    with logins.running() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's home without credentials of any kind."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    return tmp_path


def got(environment: Mapping[str, str], token: str = "") -> dict[str, str]:
    """What the AWS provider gets for credentials, as it asks for them."""
    if environment["AWS_ACCESS_KEY_ID"]:
        return {"AccessKeyId": environment["AWS_ACCESS_KEY_ID"]}
    url = environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    headers = {"Authorization": token or environment["AWS_CONTAINER_AUTHORIZATION_TOKEN"]}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        found: dict[str, str] = json.load(answer)
        return found


KEYS = {"AWS_ACCESS_KEY_ID": "AKIAENV", "AWS_SECRET_ACCESS_KEY": "secret"}
CASES: list[tuple[str, str, dict[str, str]]] = [
    ("AKIAUSER", ROLES, {}),
    ("AKIAENV", ROLES, KEYS),
    ("AKIAENV", ROLES, {**KEYS, "AWS_PROFILE": "first"}),
    ("AKIAFIRST", ROLES, {"AWS_PROFILE": "first"}),
    ("AKIASECOND", ROLES, {"AWS_PROFILE": "second"}),
    ("AKIAPROCESS", PROCESS, {}),
    ("AKIACONTAINER", "", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "{aws}/container"}),
    (
        "AKIAMACHINE",
        "",
        {
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "{aws}",
        },
    ),
]


@pytest.mark.parametrize(("key", "config", "environment"), CASES)
def test_terraform_gets_what_boto3_finds(
    aws: Aws,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    config: str,
    environment: dict[str, str],
) -> None:
    (home / ".aws/config").write_text(config.replace("{home}", str(home)))
    (home / "process.json").write_text(json.dumps(printed("PROCESS")))
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(aws=aws.url))
    with Api("us-east-1").lend_credentials() as lent:
        assert got(lent)["AccessKeyId"] == key
        assert not lent["AWS_PROFILE"], "the provider would take that instead"
        assert lent["AWS_CONFIG_FILE"] == lent["AWS_SHARED_CREDENTIALS_FILE"] == "/dev/null"


IN_A_PROCESS = """
import urllib.request
from clusterctl.machines.ec2.api import Api

with Api("us-east-1").lend_credentials() as lent:
    url = lent["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    token = {"Authorization": lent["AWS_CONTAINER_AUTHORIZATION_TOKEN"]}
    print(urllib.request.urlopen(urllib.request.Request(url, headers=token)).read().decode())
"""


def test_a_login_with_sso_is_used(aws: Aws, home: Path) -> None:
    """In a process of its own: botocore looks up the home where logins are kept once."""
    (home / ".aws/config").write_text(SSO)
    log_in_with_sso(home)
    environment = {**os.environ, "AWS_ENDPOINT_URL": aws.url, "NO_PROXY": "127.0.0.1"}
    argv = [sys.executable, "-c", IN_A_PROCESS]
    said = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert '"AKIASSO"' in said.stdout, said.stderr


def test_credentials_that_end_are_fetched_again(home: Path) -> None:
    """They are as good for a launch of an hour as for one of a minute."""
    counter = home / "counter"
    said = json.dumps(printed("PROCESS", minutes=5))
    text = f"echo >>{counter}\necho '{said}' | sed s/PROCESS/$(wc -l <{counter})/"
    script = write_program(home / "login", text)
    (home / ".aws/config").write_text(f"[default]\ncredential_process = {script}\n")
    with Api("us-east-1").lend_credentials() as lent:
        first, second = got(lent), got(lent)
        assert first["AccessKeyId"] != second["AccessKeyId"]
        url = lent["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            got(lent, token="guessed")
        script.write_text("#!/bin/sh\nexit 1\n")
        with pytest.raises(urllib.error.HTTPError, match="500"):
            got(lent)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)


def test_a_terraform_that_dies_while_it_asks_is_no_news(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / ".aws/config").write_text(PROCESS.replace("{home}", str(home)))
    (home / "process.json").write_text(json.dumps(printed("PROCESS")))
    with Api("us-east-1").lend_credentials() as lent:
        address = lent["AWS_CONTAINER_CREDENTIALS_FULL_URI"].split("/")[2].split(":")
        with socket.create_connection((address[0], int(address[1]))) as asking:
            asking.sendall(b"GET / HTTP/1.1\r\n")
            # It is reset, as by a process that was killed.
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert got(lent)["AccessKeyId"] == "AKIAPROCESS"
        for thread in threading.enumerate():
            if "process_request" in thread.name:
                thread.join(10)
    assert capfd.readouterr().err == ""


def test_a_profile_with_mfa_is_refused_until_aws_has_asked(
    aws: Aws, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked in the middle of a script; the session that `aws` keeps is used."""
    (home / ".aws/config").write_text(ROLES)
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
    monkeypatch.setenv("AWS_PROFILE", "guarded")
    with pytest.raises(ProviderError, match="asks for an MFA code") as caught:
        Api("us-east-1").find_account()
    assert "aws sts get-caller-identity" in caught.value.hint
    assert aws.asked == []

    keep_session("guarded", "123456")
    assert "123456" in aws.asked[0]
    with Api("us-east-1").lend_credentials() as lent:
        assert got(lent)["AccessKeyId"] == "AKIAFIRST"
    assert len(aws.asked) == 1


def test_a_role_works_where_its_session_cannot_be_kept(
    aws: Aws, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose home folder is read-only."""
    (home / ".aws/config").write_text(ROLES)
    (home / ".aws/cli").write_text("no folder")
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws.url)
    monkeypatch.setenv("AWS_PROFILE", "first")
    with Api("us-east-1").lend_credentials() as lent:
        assert got(lent)["AccessKeyId"] == "AKIAFIRST"


def test_settings_of_the_profile_go_along(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    (home / ".aws/config").write_text(ROLES.replace("[default]", "[default]\nca_bundle = /ca.pem"))
    with Api("us-east-1").lend_credentials() as lent:
        assert lent["AWS_CA_BUNDLE"] == "/ca.pem"


def test_no_credentials_are_one_line(home: Path) -> None:
    with pytest.raises(ProviderError) as caught, Api("us-east-1").lend_credentials():
        pass
    assert caught.value.message == "no AWS credentials found"
    assert "get-caller-identity" not in caught.value.hint, "it would fail as well"
