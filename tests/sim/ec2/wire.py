"""Requests to AWS and answers from it, as far as the layer before moto has to understand them."""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_SCOPE = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request")


@dataclass(frozen=True)
class Request:
    """One call of the API. `parameters` is the flat form of the query protocol (EC2, STS …), or
    the JSON document of the others.
    """

    service: str
    action: str
    region: str
    parameters: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    """The access key of who asks."""

    def listed(self, name: str) -> list[str]:
        """The values of `name.1`, `name.2` …"""
        pattern = re.compile(rf"{re.escape(name)}\.(\d+)$")
        found = [(pattern.match(key), value) for key, value in self.parameters.items()]
        return [value for _, value in sorted((int(m[1]), value) for m, value in found if m)]

    def structured(self, name: str) -> list[dict[str, str]]:
        """The members of `name.N.field`, one mapping for each N."""
        pattern = re.compile(rf"{re.escape(name)}\.(\d+)\.(.+)$")
        members: dict[int, dict[str, str]] = {}
        for key, value in self.parameters.items():
            if match := pattern.match(key):
                members.setdefault(int(match[1]), {})[match[2]] = value
        return [members[number] for number in sorted(members)]

    def filters(self) -> dict[str, list[str]]:
        return {
            one["Name"]: [value for key, value in one.items() if key.startswith("Value.")]
            for one in self.structured("Filter")
        }

    def tags(self, kind: str) -> dict[str, str]:
        """The tags that a new resource of this kind is to get."""
        tags: dict[str, str] = {}
        for one in self.structured("TagSpecification"):
            if one.get("ResourceType") == kind:
                tags.update(pairs(one))
        return tags


def pairs(form: Mapping[str, str]) -> dict[str, str]:
    """`Tag.1.Key=a&Tag.1.Value=b` → {"a": "b"}."""
    return {
        value: form.get(f"{key[: -len('.Key')]}.Value", "")
        for key, value in form.items()
        if re.fullmatch(r"Tag\.\d+\.Key", key)
    }


_PATHS = {
    ("POST", "schedules"): "CreateSchedule",
    ("PUT", "schedules"): "UpdateSchedule",
    ("DELETE", "schedules"): "DeleteSchedule",
    ("POST", "schedule-groups"): "CreateScheduleGroup",
    ("DELETE", "schedule-groups"): "DeleteScheduleGroup",
    ("POST", "tags"): "TagResource",
}
_LISTS = {"schedules": "ListSchedules", "schedule-groups": "ListScheduleGroups"}
_QUERY = {"groupName": "GroupName", "ScheduleGroup": "GroupName"}
"""Names in the address → those of the API."""


def rest(
    method: str, path: str, query: Mapping[str, str], body: bytes
) -> tuple[str, dict[str, Any]]:
    """Action and parameters of a call of EventBridge Scheduler."""
    kind, _, name = path.strip("/").partition("/")
    said = json.loads(body or b"{}")
    said |= {_QUERY.get(key, key): value for key, value in query.items()}
    if method == "GET" and not name:
        return _LISTS[kind], said
    return _PATHS[method, kind], {**said, "Name": name}


def parse(environ: dict[str, Any]) -> Request:
    """Reads the request and leaves its body readable for moto."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length) if length else b""
    environ["wsgi.input"] = io.BytesIO(body)
    scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    key, region, service = scope.groups() if scope else ("", "us-east-1", "")
    if target := environ.get("HTTP_X_AMZ_TARGET", ""):
        said = json.loads(body or b"{}")
        return Request(service, target.rpartition(".")[2], region, said, key)
    if service == "scheduler":
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        action, said = rest(environ["REQUEST_METHOD"], environ["PATH_INFO"], query, body)
        return Request(service, action, region, said, key)
    text = body.decode(errors="replace")
    form = dict(parse_qsl(text or environ.get("QUERY_STRING", ""), keep_blank_values=True))
    return Request(service, form.get("Action", ""), region, form, key)


@dataclass(frozen=True)
class Answer:
    body: bytes
    status: int = 200
    type: str = "text/xml;charset=UTF-8"


def xml(action: str, inner: str) -> Answer:
    """A successful answer of EC2. `inner` is XML already."""
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    text = f"<requestId>{uuid.uuid4()}</requestId>{inner}"
    return Answer(f'<{action}Response xmlns="{space}">{text}</{action}Response>'.encode())


def done(action: str) -> Answer:
    return xml(action, "<return>true</return>")


def document(value: object) -> Answer:
    return Answer(json.dumps(value).encode(), type="application/x-amz-json-1.1")


def error(service: str, code: str, message: str, status: int = 400) -> Answer:
    """An error in the words of the service's protocol."""
    if service in (
        "freetier",
        "kms",
        "pricing",
        "scheduler",
        "servicequotas",
        "ssm",
        "tagging",
    ):
        text = json.dumps({"__type": code, "message": message})
        return Answer(text.encode(), status, "application/x-amz-json-1.1")
    if service in ("sts", "iam"):
        inner = f"<Error><Type>Sender</Type>{_error(code, message)}</Error>"
        text = f"<ErrorResponse>{inner}<RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
    else:
        inner = f"<Errors><Error>{_error(code, message)}</Error></Errors>"
        text = f"<Response>{inner}<RequestID>{uuid.uuid4()}</RequestID></Response>"
    return Answer(text.encode(), status)


def _error(code: str, message: str) -> str:
    return f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"


def tag(name: str, value: object) -> str:
    return f"<{name}>{escape(str(value))}</{name}>"


def tag_set(tags: Mapping[str, str]) -> str:
    items = (f"<item>{tag('key', k)}{tag('value', v)}</item>" for k, v in tags.items())
    return f"<tagSet>{''.join(items)}</tagSet>"


def items(name: str, members: Iterable[str]) -> str:
    return f"<{name}>{''.join(f'<item>{member}</item>' for member in members)}</{name}>"


def without(body: bytes, ids: Collection[str]) -> bytes:
    """An answer of EC2 without the items of its lists that have one of these ids."""
    root = ElementTree.fromstring(body)
    for parent in list(root.iter()):
        for item in list(parent):
            own = {field.text for field in item if field.tag.endswith("Id")}
            if item.tag.endswith("item") and own & set(ids):
                parent.remove(item)
    space = root.tag.partition("}")[0].lstrip("{")
    return ElementTree.tostring(root, default_namespace=space)


class ApiError(Exception):
    """Becomes the answer to the request that is being handled."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status
