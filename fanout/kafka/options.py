"""What a user says about a Kafka source, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from fanout.core.event_time import parse_event_time
from fanout.core.option_checks import check_memory, one_of
from fanout.core.positions import Committed, Horizon
from fanout.core.source_options import check_seconds
from fanout.core.starts import Chooser, PerSplit, parse_start
from fanout.errors import OptionError
from fanout.kafka.consumer_options import ConsumerOptions
from fanout.kafka.intervals import KAFKA_INTERVALS
from fanout.kafka.read_options import KafkaReadOptions
from fanout.kafka.reading.columns import SCHEMA
from fanout.kafka.reading.offsets import DIALECT
from fanout.kafka.reading.subscription import HEARTBEAT
from fanout.kafka.reading.user_decode import UserDecode
from fanout.kafka.selection import Selection, select

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from fanout.core.backoff import Pacing
    from fanout.core.event_time import EventTime
    from fanout.core.positions import Cursor, Start
    from fanout.kafka.partitions import Partition

    _Start: TypeAlias = Start | datetime | str

__all__ = ("KafkaOptions",)


# Arrow counts the bytes of a column with 32 bits and a sign.
_LARGEST_EVENT = 2**31 - 1
_SUBSCRIBE_TIMEOUT = 60.0
# To subscribe is to ask for the leader, perhaps a second broker, for the end, and for an offset.
# Each call has to time out by itself, which closes its connection: that of one that is only given
# up would be used again.
_SUBSCRIBE_CALLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions(KafkaReadOptions):
    """Everything that a Kafka source can be told. All times are in seconds.

    Exactly one of `topics`, `pattern` and `partitions` says what is read.

    Args:
        cluster: Where the brokers are, and how to connect to them; see `Cluster`.
        topics: One topic or several, with all their partitions, those that are added later too.
        pattern: A regular expression that the whole name of a topic matches; topics that are
            created later are found. It never means Kafka's own topics, such as
            `__consumer_offsets`.
        partitions: Single partitions, named like `"orders-0"`.
        start: Where to begin where nothing is stored: `"earliest"`, `"latest"`, `"committed"` or
            `fanout.Committed(reset="earliest")`, or an aware datetime, for the first record that
            is not older, or the end where there is none. Or a mapping of partitions to any of
            these or to the offset to begin with, where `"*"` stands for those that are not named;
            or a function that returns one. All become offsets once, when the stream first opens.
            A partition that appears later is read from its beginning.
        stop: Where a bounded read ends, in the same words, without `"earliest"`: `"latest"` is the
            end as it is when the stream is opened, and an offset is the first that is not read.
            None reads for ever.
        on_data_loss: What to do where records have been deleted before they were read, or a topic
            was: `"fail"`, or `"earliest"` to go on with the oldest record that is left. The gap is
            logged as an error and counted.
        isolation_level: `"read_committed"` delivers what is not, or no longer, part of an open
            transaction, and nothing that was aborted; `"read_uncommitted"` delivers everything.
        group_id: The consumer group whose offsets are committed after records are acknowledged,
            so that people see how far the reader is; None commits nothing. The group needs no
            members, and nothing is read from it unless `start` or `stop` says so.
        client_rack: The rack that this client is in, so that brokers let it read from a replica
            that is near.
        discovery_interval: The time between two listings of topics and partitions; None for no
            further listing. A bounded read lists them once.
        decode: Turns records of one partition, as they came, into what is wanted of them, a whole
            record batch in one call. It may leave rows out, and keeps the columns `topic`,
            `partition` and `offset`; it runs on the event loop.
        event_time: What watermarks are taken from, an `EventTime`; its column is the record's
            timestamp unless it names another of those that `decode` returns. None for no
            watermarks.
        backoff: How the waits between attempts grow; see `Backoff`. A broker that starts again is
            found after its `cap` at the latest.
        max_retries: Failures in a row without progress after which a partition fails; None for
            never.
        silence_timeout: How long nothing may come of a partition, not even that there is nothing,
            before it is subscribed to anew; more than `request.timeout.ms` and 5 seconds.
        max_event_bytes: The largest batch of records that is accepted, decompressed; less than
            2 GiB.
        max_bytes_in_flight: The bytes of all partitions together that may wait for the consumer.
        consumer_options: Options of Kafka's consumer by the names that Kafka users know, such as
            `{"fetch.max.bytes": 1 << 20}`; see `fanout.kafka.consumer_options`.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    topics: str | Sequence[str] | None = None
    pattern: str | re.Pattern[str] | None = None
    partitions: Sequence[str | Partition] | None = None
    start: _Start | Mapping[str, _Start | Cursor | int] | PerSplit | Chooser = field(
        default_factory=Horizon
    )
    stop: _Start | Mapping[str, _Start | Cursor | int] | PerSplit | Chooser | None = None
    on_data_loss: Literal["fail", "earliest"] = "fail"
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    event_time: EventTime | None = None
    silence_timeout: float = 60.0
    max_event_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        self.check_client()
        _ = self.selection, self.fetching  # checks what is read, and how
        self._check_words()
        self._check_places()
        self._check_numbers()
        decode = self.user_decode  # calls it once
        schema = SCHEMA if decode is None else decode.schema
        event_time = parse_event_time(self.event_time, schema, default="timestamp")
        object.__setattr__(self, "event_time", event_time)

    @property
    def fetching(self) -> ConsumerOptions:
        """What the options of Kafka's consumer mean here."""
        return ConsumerOptions.parse(self.consumer_options)

    @property
    def user_decode(self) -> UserDecode | None:
        """The user's own step, after a first call."""
        return None if self.decode is None else UserDecode(self.decode)

    @property
    def selection(self) -> Selection:
        """What is read."""
        return select(self.topics, self.pattern, self.partitions)

    @property
    def pacing(self) -> Pacing:
        """The options that the subscriber and the discovery go by."""
        intervals = KAFKA_INTERVALS.current
        return self.make_pacing(
            floor=intervals.subscribe,
            slow=intervals.manual,
            subscribe_timeout=max(
                _SUBSCRIBE_TIMEOUT, _SUBSCRIBE_CALLS * self.fetching.request_timeout
            ),
            silence_timeout=self.silence_timeout,
        )

    def _check_places(self) -> None:
        """Check the start and the stop, and that they know whose commits they speak of."""
        for option in ("start", "stop"):
            given = getattr(self, option)
            if given is None and option == "stop":
                continue
            place = parse_start(given, DIALECT, option=option)
            object.__setattr__(self, option, place)
            kinds: list[object] = [place]
            if isinstance(place, PerSplit):
                kinds = [place.others, *dict(place.named).values()]
            if option == "stop" and any(isinstance(kind, Horizon) for kind in kinds):
                raise OptionError("stop='earliest' would read nothing; name another stop")
            if self.group_id is None and any(isinstance(kind, Committed) for kind in kinds):
                raise OptionError(f"{option}='committed' needs group_id, whose commits are meant")

    def _check_words(self) -> None:
        one_of("on_data_loss", self.on_data_loss, "fail", "earliest")
        one_of("isolation_level", self.isolation_level, "read_committed", "read_uncommitted")

    def _check_numbers(self) -> None:
        check_seconds("silence_timeout", self.silence_timeout)
        # A broker that does not answer is an error of its own, which says more.
        least = HEARTBEAT + self.fetching.request_timeout
        if self.silence_timeout <= least:
            raise OptionError(
                f"silence_timeout={self.silence_timeout} must be more than {least:g} seconds: an "
                f"idle partition tells so every {HEARTBEAT:g} s, by an answer that may take "
                f"request.timeout.ms"
            )
        check_memory(self.max_event_bytes, self.max_bytes_in_flight)
        if self.max_event_bytes > _LARGEST_EVENT:
            raise OptionError(
                f"max_event_bytes={self.max_event_bytes} must be less than 2 GiB, which is what a "
                f"column of Arrow can hold"
            )
