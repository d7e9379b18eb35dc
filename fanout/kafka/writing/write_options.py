"""The options of everything that writes to topics, and Kafka's own options of a producer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from fanout.core.option_checks import check_text, number, one_of
from fanout.errors import OptionError
from fanout.kafka.cluster import check_cluster
from fanout.kafka.dotted_options import DottedOptions
from fanout.kafka.writing.encoding import CODECS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.cluster import Cluster

_LARGEST: Final = 2**31 - 1  # Kafka's protocol has 32 bits for each of these

_GUARANTEE: Final = "pass delivery_guarantee"
_ALL_REPLICAS: Final = "every record waits for all in-sync replicas"
_BYTES: Final = "keys and values are bytes already"
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
        "partitioner.class": "pass partitioner; a shuffle has its own",
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

# `open_writer` takes other arguments than sinks and shuffles do.
_OPTIONS_OF_WRITER: Final = replace(
    _OPTIONS,
    refused={
        **_OPTIONS.refused,
        "acks": _ALL_REPLICAS,
        "enable.idempotence": "repeated requests write no record twice anyway",
        "transactional.id": "pass transactional_id",
    },
)

DeliveryGuarantee: TypeAlias = Literal["exactly_once", "at_least_once", "none"]


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
        return cls._checked(_OPTIONS.parse(options))

    @classmethod
    def parse_for_writer(cls, options: Mapping[str, str | int]) -> ProducerOptions:
        """Read those of `open_writer` in the same way."""
        return cls._checked(_OPTIONS_OF_WRITER.parse(options))

    @classmethod
    def _checked(cls, options: Mapping[str, Any]) -> ProducerOptions:
        parsed = cls(**options)
        if parsed.delivery_timeout < parsed.request_timeout:
            raise OptionError(
                f"delivery.timeout.ms={parsed.delivery_timeout * 1000:.0f} must be at least "
                f"request.timeout.ms={parsed.request_timeout * 1000:.0f}, which is one attempt"
            )
        return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of everything that writes to Kafka. All times are in seconds.

    Args:
        cluster: Where the brokers are, and how to connect to them.
        topic: The topic that is written to; it has to exist. None where each row names its own.
        delivery_guarantee: `"exactly_once"`, in transactions; `"at_least_once"`, which waits for
            all in-sync replicas, so that after a failure records may be there twice; or `"none"`,
            which waits for no answer (`acks=0`).
        transaction_timeout: Seconds after which brokers abort a transaction that is open, at least
            1; None is the most that they allow (`transaction.max.timeout.ms`).
        transactional_id_prefix: The beginning of the transactional id, for the brokers' ACLs.
        producer_options: Options of Kafka's producer by Kafka's names, such as
            `{"compression.type": "zstd"}`.
    """

    cluster: Cluster
    topic: str | None = None
    delivery_guarantee: DeliveryGuarantee = "exactly_once"
    transaction_timeout: float | None = None
    transactional_id_prefix: str = "fanout"
    producer_options: Mapping[str, str | int] = field(default_factory=dict, hash=False)

    @property
    def producing(self) -> ProducerOptions:
        """The producer options, parsed."""
        return ProducerOptions.parse(self.producer_options)

    def check_writing(self, *guarantees: DeliveryGuarantee) -> None:
        """Check the options of this class; one of these delivery guarantees must be chosen."""
        check_cluster(self.cluster)
        _ = self.producing  # checks it
        one_of("delivery_guarantee", self.delivery_guarantee, *guarantees)
        check_text("transactional_id_prefix", self.transactional_id_prefix, or_none=False)
        check_text("topic", self.topic)
        timeout = self.transaction_timeout
        if timeout is not None and not 1 <= number("transaction_timeout", timeout) < math.inf:
            raise OptionError(f"transaction_timeout={timeout} must be at least 1 second, or None")
