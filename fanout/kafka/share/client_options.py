"""The options of a share consumer by the names that Kafka users know, and librdkafka's for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from fanout.errors import OptionError
from fanout.kafka.dotted_options import DottedOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.security import Security

__all__ = ("ClientOptions", "security_properties")

_LARGEST: Final = 2**31 - 1

_BROKER: Final = "the broker assigns partitions to members, and one to many of them"
_ANSWERS: Final = "nothing is committed: a record is accepted, released or rejected by itself"
_GROUP: Final = "it is a setting of the group: say group_settings={{'{0}': ...}}"
_THREAD: Final = "a member polls whenever it may"
_DECODE: Final = "values come as bytes; decode= makes of a whole record batch what you need"
_WAITS: Final = "pass backoff=fanout.Backoff(base=..., cap=...), in seconds"

_OPTIONS: Final = DottedOptions(
    whose="consumer",
    numbers={
        "fetch.min.bytes": (1, _LARGEST),
        "fetch.max.bytes": (1, _LARGEST - 512),
        "fetch.max.wait.ms": (1, 300_000),
        "request.timeout.ms": (10, 300_000),
    },
    words={},
    refused={
        "allow.auto.create.topics": "reading never creates a topic",
        "auto.commit.interval.ms": _ANSWERS,
        "auto.offset.reset": _GROUP.format("share.auto.offset.reset"),
        "bootstrap.servers": "pass cluster=Cluster(servers)",
        "check.crcs": "checksums are always checked",
        "client.id": "pass Cluster(..., client_id=...)",
        "client.rack": "say client_rack",
        "enable.auto.commit": _ANSWERS,
        "enable.auto.offset.store": _ANSWERS,
        "enable.partition.eof": "a share group has no end that one member could see",
        "group.id": "say group_id",
        "group.instance.id": "a member of a share group has no place to come back to",
        "group.protocol": "a share group has a protocol of its own",
        "group.remote.assignor": _BROKER,
        "heartbeat.interval.ms": _GROUP.format("share.heartbeat.interval.ms"),
        "interceptor.classes": "a Java class means nothing here; use decode",
        "isolation.level": _GROUP.format("share.isolation.level"),
        "key.deserializer": _DECODE,
        "max.partition.fetch.bytes": "say fetch.max.bytes, and max_poll_records",
        "max.poll.interval.ms": _THREAD,
        "max.poll.records": "say max_poll_records",
        "metadata.max.age.ms": "say discovery_interval, in seconds",
        "partition.assignment.strategy": _BROKER,
        "reconnect.backoff.max.ms": _WAITS,
        "reconnect.backoff.ms": _WAITS,
        "retry.backoff.max.ms": _WAITS,
        "retry.backoff.ms": _WAITS,
        "security.protocol": "pass Cluster(..., security=Security(protocol=...))",
        "session.timeout.ms": _GROUP.format("share.session.timeout.ms"),
        "share.acknowledgement.mode": "it is always explicit",
        "value.deserializer": _DECODE,
    },
    refused_prefixes={
        "sasl.": "pass Cluster(..., security=Security(username=..., password=..., mechanism=...))",
        "ssl.": "pass Cluster(..., security=Security(ca_file=..., certificate_file=...))",
    },
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What the options mean here. Times are in seconds; the defaults are Kafka's but one.

    Args:
        fetch_min_bytes: Bytes that a broker waits for before it answers (`fetch.min.bytes`).
        fetch_max_bytes: About how many bytes an answer may have (`fetch.max.bytes`); the default
            is smaller than Kafka's, because what an answer has is locked.
        fetch_max_wait: How long a broker may wait for them (`fetch.max.wait.ms`).
        request_timeout: How long a broker may take to answer (`request.timeout.ms`).
    """

    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    fetch_max_wait: float = 0.5
    request_timeout: float = 30.0

    # A member has one connection to each broker that it reads from; as long as in Kafka.
    connections_max_idle: float = 540.0

    @classmethod
    def parse(cls, options: Mapping[str, str | int]) -> ClientOptions:
        """Read options by their dotted names, numbers as such or as text.

        Raises:
            OptionError: An option is unknown, refused, no such value, or contradicts another.
        """
        parsed = cls(**_OPTIONS.parse(options))
        if parsed.fetch_max_wait >= parsed.request_timeout:
            raise OptionError(
                f"fetch.max.wait.ms={parsed.fetch_max_wait * 1000:.0f} must be less than "
                f"request.timeout.ms={parsed.request_timeout * 1000:.0f}"
            )
        return parsed

    def properties(self) -> dict[str, Any]:
        """Return them by librdkafka's names."""
        return {
            "fetch.min.bytes": self.fetch_min_bytes,
            "fetch.max.bytes": self.fetch_max_bytes,
            "fetch.wait.max.ms": round(self.fetch_max_wait * 1000),
            "socket.timeout.ms": round(self.request_timeout * 1000),
        }


def security_properties(security: Security) -> dict[str, Any]:
    """Return by librdkafka's names how brokers are talked to.

    Raises:
        OptionError: If librdkafka cannot be told so.
    """
    if security.ssl_context is not None:
        raise OptionError(
            "ssl_context is not for a share group, whose client reads files: say ca_file, "
            "certificate_file and key_file"
        )
    if security.token is not None:
        raise OptionError("token is not for a share group yet: say a username and a password")
    named = {
        "security.protocol": security.protocol,
        "sasl.mechanisms": security.sasl,
        "sasl.username": security.username,
        "sasl.password": security.password,
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.certificate_file,
        # A certificate's file may hold its key as well.
        "ssl.key.location": security.key_file or security.certificate_file,
        "ssl.key.password": security.key_password,
    }
    return {name: str(value) for name, value in named.items() if value is not None}
