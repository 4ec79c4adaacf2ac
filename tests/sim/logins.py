"""What hands out credentials at AWS, and what people keep of it in their home folders."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from botocore.credentials import AssumeRoleProvider
from botocore.session import get_session
from botocore.utils import JSONFileCache


def later(minutes: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(minutes=minutes)


def keys(name: str, minutes: float = 60) -> dict[str, str]:
    return {
        "AccessKeyId": f"AKIA{name}",
        "SecretAccessKey": "secret",
        "Token": "token",
        "Expiration": f"{later(minutes):%Y-%m-%dT%H:%M:%SZ}",
    }


def printed(name: str, minutes: float = 60) -> dict[str, Any]:
    """What a program for credentials prints."""
    found = keys(name, minutes)
    return {"Version": 1, "SessionToken": found.pop("Token"), **found}


class Aws(ThreadingHTTPServer):
    """What hands out credentials at AWS: STS, SSO, and the metadata of containers and instances."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []


class Answer(BaseHTTPRequestHandler):
    server: Aws

    def do_PUT(self) -> None:
        self.say("a-token")

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        if path == "/container":
            self.say(json.dumps(keys("CONTAINER")))
        elif path.startswith("/latest/meta-data/iam/security-credentials/machine"):
            self.say(json.dumps({"Code": "Success", **keys("MACHINE")}))
        elif path.startswith("/latest/meta-data/iam/security-credentials"):
            self.say("machine")
        elif path == "/federation/credentials":
            assert self.headers["x-amz-sso_bearer_token"] == "the-login"
            found = {
                "accessKeyId": "AKIASSO",
                "secretAccessKey": "secret",
                "sessionToken": "token",
                "expiration": int(later(60).timestamp() * 1000),
            }
            self.say(json.dumps({"roleCredentials": found}), "application/json")

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        said = self.rfile.read(length).decode()
        self.server.asked.append(said)
        role = "SECOND" if "second" in said else "FIRST"
        self.say(
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>'
            f"<Credentials><AccessKeyId>AKIA{role}</AccessKeyId><SecretAccessKey>secret"
            f"</SecretAccessKey><SessionToken>token</SessionToken><Expiration>"
            f"{later(60):%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials></AssumeRoleResult>"
            "</AssumeRoleResponse>",
            "text/xml",
        )

    def say(self, text: str, kind: str = "text/plain") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def running() -> Iterator[Aws]:
    with Aws() as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


PROCESS = "[default]\ncredential_process = cat {home}/process.json\n"
ROLES = """[default]
aws_access_key_id = AKIAUSER
aws_secret_access_key = secret
[profile first]
role_arn = arn:aws:iam::123456789012:role/first
source_profile = default
[profile second]
role_arn = arn:aws:iam::123456789012:role/second
source_profile = first
[profile guarded]
role_arn = arn:aws:iam::123456789012:role/first
source_profile = default
mfa_serial = arn:aws:iam::123456789012:mfa/me
"""
SSO = """[default]
sso_session = ours
sso_account_id = 123456789012
sso_role_name = admin
region = us-east-1
[sso-session ours]
sso_region = us-east-1
sso_start_url = https://ours.awsapps.com/start
"""


def log_in_with_sso(home: Path) -> None:
    """`aws sso login`, as far as it keeps what it gets."""
    (home / ".aws/sso/cache").mkdir(parents=True)
    login = {"accessToken": "the-login", "expiresAt": f"{later(60):%Y-%m-%dT%H:%M:%SZ}"}
    (home / f".aws/sso/cache/{sha1(b'ours').hexdigest()}.json").write_text(json.dumps(login))


def keep_session(profile: str, code: str) -> None:
    """`aws sts get-caller-identity`, as far as it asks for a code, and keeps credentials."""
    core: Any = get_session()
    core.set_config_variable("region", "us-east-1")
    role = AssumeRoleProvider(
        load_config=lambda: core.full_config,
        client_creator=core.create_client,
        cache=JSONFileCache(str(Path("~/.aws/cli/cache").expanduser())),
        profile_name=profile,
        prompter=lambda prompt: code,
    )
    role.load().get_frozen_credentials()
