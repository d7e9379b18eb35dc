"""The options of a source of a share group."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from fanout.core.option_checks import at_least_one, check_mapping, check_text, one_of, whole
from fanout.core.user_decode import UserDecode
from fanout.errors import OptionError
from fanout.kafka.intervals import KAFKA_INTERVALS
from fanout.kafka.reading.columns import PLACES
from fanout.kafka.reading.kafka_options import KafkaReadOptions
from fanout.kafka.reading.selection import select
from fanout.kafka.security import Security
from fanout.kafka.share.client_options import ClientOptions, security_properties
from fanout.kafka.share.poll_columns import NO_RECORDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.backoff import Pacing

_SUBSCRIBE_TIMEOUT: Final = 60.0
_MAX_MEMBERS: Final = 1000
# Milliseconds. A member that does not poll for so long is expelled; it joins again when it polls.
_POLL_INTERVAL: Final = 86_400_000

SETTINGS: Final = (
    "share.auto.offset.reset",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.isolation.level",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOptions(KafkaReadOptions):
    """The options of a source of a share group. All times are in seconds.

    Args:
        cluster: The brokers, and how to connect to them; see `Cluster`.
        topics: One topic or several, by their names.
        group_id: The share group.
        consumers: The number of members that this source adds to the group; there may be more
            members than partitions. Each has a thread of its own.
        max_poll_records: About how many records a member receives at a time, and holds until they
            are acknowledged; a broker rounds up to whole producer batches.
        group_settings: Settings of the group, such as `{"share.auto.offset.reset": "earliest"}`,
            that are set when the source connects: permanently, and for every member. None leaves
            the settings as they are.
        decode: Turns the records of one partition into other columns, one record batch in a call.
            It may leave rows out, which are then accepted, and keeps the columns `topic`,
            `partition` and `offset`. It runs on the event loop. With `"dead_letter"` it is called
            again with parts of a batch that has a bad record.
        on_bad_record: What to do with a record that `decode` fails for, or that was delivered more
            than `max_deliveries` times: `"fail"` ends the stream; `"dead_letter"` writes it to
            `dead_letter_topic` and rejects it.
        dead_letter_topic: The topic for bad records and for records that the user rejects; None
            for no topic. It must exist.
        max_deliveries: How often a record may be delivered before it is bad; less than the group's
            `share.delivery.count.limit`, at which a broker drops the record without an error. None
            for that limit alone.
        client_rack: The rack that this client is in.
        discovery_interval: The time between two checks that the topics still exist; None for no
            checks.
        backoff: How the waits between attempts grow; see `Backoff`.
        max_retries: Failures in a row without progress after which a member fails; None for never.
        max_bytes_in_flight: The bytes of all members together that may wait for the reader.
        consumer_options: Options of Kafka's consumer by Kafka's names, such as
            `{"fetch.max.bytes": 1 << 20}`; see `fanout.kafka.share.client_options`.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    topics: str | Sequence[str]
    group_id: str
    consumers: int = 1
    max_poll_records: int = 500
    group_settings: Mapping[str, str | int] | None = field(default=None, hash=False)
    on_bad_record: Literal["fail", "dead_letter"] = "fail"
    dead_letter_topic: str | None = None
    max_deliveries: int | None = None

    def __post_init__(self) -> None:
        self.check_client()
        _ = self.topic_names, self.client_options.properties()  # checks them
        if isinstance(self.cluster.security, Security):  # a function may block, so it comes later
            security_properties(self.cluster.security)
        self._check_texts()
        self._check_numbers()
        self._check_bad_records()
        self._check_settings()
        _ = self.user_decode  # calls decode once

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The names of the topics, sorted."""
        return tuple(sorted(select(self.topics, None, None).topics))

    @property
    def client_options(self) -> ClientOptions:
        """The parsed `consumer_options`."""
        return ClientOptions.parse(self.consumer_options)

    @property
    def user_decode(self) -> UserDecode | None:
        """The user's `decode`, after a trial call without records; None if there is none."""
        return None if self.decode is None else UserDecode(self.decode, NO_RECORDS, PLACES)

    @property
    def pacing(self) -> Pacing:
        """The limits on calls, and the timeouts."""
        intervals = KAFKA_INTERVALS.current
        return self.make_pacing(
            floor=intervals.subscribe,
            slow=intervals.manual,
            subscribe_timeout=_SUBSCRIBE_TIMEOUT,
            # A member yields nothing while there are no records.
            silence_timeout=math.inf,
        )

    def client_properties(self, member: int, security: Security) -> dict[str, Any]:
        """Return the configuration of a member's client, by librdkafka's names."""
        rack = {} if self.client_rack is None else {"client.rack": self.client_rack}
        return {
            "bootstrap.servers": ",".join(self.cluster.servers),
            "group.id": self.group_id,
            "client.id": f"{self.cluster.client_id}-member-{member}",
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": self.max_poll_records,
            "max.poll.interval.ms": _POLL_INTERVAL,
            **rack,
            **self.client_options.properties(),
            **security_properties(security),
        }

    def _check_texts(self) -> None:
        check_text("group_id", self.group_id, or_none=False)
        check_text("dead_letter_topic", self.dead_letter_topic)

    def _check_numbers(self) -> None:
        for name, most in (("consumers", _MAX_MEMBERS), ("max_poll_records", 2**31 - 1)):
            if not 1 <= whole(name, getattr(self, name)) <= most:
                raise OptionError(f"{name}={getattr(self, name)} must be from 1 to {most}")

    def _check_bad_records(self) -> None:
        one_of("on_bad_record", self.on_bad_record, "fail", "dead_letter")
        at_least_one("max_deliveries", self.max_deliveries, or_none=True)
        if self.on_bad_record == "dead_letter" and self.dead_letter_topic is None:
            raise OptionError("on_bad_record='dead_letter' needs dead_letter_topic")
        if self.dead_letter_topic in self.topic_names:
            raise OptionError(
                f"dead_letter_topic={self.dead_letter_topic!r} is one of the topics: a bad record "
                f"would be read again, for ever"
            )

    def _check_settings(self) -> None:
        check_mapping("group_settings", self.group_settings)
        for name in self.group_settings or {}:
            if name not in SETTINGS:
                raise OptionError(
                    f"group_settings has {name!r}, which is no setting of a share group; those are "
                    f"{', '.join(SETTINGS)}"
                )
