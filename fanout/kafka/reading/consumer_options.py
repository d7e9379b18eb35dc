"""The options of Kafka's consumer, by Kafka's dotted names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.errors import OptionError
from fanout.kafka.dotted_options import DottedOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = 2**31 - 1  # Kafka's protocol has 32 bits for each of these

# The ranges of Kafka's documentation of its consumer.
_NUMBERS = {
    "fetch.min.bytes": (1, _LARGEST),
    "fetch.max.bytes": (1, _LARGEST),
    "fetch.max.wait.ms": (1, _LARGEST),
    "max.partition.fetch.bytes": (1, _LARGEST),
    "request.timeout.ms": (1, _LARGEST),
    "connections.max.idle.ms": (1000, _LARGEST),
}

_DECODE = "values come as bytes; decode= converts a whole record batch"
_COMMITS = "offsets are committed after acknowledge where there is a group_id, never by a timer"
_ALONE = "partitions are assigned without group membership, so nothing is rebalanced"
_REFUSED = {
    "allow.auto.create.topics": "reading never creates a topic",
    "auto.commit.interval.ms": _COMMITS,
    "auto.offset.reset": "pass start, and on_data_loss for offsets that have expired",
    "check.crcs": "checksums are always checked",
    "client.rack": "pass client_rack",
    "default.api.timeout.ms": "pass request.timeout.ms for one call, and max_retries",
    "enable.auto.commit": _COMMITS,
    "exclude.internal.topics": "a pattern never matches an internal topic; name it in topics",
    "group.id": "pass group_id",
    "group.instance.id": _ALONE,
    "group.protocol": _ALONE,
    "heartbeat.interval.ms": _ALONE,
    "interceptor.classes": "a Java class cannot be used here; use decode",
    "isolation.level": "pass isolation_level",
    "key.deserializer": _DECODE,
    "max.poll.interval.ms": _ALONE,
    "max.poll.records": "pass max_records where you drain",
    "metadata.max.age.ms": "pass discovery_interval; leaders are refreshed when they move",
    "metric.reporters": "a Java class cannot be used here; read statistics()",
    "partition.assignment.strategy": _ALONE,
    "receive.buffer.bytes": "the operating system sizes its buffers",
    "send.buffer.bytes": "the operating system sizes its buffers",
    "session.timeout.ms": _ALONE,
    "value.deserializer": _DECODE,
}

_OPTIONS: Final = DottedOptions(
    whose="consumer",
    numbers=_NUMBERS,
    words={},
    refused=_REFUSED,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options of a consumer, parsed, by the names of Kafka's. Times are in seconds.

    All defaults but two are Kafka's. An answer has a fixed cost for each partition: with 2 MiB of a
    partition instead of 1, records of 1 KB take a sixth less processor time. An answer has 16 MiB
    instead of 50: where a broker leads many partitions, the memory of larger answers would be
    returned to the kernel each time, see `keep_freed_memory`. With 24 partitions both together save
    a fifth, and 2 MiB without that bound would cost a seventh.
    """

    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    fetch_max_wait: float = 0.5
    max_partition_fetch_bytes: int = 2 * 1024 * 1024
    request_timeout: float = 30.0
    connections_max_idle: float = 540.0

    @classmethod
    def parse(cls, options: Mapping[str, str | int]) -> ConsumerOptions:
        """Read options by their dotted names, numbers as such or as text."""
        parsed = cls(**_OPTIONS.parse(options))
        if parsed.fetch_max_wait >= parsed.request_timeout:
            raise OptionError(
                f"fetch.max.wait.ms={parsed.fetch_max_wait * 1000:.0f} must be less than "
                f"request.timeout.ms={parsed.request_timeout * 1000:.0f}, or an idle partition "
                "looks like a broker that is down"
            )
        return parsed
