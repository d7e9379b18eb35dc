"""Put streams that keep their records behind the web application of moto."""

from __future__ import annotations

import binascii
import functools
import re
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import moto.kinesis.exceptions
import moto.kinesis.models
import moto.kinesis.urls
from moto.core.exceptions import JsonRESTError
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from fanout.errors import OptionError
from fanout.testing.kinesis.consumers import Consumer, Refusal
from fanout.testing.kinesis.moto_responses import Response
from fanout.testing.kinesis.moto_stream import (
    HASH_KEYS,
    EmbeddedStream,
    PutEntry,
    invalid_argument,
    refuse_dry_run,
)
from fanout.testing.kinesis.queues import EmbeddedQueue
from fanout.testing.kinesis.request_checks import serialization_error, validation_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fanout.testing.faults import RefuseRecords
    from fanout.testing.kinesis.server_state import ServerState

# moto's types stay outside: they describe the backend that this one replaces.
_models: Any = moto.kinesis.models
_exceptions: Any = moto.kinesis.exceptions

# Limits of the API reference: PutRecords, RegisterStreamConsumer.
_MAX_RECORDS = 500
_MAX_REQUEST_BYTES = 10 << 20
_MAX_KEY_CHARACTERS = 256
_HASH_KEY = re.compile(r"0|[1-9][0-9]{0,38}")
_MAX_CONSUMERS = 20
# Of an on-demand stream, where the account has committed itself to a minimal throughput.
_MAX_CONSUMERS_COMMITTED = 50
_MAX_CREATING = 5


class _Application(DomainDispatcherApplication):
    """Look for the part once for each host; moto reads its own directory for each request."""

    def __init__(self) -> None:
        super().__init__(create_backend_app)
        self._part_for = functools.lru_cache(super().get_backend_for_host)

    def get_backend_for_host(self, host: str | None) -> Any:
        return self._part_for(host)


# It has no state but what it has looked up: a process needs one, however many servers it runs.
MOTO = _Application()


@contextmanager
def refused_as_mistakes() -> Iterator[None]:
    """Raise what the service would refuse a client as a mistake of the test: an OptionError."""
    try:
        yield
    except JsonRESTError as error:
        raise OptionError(error.message) from error


class Backend(_models.KinesisBackend):  # type: ignore[misc] # moto is untyped here
    """Hold the streams of one account and region."""

    streams: dict[str, EmbeddedStream]

    def __init__(self, region_name: str, account_id: str, state: ServerState) -> None:
        super().__init__(region_name, account_id)
        self.state = state
        self._lock = threading.Lock()
        self._streams_ever = 0
        self._newest_consumer = datetime.fromtimestamp(0, UTC)
        self.commitment: dict[str, Any] = {"Status": "DISABLED"}

    @property
    def flask_paths(self) -> dict[str, Any]:
        """Route every request to the corrected responses."""
        return {"/": Response.dispatch}

    @property
    def url_bases(self) -> list[str]:
        """Answer for the same hosts as moto."""
        return list(moto.kinesis.urls.url_bases)

    def reset(self) -> None:
        """Drop all streams: moto's own reset would call a constructor of two arguments."""
        self.end_subscriptions()
        self.streams.clear()

    def end_subscriptions(self) -> None:
        """End every subscription without a word."""
        for stream in tuple(self.streams.values()):
            stream.end_subscriptions(None)

    def create_stream(
        self,
        stream_name: str,
        shard_count: int | None,
        stream_mode: dict[str, str] | None = None,
        retention_period_hours: int | None = None,
    ) -> EmbeddedStream:
        """Create a stream, which is ACTIVE at once."""
        with self._lock:
            if stream_name in self.streams:
                raise JsonRESTError(
                    "ResourceInUseException",
                    f"Stream {stream_name} under account {self.account_id} already exists.",
                )
            stream = EmbeddedStream(
                stream_name,
                shard_count or 1,
                stream_mode=stream_mode,
                retention_period_hours=retention_period_hours,
                account_id=self.account_id,
                region_name=self.region_name,
                generation=self._streams_ever,
            )
            self._streams_ever += 1
            self.streams[stream_name] = stream
            return stream

    def describe_stream(self, stream_arn: str | None, stream_name: str | None) -> EmbeddedStream:
        """Find a stream by its name or its ARN."""
        name = stream_name or (stream_arn or "").rpartition("/")[2]
        stream = self.streams.get(name)
        if stream is None or (stream_arn and stream.arn != stream_arn):
            raise _exceptions.StreamNotFoundError(name, self.account_id)
        return stream

    def list_streams(self) -> list[EmbeddedStream]:
        """Return the streams in order of creation."""
        return list(self.streams.values())

    def describe_limits(self) -> dict[str, int]:
        """Count what the account has; moto counts nothing."""
        streams = self.list_streams()
        limits: dict[str, int] = super().describe_limits()
        return limits | {
            "OpenShardCount": sum(
                len(stream.open_shards) for stream in streams if not stream.is_on_demand
            ),
            "OnDemandStreamCount": sum(stream.is_on_demand for stream in streams),
        }

    def delete_stream(
        self, stream_arn: str | None, stream_name: str | None, *, with_consumers: bool = False
    ) -> EmbeddedStream:
        """Delete a stream; its subscriptions end with ResourceNotFoundException."""
        stream = self.describe_stream(stream_arn, stream_name)
        if stream.consumers and not with_consumers:
            raise JsonRESTError(
                "ResourceInUseException",
                f"Stream {stream.stream_name} under account {self.account_id} has registered "
                "consumers: deregister them, or set EnforceConsumerDeletion.",
            )
        stream.check_no_queues()
        del self.streams[stream.stream_name]
        message = f"Stream {stream.stream_name} under account {self.account_id} not found."
        stream.end_subscriptions(Refusal("ResourceNotFoundException", message))
        return stream

    def put_record(self, stream_arn: str | None, stream_name: str | None, *record: Any) -> Any:
        """Store one record: partition key, explicit hash key, data in base64."""
        stream = self.describe_stream(stream_arn, stream_name)
        names = ("PartitionKey", "ExplicitHashKey", "Data")
        ((shard_id, number),) = stream.append(
            [_entry(dict(zip(names, record, strict=True)), 1, stream)]
        )
        return str(number), shard_id

    def put_records(
        self,
        stream_arn: str | None,
        stream_name: str | None,
        records: list[dict[str, Any]],
        refusal: RefuseRecords | None = None,
        *,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Store up to 500 records; each is refused by itself where its shard has had too much."""
        stream = self.describe_stream(stream_arn, stream_name)
        if len(records) > _MAX_RECORDS:
            raise _exceptions.TooManyRecords
        entries = [_entry(record, number, stream) for number, record in enumerate(records, 1)]
        if sum(entry.size for entry in entries) > _MAX_REQUEST_BYTES:
            raise invalid_argument("Records size exceeds 10 MB limit")
        if dry_run:
            raise refuse_dry_run()
        results = stream.put(entries, self.state.rules, refusal)
        failed = sum("ErrorCode" in result for result in results)
        return {
            "FailedRecordCount": failed,
            "Records": results,
            "EncryptionType": stream.encryption_type,
        }

    def register_stream_consumer(
        self, stream_arn: str, consumer_name: str, tags: Mapping[str, str]
    ) -> Consumer:
        """Register a consumer, CREATING for as long as the rules say."""
        stream = self.describe_stream(stream_arn, None)
        with stream.lock:
            if any(consumer.consumer_name == consumer_name for consumer in stream.consumers):
                raise JsonRESTError(
                    "ResourceInUseException",
                    f"Consumer {consumer_name} under stream {stream_arn} already exists.",
                )
            creating = [each for each in stream.consumers if each.status == "CREATING"]
            self._check_room(stream)
            if len(creating) >= _MAX_CREATING:
                raise _too_many_consumers(stream_arn)
            # The ARN holds whole seconds; a name that is registered again gets another ARN.
            created = max(datetime.now(UTC), self._newest_consumer + timedelta(seconds=1))
            self._newest_consumer = created
            consumer = Consumer(
                consumer_name,
                stream_arn,
                created,
                creating=self.state.rules.consumer_creating,
                tags=tags,
            )
            stream.consumers.append(consumer)
            return consumer

    def _check_room(self, stream: EmbeddedStream) -> None:
        """Refuse one more consumer, or queue, than a stream may have."""
        committed = stream.is_on_demand and self.commitment["Status"] != "DISABLED"
        if stream.consumer_count >= (_MAX_CONSUMERS_COMMITTED if committed else _MAX_CONSUMERS):
            raise _too_many_consumers(stream.arn)

    def create_queue(
        self,
        request: Mapping[str, Any],
        stream: EmbeddedStream,
        start: Mapping[str, Any],
        cursors: Mapping[str, int],
    ) -> EmbeddedQueue:
        """Create a queue on an on-demand stream, CREATING for as long as a consumer."""
        name = request["QueueName"]
        if not stream.is_on_demand:
            raise invalid_argument(
                f"Queues are not supported on stream {stream.arn}, which is not in On-Demand mode."
            )
        for other in self.streams.values():
            if any(queue.name == name for queue in other.queues):
                raise JsonRESTError(
                    "ResourceInUseException",
                    f"Queue {name} under account {self.account_id} already exists.",
                )
        self._check_room(stream)
        queue = EmbeddedQueue(
            name,
            stream,
            start,
            request.get("QueueAttributes", {}),
            request.get("Tags", {}),
            cursors=cursors,
            creating=self.state.rules.consumer_creating,
        )
        stream.queues.append(queue)
        return queue

    def find_queue(self, arn: str) -> EmbeddedQueue:
        """Find a queue by its ARN."""
        for stream in tuple(self.streams.values()):
            queues: list[EmbeddedQueue] = stream.queues
            for queue in queues:
                if queue.arn == arn:
                    return queue
        raise self.no_queue(arn)

    def no_queue(self, arn: str) -> Exception:
        """Return the answer about a queue that does not exist."""
        message = f"Queue {arn} under account {self.account_id} not found."
        error: Exception = JsonRESTError("ResourceNotFoundException", message)
        return error

    def list_stream_consumers(self, stream_arn: str, **_page: Any) -> tuple[list[Consumer], None]:
        """Return all consumers of a stream: never more than a page."""
        return list(self.describe_stream(stream_arn, None).consumers), None

    def describe_stream_consumer(
        self, stream_arn: str | None, consumer_name: str | None, consumer_arn: str | None
    ) -> Consumer:
        """Find a consumer by its ARN, or by its stream and name."""
        return self.find_consumer(stream_arn, consumer_name, consumer_arn)[1]

    def deregister_stream_consumer(
        self, stream_arn: str | None, consumer_name: str | None, consumer_arn: str | None
    ) -> None:
        """Remove a consumer; its subscriptions end with ResourceNotFoundException."""
        stream, consumer = self.find_consumer(stream_arn, consumer_name, consumer_arn)
        message = f"Consumer {consumer.consumer_arn} not found."
        with stream.lock:
            stream.consumers = [other for other in stream.consumers if other is not consumer]
            consumer.end_all(Refusal("ResourceNotFoundException", message))

    def find_consumer(
        self, stream_arn: str | None, consumer_name: str | None, consumer_arn: str | None
    ) -> tuple[EmbeddedStream, Consumer]:
        """Find a consumer and its stream."""
        for stream in tuple(self.streams.values()):
            for consumer in stream.consumers:
                if consumer.consumer_arn == consumer_arn or (
                    stream.arn == stream_arn and consumer.consumer_name == consumer_name
                ):
                    return stream, consumer
        raise _exceptions.ConsumerNotFound(consumer_arn or consumer_name, self.account_id)


def _too_many_consumers(stream_arn: str) -> Exception:
    error: Exception = JsonRESTError(
        "LimitExceededException", f"Too many consumers of stream {stream_arn}."
    )
    return error


def _entry(record: Any, position: int, stream: EmbeddedStream) -> PutEntry:
    partition_key: str | None
    match record:
        case {"PartitionKey": str(partition_key), "Data": str(data)}:
            hash_key = _hash_key(record.get("ExplicitHashKey"))
        case {"Data": str(data)} if stream.is_automatic and record.get("PartitionKey") is None:
            partition_key, hash_key = None, None
        case dict():
            raise validation_error("a record needs a PartitionKey and Data, which are strings.")
        case _:
            raise serialization_error("A record must be a structure.")
    if partition_key is not None and not 0 < len(partition_key) <= _MAX_KEY_CHARACTERS:
        raise validation_error("a partition key must have 1 to 256 characters.")
    try:
        encoded = data.encode()
        length = len(binascii.a2b_base64(encoded, strict_mode=True))
    except (binascii.Error, UnicodeEncodeError) as error:
        raise serialization_error("Data is not base64.") from error
    size = length + len((partition_key or "").encode())
    if size > stream.max_record_bytes:
        raise validation_error(
            f"Value at 'records.{position}.member.data' failed to satisfy constraint: Member must "
            f"have length less than or equal to {stream.max_record_bytes} with its partition key"
        )
    return PutEntry(partition_key, hash_key, encoded, size)


def _hash_key(explicit: object) -> int | None:
    if explicit is None:
        return None
    if not isinstance(explicit, str) or not _HASH_KEY.fullmatch(explicit):
        raise validation_error(
            "an explicit hash key must be a decimal number of 39 digits at most."
        )
    if int(explicit) >= HASH_KEYS:
        raise invalid_argument("An explicit hash key must be below 2 to the power of 128.")
    return int(explicit)
