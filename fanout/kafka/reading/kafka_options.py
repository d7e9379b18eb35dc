"""The options of sources of Kafka, and their checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from fanout.core.backoff import Backoff
from fanout.core.event_time import parse_event_time
from fanout.core.option_checks import check_memory, check_seconds, check_text, one_of
from fanout.core.positions import Committed, Horizon
from fanout.core.sentence import Option, Sentence
from fanout.core.source_options import SourceOptions
from fanout.core.starts import Chooser, PerSplit, parse_start
from fanout.core.user_decode import BatchDecoder, UserDecode, check_decode, check_on_bad_record
from fanout.errors import OptionError
from fanout.kafka.cluster import check_cluster
from fanout.kafka.intervals import KAFKA_INTERVALS
from fanout.kafka.reading.columns import NO_RECORDS, PLACES, SCHEMA, cursor_after
from fanout.kafka.reading.consumer_options import ConsumerOptions
from fanout.kafka.reading.offsets import DIALECT
from fanout.kafka.reading.selection import Selection, select
from fanout.kafka.reading.subscription import HEARTBEAT

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from fanout.core.backoff import Pacing
    from fanout.core.event_time import EventTime
    from fanout.core.positions import Cursor, Start
    from fanout.core.user_decode import OnBadRecord
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.partitions import Partition

    _Start: TypeAlias = Start | datetime | str

_BACKOFF: Final = Backoff(base=0.5, cap=5.0)

# Arrow counts the bytes of a column with 32 bits and a sign.
_LARGEST_EVENT = 2**31 - 1
_SUBSCRIBE_TIMEOUT = 60.0
# A subscription calls for the leader, perhaps at a second broker, for the end, and for an offset.
# Each call has to time out by itself, which closes its connection: the connection of an abandoned
# call would be used again.
_SUBSCRIBE_CALLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReadOptions(SourceOptions):
    """Options of every Kafka source; see also `SourceOptions`. All times are in seconds."""

    cluster: Cluster
    group_id: str | None = None
    client_rack: str | None = None
    decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    backoff: Backoff = _BACKOFF
    discovery_interval: float | None = 60.0
    consumer_options: Mapping[str, str | int] = field(default_factory=dict, hash=False)

    def check_client(self) -> None:
        """Check the options of this class."""
        self.check_reading()
        check_cluster(self.cluster)
        for name in ("group_id", "client_rack"):
            check_text(name, getattr(self, name))
        check_decode(self.decode)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions(KafkaReadOptions):
    """Options of a Kafka source; see also `KafkaReadOptions`. All times are in seconds.

    Exactly one of `topics`, `pattern` and `partitions` selects the partitions.

    Args:
        cluster: Where the brokers are, and how to connect to them; see `Cluster`.
        topics: One topic or several, with all their partitions, those that are added later too.
        pattern: A regular expression that the whole name of a topic matches; topics that are
            created later are found. It never means Kafka's own topics, such as
            `__consumer_offsets`.
        partitions: Single partitions, named like `"orders-0"`.
        start: The position to begin at where none is stored: `"earliest"`, `"latest"`,
            `"committed"` or `fanout.Committed(reset="earliest")`, or an aware datetime, for the
            first record that is not older, or the end where there is none. Or a mapping of
            partitions to any of these or to the offset to begin with, where `"*"` stands for those
            that are not named; or a function that returns one. All become offsets once, when the
            stream first opens.
            A partition that appears later is read from its beginning.
        stop: The end of a bounded read, as for `start`, without `"earliest"`: `"latest"` is the end
            when the stream is opened, and an offset is the first that is not read. None for an
            unbounded read.
        on_data_loss: The reaction to records or topics that were deleted before they were read:
            `"fail"`, or `"earliest"` to continue with the oldest record that is left. The gap is
            logged as an error and counted.
        isolation_level: `"read_committed"` delivers records outside of transactions and those of
            committed ones; `"read_uncommitted"` delivers all.
        group_id: The consumer group whose offsets are committed after records are acknowledged, so
            that tools show the lag; None commits nothing. The group needs no members, and its
            offsets are read only where `start` or `stop` is `"committed"`.
        client_rack: The rack of this client, so that it reads from a replica in the same rack.
        discovery_interval: The time between two listings of topics and partitions; None for no
            further listing. A bounded read lists them once.
        decode: Turns a record batch of one partition into other columns. It may leave rows out, and
            keeps the columns `topic`, `partition` and `offset`; it runs on the event loop.
        on_bad_record: The reaction to a record that `decode` raises for: `"fail"` ends the stream;
            `"gap"` leaves it out, logs it and counts it in `statistics().gaps`; an async function
            gets the `fanout.BadRecords` of a batch before the batch is delivered without them. An
            error of that function ends the stream, and a record may come to it again.
            Where `decode` raises `fanout.RetryLaterError`, no record is bad.
        event_time: The source of watermarks, an `EventTime`; its column is the record's timestamp
            unless it names another of those that `decode` returns. None for no watermarks.
        backoff: How the waits between attempts grow; see `Backoff`. A broker that starts again is
            found after its `cap` at the latest.
        max_retries: Failures in a row without progress after which a partition fails; None for
            never.
        silence_timeout: The longest time without an answer for a partition, empty ones included,
            before it is subscribed to anew; more than `request.timeout.ms` and 5 seconds.
        max_event_bytes: The largest batch of records that is accepted, decompressed; less than
            2 GiB.
        max_bytes_in_flight: The bytes of all partitions together that may wait for the consumer.
        consumer_options: Options of Kafka's consumer by the names that Kafka users know, such as
            `{"fetch.max.bytes": 1 << 20}`; see `fanout.kafka.reading.consumer_options`.

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
    on_bad_record: OnBadRecord = "fail"
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
        """The consumer options, parsed."""
        return ConsumerOptions.parse(self.consumer_options)

    @property
    def user_decode(self) -> UserDecode | None:
        """The user's `decode`, after a first call."""
        return None if self.decode is None else UserDecode(self.decode, NO_RECORDS, PLACES)

    @property
    def decoder(self) -> BatchDecoder | None:
        """What decodes batches; None without `decode`."""
        decode = self.user_decode
        return None if decode is None else BatchDecoder(decode, self.on_bad_record, cursor_after)

    @property
    def selection(self) -> Selection:
        """The topics and partitions that are read."""
        return select(self.topics, self.pattern, self.partitions)

    @property
    def pacing(self) -> Pacing:
        """The timing of the subscriber and the discovery."""
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
        """Check the start and the stop, and that `"committed"` has a group."""
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
                raise OptionError(
                    Sentence.of("{stop='earliest'} would read nothing; name another stop")
                )
            if self.group_id is None and any(isinstance(kind, Committed) for kind in kinds):
                raise OptionError(
                    Option(option, "committed"),
                    Sentence.of(" needs {group_id}, the group of the commits"),
                )

    def _check_words(self) -> None:
        check_on_bad_record(self.on_bad_record, self.decode)
        one_of("on_data_loss", self.on_data_loss, "fail", "earliest")
        one_of("isolation_level", self.isolation_level, "read_committed", "read_uncommitted")

    def _check_numbers(self) -> None:
        check_seconds("silence_timeout", self.silence_timeout)
        # A broker that does not answer is reported as its own error, which names the broker.
        least = HEARTBEAT + self.fetching.request_timeout
        if self.silence_timeout <= least:
            raise OptionError(
                Option("silence_timeout", self.silence_timeout),
                f" must be more than {least:g} seconds: an idle partition is reported every "
                f"{HEARTBEAT:g} s, by an answer that may take request.timeout.ms",
            )
        check_memory(self.max_event_bytes, self.max_bytes_in_flight)
        if self.max_event_bytes > _LARGEST_EVENT:
            raise OptionError(
                Option("max_event_bytes", self.max_event_bytes),
                " must be less than 2 GiB, the limit of a column of Arrow",
            )
