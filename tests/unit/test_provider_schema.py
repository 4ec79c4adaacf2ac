"""What stands between Terraform and its provider in tests of EC2: `tests/sim/ec2/schema.py`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

grpc = pytest.importorskip("grpc")  # CI has it: the fixture `ec2` wants it, too

from tests.sim.ec2.schema import SCHEMA, Handler  # noqa: E402

CONFIGURE = "/tfplugin5.Provider/Configure"


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 1 << 14
    return bytes([number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content


def entry(number: int, name: str) -> bytes:
    return field(number, field(1, name.encode()) + field(2, b"block " * 50))


PROVIDER, RESOURCE, DATA = field(1, b"region"), entry(2, "aws_vpc"), entry(3, "aws_ami")
CAPABILITIES = field(6, b"\x10\x01")
WHOLE = b"".join(
    (PROVIDER, entry(2, "aws_sqs_queue"), RESOURCE, DATA, entry(3, "aws_vpc_peering"), CAPABILITIES)
)


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[tuple[grpc.Channel, list[str]]]:
    """A channel to it, and the names of all calls that have reached the provider."""
    asked: list[str] = []

    class Provider(grpc.GenericRpcHandler):
        def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            asked.append(call.method)
            answer = WHOLE if call.method == SCHEMA else b""
            return grpc.unary_unary_rpc_method_handler(lambda said, _: answer or said[::-1])

    def serve(handler: grpc.GenericRpcHandler, name: str) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(2), [handler])
        server.add_insecure_port(f"unix:{tmp_path}/{name}")
        server.start()
        servers.append(server)
        return f"{tmp_path}/{name}"

    servers: list[grpc.Server] = []
    handler = Handler(serve(Provider(), "provider"), frozenset({b"aws_vpc", b"aws_ami"}))
    with grpc.insecure_channel(f"unix:{serve(handler, 'schema')}") as channel:
        yield channel, asked
    handler.close()
    for server in servers:
        server.stop(None).wait()


def test_the_schema_has_what_the_module_uses(provider: tuple[grpc.Channel, list[str]]) -> None:
    channel, asked = provider
    for _ in range(2):
        assert channel.unary_unary(SCHEMA)(b"") == PROVIDER + RESOURCE + DATA + CAPABILITIES
    assert asked == [SCHEMA], "it is asked once"


def test_all_else_is_handed_on(provider: tuple[grpc.Channel, list[str]]) -> None:
    channel, asked = provider
    assert channel.unary_unary(CONFIGURE)(b"said") == b"dias"
    assert asked == [CONFIGURE]


def test_what_is_no_question_to_the_provider_is_not_there(
    provider: tuple[grpc.Channel, list[str]],
) -> None:
    channel, asked = provider
    with pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/plugin.GRPCStdio/StreamStdio")(b"")
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert asked == []
