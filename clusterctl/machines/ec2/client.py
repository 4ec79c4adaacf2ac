"""How we ask AWS, beside Terraform: boto3, with time limits and with errors that say what to do.
boto3 comes with the first question."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from clusterctl.core.errors import ProviderError
from clusterctl.machines.ec2 import failures
from clusterctl.machines.ec2.answers import name_owner, read_skew
from clusterctl.machines.ec2.credentials import LEASE, Credentials
from clusterctl.machines.ec2.failures import RefusedByAws
from clusterctl.machines.ec2.known_failures import MAYBE_NOT_ENABLED

DEFAULT_REGION = "us-east-1"

USUAL, FIRST, HURRIED = (5.0, 20.0, 5), (3.0, 4.0, 3), (3.0, 8.0, 1)
"""Seconds to connect and to answer, and attempts. Who we are is asked first: where nobody answers,
that is known within a quarter of a minute."""
LIMITS = {
    "sts": FIRST,
    "pricing": FIRST,
    "iam": (2.0, 4.0, 2),
    "scheduler": (2.0, 4.0, 2),
}
"""By service. Nobody waits long for what a cluster can do without, or for what is in a table."""


def choose_region() -> str:
    """As AWS's own tools choose it: the environment, then the profile; else us-east-1. Raises
    ProviderError for a configuration that makes no sense."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return os.environ[name]
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        return botocore.session.get_session().get_config_variable("region") or DEFAULT_REGION
    except BotoCoreError as error:
        doing = "reading your AWS configuration"
        raise failures.make_unanswered_error(doing, type(error).__name__, str(error)) from error


class Client:
    """AWS in one region, with the credentials that the environment and ~/.aws give. Safe to use
    from many threads. `hurried`: one attempt of a few seconds for each question."""

    owner = ""
    """Who the credentials belong to; known with the account."""
    ahead = 0.0
    """Seconds that this machine's clock is ahead of AWS's; known with the account."""

    def __init__(self, region: str, *, hurried: bool = False) -> None:
        self.region = region
        self._hurried = hurried
        self._credentials: Credentials | None = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._making = threading.Lock()

    def _get_client(self, service: str, region: str = "") -> Any:
        """Made once: that takes longer than many an answer."""
        key = service, region or self.region
        # A session may make clients for one thread at a time.
        with self._making, self._explain_errors(f"talking to {service}"):
            if key not in self._clients:
                self._clients[key] = self._make(*key)
            return self._clients[key]

    def _make(self, service: str, region: str) -> Any:
        from botocore.config import Config

        session = self._find_credentials().session
        connect, read, attempts = HURRIED if self._hurried else LIMITS.get(service, USUAL)
        limits = Config(
            connect_timeout=connect,
            read_timeout=read,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=16,
            user_agent_extra="clusterctl",
        )
        try:
            return session.client(service, region_name=region, config=limits)
        except ValueError as error:  # an AWS_ENDPOINT_URL that is none
            raise failures.make_unanswered_error(
                f"talking to {service}", "ValueError", str(error)
            ) from error

    def _find_credentials(self) -> Credentials:
        if self._credentials is None:
            self._credentials = Credentials(self.region)
        return self._credentials

    @contextmanager
    def lend_credentials(self, lease: float = LEASE) -> Iterator[dict[str, str]]:
        """Our credentials for a program, by its environment, as long as the block runs. It asks for
        them again after `lease` seconds, where they end. Raises ProviderError."""
        with ExitStack() as stack:
            with self._making, self._explain_errors("reading your AWS credentials"):
                environment = stack.enter_context(self._find_credentials().lend(lease))
            yield environment

    @contextmanager
    def _explain_errors(self, doing: str) -> Iterator[None]:
        """Around a question and the reading of its answer."""
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except ClientError as error:
            said = error.response.get("Error", {})
            raise failures.make_refusal(
                doing,
                str(said.get("Code", "")),
                str(said.get("Message", "")),
                self.region,
                read_skew(error.response),
            ) from error
        except BotoCoreError as error:
            raise failures.make_unanswered_error(doing, type(error).__name__, str(error)) from error
        except (ResponseParserError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise failures.make_unreadable_error(
                doing, f"{type(error).__name__}: {error}"
            ) from error

    def sign(self, service: str, address: str, seconds: int) -> str:
        """An address for a GET without a body, signed for so many seconds of AWS's time, as far as
        `ahead` is known. Raises ProviderError."""
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import NoCredentialsError

        from clusterctl.machines.ec2.signing import ShiftedQueryAuth

        with self._making, self._explain_errors("reading your AWS credentials"):
            found = self._find_credentials().session.get_credentials()
            if found is None:
                raise NoCredentialsError
            request = AWSRequest("GET", address)
            keys = found.get_frozen_credentials()
            signer = ShiftedQueryAuth(keys, service, self.region, seconds)
            signer.ahead = self.ahead
            signer.add_auth(request)
            return str(request.url)

    def find_ca_bundle(self) -> str | None:
        """The file with the authorities that AWS's certificates are checked by, where somebody has
        named one."""
        with self._making, self._explain_errors("reading your AWS configuration"):
            return self._find_credentials().ca_bundle

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        """One call, such as `terminate_instances`. Raises ProviderError."""
        client = self._get_client(service)
        with self._explain_errors(action.replace("_", " ")):
            return getattr(client, action)(**arguments)

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        """All pages of one `describe_…` or `list_…` call."""
        client = self._get_client(service)
        with self._explain_errors(action.replace("_", " ")):
            if not client.can_paginate(action):
                return list(getattr(client, action)(**arguments).get(key, ()))
            pages = client.get_paginator(action).paginate(**arguments)
            return [item for page in pages for item in page.get(key, ())]

    def find_account(self) -> str:
        """The account that the credentials belong to: the cheapest proof that they work.

        In a region that the account has not enabled, good credentials look like wrong ones: then
        another region is asked, too.
        """
        try:
            return self._ask_account(self.region)
        except RefusedByAws as refused:
            if self.region == DEFAULT_REGION or refused.code not in MAYBE_NOT_ENABLED:
                raise
            try:
                self._ask_account(DEFAULT_REGION)
            except ProviderError:
                raise refused from None
            raise failures.make_not_enabled_error(self.region) from refused

    def _ask_account(self, region: str) -> str:
        client = self._get_client("sts", region)
        with self._explain_errors("checking your AWS credentials"):
            found = client.get_caller_identity()
            self.owner = name_owner(str(found["Arn"]))
            self.ahead = read_skew(found)
            return str(found["Account"])
