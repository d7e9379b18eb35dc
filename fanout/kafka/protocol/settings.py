"""Read settings of topics and brokers (DescribeConfigs)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka.protocol.admin import DescribeConfigsRequest

from fanout.errors import ServiceError
from fanout.kafka.protocol.error_codes import raise_for_code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kafka.protocol.connections import Connections

TOPIC: Final = 2
BROKER: Final = 4
"""The types of resources, by their codes in ConfigResource.java."""


async def read_settings(
    connections: Connections, kind: int, name: str, settings: Sequence[str], *, refusal: str
) -> Mapping[str, str]:
    """Return the settings of a topic or a broker, without those that the broker does not report.

    Args:
        connections: The connections to the cluster.
        kind: TOPIC or BROKER.
        name: The name of the topic, or the id of the broker.
        settings: The names of the settings.
        refusal: The text of the error if they may not be read.

    Raises:
        KafkaError: If they may not be read, or the broker does not answer.
    """
    request = DescribeConfigsRequest([(kind, name, list(settings))])
    if kind == BROKER:
        response = await connections.send(int(name), request)
    else:
        response = await connections.send_to_any(request)
    ((code, _, _, _, entries),) = response.resources
    raise_for_code(code, refusal)
    return {key: value for key, value, *_ in entries if value is not None}


async def require_settings(
    connections: Connections, kind: int, name: str, settings: Sequence[str], *, refusal: str
) -> Mapping[str, str]:
    """Return all of some settings; see `read_settings`.

    Raises:
        KafkaError: As `read_settings`.
        ServiceError: If the broker does not report one of them.
    """
    found = await read_settings(connections, kind, name, settings, refusal=refusal)
    if missing := [key for key in settings if key not in found]:
        raise ServiceError(f"the broker does not report {', '.join(missing)}")
    return found
