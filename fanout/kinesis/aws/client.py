"""Make the calls of a stream with aioboto3."""

from __future__ import annotations

import io
import json
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError
from botocore.handlers import enable_millisecond_timestamp_precision

from fanout._exports import naming_extras
from fanout.errors import MalformedEventError, ServiceError
from fanout.kinesis.aws.api import (
    MAX_CONSUMERS,
    MAX_SHARDS,
    NO_TAGS,
    ConsumerDescription,
    HashRange,
    PutResult,
    ShardDescription,
    StreamDescription,
    UnreadRecords,
)
from fanout.kinesis.aws.client_config import go_past_proxies, pinned_config
from fanout.kinesis.aws.credentials import hide_secrets
from fanout.kinesis.aws.endpoint import HTTP_2, HTTP_VERSIONS, check_endpoint
from fanout.kinesis.aws.error_hints import code_of
from fanout.kinesis.aws.raw_bodies import deliver_raw_bodies, take_raw_body
from fanout.kinesis.aws.session import open_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    import aioboto3
    from aiobotocore.config import AioConfig

    from fanout.kinesis.aws.api import KinesisWritingClient
    from fanout.kinesis.aws.credentials import RenewableCredentials
    from fanout.kinesis.aws.role import AssumedRole

_CONNECT_TIMEOUT = 15.0
_ATTEMPTS: Final = 3
_LARGE_BODY: Final = 1 << 20  # aiohttp warns from here on
# The key in a parsed answer for what its stream has and botocore's model may not know.
_SETTINGS: Final = "Settings"


@asynccontextmanager
async def open_kinesis_client(
    *,
    stream: str,
    region: str | None = None,
    endpoint_url: str | None = None,
    session: aioboto3.Session | None = None,
    role: AssumedRole | None = None,
    insecure: bool = False,
    http_version: float = HTTP_VERSIONS[0],
) -> AsyncIterator[KinesisWritingClient]:
    """Open the clients of one stream; leaving the context closes them and their connections.

    The session is not changed; None makes a new one. A role is assumed with its credentials, and
    again before the role's own expire. Subscriptions alone use `http_version` 2. A role that may
    not be assumed is a ClientError of botocore.
    """
    if endpoint_url is not None:
        check_endpoint(endpoint_url, insecure=insecure)
    session, region = await open_session(session, region, role)
    client = {"service_name": "kinesis", "region_name": region, "endpoint_url": endpoint_url}
    async with AsyncExitStack() as clients:
        with _exact_timestamps(session):
            control = await clients.enter_async_context(
                session.client(**client, config=_control_config())
            )
            reading = await clients.enter_async_context(
                session.client(**client, config=_reading_config())
            )
        # The environment and the profile may set an endpoint too.
        check_endpoint(control.meta.endpoint_url, insecure=insecure)
        go_past_proxies(control)
        go_past_proxies(reading)
        deliver_raw_bodies(reading, "GetRecords")
        if http_version == HTTP_2:
            with naming_extras("http_version=2"):
                from fanout.kinesis.aws.http2_transport import subscribe_over_http2  # noqa: PLC0415 - an optional extra
            await clients.enter_async_context(subscribe_over_http2(reading, _CONNECT_TIMEOUT))
        control.meta.events.register("before-parse.kinesis.DescribeStreamSummary", _add_settings)
        reading.meta.events.register("before-send.kinesis.PutRecords", _send_large_body_in_parts)
        hide_secrets(control)
        hide_secrets(reading)
        yield _AioKinesisClient(stream, control, reading, await session.get_credentials())


@contextmanager
def _exact_timestamps(session: aioboto3.Session) -> Iterator[None]:
    """Let clients that are made in the block send milliseconds, which botocore cuts off."""
    creating = "creating-serializer.kinesis"
    session.events.register(creating, enable_millisecond_timestamp_precision)
    try:
        yield
    finally:
        session.events.unregister(creating, enable_millisecond_timestamp_precision)


def _control_config() -> AioConfig:
    # The service allows few of these calls a second; calls beyond botocore's pool of 10
    # connections wait.
    return pinned_config(attempts=_ATTEMPTS, connect_timeout=_CONNECT_TIMEOUT)


def _reading_config() -> AioConfig:
    return pinned_config(
        # A retry inside botocore would ignore the calls a second that a shard allows.
        attempts=1,
        # botocore's model may demand a partition key, which a record need not have today. Nothing
        # of a call comes from a user unchecked.
        parameter_validation=False,
        connect_timeout=_CONNECT_TIMEOUT,
        # The subscriber measures the service's silence: it knows whether the consumer is slow.
        read_timeout=None,
        # Every subscription holds a connection, and a call beyond the pool would wait for ever. A
        # listing beyond this number is refused, so the pool is never smaller than the number of
        # shards, also after a reshard. Unused connections allocate nothing.
        max_pool_connections=MAX_SHARDS,
    )


def _send_large_body_in_parts(request: Any, **_: Any) -> None:
    """Let aiohttp send a large body piece by piece: whole, it would hold up the event loop."""
    if len(request.body) > _LARGE_BODY:
        request.body = io.BytesIO(request.body)


def _add_settings(
    response_dict: Mapping[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Add to an answer of DescribeStreamSummary what the parser leaves out."""
    try:
        summary = json.loads(response_dict["body"])["StreamDescriptionSummary"]
        customized_response_dict[_SETTINGS] = {
            "automatic": summary.get("RecordDistributionStrategy") == "AUTO",
            "max_record_bytes": int(summary.get("MaxRecordSizeInKiB", 1024)) << 10,
        }
    except (ValueError, LookupError, TypeError):  # an error, or no JSON: the parser says so
        return


def server_time(headers: Mapping[str, str]) -> datetime:
    """Return the service's clock, to the second, from the headers of an answer."""
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError) as error:
        raise ServiceError(
            "Kinesis answered without a readable Date header, so its time is not known"
        ) from error


class _AioKinesisClient:
    """Make the calls with two botocore clients: their timeouts, retries and pools differ."""

    def __init__(
        self, stream: str, control: Any, reading: Any, credentials: RenewableCredentials
    ) -> None:
        key = "StreamARN" if stream.startswith("arn:") else "StreamName"
        self._stream = {key: stream}
        self._control = control
        self._reading = reading
        self._credentials = credentials

    async def renew_credentials(self) -> None:
        await self._credentials.renew()

    async def describe_stream(self) -> StreamDescription:
        response = await self._control.describe_stream_summary(**self._stream)
        summary = response["StreamDescriptionSummary"]
        return StreamDescription(
            name=summary["StreamName"],
            arn=summary["StreamARN"],
            status=summary["StreamStatus"],
            created=summary["StreamCreationTimestamp"],
            server_time=server_time(response["ResponseMetadata"]["HTTPHeaders"]),
            retention_hours=summary["RetentionPeriodHours"],
            open_shards=summary["OpenShardCount"],
            consumers=summary.get("ConsumerCount"),
            key_id=summary.get("KeyId") if summary.get("EncryptionType") == "KMS" else None,
            on_demand=summary.get("StreamModeDetails", {}).get("StreamMode") == "ON_DEMAND",
            **response.get(_SETTINGS, {}),
        )

    async def list_shards(self) -> list[ShardDescription]:
        async def page(token: Mapping[str, str]) -> Any:
            # The token identifies the stream: the service refuses both together.
            return await self._control.list_shards(**(token or self._stream))

        return [_shard(each) for each in await all_pages(page, "Shards", MAX_SHARDS)]

    async def list_consumers(self, stream_arn: str) -> list[ConsumerDescription]:
        async def page(token: Mapping[str, str]) -> Any:
            return await self._control.list_stream_consumers(StreamARN=stream_arn, **token)

        return [_consumer(each) for each in await all_pages(page, "Consumers", MAX_CONSUMERS)]

    async def register_consumer(
        self, stream_arn: str, name: str, tags: Mapping[str, str] = NO_TAGS
    ) -> ConsumerDescription:
        # With empty tags the service requires kinesis:TagResource too.
        tagged = {"Tags": dict(tags)} if tags else {}
        response = await self._control.register_stream_consumer(
            StreamARN=stream_arn, ConsumerName=name, **tagged
        )
        return _consumer(response.get("Consumer", {}))

    async def describe_consumer(
        self, *, arn: str | None = None, stream_arn: str | None = None, name: str | None = None
    ) -> ConsumerDescription:
        named = {"ConsumerARN": arn, "StreamARN": stream_arn, "ConsumerName": name}
        response = await self._control.describe_stream_consumer(
            **{key: value for key, value in named.items() if value is not None}
        )
        return _consumer(response.get("ConsumerDescription", {}))

    async def deregister_consumer(self, arn: str) -> None:
        await self._control.deregister_stream_consumer(ConsumerARN=arn)

    @asynccontextmanager
    async def subscribe(
        self, consumer_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        response = await self._reading.subscribe_to_shard(
            ConsumerARN=consumer_arn, ShardId=shard_id, StartingPosition=starting_position
        )
        body = take_raw_body(response)
        try:
            yield body.chunks()
        finally:
            body.close()

    async def get_shard_iterator(
        self, stream_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> str:
        # GetShardIterator has other names for the fields of StartingPosition, except the time.
        names = {"Type": "ShardIteratorType", "SequenceNumber": "StartingSequenceNumber"}
        position = {names.get(key, key): value for key, value in starting_position.items()}
        response = await self._reading.get_shard_iterator(
            StreamARN=stream_arn, ShardId=shard_id, **position
        )
        try:
            return str(response["ShardIterator"])
        except KeyError as error:
            raise MalformedEventError("an answer of GetShardIterator has no iterator") from error

    async def put_records(self, records: Sequence[Mapping[str, Any]]) -> list[PutResult]:
        response = await self._reading.put_records(**self._stream, Records=records)
        results = response.get("Records", ())
        if len(results) != len(records):
            raise ServiceError(
                f"Kinesis answered about {len(results)} of the {len(records)} records that were put"
            )
        return [
            PutResult(one.get("ShardId"), one.get("ErrorCode"), one.get("ErrorMessage", ""))
            for one in results
        ]

    @asynccontextmanager
    async def get_records(
        self, stream_arn: str, shard_iterator: str, *, limit: int | None = None
    ) -> AsyncIterator[UnreadRecords]:
        limited = {} if limit is None else {"Limit": limit}
        response = await self._reading.get_records(
            StreamARN=stream_arn, ShardIterator=shard_iterator, **limited
        )
        body = take_raw_body(response)
        try:
            yield UnreadRecords(body.size, body.chunks())
        finally:
            body.close()


async def all_pages(
    page: Callable[[Mapping[str, str]], Awaitable[Any]], key: str, limit: int
) -> list[Any]:
    """Return the entries of all pages of a listing; it begins anew once if its token expires."""
    try:
        return await _pages(page, key, limit)
    except ClientError as error:
        # A token is valid for 5 minutes.
        if code_of(error) != "ExpiredNextTokenException":
            raise
    return await _pages(page, key, limit)


async def _pages(
    page: Callable[[Mapping[str, str]], Awaitable[Any]], key: str, limit: int
) -> list[Any]:
    found: list[Any] = []
    seen: set[str] = set()
    token: dict[str, str] = {}
    while True:
        response = await page(token)
        # A page may have no entries and still be followed by others.
        found.extend(response.get(key) or ())
        if len(found) > limit:
            raise ServiceError(f"the stream lists more than {limit} {key.lower()}")
        following = response.get("NextToken")
        if following is None:
            return found
        if following in seen:
            raise ServiceError(f"the listing of {key.lower()} returned the same page token twice")
        seen.add(following)
        token = {"NextToken": following}


def _shard(shard: Mapping[str, Any]) -> ShardDescription:
    parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    numbers = shard["SequenceNumberRange"]
    last = numbers.get("EndingSequenceNumber")
    hash_keys = shard["HashKeyRange"]
    return ShardDescription(
        shard_id=shard["ShardId"],
        parents=tuple(parent for parent in parents if parent),
        first=int(numbers["StartingSequenceNumber"]),
        last=None if last is None else int(last),
        hash_range=HashRange(int(hash_keys["StartingHashKey"]), int(hash_keys["EndingHashKey"])),
    )


def _consumer(consumer: Mapping[str, Any]) -> ConsumerDescription:
    try:
        return ConsumerDescription(
            name=consumer["ConsumerName"],
            arn=consumer["ConsumerARN"],
            status=consumer["ConsumerStatus"],
            created=consumer["ConsumerCreationTimestamp"],
        )
    except KeyError as error:
        # botocore does not check the required fields of an answer.
        raise ServiceError(f"Kinesis described a consumer without its {error.args[0]}") from error
