"""moto's Kinesis with what enhanced fan-out needs: SubscribeToShard, true resharding, fast puts.

What moto 5 does otherwise, and this module corrects: SplitShard and MergeShards move the parent's
records into the children; sequence numbers count from 1 in every shard; a put walks over all
records of its shard and is not safe for threads; a hash key at the end of a range fits no shard;
a closed shard's iterator never ends; ListShards ignores its filters; consumer ARNs have no epoch,
and one name can be registered twice.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import threading
from base64 import b64decode
from bisect import bisect_right
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import moto.kinesis.models as moto_models
from moto.core.exceptions import JsonRESTError
from moto.core.responses import ActionResult
from moto.kinesis.responses import KinesisResponse
from moto.kinesis.utils import compose_shard_iterator, decompose_shard_iterator

from fanout.testing._consumers import Consumer, Refusal, RefusedError
from fanout.testing._shard import PositionRefusedError, Shard
from fanout.testing._subscribe import (
    Service,
    now_in_millis,
    open_subscription,
    stream_frames,
    wait_for_hang_up,
)
from fanout.testing.faults import IgnoreSubscribe, RefuseSubscribe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ("Backend", "Response", "Stream")

_HASH_KEYS = 2**128
# Limits of the API reference: PutRecords, RegisterStreamConsumer.
_MAX_RECORDS = 500
_MAX_REQUEST_BYTES = 5 << 20
_MAX_RECORD_BYTES = 1 << 20
_MAX_CONSUMERS = 20
_MAX_CREATING = 5


def _invalid(message: str) -> JsonRESTError:
    return JsonRESTError("InvalidArgumentException", message)


class Stream(moto_models.Stream):
    """A stream whose shards keep their records; one lock guards all of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.lock = threading.RLock()
        super().__init__(*args, **kwargs)

    def init_shards(self, shard_count: int) -> None:
        """Divide the hash keys evenly."""
        self.shard_count = shard_count
        bounds = [_HASH_KEYS * index // shard_count for index in range(shard_count + 1)]
        for index in range(shard_count):
            self._add_shard((bounds[index], bounds[index + 1] - 1), ())
        self._route()

    def append(
        self, entries: Iterable[tuple[str, int | None, bytes, int]]
    ) -> list[tuple[int, str]]:
        """Store records and wake the subscriptions of their shards.

        Args:
            entries: partition key, explicit hash key, data in base64, bytes of key and data.

        Returns:
            Per entry its sequence number and shard id.
        """
        now = now_in_millis()
        placed = []
        touched = {}
        with self.lock:
            for partition_key, hash_key, data, size in entries:
                key = _hash_key(partition_key) if hash_key is None else hash_key
                shard = self._open[bisect_right(self._starts, key) - 1]
                placed.append((shard.append(partition_key, data, size, now), shard.shard_id))
                touched[shard.shard_id] = shard
            for shard in touched.values():
                shard.changed.notify_all()
        return placed

    def put_record(self, partition_key: str, explicit_hash_key: str, data: str) -> tuple[str, str]:
        """Store one record: the way in for moto's other services."""
        entry = _entry(
            {"PartitionKey": partition_key, "ExplicitHashKey": explicit_hash_key, "Data": data}
        )
        number, shard_id = self.append([entry])[0]
        return str(number), shard_id

    def split_shard(self, shard_to_split: str, new_starting_hash_key: str) -> None:
        """Close a shard and open two that share its range."""
        with self.lock:
            shard = self._reshardable(shard_to_split)
            start = int(new_starting_hash_key)
            if not shard.starting_hash < start <= shard.ending_hash:
                raise _invalid(
                    f"NewStartingHashKey {start} used in SplitShard() on shard {shard.shard_id} "
                    f"in stream {self.stream_name} is not inside the shard's range."
                )
            ranges = ((shard.starting_hash, start - 1), (start, shard.ending_hash))
            self._reshard((shard,), ranges)

    def merge_shards(self, shard_to_merge: str, adjacent_shard_to_merge: str) -> None:
        """Close two neighbours and open one for both ranges."""
        with self.lock:
            first = self._reshardable(shard_to_merge)
            second = self._reshardable(adjacent_shard_to_merge)
            low, high = sorted((first, second), key=lambda shard: shard.starting_hash)
            if low.ending_hash + 1 != high.starting_hash:
                raise _invalid(
                    f"Shards {first.shard_id} and {second.shard_id} in stream "
                    f"{self.stream_name} are not an adjacent pair of shards eligible for merging."
                )
            self._reshard((first, second), ((low.starting_hash, high.ending_hash),))

    def to_json_summary(self) -> dict[str, Any]:
        """Describe the stream with the open shards and consumers it has now."""
        description = super().to_json_summary()
        description["StreamDescriptionSummary"] |= {
            "OpenShardCount": len(self._open),
            "ConsumerCount": len(self.consumers),
        }
        return description

    def end_subscriptions(self, refusal: Refusal | None) -> None:
        """End every subscription of every consumer."""
        with self.lock:
            for consumer in self.consumers:
                consumer.end_all(refusal)

    def _reshardable(self, shard_id: str) -> Shard:
        shard: Shard = self.shards[shard_id]
        if not shard.is_open:
            raise _invalid(
                f"Shard {shard_id} in stream {self.stream_name} has already been merged or split, "
                "and thus is not eligible for merging or splitting."
            )
        return shard

    def _reshard(self, parents: Sequence[Shard], ranges: Iterable[tuple[int, int]]) -> None:
        children = [self._add_shard(hash_range, parents) for hash_range in ranges]
        for parent in parents:
            parent.close(children)
        self._route()

    def _add_shard(self, hash_range: tuple[int, int], parents: Sequence[Shard]) -> Shard:
        shard = Shard(len(self.shards), hash_range, self.lock, parents)
        self.shards[shard.shard_id] = shard
        return shard

    def _route(self) -> None:
        open_shards = (shard for shard in self.shards.values() if shard.is_open)
        self._open: list[Shard] = sorted(open_shards, key=lambda shard: shard.starting_hash)
        self._starts = [shard.starting_hash for shard in self._open]


class Backend(moto_models.KinesisBackend):
    """moto's backend of one account and region, with the corrected streams and consumers."""

    def __init__(self, region_name: str, account_id: str, service: Service) -> None:
        super().__init__(region_name, account_id)
        self.service = service
        self._lock = threading.RLock()

    @property
    def flask_paths(self) -> dict[str, Any]:
        """Route every request to the corrected responses."""
        return {"/": Response.dispatch}

    @property
    def url_bases(self) -> list[str]:
        """Answer for the same hosts as moto."""
        from moto.kinesis.urls import url_bases  # noqa: PLC0415 (moto loads its urls late, too)

        return list(url_bases)

    def reset(self) -> None:
        """Drop all streams."""
        self.end_subscriptions()
        self.__init__(self.region_name, self.account_id, self.service)  # type: ignore[misc]

    def end_subscriptions(self) -> None:
        """End every subscription without a word."""
        for stream in tuple(self.streams.values()):
            stream.end_subscriptions(None)

    def create_stream(
        self,
        stream_name: str,
        shard_count: int,
        stream_mode: dict[str, str] | None = None,
        retention_period_hours: int | None = None,
    ) -> Stream:
        """Create a stream, which is ACTIVE at once."""
        with self._lock:
            if stream_name in self.streams:
                raise JsonRESTError(
                    "ResourceInUseException",
                    f"Stream {stream_name} under account {self.account_id} already exists.",
                )
            stream = Stream(
                stream_name,
                shard_count or 1,
                stream_mode=stream_mode,
                retention_period_hours=retention_period_hours,
                account_id=self.account_id,
                region_name=self.region_name,
            )
            self.streams[stream_name] = stream
            return stream

    def delete_stream(self, stream_arn: str | None, stream_name: str | None) -> Stream:
        """Delete a stream; its subscriptions end with ResourceNotFoundException."""
        stream = super().delete_stream(stream_arn, stream_name)
        message = f"Stream {stream.stream_name} under account {self.account_id} not found."
        stream.end_subscriptions(Refusal("ResourceNotFoundException", message))
        return stream

    def put_record(
        self,
        stream_arn: str,
        stream_name: str,
        partition_key: str,
        explicit_hash_key: str,
        data: str,
    ) -> tuple[str, str]:
        """Store one record."""
        stream = self.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
        return stream.put_record(partition_key, explicit_hash_key, data)

    def put_records(
        self, stream_arn: str, stream_name: str, records: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Store up to 500 records, all or none."""
        stream = self.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
        if len(records) > _MAX_RECORDS:
            raise moto_models.TooManyRecords
        entries = [_entry(record) for record in records]
        if sum(size for _, _, _, size in entries) > _MAX_REQUEST_BYTES:
            raise moto_models.TotalRecordsSizeExceedsLimit
        placed = stream.append(entries)
        return {
            "FailedRecordCount": 0,
            "Records": [
                {"SequenceNumber": str(number), "ShardId": shard_id} for number, shard_id in placed
            ],
        }

    def get_shard_iterator(
        self,
        stream_arn: str | None,
        stream_name: str | None,
        shard_id: str,
        shard_iterator_type: str,
        starting_sequence_number: str | None,
        at_timestamp: float | None,
    ) -> str:
        """Return an iterator that holds the number after which to read."""
        stream = self.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
        position = {
            "Type": shard_iterator_type,
            "SequenceNumber": starting_sequence_number,
            "Timestamp": at_timestamp,
        }
        with stream.lock:
            shard = stream.get_shard(shard_id)
            try:
                cursor = shard.cursor_at(position, now_in_millis())
            except PositionRefusedError as error:
                raise _invalid(str(error)) from error
        return str(compose_shard_iterator(stream.stream_name, shard, cursor))

    def get_records(
        self, stream_arn: str | None, shard_iterator: str, limit: int | None
    ) -> tuple[str | None, list[_PolledRecord], int]:
        """Read on from an iterator; a drained closed shard has no next one."""
        stream_name, shard_id, cursor = decompose_shard_iterator(shard_iterator)
        stream = self.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
        rules = self.service.rules
        with stream.lock:
            shard = stream.get_shard(shard_id)
            page = shard.read(
                int(cursor), limit or rules.max_event_records, 10 << 20, now_in_millis()
            )
        following = (
            None
            if page.continuation is None
            else str(compose_shard_iterator(stream_name, shard, page.continuation))
        )
        return following, [_PolledRecord(record) for record in page.records], page.millis_behind

    def register_stream_consumer(self, stream_arn: str, consumer_name: str) -> Consumer:
        """Register a consumer, CREATING for as long as the rules say."""
        stream = self._stream_of_consumers(stream_arn)
        with stream.lock:
            if any(consumer.consumer_name == consumer_name for consumer in stream.consumers):
                raise JsonRESTError(
                    "ResourceInUseException",
                    f"Consumer {consumer_name} under stream {stream_arn} already exists.",
                )
            creating = [c for c in stream.consumers if c.status == "CREATING"]
            if len(stream.consumers) >= _MAX_CONSUMERS or len(creating) >= _MAX_CREATING:
                raise JsonRESTError(
                    "LimitExceededException", f"Too many consumers of stream {stream_arn}."
                )
            consumer = Consumer(
                consumer_name,
                stream.arn,
                datetime.now(UTC),
                self.service.rules.consumer_creating,
            )
            stream.consumers.append(consumer)
            return consumer

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
    ) -> tuple[Stream, Consumer]:
        """Find a consumer and its stream."""
        for stream in tuple(self.streams.values()):
            for consumer in stream.consumers:
                if consumer.consumer_arn == consumer_arn or (
                    stream.arn == stream_arn and consumer.consumer_name == consumer_name
                ):
                    return stream, consumer
        raise JsonRESTError(
            "ResourceNotFoundException",
            f"Consumer {consumer_arn or consumer_name}, account {self.account_id} not found.",
        )

    def _stream_of_consumers(self, stream_arn: str) -> Stream:
        stream: Stream = self.describe_stream(stream_arn=stream_arn, stream_name=None)
        return stream


class Response(KinesisResponse):
    """moto's responses with SubscribeToShard."""

    def put_records(self) -> ActionResult:
        """Parse a large request once; moto does it for every parameter."""
        request = json.loads(self.body)
        result = self.kinesis_backend.put_records(
            request.get("StreamARN"), request.get("StreamName"), request["Records"]
        )
        return ActionResult(result)

    def subscribe_to_shard(self) -> Any:
        """Answer with an endless event stream."""
        request = json.loads(self.body)
        shard_id = request["ShardId"]
        service: Service = self.kinesis_backend.service
        service.count_call(shard_id)
        try:
            return self._subscribe(service, request["ConsumerARN"], shard_id, request)
        except RefusedError as error:
            service.count_violation(error.violation)
            raise JsonRESTError(error.refusal.code, error.refusal.message) from error

    def _subscribe(
        self, service: Service, consumer_arn: str, shard_id: str, request: dict[str, Any]
    ) -> Any:
        stream, consumer = self._known_consumer(consumer_arn)
        connection = self.normalized_request.environ["werkzeug.socket"]
        with stream.lock:
            consumer.note_call(shard_id, service.rules)
        match service.faults.at_subscribe(shard_id):
            case RefuseSubscribe() as fault:
                return fault.status, *_refusal_body(fault)
            case IgnoreSubscribe():
                wait_for_hang_up(connection, None)
                raise ConnectionAbortedError("injected fault: the call is never answered")
            case None:
                pass
        if shard_id not in stream.shards:
            message = f"Shard {shard_id} in stream {stream.stream_name} does not exist."
            raise RefusedError("unknown_shard", Refusal("ResourceNotFoundException", message))
        subscription = open_subscription(
            service, stream, consumer, stream.shards[shard_id], request["StartingPosition"]
        )
        frames = stream_frames(service, stream, consumer, subscription, connection)
        return 200, {"Content-Type": "application/vnd.amazon.eventstream"}, frames

    def _known_consumer(self, consumer_arn: str) -> tuple[Stream, Consumer]:
        try:
            found: tuple[Stream, Consumer] = self.kinesis_backend.find_consumer(
                None, None, consumer_arn
            )
        except JsonRESTError as error:
            refusal = Refusal("ResourceNotFoundException", error.message)
            raise RefusedError("unknown_consumer", refusal) from error
        return found


class _PolledRecord:
    """A record in an answer to GetRecords."""

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self._encoded)
        record["Data"] = b64decode(record["Data"])
        record["ApproximateArrivalTimestamp"] = datetime.fromtimestamp(
            record["ApproximateArrivalTimestamp"], UTC
        )
        return record


def _refusal_body(fault: RefuseSubscribe) -> tuple[dict[str, Any], str]:
    headers: dict[str, Any] = {"status": fault.status}
    if fault.html:
        page = f"<html><body><h1>{fault.status} {fault.code}</h1>{fault.message}</body></html>"
        return headers | {"Content-Type": "text/html"}, page
    body = json.dumps({"__type": fault.code, "message": fault.message})
    return headers | {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amzn-ErrorType": fault.code,
    }, body


def _hash_key(partition_key: str) -> int:
    digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest, "big")


def _entry(record: dict[str, Any]) -> tuple[str, int | None, bytes, int]:
    partition_key, explicit, data = (
        record.get("PartitionKey"),
        record.get("ExplicitHashKey"),
        record.get("Data", ""),
    )
    if not isinstance(partition_key, str) or not 0 < len(partition_key) <= 256:  # noqa: PLR2004 (API reference)
        raise _invalid("A partition key must have 1 to 256 characters.")
    hash_key = int(explicit) if explicit else None
    if hash_key is not None and not 0 <= hash_key < _HASH_KEYS:
        raise _invalid("An explicit hash key must be below 2 to the power of 128.")
    try:
        length = len(binascii.a2b_base64(data, strict_mode=True))
    except binascii.Error as error:
        raise JsonRESTError("SerializationException", f"Data is not base64: {error}") from error
    size = length + len(partition_key.encode())
    if size > _MAX_RECORD_BYTES:
        raise moto_models.RecordSizeExceedsLimit(position=1)
    return partition_key, hash_key, data.encode(), size
