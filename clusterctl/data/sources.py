"""Where data of one's own lies: which files are behind a URL (https://, s3://), how large
they are, and what their checksums are, as far as their server tells."""

from __future__ import annotations

import os
import re
import urllib.parse
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core.variables import may_see_secrets
from clusterctl.errors import ProviderError, UsageError

TOKEN = "CLUSTERCTL_HTTPS_TOKEN"
"""The environment variable with a token for https:// servers."""
SCHEMES = ("https", "http", "s3")
VALID = 12 * 3600
"""Seconds that a signed URL is good for; shorter where the credentials end earlier."""


class Remote(Struct, frozen=True):
    """One file. `path` is its place below the data set's folder; size in bytes, 0: unknown.
    `url` and `headers` may hold secrets."""

    path: str
    url: str
    size: int = 0
    sha256: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Remote({self.path!r})"


class Source(Struct, frozen=True):
    """What is behind a URL. `name`: that of its folder, if no other is wanted."""

    name: str
    files: tuple[Remote, ...]

    @property
    def size(self) -> int:
        """In bytes, as far as it is known."""
        return sum(file.size for file in self.files)


def is_url(word: str) -> bool:
    return urllib.parse.urlsplit(word).scheme in SCHEMES and "://" in word


def find_source(url: str) -> Source:
    """Which files are behind it; the server of s3:// is asked.

    Raises:
        UsageError: It is no such URL, or there is nothing.
        ProviderError: The server does not answer, or lets nobody in.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.username or parts.password:
        raise UsageError(
            "a URL with a password in it would be seen by everyone on this machine",
            hint=f"put a token into the environment variable {TOKEN}",
        )
    found = (_find_in_bucket if parts.scheme == "s3" else _find_at_url)(parts)
    for file in found.files:
        _check_path(file.path)
    return found


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or re.search(r"[\\\x00-\x1f]", path):
        raise UsageError(f"{path!r} is not a valid file path", hint="choose another source")


def _find_at_url(parts: urllib.parse.SplitResult) -> Source:
    name = urllib.parse.unquote(PurePosixPath(parts.path).name)
    if not parts.hostname or not name or parts.path.endswith("/"):
        raise UsageError(
            f"{parts.scheme}://{parts.netloc}{parts.path} does not name a file",
            hint="give the URL of one file; s3:// may name a folder",
        )
    url, token = parts.geturl(), os.environ.get(TOKEN, "")
    # Unless somebody on the way could read it.
    headers = {"Authorization": f"Bearer {token}"} if token and may_see_secrets(url) else {}
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name.partition(".")[0]).strip("-.") or "data"
    return Source(stem, (Remote(name, url, headers=headers),))


def _find_in_bucket(parts: urllib.parse.SplitResult) -> Source:
    """A key, or all below a prefix."""
    prefix = urllib.parse.unquote(parts.path.lstrip("/"))
    found = _list_objects(parts.netloc, prefix)
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    chosen, cut = [file for file in found if file.path == prefix], prefix.rpartition("/")[0]
    if not chosen:
        below = (file for file in found if file.path.startswith(folder))
        chosen, cut = [file for file in below if not file.path.endswith("/")], folder
    if not chosen:
        raise UsageError(f"s3://{parts.netloc}/{prefix}: no such object or folder")
    name = PurePosixPath(prefix.rstrip("/")).name or parts.netloc
    files = (replace(file, path=file.path[len(cut) :].lstrip("/")) for file in chosen)
    return Source(name.partition(".")[0] or name, tuple(files))


def _list_objects(bucket: str, prefix: str) -> list[Remote]:
    """All objects whose key begins with `prefix`, as URLs that a node can read without credentials
    of its own. Without credentials, those that are public."""
    from botocore.exceptions import BotoCoreError, ClientError

    from clusterctl.machines.ec2.api import Credentials, choose_region  # boto3 takes its time

    found = []
    try:
        client = _make_client(Credentials(choose_region()).session, bucket)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for item in (item for page in pages for item in page.get("Contents", ())):
            what = {"Bucket": bucket, "Key": item["Key"]}
            url = client.generate_presigned_url("get_object", what, ExpiresIn=VALID)
            found.append(Remote(item["Key"], url, int(item["Size"])))
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
    return found


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
