"""Whose AWS account it is: boto3 finds the credentials, and Terraform gets those.

boto3 and the AWS provider look for them in different orders: with both AWS_PROFILE and keys in the
environment, each takes another one. Nor does the provider know every kind of profile. So it is
given what boto3 found: keys that last in its environment, others by an endpoint like that of a
container on AWS, from which it fetches new ones before the old ones end.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clusterctl.machines.ec2 import refusals

CLI_CACHE = "~/.aws/cli/cache"
"""Where `aws` keeps the sessions of roles: an MFA code that it has asked for counts for us, too."""

LEASE = 480.0
"""Seconds after which Terraform asks again. boto3 hands out credentials that are good for ten
minutes at least."""

_OTHERS = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)
"""What else would tell Terraform's provider who we are."""

_SETTINGS = {
    "ca_bundle": "AWS_CA_BUNDLE",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "use_dualstack_endpoint": "AWS_USE_DUALSTACK_ENDPOINT",
    "use_fips_endpoint": "AWS_USE_FIPS_ENDPOINT",
}
"""What a profile says beside credentials, and the provider needs."""


class Credentials:
    """Those of the user, for `region`. Nobody is asked for an MFA code: threads and scripts run
    here."""

    def __init__(self, region: str) -> None:
        import boto3
        import botocore.session
        from botocore import credentials

        self._core = core = botocore.session.get_session()
        cache = _open_cache()
        chain = core.get_component("credential_provider")
        sources = ("env", "container-role", "iam-role")
        roles = credentials.AssumeRoleProvider(
            load_config=lambda: core.full_config,
            client_creator=lambda service, **how: core.create_client(
                service, **{"region_name": region, **how}
            ),
            cache=cache,
            profile_name=core.get_config_variable("profile") or "default",
            prompter=_refuse,
            credential_sourcer=credentials.CanonicalNameCredentialSourcer(
                [chain.get_provider(name) for name in sources]
            ),
            profile_provider_builder=credentials.ProfileProviderBuilder(
                core, cache=cache, region_name=region
            ),
        )
        chain.insert_after(roles.METHOD, roles)
        chain.remove(roles.METHOD)  # the first of that name
        self.session = boto3.session.Session(botocore_session=core, region_name=region)

    @contextmanager
    def lend(self, lease: float) -> Iterator[dict[str, str]]:
        """What Terraform's environment has to hold while the block runs; "" is what must not be
        there. `lease`: seconds after which it asks again. Raises as boto3 does."""
        from botocore.credentials import RefreshableCredentials
        from botocore.exceptions import NoCredentialsError

        found = self.session.get_credentials()
        if found is None:
            raise NoCredentialsError
        profile = self._core.get_scoped_config()
        clean = {
            **dict.fromkeys(_OTHERS, ""),
            **{
                name: str(profile[key])
                for key, name in _SETTINGS.items()
                if key in profile and name not in os.environ
            },
            # A default profile of theirs would go before the endpoint.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        keys = found.get_frozen_credentials()
        if not isinstance(found, RefreshableCredentials):
            yield {
                **clean,
                "AWS_ACCESS_KEY_ID": keys.access_key,
                "AWS_SECRET_ACCESS_KEY": keys.secret_key,
                "AWS_SESSION_TOKEN": keys.token or "",
            }
            return
        endpoint = _Endpoint(found.get_frozen_credentials, lease)
        threading.Thread(target=endpoint.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield {
                **clean,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoint.url,
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": endpoint.token,
            }
        finally:
            endpoint.shutdown()
            endpoint.server_close()


def _open_cache() -> Any:
    """The sessions that `aws` keeps; where it cannot be written, ours are kept in memory alone."""
    from botocore.utils import JSONFileCache

    class Cache(JSONFileCache):  # type: ignore[misc]
        def __setitem__(self, key: str, value: object) -> None:
            with suppress(OSError):
                super().__setitem__(key, value)

    return Cache(str(Path(CLI_CACHE).expanduser()))


def _refuse(prompt: str) -> str:
    raise refusals.make_unanswered_error(
        "reading your AWS credentials", "RefreshWithMFAUnsupportedError", ""
    )


class _Endpoint(ThreadingHTTPServer):
    """Hands out credentials on this machine to whoever knows the token."""

    daemon_threads = True

    def __init__(self, ask: Callable[[], Any], lease: float) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.ask = ask
        self.lease = lease
        self.token = secrets.token_urlsafe(32)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: whoever asked has ended, and stderr is for people."""


class _Answer(BaseHTTPRequestHandler):
    server: _Endpoint
    timeout = 10

    def do_GET(self) -> None:
        if not secrets.compare_digest(self.headers.get("Authorization", ""), self.server.token):
            self._reply(403, {"code": "Forbidden", "message": "wrong token"})
            return
        try:
            keys = self.server.ask()
        except Exception as error:  # boto3 raises much, and Terraform shows what it is told
            self._reply(500, {"code": type(error).__name__, "message": str(error)})
            return
        end = datetime.fromtimestamp(time.time() + self.server.lease, timezone.utc)
        self._reply(
            200,
            {
                "AccessKeyId": keys.access_key,
                "SecretAccessKey": keys.secret_key,
                "Token": keys.token,
                "Expiration": f"{end:%Y-%m-%dT%H:%M:%SZ}",
            },
        )

    def _reply(self, status: int, what: dict[str, str]) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: stderr is for people."""
