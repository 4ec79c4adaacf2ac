"""Where data of one's own lies: which files are behind a URL (https://, s3://), how large
they are, and what their checksums are, as far as their server tells."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from msgspec import Struct, field

from clusterctl.core.variables import may_see_secrets
from clusterctl.errors import UsageError

TOKEN = "CLUSTERCTL_HTTPS_TOKEN"
"""The environment variable with a token for https:// servers."""
SCHEMES = ("https", "http", "s3")


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


Objects = Callable[[str, str], Sequence[Remote]]
"""Lists the objects of a bucket whose key begins with a prefix, with URLs that need nothing else;
`path` is the key."""


def is_url(word: str) -> bool:
    return urllib.parse.urlsplit(word).scheme in SCHEMES and "://" in word


def find_source(url: str, objects: Objects) -> Source:
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
    found = _find_in_bucket(parts, objects) if parts.scheme == "s3" else _find_at_url(parts)
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


def _find_in_bucket(parts: urllib.parse.SplitResult, objects: Objects) -> Source:
    """A key, or all below a prefix."""
    prefix = urllib.parse.unquote(parts.path.lstrip("/"))
    found = list(objects(parts.netloc, prefix))
    exact = [file for file in found if file.path == prefix]
    folder = f"{prefix.rstrip('/')}/" if prefix else ""
    below = [f for f in found if f.path.startswith(folder) and not f.path.endswith("/")]
    chosen, cut = (
        (exact, len(prefix) - len(PurePosixPath(prefix).name)) if exact else (below, len(folder))
    )
    if not chosen:
        raise UsageError(f"s3://{parts.netloc}/{prefix}: no such object or folder")
    name = PurePosixPath(prefix.rstrip("/")).name or parts.netloc
    files = tuple(Remote(f.path[cut:], f.url, f.size, f.sha256, f.headers) for f in chosen)
    return Source(name.partition(".")[0] or name, files)
