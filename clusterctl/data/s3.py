"""Objects in S3, as URLs that a node can read without credentials of its own."""

from __future__ import annotations

from typing import Any

from clusterctl.data.sources import Remote
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2.api import Credentials, choose_region

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
