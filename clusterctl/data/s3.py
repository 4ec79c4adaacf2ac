"""Objects and folders of S3: data sets that are downloaded, and copies of outputs.

AWS is asked by the client of the EC2 provider: it has the credentials, and the words for refusals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterctl.data.sources import Remote
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import refusals
from clusterctl.machines.ec2.account import Credentials
from clusterctl.machines.ec2.api import Api, choose_region

# -------------------------------------------------------------------------------------------------
# A folder of a bucket on S3, or on what speaks its language (AWS_ENDPOINT_URL_S3).


AT_A_TIME = 1000
"""Objects that one call deletes, at most: S3's limit."""


class Bucket:
    """What is below `url`, `s3://BUCKET/PREFIX`, with the credentials that the environment and
    ~/.aws give. Names of objects are relative to it. Everything raises ProviderError."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._name, _, self._prefix = self.url.removeprefix("s3://").partition("/")
        self._api = Api(choose_region())

    def list(self) -> tuple[str, ...]:
        found = self._api.list_all(
            "list_objects_v2", "Contents", "s3", Bucket=self._name, Prefix=self._name_key("")
        )
        return tuple(str(item["Key"])[len(self._name_key("")) :] for item in found)

    def is_empty(self) -> bool:
        found = self._call("list_objects_v2", Prefix=self._name_key(""), MaxKeys=1)
        return not found.get("KeyCount")

    def read(self, name: str) -> bytes:
        with self._explain_errors(name):
            content: bytes = self._call("get_object", Key=self._name_key(name))["Body"].read()
        return content

    def write(self, name: str, content: bytes) -> None:
        self._call("put_object", Key=self._name_key(name), Body=content)

    def upload(self, file: Path, name: str) -> None:
        """In parts, where it is large. Raises OSError where the file cannot be read."""
        with self._explain_errors(name):
            self._call("upload_file", Filename=str(file), Key=self._name_key(name))

    def download(self, name: str, file: Path) -> None:
        with self._explain_errors(name):
            self._call("download_file", Filename=str(file), Key=self._name_key(name))

    def delete(self, names: Iterable[str]) -> None:
        keys = [{"Key": self._name_key(name)} for name in names]
        for first in range(0, len(keys), AT_A_TIME):
            self._call("delete_objects", Delete={"Objects": keys[first : first + AT_A_TIME]})

    def _name_key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _call(self, action: str, **arguments: object) -> Any:
        return self._api.call(action, "s3", Bucket=self._name, **arguments)

    @contextmanager
    def _explain_errors(self, name: str) -> Iterator[None]:
        """Around what moves an object in parts, whose errors have classes of their own."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        doing = f"copying {self.url}/{name}"
        try:
            yield
        except (Boto3Error, BotoCoreError) as error:
            if isinstance(error.__context__, ClientError):
                said = error.__context__.response.get("Error", {})
                code, message = str(said.get("Code", "")), str(said.get("Message", ""))
                raise refusals.make_refusal(doing, code, message, self._api.region) from error
            raise refusals.make_unanswered_error(doing, type(error).__name__, str(error)) from error


# -------------------------------------------------------------------------------------------------
# Objects in S3, as URLs that a node can read without credentials of its own.


VALID = 12 * 3600
"""Seconds that a signed URL is good for; shorter where the credentials end earlier."""


def list_objects(bucket: str, prefix: str) -> tuple[Remote, ...]:
    """All objects whose key begins with `prefix`. Without credentials, those that are public.

    Raises:
        UsageError: There is no such bucket.
        ProviderError: AWS does not answer, or lets us not read it.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        session = Credentials(choose_region()).session
        client = _make_client(session, bucket)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        found = [item for page in pages for item in page.get("Contents", ())]
        return tuple(
            Remote(
                item["Key"],
                client.generate_presigned_url(
                    "get_object", {"Bucket": bucket, "Key": item["Key"]}, ExpiresIn=VALID
                ),
                int(item["Size"]),
            )
            for item in found
        )
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in ("NoSuchBucket", "404"):
            raise UsageError(f"there is no bucket {bucket}", hint="correct its name") from error
        raise ProviderError(
            f"S3 refuses to list s3://{bucket}/{prefix}: {code}",
            hint="you need s3:ListBucket and s3:GetObject; check `aws sts get-caller-identity`",
        ) from error
    except BotoCoreError as error:
        raise ProviderError(
            f"S3 does not answer for s3://{bucket}: {error}",
            hint="check your network, your proxy and your AWS configuration",
            transient=True,
        ) from error


def _make_client(session: Any, bucket: str) -> Any:
    """In the bucket's own region: a signature is good for one."""
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import ClientError

    version = "s3v4" if session.get_credentials() else UNSIGNED
    limits = {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 3}}
    config = Config(signature_version=version, **limits)
    first = session.client("s3", config=config)
    try:
        answer = first.head_bucket(Bucket=bucket)["ResponseMetadata"]
    except ClientError as error:
        answer = error.response.get("ResponseMetadata", {})
    region = answer.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
    if not region or region == first.meta.region_name:
        return first
    return session.client("s3", region_name=region, config=config)
