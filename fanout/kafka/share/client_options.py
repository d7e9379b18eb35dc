"""Options of a share consumer: parse Kafka's names, and translate them for librdkafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from fanout.errors import OptionError
from fanout.kafka.dotted_options import DottedOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.security import Security

_LARGEST: Final = 2**31 - 1

_BROKER: Final = "the broker assigns partitions, each to several members"
_NO_COMMITS: Final = "no offset is committed: each record is accepted, released or rejected"
_GROUP: Final = "it is a setting of the group: pass group_settings={{'{0}': ...}}"
_POLLING: Final = "a member polls by itself"
_DECODE: Final = "values are bytes; use decode= to turn a record batch into other columns"

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
        "auto.commit.interval.ms": _NO_COMMITS,
        "auto.offset.reset": _GROUP.format("share.auto.offset.reset"),
        "check.crcs": "checksums are always checked",
        "client.rack": "pass client_rack",
        "enable.auto.commit": _NO_COMMITS,
        "enable.auto.offset.store": _NO_COMMITS,
        "enable.partition.eof": "a member of a share group does not see the end of a partition",
        "group.id": "pass group_id",
        "group.instance.id": "a member of a share group has no static membership",
        "group.protocol": "a share group has a protocol of its own",
        "group.remote.assignor": _BROKER,
        "heartbeat.interval.ms": _GROUP.format("share.heartbeat.interval.ms"),
        "interceptor.classes": "Java classes cannot be used; use decode",
        "isolation.level": _GROUP.format("share.isolation.level"),
        "key.deserializer": _DECODE,
        "max.partition.fetch.bytes": "set fetch.max.bytes, and pass max_poll_records",
        "max.poll.interval.ms": _POLLING,
        "max.poll.records": "pass max_poll_records",
        "metadata.max.age.ms": "pass discovery_interval, in seconds",
        "partition.assignment.strategy": _BROKER,
        "session.timeout.ms": _GROUP.format("share.session.timeout.ms"),
        "share.acknowledgement.mode": "it is always explicit",
        "value.deserializer": _DECODE,
    },
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The parsed options. Times are in seconds; all defaults but one are Kafka's.

    `fetch_max_bytes` is smaller than Kafka's, because the records of a response are locked.
    """

    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    fetch_max_wait: float = 0.5
    request_timeout: float = 30.0

    # Kafka's default, for the connections of admin requests.
    connections_max_idle: float = 540.0

    @classmethod
    def parse(cls, options: Mapping[str, str | int]) -> ClientOptions:
        """Parse options by their dotted names, with numbers as such or as text."""
        parsed = cls(**_OPTIONS.parse(options))
        if parsed.fetch_max_wait >= parsed.request_timeout:
            raise OptionError(
                f"fetch.max.wait.ms={parsed.fetch_max_wait * 1000:.0f} must be less than "
                f"request.timeout.ms={parsed.request_timeout * 1000:.0f}"
            )
        return parsed

    def properties(self) -> dict[str, Any]:
        """Return the options by librdkafka's names."""
        return {
            "fetch.min.bytes": self.fetch_min_bytes,
            "fetch.max.bytes": self.fetch_max_bytes,
            "fetch.wait.max.ms": round(self.fetch_max_wait * 1000),
            "socket.timeout.ms": round(self.request_timeout * 1000),
        }


def security_properties(security: Security) -> dict[str, Any]:
    """Return the security options by librdkafka's names; it gets a token by a function."""
    if security.ssl_context is not None:
        raise OptionError(
            "ssl_context is not for a share group, whose client reads files: pass ca_file, "
            "certificate_file and key_file"
        )
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
