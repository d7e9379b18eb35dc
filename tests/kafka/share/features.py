"""Switch share groups off in a cluster, as `kafka-features.sh` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from fanout.kafka.cluster import Cluster
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.share.client_options import ClientOptions
from tests.support.kafka.topics import PLAINTEXT

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


class UpdateFeaturesResponse_v1(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    API_KEY = 57
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", CompactString()),
        (
            "results",
            CompactArray(
                ("feature", CompactString()),
                ("error_code", Int16),
                ("error_message", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class UpdateFeaturesRequest_v1(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    FLEXIBLE_VERSION = True
    API_KEY = 57
    API_VERSION = 1
    RESPONSE_TYPE = UpdateFeaturesResponse_v1
    SCHEMA = Schema(
        ("timeout_ms", Int32),
        (
            "features",
            CompactArray(
                ("feature", CompactString()),
                ("level", Int16),
                ("upgrade_type", Int8),
                ("tags", TaggedFields),
            ),
        ),
        ("validate_only", Boolean),
        ("tags", TaggedFields),
    )


class Downgrade(Request[UpdateFeaturesRequest_v1]):  # type: ignore[misc]
    API_KEY = 57

    def __init__(self, feature: str) -> None:
        self._feature = feature

    def build(self, request_struct_class: Any) -> Any:
        safely, only_ask = 2, False
        updates: list[tuple[str, int, int, dict[int, bytes]]] = [(self._feature, 0, safely, {})]
        return request_struct_class(10_000, updates, only_ask, {})


async def switch_off(broker: KafkaBroker, feature: str) -> None:
    """Set the level of a feature to 0."""
    async with open_connections(
        Cluster(broker.bootstrap_servers, security=PLAINTEXT, client_id="features"), ClientOptions()
    ) as connections:
        response = await connections.send_to_any(Downgrade(feature))
    assert response.error_code == 0, response.error_message
