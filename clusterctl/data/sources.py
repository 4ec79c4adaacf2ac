"""Where data of one's own lies: which files are behind a URL (https://, s3://, hf://), how large
they are, and what their checksums are, as far as their server tells."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from clusterctl.core.variables import may_see_secrets
from clusterctl.errors import ProviderError, UsageError

TIMEOUT = 30.0
TOKEN = "CLUSTERCTL_HTTPS_TOKEN"
"""The environment variable with a token for https:// servers."""
HUB = "https://huggingface.co"
SCHEMES = ("https", "http", "s3", "hf")
_KINDS = {"datasets": "datasets/", "spaces": "spaces/"}


@dataclass(frozen=True, slots=True)
class Remote:
    """One file. `path` is its place below the data set's folder; size in bytes, 0: unknown; `git`
    is the SHA-1 that git has for it. `url` and `headers` may hold secrets."""

    path: str
    url: str = field(repr=False)
    size: int = 0
    sha256: str = ""
    git: str = ""
    headers: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Source:
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
    """Asks the server of s3:// and hf:// which files there are.

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
    found = {"s3": _find_in_bucket, "hf": _find_on_hub}.get(parts.scheme, _find_at_url)(
        parts, objects
    )
    for file in found.files:
        _check_path(file.path)
    return found


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or re.search(r"[\\\x00-\x1f]", path):
        raise UsageError(f"{path!r} is not a valid file path", hint="choose another source")


def _find_at_url(parts: urllib.parse.SplitResult, objects: Objects) -> Source:
    name = urllib.parse.unquote(PurePosixPath(parts.path).name)
    if not parts.hostname or not name or parts.path.endswith("/"):
        raise UsageError(
            f"{parts.scheme}://{parts.netloc}{parts.path} does not name a file",
            hint="give the URL of one file; s3:// and hf:// may name folders",
        )
    headers = _show_token(os.environ.get(TOKEN, ""), parts.geturl())
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name.partition(".")[0]).strip("-.") or "data"
    return Source(stem, (Remote(name, parts.geturl(), headers=headers),))


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
    files = tuple(Remote(f.path[cut:], f.url, f.size, f.sha256, f.git, f.headers) for f in chosen)
    return Source(name.partition(".")[0] or name, files)


def _find_on_hub(parts: urllib.parse.SplitResult, objects: Objects) -> Source:
    """hf://datasets/OWNER/NAME[@REVISION][/PATH], or without `datasets/` for a model."""
    words = [urllib.parse.unquote(word) for word in f"{parts.netloc}{parts.path}".split("/")]
    kind = _KINDS.get(words[0], "")
    words = words[1:] if kind else words
    if len(words) < 2 or not all(words[:2]):
        raise UsageError(
            f"{parts.geturl()} does not name a repository",
            hint="hf://datasets/OWNER/NAME, hf://OWNER/MODEL, or a file or folder in one",
        )
    name, _, revision = words[1].partition("@")
    repository, revision = f"{words[0]}/{name}", revision or "main"
    wanted = "/".join(words[2:]).strip("/")
    endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    headers = _show_token(_find_hub_token(), endpoint)
    at = urllib.parse.quote(revision, safe="")
    listing = f"{endpoint}/api/{kind or 'models/'}{repository}/tree/{at}?recursive=true"
    files = []
    for entry in _list_hub(listing, repository, headers):
        path = str(entry.get("path", ""))
        if entry.get("type") != "file" or not (
            not wanted or path == wanted or path.startswith(f"{wanted}/")
        ):
            continue
        large = entry.get("lfs") or {}
        files.append(
            Remote(
                path,
                f"{endpoint}/{kind}{repository}/resolve/{at}/{urllib.parse.quote(path)}",
                int(large.get("size") or entry.get("size") or 0),
                str(large.get("oid", "")).removeprefix("sha256:"),
                "" if large else str(entry.get("oid", "")),
                headers,
            )
        )
    if not files:
        raise UsageError(f"{repository} has no file or folder {wanted!r} at revision {revision}")
    return Source(name, tuple(files))


def _show_token(token: str, url: str) -> dict[str, str]:
    """Headers with it, unless somebody on the way could read them."""
    return {"Authorization": f"Bearer {token}"} if token and may_see_secrets(url) else {}


def _find_hub_token() -> str:
    """As Hugging Face's own tools find it."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name):
            return os.environ[name].strip()
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _list_hub(url: str, repository: str, headers: dict[str, str]) -> Iterator[dict[str, Any]]:
    """All pages of a listing."""
    while url:
        request = urllib.request.Request(url)
        for name, value in headers.items():
            request.add_unredirected_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                yield from json.load(answer)
                following = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link", ""))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (401, 403, 404):
                text = f"the Hugging Face hub answered {error.code} {error.reason}"
                raise ProviderError(text, hint="try again later", transient=True) from error
            raise ProviderError(
                f"the Hugging Face hub has no {repository}, or you may not read it ({error.code})",
                hint="correct its name; for a private or gated one set HF_TOKEN, or"
                " `huggingface-cli login`, and accept its terms on its page",
            ) from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise ProviderError(
                f"{urllib.parse.urlsplit(url).netloc} does not answer: {why}",
                hint="check the network and https_proxy",
                transient=True,
            ) from error
        url = _stay_at(url, urllib.parse.urljoin(url, following[1])) if following else ""


def _stay_at(url: str, following: str) -> str:
    """The next page, at the server that was asked: a mirror passes on the addresses of the hub, and
    the token is for no other server."""
    here, there = urllib.parse.urlsplit(url), urllib.parse.urlsplit(following)
    return there._replace(scheme=here.scheme, netloc=here.netloc).geturl()
