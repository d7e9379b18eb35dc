"""What an administrator asks of a cluster, and confluent-kafka cannot ask."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Array, Boolean, Float64, Int16, Int32, Schema, String

from fanout.errors import OptionError, StreamStateError
from fanout.kafka.cluster import Cluster
from fanout.kafka.protocol.connections import CallTimeouts, open_connections
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.kafka.protocol.connections import Connections

_ALTER_CLIENT_QUOTAS: Final = 49
_UNREGISTER_BROKER: Final = 64
_ENTITY: Final = Array(("type", String("utf-8")), ("name", String("utf-8")))
_TIMEOUT: Final = 30.0
# Bytes of an answer: its length, the number of the request, tags, the time of a throttle, the code.
_UP_TO_ERROR_CODE: Final = 4 + 4 + 1 + 4 + 2
_NOT_CONTROLLER: Final = struct.pack(">h", 41)  # the error of one that is still starting


class _AlterQuotasResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    API_KEY = _ALTER_CLIENT_QUOTAS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "entries",
            Array(("error_code", Int16), ("message", String("utf-8")), ("entity", _ENTITY)),
        ),
    )


class _AlterQuotasRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    API_KEY = _ALTER_CLIENT_QUOTAS
    API_VERSION = 0
    RESPONSE_TYPE = _AlterQuotasResponse_v0
    SCHEMA = Schema(
        (
            "entries",
            Array(
                ("entity", _ENTITY),
                ("ops", Array(("key", String("utf-8")), ("value", Float64), ("remove", Boolean))),
            ),
        ),
        ("validate_only", Boolean),
    )


class _AlterQuotasRequest(Request[_AlterQuotasRequest_v0]):  # type: ignore[misc]
    API_KEY = _ALTER_CLIENT_QUOTAS

    def __init__(self, quotas: Mapping[str, float | None]) -> None:
        self._ops = [(key, value or 0.0, value is None) for key, value in quotas.items()]

    def build(self, request_struct_class: type[Any]) -> Any:
        return request_struct_class([([("client-id", None)], self._ops)], False)  # noqa: FBT003


async def alter_quotas(bootstrap_servers: str, quotas: Mapping[str, float | None]) -> None:
    """Set the default quotas of clients; None removes one."""
    response = await _send(bootstrap_servers, _AlterQuotasRequest(quotas))
    for code, message, _ in response.entries:
        _check(code, message)


async def reorder_replicas(
    bootstrap_servers: str, plan: Mapping[str, Mapping[int, list[int]]]
) -> None:
    """Give each partition of each topic its replicas; the first is its preferred leader."""
    topics: list[Any] = [
        (topic, [(number, replicas, {}) for number, replicas in partitions.items()], {})
        for topic, partitions in plan.items()
    ]
    request = AlterPartitionReassignmentsRequest(int(_TIMEOUT * 1000), topics, {})
    response = await _send(bootstrap_servers, request)
    _check(response.error_code, response.error_message)
    for _, partitions, _ in response.responses:
        for _, code, message, _ in partitions:
            _check(code, message)


async def leaders_by_node(
    addresses: Sequence[str],
) -> list[dict[str, dict[int, int]]]:
    """Ask nodes who leads each partition of each topic, as each of them has heard."""
    views = []
    for address in addresses:
        response = await _send(address, MetadataRequest(None))
        views.append(
            {
                topic: {number: leader for _, number, leader, *_ in partitions}
                for _, topic, _, partitions in response.topics
            }
        )
    return views


def unregister_broker(controller: str, node: int) -> bool:
    """Let the controller at an address forget a broker; False if it is to be asked again."""
    host, _, port = controller.rpartition(":")
    # Version 0 of https://kafka.apache.org/protocol.html#The_Messages_UnregisterBroker; controllers
    # do not answer the request for metadata with which `open_connections` begins.
    request = struct.pack(">hhihbib", _UNREGISTER_BROKER, 0, 0, -1, 0, node, 0)
    try:
        with socket.create_connection((host, int(port)), _TIMEOUT) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb").read(_UP_TO_ERROR_CODE)
    except TimeoutError:
        return True  # a second request might be for the broker that has just begun
    except OSError:
        return False
    return len(answer) == _UP_TO_ERROR_CODE and answer[-2:] != _NOT_CONTROLLER


async def _send(bootstrap_servers: str, request: Any) -> Any:
    try:
        async with _connections(bootstrap_servers) as connections:
            return await connections.send_to_any(request)
    except KafkaError as error:
        raise StreamStateError(f"no node answers: {error}") from error


def _connections(servers: str) -> AbstractAsyncContextManager[Connections]:
    cluster = Cluster(servers, security=Security(protocol="PLAINTEXT"))
    return open_connections(cluster, CallTimeouts(_TIMEOUT))


def _check(code: int, message: str | None) -> None:
    if code:
        raise OptionError(f"Kafka refused: {message or for_code(code).__name__}")
