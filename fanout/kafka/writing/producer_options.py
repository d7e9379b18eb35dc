"""The options of Kafka's producer, by Kafka's dotted names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.errors import OptionError
from fanout.kafka.dotted_options import DottedOptions
from fanout.kafka.writing.encoding import CODECS

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST: Final = 2**31 - 1  # Kafka's protocol has 32 bits for each of these

_GUARANTEE: Final = "pass delivery_guarantee"
_BYTES: Final = "a DataFrame's columns are bytes already"
_AT_ONCE: Final = "records that wait for the batch before them are sent together, up to batch.size"
_WAITS: Final = "waits between attempts grow from 0.1 to 1 second, for delivery.timeout.ms"
_JAVA: Final = "a Java class cannot be used here"

_OPTIONS: Final = DottedOptions(
    whose="producer",
    numbers={
        "batch.size": (1, _LARGEST),
        "buffer.memory": (1, 2**63 - 1),
        "connections.max.idle.ms": (1000, _LARGEST),
        "delivery.timeout.ms": (1, _LARGEST),
        "max.request.size": (1, _LARGEST),
        "request.timeout.ms": (1, _LARGEST),
    },
    words={"compression.type": CODECS},
    refused={
        "acks": _GUARANTEE,
        "enable.idempotence": _GUARANTEE,
        "interceptor.classes": _JAVA,
        "key.serializer": _BYTES,
        "linger.ms": _AT_ONCE,
        "max.block.ms": "pass delivery.timeout.ms",
        "max.in.flight.requests.per.connection": "order is kept with concurrent requests",
        "metadata.max.age.ms": "leaders are refreshed when they move",
        "metric.reporters": _JAVA,
        "partitioner.class": "pass partitioner",
        "receive.buffer.bytes": "the operating system sizes its buffers",
        "reconnect.backoff.max.ms": _WAITS,
        "reconnect.backoff.ms": _WAITS,
        "retries": "pass delivery.timeout.ms",
        "retry.backoff.max.ms": _WAITS,
        "retry.backoff.ms": _WAITS,
        "send.buffer.bytes": "the operating system sizes its buffers",
        "transaction.timeout.ms": "pass transaction_timeout, in seconds",
        "transactional.id": "pass transactional_id_prefix",
        "value.serializer": _BYTES,
    },
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The options of a producer, parsed, by the names of Kafka's. Times are in seconds.

    All defaults but one are Kafka's: `batch_size` is larger, because whole blocks of rows are
    written.
    `delivery_timeout` is the longest time until records are confirmed, attempts together.
    """

    compression_type: str = "none"
    batch_size: int = 512 * 1024
    max_request_size: int = 1024 * 1024
    buffer_memory: int = 32 * 1024 * 1024
    request_timeout: float = 30.0
    delivery_timeout: float = 120.0
    connections_max_idle: float = 540.0

    @classmethod
    def parse(cls, options: Mapping[str, str | int]) -> ProducerOptions:
        """Read options by their dotted names, numbers as such or as text."""
        parsed = cls(**_OPTIONS.parse(options))
        if parsed.delivery_timeout < parsed.request_timeout:
            raise OptionError(
                f"delivery.timeout.ms={parsed.delivery_timeout * 1000:.0f} must be at least "
                f"request.timeout.ms={parsed.request_timeout * 1000:.0f}, which is one attempt"
            )
        return parsed
