"""Make the calls about one queue with aioboto3."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, final

import msgspec
from botocore.exceptions import ClientError

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import MalformedEventError
from fanout.kinesis.aws.client import all_pages
from fanout.kinesis.aws.client_config import go_past_proxies, pinned_config
from fanout.kinesis.aws.credentials import hide_secrets
from fanout.kinesis.aws.endpoint import check_endpoint
from fanout.kinesis.aws.repeated_calls import RepeatedCalls
from fanout.kinesis.aws.session import open_session
from fanout.kinesis.queue.model import add_queues
from fanout.kinesis.queue.records import QueueRecord  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from fanout.kinesis.queue.options import QueueOptions

Letters = Literal["", "DeadLetter"]
"""Which records a call is about: those of the queue, or its dead letters."""

DEAD: Final[Letters] = "DeadLetter"
# A call receives or settles so many records at most.
_MOST_RECORDS: Final = 10
_CONNECT_TIMEOUT: Final = 15.0
# Seconds beyond the wait that a call asks for.
_READ_TIMEOUT: Final = 45.0
_MAX_QUEUES: Final = 10_000
_SPARE_CONNECTIONS: Final = 10


class _Received(msgspec.Struct, frozen=True, rename="pascal"):
    queue_records: list[QueueRecord]


class _SettledEntry(msgspec.Struct, frozen=True, rename="pascal"):
    receipt_handle: str
    error_code: str = "InternalFailureException"
    error_message: str = ""


class _Settled(msgspec.Struct, frozen=True, rename="pascal"):
    successful: list[_SettledEntry] = []
    failed: list[_SettledEntry] = []


_RECEIVED: Final = msgspec.json.Decoder(_Received)
_SETTLED: Final = msgspec.json.Decoder(_Settled)
T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue, as the service describes it."""

    name: str
    arn: str
    status: str
    stream_arn: str
    visibility_timeout: int
    max_receive_count: int | None  # None without dead letters


@asynccontextmanager
async def open_queue_client(options: QueueOptions, receivers: int) -> AsyncIterator[QueueClient]:
    """Open a client with connections for so many receivers; leaving the context closes it."""
    session, region = await open_session(options.session, options.resolved_region, options.role)
    config = pinned_config(
        attempts=1,
        connect_timeout=_CONNECT_TIMEOUT,
        read_timeout=_READ_TIMEOUT,
        # Each receiver waits in one, and may settle in another.
        max_pool_connections=2 * receivers + _SPARE_CONNECTIONS,
    )
    async with session.client(
        "kinesis", region_name=region, endpoint_url=options.endpoint_url, config=config
    ) as client:
        check_endpoint(client.meta.endpoint_url, insecure=options.insecure)
        go_past_proxies(client)
        add_queues(client.meta.service_model)
        hide_secrets(client)
        yield QueueClient(client, await session.get_credentials())


@final
class QueueClient:
    """Make calls once each; errors of the service and of the network pass unchanged."""

    def __init__(self, client: Any, credentials: Any) -> None:
        self._client = client
        self._credentials = credentials
        self._calls = RepeatedCalls(client, credentials)

    async def renew_credentials(self) -> None:
        """Renew the credentials."""
        await self._credentials.renew()

    async def stream_arn(self, stream: str) -> str:
        """Return the ARN of a stream."""
        if stream.startswith("arn:"):
            return stream
        answer = await self._call("DescribeStreamSummary", StreamName=stream)
        return str(answer["StreamDescriptionSummary"]["StreamARN"])

    async def find(self, stream_arn: str, name: str) -> str | None:
        """Return the ARN of a queue of a stream, by its name."""
        for summary in await self.list(stream_arn):
            if summary["QueueName"] == name:
                return str(summary["QueueARN"])
        return None

    async def list(self, stream_arn: str) -> Sequence[Mapping[str, Any]]:
        """Return the summaries of all queues of a stream."""

        async def page(token: Mapping[str, str]) -> Any:
            wanted = [{"StreamARN": stream_arn}]
            return await self._call("ListQueues", StreamFilter=wanted, **token)

        return await all_pages(page, "QueueSummaries", _MAX_QUEUES)

    async def describe(self, arn: str) -> QueueDescription:
        """Describe a queue."""
        described = (await self._call("DescribeQueue", QueueARN=arn))["QueueDescription"]
        attributes = described.get("QueueAttributes", {})
        dead = attributes.get("DeadLetterConfiguration", {})
        return QueueDescription(
            name=described["QueueName"],
            arn=described["QueueARN"],
            status=described["QueueStatus"],
            stream_arn=described["StreamConfigurationList"][0]["StreamARN"],
            visibility_timeout=attributes.get("VisibilityTimeoutSeconds", 30),
            max_receive_count=dead.get("MaxReceiveCount")
            if dead.get("TargetType") != "NONE"
            else None,
        )

    async def receive(
        self, arn: str, *, wait: int, visible_after: int, letters: Letters = ""
    ) -> Sequence[QueueRecord]:
        """Receive up to ten records, which nobody else gets for so many seconds."""
        asked = {
            "QueueARN": arn,
            "Limit": _MOST_RECORDS,
            "WaitTimeSeconds": wait,
            "VisibilityTimeoutSeconds": visible_after,
        }
        answer = await self._calls.call(f"Receive{letters}QueueRecords", asked)
        return _read(_RECEIVED, answer).queue_records

    async def acknowledge(
        self, arn: str, receipts: Sequence[str], letters: Letters = ""
    ) -> Mapping[str, Exception]:
        """Acknowledge up to ten records; return why it failed, by receipt handle."""
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return await self._settle(f"Acknowledge{letters}QueueRecords", arn, entries)

    async def set_visibility(
        self, arn: str, receipts: Sequence[str], seconds: int, letters: Letters = ""
    ) -> Mapping[str, Exception]:
        """Hide up to ten records for so many seconds from now on; return why it failed."""
        entries = [
            {"ReceiptHandle": receipt, "VisibilityTimeoutSeconds": seconds} for receipt in receipts
        ]
        return await self._settle(f"Update{letters}QueueRecordsVisibility", arn, entries)

    async def restore(self, arn: str, receipts: Sequence[str]) -> Mapping[str, Exception]:
        """Make up to ten dead letters records of the queue again; return why it failed."""
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return await self._settle("RestoreDeadLetterQueueRecords", arn, entries)

    async def _settle(
        self, operation: str, arn: str, entries: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Exception]:
        asked = {"QueueARN": arn, "Entries": entries}
        answer = _read(_SETTLED, await self._calls.call(operation, asked))
        confirmed = {each.receipt_handle for each in answer.successful}
        failed = {each.receipt_handle: each for each in answer.failed}
        return {
            handle: _entry_error(operation, failed.get(handle))
            for handle in (entry["ReceiptHandle"] for entry in entries)
            if handle not in confirmed
        }

    async def _call(self, operation: str, **arguments: Any) -> Any:
        # The client has no method for an operation that its botocore does not know.
        return await self._client._make_api_call(operation, arguments)  # noqa: SLF001


def tens(records: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut into pieces that one call settles."""
    return (records[at : at + _MOST_RECORDS] for at in range(0, len(records), _MOST_RECORDS))


def _read(decoder: msgspec.json.Decoder[T], answer: bytes) -> T:
    try:
        return decoder.decode(answer)
    except (*MALFORMED_JSON, msgspec.ValidationError) as error:
        raise MalformedEventError("an answer of the queue cannot be read") from error


def _entry_error(operation: str, entry: _SettledEntry | None) -> Exception:
    if entry is None:
        entry = _SettledEntry("", error_message="the service did not answer about the record")
    told = {"Error": {"Code": entry.error_code, "Message": entry.error_message}}
    error: Exception = ClientError(told, operation)
    return error
