"""Asks container registries what an image reference means, before anything is paid for.

The registry's HTTP API: https://distribution.github.io/distribution/spec/api/, with its tokens:
https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from clusterctl import process
from clusterctl.core import assets, catalog
from clusterctl.core.clock import Deadline, run_in_background
from clusterctl.core.variables import may_see_secrets
from clusterctl.errors import ProviderError, UsageError, describe_reason
from clusterctl.machines.protocol import RegistryLogin

T = TypeVar("T")

HUB = "docker.io"
HUB_URL = "CLUSTERCTL_DOCKER_HUB"
"""The variable that names a mirror of Docker Hub to ask instead of it."""
_HUB_LOGIN = "https://index.docker.io/v1/"
"""What `docker login` calls Docker Hub."""

TIMEOUT = 20.0
"""Seconds that a registry may be silent."""
LIMIT = 60.0
"""Seconds until it has to have answered, however busily it sends."""
_LIMIT = 4 << 20
"""Bytes of a manifest: https://github.com/opencontainers/distribution-spec names 4 MiB."""

_LISTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_KINDS = (
    *_LISTS,
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
PLATFORM = ("linux", "amd64")

_HOST = r"(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<path>{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?",
    re.ASCII,
)


class Reference(Struct, frozen=True):
    """`registry/repository:tag@digest`, with the defaults that Docker has for what is left out."""

    registry: str
    repository: str
    tag: str
    digest: str
    text: str
    """As it was given."""

    @property
    def tagged(self) -> str:
        """Without the digest."""
        return self.text.partition("@")[0]

    def pin(self, digest: str) -> str:
        """The same image by its digest alone, which is how an engine remembers it."""
        name = self.tagged.removesuffix(f":{self.tag}" if self.tag else "")
        return f"{name}@{digest}"


def parse_image_name(text: str) -> Reference:
    """Raises UsageError for what Docker would not take."""
    first, slash, rest = text.partition("/")
    # A first part is a host if it cannot be a folder of Docker Hub.
    host = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    found = _REFERENCE.fullmatch(rest if host else text)
    if found is None or (host and not re.fullmatch(_HOST, first)):
        raise UsageError(
            f"{text!r} is not an image reference", hint="such as registry.example.com/team/cpu:1"
        )
    path, digest = found["path"], found["digest"] or ""
    if host and first not in (HUB, "index.docker.io"):
        registry = first
    else:
        registry, path = HUB, path if "/" in path else f"library/{path}"
    return Reference(registry, path, found["tag"] or "", digest, text)


class FoundImage(Struct, frozen=True):
    """An image that exists. `pinned` names it by its digest, so that it cannot become another;
    `size` in bytes, of its compressed layers."""

    pinned: str
    digest: str
    size: int
    login: RegistryLogin | None = None
    """What it took to see it."""


MoreLogins = Callable[[str], RegistryLogin | None]
"""Knows the login of some registries, by their host."""


def resolve_image(text: str, more_logins: MoreLogins = lambda host: None) -> FoundImage:
    """What the reference means now, for machines with x86-64.

    Raises:
        UsageError: It is no reference.
        ProviderError: There is no such image, nobody lets us see it, or no registry answers.
    """
    reference = parse_image_name(text)
    try:
        answer = run_in_background(partial(_resolve, reference, more_logins))
        return Deadline(LIMIT).await_result(answer)
    except TimeoutError:
        raise ProviderError(
            f"{reference.registry} took more than {LIMIT:g} s to describe the image {text}",
            hint="try again",
            transient=True,
        ) from None


class _Platform(Struct, frozen=True):
    os: str = ""
    architecture: str = ""


class _Part(Struct, frozen=True):
    """An image in a list of them, or a layer."""

    digest: str = ""
    size: int = 0
    platform: _Platform = _Platform()


class Manifest(Struct, frozen=True):
    """What a registry says of an image, or (`manifests`) of one for each platform."""

    manifests: tuple[_Part, ...] | None = None
    config: _Part = _Part()
    layers: tuple[_Part, ...] = ()


class _Pass(Struct, frozen=True):
    token: str = ""
    access_token: str = ""


def _resolve(reference: Reference, more_logins: MoreLogins) -> FoundImage:
    login = find_saved_login(reference.registry) or more_logins(reference.registry)
    connection = _Registry(reference, login)
    manifest, digest = connection.fetch_manifest(reference.digest or reference.tag or "latest")
    if manifest.manifests is not None:
        wanted = _Platform(*PLATFORM)
        fit = [part.digest for part in manifest.manifests if part.platform == wanted]
        if not fit:
            raise ProviderError(
                f"the image {reference.text} does not exist for {'/'.join(PLATFORM)}",
                hint="build it for that platform: docker build --platform linux/amd64",
            )
        manifest, _ = connection.fetch_manifest(fit[0])
    size = sum(part.size for part in (manifest.config, *manifest.layers))
    return FoundImage(reference.pin(digest), digest, size, login)


class _Registry:
    """One repository of a registry."""

    def __init__(self, reference: Reference, login: RegistryLogin | None) -> None:
        self._reference = reference
        self._login = login
        host = reference.registry
        local = re.match(r"(localhost|127\.[\d.]+|\[::1\])(:|$)", host)  # as Docker has it
        usual = f"{'http' if local else 'https'}://{host}"
        if host == HUB:
            usual = os.environ.get(HUB_URL) or "https://registry-1.docker.io"
        self._base = f"{usual.rstrip('/')}/v2/{reference.repository}/manifests/"
        self._pass = ""

    def fetch_manifest(self, name: str) -> tuple[Manifest, str]:
        """The manifest of a tag or digest, and its digest."""
        url = self._base + urllib.parse.quote(name, safe=":")
        kinds = {"Accept": ", ".join(_KINDS)}
        for again in (False, True):
            try:
                answer, headers = self._get(url, kinds, self._pass, Manifest)
                break
            except urllib.error.HTTPError as error:
                if error.code != 401 or self._pass or again:
                    raise self._explain_refusal(error) from error
                error.close()
                self._pass = self._authorize(error.headers.get("WWW-Authenticate", ""))
        digest = name if name.startswith("sha256:") else headers.get("Docker-Content-Digest", "")
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise self.make_strange_error("an answer without a digest")
        return answer, digest

    def _get(
        self, url: str, headers: Mapping[str, str], authorization: str, kind: type[T]
    ) -> tuple[T, Mapping[str, str]]:
        request = urllib.request.Request(url, headers=dict(headers))
        if authorization:
            # Not for whoever the registry sends us to.
            request.add_unredirected_header("Authorization", authorization)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return msgspec.json.decode(answer.read(_LIMIT), type=kind), answer.headers
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            if isinstance(why, OSError):
                why = describe_reason(why)
            raise ProviderError(
                f"cannot ask {urllib.parse.urlsplit(url).netloc} for the image"
                f" {self._reference.text}: {why}",
                hint="check the network and https_proxy, choose another --image, or use"
                " --runtime host, which needs none",
                transient=True,
            ) from error
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise self.make_strange_error("something else than JSON that describes one") from error

    def _authorize(self, challenge: str) -> str:
        """The header that answers `WWW-Authenticate`."""
        scheme, _, rest = challenge.partition(" ")
        basic = f"Basic {self._login.basic}" if self._login else ""
        if scheme.lower() == "basic":
            self._require_encryption(self._base)
            return basic
        words = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = words.get("realm", "")
        if scheme.lower() != "bearer" or not realm.startswith(("https://", "http://")):
            raise self.make_strange_error("a challenge of an unknown kind")
        self._require_encryption(realm)
        scope = f"repository:{self._reference.repository}:pull"
        query = {"service": words.get("service", ""), "scope": words.get("scope", scope)}
        try:
            answer, _ = self._get(f"{realm}?{urllib.parse.urlencode(query)}", {}, basic, _Pass)
        except urllib.error.HTTPError as error:
            raise self._explain_refusal(error) from error
        return f"Bearer {answer.token or answer.access_token}"

    def _require_encryption(self, url: str) -> None:
        """Before a password goes there."""
        if self._login and not may_see_secrets(url):
            raise self.make_strange_error("a request for your password over http, unencrypted")

    def _explain_refusal(self, error: urllib.error.HTTPError) -> ProviderError:
        error.close()  # it is the answer, too
        text, host = self._reference.text, self._reference.registry
        login = "docker login" if host == HUB else f"docker login {host}"
        if error.code in (401, 403, 404):
            known = f" to {self._login.user}" if self._login else ""
            return ProviderError(
                f"{host} does not provide the image {text}{known}: it is private or does not exist",
                hint=f"correct its name or tag, or run `{login}`: the nodes then pull with that"
                " login",
            )
        return ProviderError(
            f"{host} answered {error.code} {error.reason} when asked for the image {text}",
            hint=f"try again; `{login}` raises the limit for requests",
            transient=error.code == 429 or error.code >= 500,
        )

    def make_strange_error(self, what: str) -> ProviderError:
        return ProviderError(
            f"{self._reference.registry} sent {what} when asked for the image"
            f" {self._reference.text}",
            hint="is it a container registry?",
        )


class _Saved(Struct):
    auth: str = ""


class _Settings(Struct):
    """What of Docker's config.json matters here."""

    auths: dict[str, _Saved] = {}
    credHelpers: dict[str, str] = {}
    credsStore: str = ""


class _Helped(Struct):
    Username: str
    Secret: str


def find_saved_login(registry: str) -> RegistryLogin | None:
    """What `docker login` has saved for a registry, in its settings or with a credential helper."""
    folder = os.environ.get("DOCKER_CONFIG")
    path = (Path(folder) if folder else Path("~/.docker").expanduser()) / "config.json"
    name = _HUB_LOGIN if registry == HUB else registry
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=_Settings)
        if helper := settings.credHelpers.get(name) or settings.credsStore:
            return _ask_helper(helper, name)
        rows = settings.auths.items()
        saved = next((row.auth for key, row in rows if _read_host(key) == _read_host(name)), "")
        if not saved:
            return None
        user, _, password = base64.b64decode(saved, validate=True).decode().partition(":")
        return RegistryLogin(user, password)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        why = "it is not what `docker login` writes"
        if isinstance(error, OSError):
            why = describe_reason(error)
        raise UsageError(f"{path} cannot be read: {why}", hint="correct it, or log in") from error


def _read_host(name: str) -> str:
    """Docker saves logins by host, earlier versions by URL."""
    return re.sub(r"^https?://", "", name).partition("/")[0]


def _ask_helper(helper: str, name: str) -> RegistryLogin | None:
    """https://github.com/docker/docker-credential-helpers: the name on stdin, JSON on stdout. One
    that fails knows nothing: most images are public, and a refusal says what to do."""
    argv = [f"docker-credential-{helper}", "get"]
    result = process.run(argv, timeout=TIMEOUT, stdin=name.encode())
    return parse_helped(result.stdout) if result.ok else None


def parse_helped(text: bytes | str) -> RegistryLogin | None:
    """The answer of a credential helper; None where it is not one."""
    try:
        found = msgspec.json.decode(text, type=_Helped)
        login = RegistryLogin(found.Username, found.Secret)
        return login if login.basic else None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def render_settings(image: str, login: RegistryLogin) -> str:
    """Docker's config.json for an engine that is to pull this image with that login."""
    registry = parse_image_name(image).registry
    name = _HUB_LOGIN if registry == HUB else registry
    return json.dumps({"auths": {name: {"auth": login.basic}}})


# -------------------------------------------------------------------------------------------------
# The recipes of node images in `docker/`: what each is built from. Texts only.
#
# `downloads.json` there lists all that comes over the network beside the distribution's own signed
# packages, with checksums. An image is built on this machine (`image build`) or on the nodes
# (`up`).


Downloads = Mapping[str, Any]
"""What downloads.json holds."""

WHEELS = "python"
"""The stage of every recipe in which the wheels are installed."""


def read_downloads() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (assets.find_folder("docker") / "downloads.json").read_text()
    )
    return found


def list_arguments(listed: Downloads, base: str = "") -> dict[str, str]:
    """The build arguments of every recipe."""
    return {"BASE": base or listed["base"]["image"]}


def list_requirements(name: str, listed: Downloads) -> str:
    """What pip installs, and nothing else: exact versions with checksums."""
    rows = [row for row in listed["wheels"] if name in row["images"]]
    lines = [f"{row['name']}=={row['version']} --hash=sha256:{row['sha256']}" for row in rows]
    return "\n".join([*lines, ""])


def find_cuda(name: str, listed: Downloads) -> str:
    """The CUDA release of the wheels; "" where there is none."""
    rows = [row for row in listed["wheels"] if name in row["images"]]
    return next((row["version"] for row in rows if row["name"] == "cuda-toolkit"), "")


def render_files(name: str, listed: Downloads, *, here: bool = False) -> dict[str, str]:
    """The context of the build, by path, without the wheels themselves. Where it has
    no wheels, the build takes them from the package index: `wheels/index` is one beside PyPI.

    `here`: it has. A last stage of its own then leaves them behind; on nodes, that would write
    gigabytes a second time."""
    folder = assets.find_folder("docker")
    paths = [path for path in sorted((folder / "common").iterdir()) if path.is_file()]
    found = {f"common/{path.name}": path.read_text() for path in paths}
    recipe = (folder / catalog.RECIPES[name] / "Dockerfile").read_text()
    if not here:
        before, last, after = recipe.rpartition("\nFROM ${BASE}\n")
        copy = f"COPY --from={WHEELS} /opt/venv /opt/venv\n"
        recipe = before + last.replace("${BASE}", WHEELS) + after.replace(copy, "")
    found["Dockerfile"] = recipe
    found["requirements.txt"] = list_requirements(name, listed)
    found["wheels/index"] = f"{listed['index'].get(name, '')}\n"
    return found


def make_tag(name: str, listed: Downloads) -> str:
    """What the image is called on the nodes that have built it: another recipe, another name."""
    parts = [*render_files(name, listed).items(), *list_arguments(listed).items()]
    digest = hashlib.sha256(json.dumps(sorted(parts)).encode()).hexdigest()[:12]
    return f"clusterctl/{name}:{digest}"
