"""A folder of a bucket on S3, or on what speaks its language (AWS_ENDPOINT_URL_S3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterctl.providers.ec2 import failures
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.client import choose_region

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
                raise failures.make_refusal(doing, code, message, self._api.region) from error
            raise failures.make_unanswered_error(doing, type(error).__name__, str(error)) from error
