"""Quotas of clients at a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Float64, Int16, Int32, Schema, String

from fanout.kafka.cluster import Cluster
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.reading.consumer_options import ConsumerOptions
from tests.support.kafka.brokers import HERE

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

_ALTER_CLIENT_QUOTAS: Final = 49
_ENTITY: Final = Array(("type", String("utf-8")), ("name", String("utf-8")))


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

    def __init__(self, **quotas: float | None) -> None:
        self._ops = [(key, value or 0.0, value is None) for key, value in quotas.items()]

    def build(self, request_struct_class: type[Any]) -> Any:
        return request_struct_class([([("client-id", None)], self._ops)], False)  # noqa: FBT003


async def set_quota(broker: KafkaBroker, **quotas: float | None) -> None:
    """Set default quotas by Kafka's names, such as `consumer_byte_rate`; None ends one."""
    cluster = Cluster(broker.bootstrap_servers, security=HERE)
    async with open_connections(cluster, ConsumerOptions()) as connections:
        response = await connections.send_to_any(_AlterQuotasRequest(**quotas))
    assert [code for code, *_ in response.entries] == [0]
