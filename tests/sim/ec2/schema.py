"""Stands before a Terraform provider that stays, and shortens its schema to what our module uses.

    python -m tests.sim.ec2.schema SOCKET PROVIDER TYPE…

SOCKET is where Terraform finds it and PROVIDER where the provider listens (paths of Unix sockets);
TYPE is a resource or data source that our module uses. The provider has 2,100, and for Terraform to
read them all takes a second of processor time per command. All other calls are handed on unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent import futures
from functools import cached_property

import grpc

SCHEMA = "/tfplugin5.Provider/GetSchema"
LIMITS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
BY_NAME = (2, 3)
"""Numbers of the fields `resource_schemas` and `data_source_schemas` of tfplugin5.proto: maps."""


def fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The number, the content and the whole of each field. Those of a schema all have a length."""

    def number(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at

    at = 0
    while at < len(message):
        key, length_at = number(at)
        assert key & 7 == 2, f"field {key >> 3} has no length"
        length, content_at = number(length_at)
        end = content_at + length
        yield key >> 3, message[content_at:end], message[at:end]
        at = end


def shortened(schema: bytes, types: frozenset[bytes]) -> bytes:
    return b"".join(
        whole
        for number, content, whole in fields(schema)
        if number not in BY_NAME or next(fields(content))[1] in types
    )


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, provider: str, types: frozenset[bytes]) -> None:
        self._channel = grpc.insecure_channel(f"unix:{provider}", LIMITS)
        self._types = types

    @cached_property
    def _schema(self) -> bytes:
        return shortened(self._channel.unary_unary(SCHEMA)(b""), self._types)

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if not call.method.startswith("/tfplugin5.Provider/"):
            return None  # what plugins may do without: their log, and a way for calls back
        if call.method == SCHEMA:
            return grpc.unary_unary_rpc_method_handler(lambda *_: self._schema)
        ask = self._channel.unary_unary(call.method)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: ask(request))

    def close(self) -> None:
        self._channel.close()


def main(socket: str, provider: str, *types: str) -> None:
    handler = Handler(provider, frozenset(map(str.encode, types)))
    server = grpc.server(futures.ThreadPoolExecutor(32), [handler], options=LIMITS)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
