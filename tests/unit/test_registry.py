"""What registries say of an image, by their own protocol: one here behaves like Docker Hub."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import registry
from clusterctl.machines.protocol import RegistryLogin
from tests.sim import hub as hubs
from tests.sim.hub import Hub
from tests.unit.tables import rows


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hubs.running() as found:
        yield found


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `docker login`; a helper of it would be on PATH."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def settings(docker: Path, **what: Any) -> None:
    (docker / "config.json").write_text(json.dumps(what))


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


@rows("text, host, repository, tag, digest", "registry.references")
def test_references(text: str, host: str, repository: str, tag: str, digest: str) -> None:
    found = registry.parse_image_name(text)
    assert (found.registry, found.repository, found.tag, found.digest) == (
        host,
        repository,
        tag,
        digest,
    )


@rows("text", "registry.what_is_no_reference")
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError, match="is not an image reference"):
        registry.parse_image_name(text)


def test_digest_and_size(hub: Hub) -> None:
    digest = hub.serve("team/cpu", "1", size=1_400_000_000)
    found = registry.resolve_image(f"{hub.host}/team/cpu:1")
    assert found.pinned == f"{hub.host}/team/cpu@{digest}"
    assert (found.digest, found.size) == (digest, 1_400_000_000)
    assert registry.resolve_image(found.pinned) == found


def test_of_an_image_for_many_processors_ours_is_measured(hub: Hub) -> None:
    digest = hub.serve("cpu", "latest", platforms=("linux/arm64", "linux/amd64"), size=100_000)
    found = registry.resolve_image(f"{hub.host}/cpu")
    assert (found.digest, found.size) == (digest, 100_001)
    hub.serve("arm", "1", platforms=("linux/arm64",))
    with pytest.raises(ProviderError, match="does not exist for linux/amd64"):
        registry.resolve_image(f"{hub.host}/arm:1")


def test_docker_hub_and_its_mirror(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hub.serve("library/debian", "12")
    monkeypatch.setenv(registry.HUB_URL, hub.url)
    assert registry.resolve_image("debian:12").pinned == f"debian@{digest}"
    assert hub.asked[0] == "/v2/library/debian/manifests/12"


@pytest.mark.parametrize("tokens", [True, False])
def test_a_login_that_docker_has_saved(tokens: bool, docker: Path) -> None:
    with hubs.running(tokens=tokens) as hub:
        hub.serve("team/cpu", "1", login="me:it's:secret")
        image = f"{hub.host}/team/cpu:1"
        with pytest.raises(ProviderError) as refused:
            registry.resolve_image(image)
        assert "it is private or does not exist" in refused.value.message
        assert f"docker login {hub.host}" in refused.value.hint
        settings(docker, auths={hub.host: auth("me:it's:secret")})
        found = registry.resolve_image(image)
        assert found.login == RegistryLogin("me", "it's:secret")
        assert "secret" not in repr(found)
        engine = json.loads(registry.render_settings(found.pinned, found.login))
        assert engine == {"auths": {hub.host: auth("me:it's:secret")}}
        settings(docker, auths={hub.host: auth("me:wrong")})
        with pytest.raises(ProviderError, match="to me: it is private"):
            registry.resolve_image(image)


def test_a_password_is_not_sent_unencrypted(hub: Hub, docker: Path) -> None:
    hub.serve("team/cpu", "1")
    hub.realm = "http://registry.invalid"
    settings(docker, auths={hub.host: auth("me:secret")})
    with pytest.raises(ProviderError, match="password over http"):
        registry.resolve_image(f"{hub.host}/team/cpu:1")


def test_a_login_of_a_credential_helper(hub: Hub, docker: Path) -> None:
    hub.serve("team/cpu", "1", login="me:secret")
    image = f"{hub.host}/team/cpu:1"
    settings(docker, credsStore="mine")
    with pytest.raises(ProviderError, match="it is private"):
        registry.resolve_image(image)
    hub.serve("public", "1")
    assert registry.resolve_image(f"{hub.host}/public:1").login is None, (
        "a helper that is not there"
    )
    helper = docker / "docker-credential-mine"
    helper.write_text(
        f"""#!/bin/sh
read -r name
[ "$1 $name" = "get {hub.host}" ] || {{ echo "credentials not found"; exit 1; }}
echo '{{"Username": "me", "Secret": "secret"}}'
"""
    )
    helper.chmod(0o755)
    assert registry.resolve_image(image).login == RegistryLogin("me", "secret")
    settings(docker, credHelpers={"elsewhere": "mine"})
    assert registry.find_saved_login(hub.host) is None
    settings(docker, credHelpers={hub.host: "mine"})
    assert registry.find_saved_login(hub.host) == RegistryLogin("me", "secret")


@pytest.mark.parametrize("key", ["ghcr.io", "https://ghcr.io", "https://ghcr.io/v2/"])
def test_logins_that_were_saved_by_url(key: str, docker: Path) -> None:
    settings(docker, auths={key: auth("me:secret")})
    assert registry.find_saved_login("ghcr.io") == RegistryLogin("me", "secret")
    assert registry.find_saved_login("ghcr.io.example.org") is None


@pytest.mark.parametrize("says", ["no JSON", '{"Username": "me"}', "[]"])
def test_a_helper_that_says_something_else(says: str, docker: Path) -> None:
    settings(docker, credsStore="mine")
    (docker / "docker-credential-mine").write_text(f"#!/bin/sh\necho '{says}'\n")
    (docker / "docker-credential-mine").chmod(0o755)
    assert registry.find_saved_login("ghcr.io") is None


def test_docker_hub_has_another_name_in_dockers_settings(docker: Path) -> None:
    settings(docker, auths={"https://index.docker.io/v1/": auth("me:secret")})
    assert registry.find_saved_login("docker.io") == RegistryLogin("me", "secret")
    engine = json.loads(registry.render_settings("me/cpu:1", RegistryLogin("me", "secret")))
    assert list(engine["auths"]) == ["https://index.docker.io/v1/"]


@rows("code, says, transient", "registry.refusals")
def test_refusals(hub: Hub, code: int, says: str, transient: bool) -> None:
    hub.failure = code
    with pytest.raises(ProviderError, match=says) as caught:
        registry.resolve_image(f"{hub.host}/team/cpu:1")
    assert (caught.value.exit_code, caught.value.transient) == (3, transient)
    assert caught.value.hint


@pytest.mark.parametrize("garbage", [b"<html>", b"[1]", b'"x"'])
def test_what_is_no_registry(hub: Hub, garbage: bytes) -> None:
    hub.serve("team/cpu", "1")
    hub.garbage = garbage
    with pytest.raises(ProviderError, match="sent something else than") as caught:
        registry.resolve_image(f"{hub.host}/team/cpu:1")
    assert caught.value.hint == "is it a container registry?"


def test_a_registry_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TIMEOUT", 0.2)
    with pytest.raises(ProviderError, match=r"cannot ask 127.0.0.1:9 .*: Connection refused"):
        registry.resolve_image("127.0.0.1:9/team/cpu:1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        image = f"127.0.0.1:{server.getsockname()[1]}/team/cpu:1"
        with pytest.raises(ProviderError, match=r"cannot ask .* timed out"):
            registry.resolve_image(image)


def test_a_registry_that_never_comes_to_an_end(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte in time, and all of them never."""
    monkeypatch.setattr(registry, "LIMIT", 0.3)
    hub.serve("team/cpu", "1")
    hub.pause = 0.02
    with pytest.raises(ProviderError, match=r"took more than 0.3 s") as caught:
        registry.resolve_image(f"{hub.host}/team/cpu:1")
    assert caught.value.transient
    hub.pause = 0.0001


def test_damaged_settings_of_docker(docker: Path) -> None:
    (docker / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config.json cannot be read: it is not what"):
        registry.find_saved_login("ghcr.io")
    settings(docker, auths={"ghcr.io": {"auth": "###"}})
    with pytest.raises(UsageError, match="cannot be read"):
        registry.find_saved_login("ghcr.io")
