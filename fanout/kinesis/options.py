"""The options of a Kinesis source, and their checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from fanout.core.backoff import Backoff, Pacing
from fanout.core.event_time import parse_event_time
from fanout.core.option_checks import (
    as_sequence,
    check_memory,
    check_seconds,
    check_strings,
    one_of,
)
from fanout.core.positions import Latest
from fanout.core.sentence import Option, Suggestion
from fanout.core.source_options import SourceOptions
from fanout.core.starts import parse_start
from fanout.core.user_decode import BatchDecoder, UserDecode, check_decode, check_on_bad_record
from fanout.errors import OptionError
from fanout.kinesis.aws.api import CONSUMER_ARN, NAME, STREAM_ARN
from fanout.kinesis.aws.endpoint import HTTP_VERSIONS, check_endpoint
from fanout.kinesis.aws.role import AssumedRole
from fanout.kinesis.intervals import KINESIS_INTERVALS
from fanout.kinesis.reading.decode import NO_RECORDS, PLACES, SCHEMA, cursor_after
from fanout.kinesis.reading.event_stream import MAX_FRAME_BYTES
from fanout.kinesis.starting_position import DIALECT

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    import pyarrow as pa

    from fanout.core.event_time import EventTime
    from fanout.core.positions import Cursor, Start
    from fanout.core.starts import Chooser, PerSplit
    from fanout.core.user_decode import OnBadRecord

    _Start: TypeAlias = Start | datetime | str

# The options that are strings, and those that are positive numbers of seconds.
_STRINGS = (
    "consumer",
    "region",
    "endpoint_url",
    "role_arn",
    "external_id",
    "role_session_name",
)
_SECONDS = ("subscribe_timeout", "silence_timeout", "discovery_interval")

# AWS API reference, RegisterStreamConsumer and TagResource.
_MAX_TAGS: Final = 50
_TAG_KEY: Final = re.compile(r"[\w\s.:/=+@-]{1,128}")
_TAG_VALUE: Final = re.compile(r"[\w\s.:/=+@-]{0,256}")

_BACKOFF = Backoff(base=1.0, cap=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisOptions(SourceOptions):
    """Options of a Kinesis source; see also `SourceOptions`. All times are in seconds.

    Args:
        stream: The stream's name or ARN; or a sequence of several streams. Then the shards are
            named like `"orders/shardId-000000000000"`.
        shards: The shards to read, by id, and from then on their children; None for all. So several
            readers divide a stream. The child of a merge has two parents, and is read where the one
            with the lower id is. Where several streams are read, an id may have the name of one and
            a slash before it, and is otherwise that of a shard of each of them.
        consumer: The enhanced fan-out consumer: an ARN is used as it is; a name is registered on
            each stream unless it exists. It may be left out where `mode` is `"polling"`, which uses
            none: `consumer`, `tags` and `deregister` then have no effect.
        mode: `"efo"`, enhanced fan-out, or `"polling"`, by GetRecords. Positions are the same in
            both, so that a stream can change between two runs.
        start: The position to begin at where none is stored: `"TRIM_HORIZON"`, `"LATEST"`, or an
            aware datetime. Latest is pinned to the service's clock once, when the stream first
            opens. Or a mapping of shard ids to any of these or to a sequence number, after which
            the shard is read; `"*"` stands for all shards that are not named, and where several
            streams are read the name of one for all of its shards. Or a function from
            the sequence of shards to such a mapping, called once, when the stream first opens.
        on_data_loss: The reaction to records that expired before they were read: `"fail"`, or
            `"earliest"` to continue with the oldest record that is left. The gap is logged as an
            error and counted.
        on_bad_aggregate: The reaction to an aggregated record that breaks its format or a limit:
            `"fail"` ends the stream with an error that names it; `"gap"` leaves it out, logs it,
            counts it in `statistics().gaps`, and delivers everything around it.
        on_bad_frame: The reaction to a frame of a subscription that cannot be decoded in three
            answers: `"fail"` ends the stream; `"gap"` drops it, logs it, counts it in
            `statistics().gaps`, and continues behind it. A frame whose length is damaged always
            ends the stream, because the beginning of the next frame is unknown.
        tags: The tags of the consumer, set when it is registered; an existing one keeps its own.
        deregister: `"never"`, or `"on_close"` to deregister the consumer when the stream closes.
            It is deregistered only where this stream has registered it: a consumer that existed
            may serve other readers. After a crash the consumer stays, and the next run adopts it.
        subscribe_timeout: The longest time of a subscribe call, or in polling of the first two
            calls.
        silence_timeout: The longest time without an event of a live subscription; the service sends
            a heartbeat about every 5 seconds. In polling, the longest time of an answer. There 5
            seconds are added to both timeouts, for the pause that a shard may need before a call.
        backoff: How the waits between attempts grow; see `Backoff`.
        max_retries: Failures in a row without progress after which a shard fails; None for never.
        discovery_interval: The time between two listings of the shards.
        decode: Turns a record batch of one shard into other columns. It may leave rows out, and
            keeps the columns `shardId`, `sequenceNumber` and `subSequenceNumber`. It runs on the
            event loop. None for the columns of Kinesis.
        on_bad_record: The reaction to a record that `decode` raises for: `"fail"` ends the stream;
            `"gap"` leaves it out, logs it and counts it in `statistics().gaps`; an async function
            gets the `fanout.BadRecords` of a batch before the batch is delivered without them. An
            error of that function ends the stream, and a record may come to it again.
            Where `decode` raises `fanout.RetryLaterError`, no record is bad.
        event_time: The source of watermarks, an `EventTime`; its column is the arrival time of a
            record unless it names another of those that `decode` returns. None for no watermarks.
        max_event_bytes: The largest event that is accepted, in bytes on the wire.
        max_bytes_in_flight: The bytes of all shards together that may wait for the consumer.
        region: The AWS region; None takes it from the ARN, else from the session.
        endpoint_url: An endpoint instead of the region's.
        session: An `aioboto3.Session`; None makes one from the environment.
        role_arn: A role to assume, refreshed before it expires.
        external_id: The external id that the trust policy of the role asks for.
        role_session_name: The name of this reader in the logs of the role's account; None for
            `"fanout"`.
        insecure: Allow plain http to a host that is not this machine.
        http_version: The version of HTTP that subscriptions use: 1.1, or 2, which needs the extra
            `http2`. All other calls use 1.1.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    stream: str | Sequence[str]
    shards: str | Sequence[str] | None = None
    consumer: str | None = None
    mode: Literal["efo", "polling"] = "efo"
    start: _Start | Mapping[str, _Start | Cursor] | PerSplit | Chooser = field(
        default_factory=Latest
    )
    on_data_loss: Literal["fail", "earliest"] = "fail"
    on_bad_aggregate: Literal["fail", "gap"] = "fail"
    on_bad_frame: Literal["fail", "gap"] = "fail"
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    deregister: Literal["never", "on_close"] = "never"
    subscribe_timeout: float = 60.0
    silence_timeout: float = 35.0
    backoff: Backoff = _BACKOFF
    discovery_interval: float = 10.0
    decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    on_bad_record: OnBadRecord = "fail"
    event_time: EventTime | None = None
    max_event_bytes: int = MAX_FRAME_BYTES
    region: str | None = None
    endpoint_url: str | None = None
    session: Any = field(default=None, repr=False, compare=False)
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    role_session_name: str | None = None
    insecure: bool = False
    http_version: float = HTTP_VERSIONS[0]

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", parse_start(self.start, DIALECT))
        object.__setattr__(self, "tags", check_tags(self.tags))
        check_decode(self.decode)
        check_on_bad_record(self.on_bad_record, self.decode)
        decode = self.user_decode  # calls it once
        event_time = parse_event_time(
            self.event_time,
            SCHEMA if decode is None else decode.schema,
            default="approximateArrivalTimestamp",
        )
        object.__setattr__(self, "event_time", event_time)
        self._check_names()
        if self.shards is not None:
            object.__setattr__(self, "shards", _check_shards(self.shards, self.stream_names))
        _ = self.role  # checks its options
        self._check_lifecycle()
        self._check_numbers()
        one_of("on_bad_aggregate", self.on_bad_aggregate, "fail", "gap")
        one_of("on_bad_frame", self.on_bad_frame, "fail", "gap")
        one_of("on_data_loss", self.on_data_loss, "fail", "earliest")
        if self.http_version not in HTTP_VERSIONS:
            raise OptionError(Option("http_version", self.http_version), " must be 1.1 or 2")
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url, insecure=self.insecure)

    @property
    def streams(self) -> tuple[str, ...]:
        """The name or ARN of each stream."""
        return (self.stream,) if isinstance(self.stream, str) else tuple(self.stream)

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The name of each stream."""
        return tuple(stream.rpartition("/")[2] for stream in self.streams)

    @property
    def only_stream(self) -> str:
        """The name or ARN of the stream, for what can be done with one alone."""
        if not isinstance(self.stream, str):
            raise OptionError(Option("stream", self.stream), " must be one stream here")
        return self.stream

    @property
    def resolved_region(self) -> str | None:
        """The region that the options name, directly or inside an ARN."""
        for arn in (*self.streams, self.consumer):
            if arn is not None and (match := STREAM_ARN.match(arn)):
                return match["region"]
        return self.region

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
    def role(self) -> AssumedRole | None:
        """The role to assume."""
        return AssumedRole.parse(self.role_arn, self.external_id, self.role_session_name)

    @property
    def pacing(self) -> Pacing:
        """The timing of the subscriber and the discovery."""
        polling = self.mode == "polling"
        intervals = KINESIS_INTERVALS.current
        # A pause of this reader is not a silence of the service.
        rest = intervals.longest_rest if polling else 0.0
        return self.make_pacing(
            floor=intervals.poll if polling else intervals.subscribe,
            spacing=0.0 if polling else intervals.takeover,
            # What another process has just read of a polled shard is not known here.
            handover=intervals.longest_rest if polling else intervals.subscribe,
            slow=intervals.manual,
            subscribe_timeout=self.subscribe_timeout + rest,
            silence_timeout=self.silence_timeout + rest,
        )

    def _check_numbers(self) -> None:
        self.check_reading()
        for name in _SECONDS:
            check_seconds(name, getattr(self, name))
        check_memory(self.max_event_bytes, self.max_bytes_in_flight)

    def _check_names(self) -> None:
        check_strings(self, *_STRINGS)
        if not isinstance(self.stream, str):
            object.__setattr__(self, "stream", _check_several(self.stream))
        one_of("mode", self.mode, "efo", "polling")
        if self.consumer is None and self.mode == "efo":
            raise OptionError(
                "enhanced fan-out needs a consumer: name one",
                Suggestion.of(", or pass {mode='polling'}"),
            )
        consumer = None if self.consumer is None else CONSUMER_ARN.fullmatch(self.consumer)
        if consumer is None and self.consumer is not None and not NAME.fullmatch(self.consumer):
            raise OptionError(
                Option("consumer", self.consumer),
                " is neither a consumer's name (1 to 128 of a-z A-Z 0-9 _ . -) nor its ARN",
            )
        for stream in self.streams:
            arn = _check_stream(stream)
            if consumer is not None and stream not in {consumer["stream"], consumer["stream_arn"]}:
                raise OptionError(
                    f"the consumer {self.consumer} is registered on the stream "
                    f"{consumer['stream_arn']}, not on {stream}"
                )
            for match in (arn, consumer):
                if match is not None and self.region not in {None, match["region"]}:
                    raise OptionError(
                        Option("region", self.region), f" contradicts the ARN {match[0]}"
                    )

    def _check_lifecycle(self) -> None:
        one_of("deregister", self.deregister, "never", "on_close")
        if self.consumer is None or not CONSUMER_ARN.fullmatch(self.consumer):
            return
        for option, given in (("tags", self.tags), ("deregister", self.deregister == "on_close")):
            if given:
                raise OptionError(
                    Option(option),
                    f" is for a consumer that is registered here; {self.consumer} exists already, "
                    "so name the consumer instead, or leave ",
                    Option(option),
                    " out",
                )


def _check_shards(shards: str | Sequence[str], streams: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of chosen shards, each once."""
    names = [shards] if isinstance(shards, str) else shards
    several = tuple(dict.fromkeys(as_sequence("shards", names, "the id of a shard, or several")))
    if not several:
        raise OptionError(Option("shards"), " is empty; name at least one, or leave it out for all")
    for shard in several:
        stream, slash, id_ = str(shard).rpartition("/")
        if not isinstance(shard, str) or not NAME.fullmatch(id_):
            raise OptionError(
                Option("shards", shard), " must be the id of a shard: shardId-000000000000"
            )
        if slash and (len(streams) == 1 or stream not in streams):
            raise OptionError(
                Option("shards", shard),
                f" must be a shard of {' or '.join(streams)}; the name of a stream is before it "
                "only where several are read",
            )
    return several


def streams_of(text: str) -> str | list[str]:
    """Return the option `stream` of a text: one stream, or several with commas between them."""
    return text.split(",") if "," in text else text


def _check_several(streams: object) -> tuple[str, ...]:
    """Check the names of several streams, and return them in their order."""
    if not isinstance(streams, Sequence) or not all(isinstance(one, str) for one in streams):
        raise OptionError(
            Option("stream"),
            f" must be a string or a sequence of strings, not {type(streams).__name__}",
        )
    if not streams:
        raise OptionError(Option("stream"), " names no stream")
    names = [stream.rpartition("/")[2] for stream in streams]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        # Positions and metrics tell streams apart by their names.
        raise OptionError(
            Option("stream"),
            f" names {repeated[0]!r} twice; read streams of one name with two sources",
        )
    return tuple(streams)


def _check_stream(stream: str) -> re.Match[str] | None:
    """Check the name or ARN of a stream; return the match of an ARN."""
    arn = STREAM_ARN.fullmatch(stream)
    if arn is None and not NAME.fullmatch(stream):
        raise OptionError(
            Option("stream", stream),
            " is neither a stream's name (1 to 128 of a-z A-Z 0-9 _ . -) nor its ARN",
        )
    return arn


def check_tags(tags: object) -> dict[str, str]:
    """Check the tags of a consumer, and return a copy."""
    # Kinesis takes 50 keys of 1 to 128 characters, not beginning with `aws:`, and values of up to
    # 256.
    if not isinstance(tags, Mapping):
        raise OptionError(Option("tags", tags), " must be a mapping of strings to strings")
    if len(tags) > _MAX_TAGS:
        raise OptionError(
            Option("tags"), f" has {len(tags)} entries; a consumer has at most {_MAX_TAGS}"
        )
    for key, value in tags.items():
        if not isinstance(key, str) or not _TAG_KEY.fullmatch(key):
            raise OptionError(
                f"the tag key {key!r} must be 1 to 128 letters, digits, spaces or _ . : / = + - @"
            )
        if key.lower().startswith("aws:"):
            raise OptionError(f"the tag key {key!r} begins with aws:, which AWS reserves")
        if not isinstance(value, str) or not _TAG_VALUE.fullmatch(value):
            raise OptionError(
                f"the value {value!r} of the tag {key!r} must be at most 256 letters, digits, "
                f"spaces or _ . : / = + - @"
            )
    return dict(tags)
