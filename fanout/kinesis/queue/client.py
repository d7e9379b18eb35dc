"""Make the calls about one queue with aioboto3."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.kinesis.aws.role import AssumedRole

Letters = Literal["", "DeadLetter"]
"""Which records a call is about: those of the queue, or its dead letters."""

DEAD: Final[Letters] = "DeadLetter"
MOST_RECORDS: Final = 10
"""How many records a call receives or settles at most."""

_CONNECT_TIMEOUT: Final = 15.0
# Seconds beyond the wait that a call asks for.
_READ_TIMEOUT: Final = 45.0
_MAX_QUEUES: Final = 10_000
# The operations that a reader calls all the time, and those about dead letters.
_REPEATED: Final = (
    "ReceiveQueueRecords",
    "AcknowledgeQueueRecords",
    "UpdateQueueRecordsVisibility",
    "ReceiveDeadLetterQueueRecords",
    "UpdateDeadLetterQueueRecordsVisibility",
    "RestoreDeadLetterQueueRecords",
)


class QueueRecord(msgspec.Struct, frozen=True, rename="pascal"):
    """A record as a queue delivers it; times are in seconds since the epoch."""

    receipt_handle: str
    record_id: str
    data: bytes
    approximate_arrival_timestamp: float
    receive_count: int
    partition_key: str | None = None
    first_receive_timestamp: float = 0.0


class _Received(msgspec.Struct, frozen=True, rename="pascal"):
    queue_records: list[QueueRecord]


class _Entry(msgspec.Struct, frozen=True, rename="pascal"):
    receipt_handle: str
    error_code: str = "InternalFailureException"
    error_message: str = ""


class _Settled(msgspec.Struct, frozen=True, rename="pascal"):
    successful: list[_Entry] = []
    failed: list[_Entry] = []


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
async def open_queue_client(
    *,
    region: str | None,
    endpoint_url: str | None,
    session: Any,
    role: AssumedRole | None,
    insecure: bool,
    connections: int,
) -> AsyncIterator[QueueClient]:
    """Open a client that may make so many calls at once; leaving the context closes it."""
    if endpoint_url is not None:
        check_endpoint(endpoint_url, insecure=insecure)
    session, region = await open_session(session, region, role)
    config = pinned_config(
        attempts=1,
        connect_timeout=_CONNECT_TIMEOUT,
        read_timeout=_READ_TIMEOUT,
        max_pool_connections=connections,
    )
    async with AsyncExitStack() as stack:
        client: Any = await stack.enter_async_context(
            session.client("kinesis", region_name=region, endpoint_url=endpoint_url, config=config)
        )
        check_endpoint(client.meta.endpoint_url, insecure=insecure)
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
        self._calls = RepeatedCalls(client, credentials, _REPEATED)

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
            "Limit": MOST_RECORDS,
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


def _read(decoder: msgspec.json.Decoder[T], answer: bytes) -> T:
    try:
        return decoder.decode(answer)
    except (*MALFORMED_JSON, msgspec.ValidationError) as error:
        raise MalformedEventError("an answer of the queue cannot be read") from error


def _entry_error(operation: str, entry: _Entry | None) -> Exception:
    if entry is None:
        entry = _Entry("", error_message="the service did not answer about the record")
    told = {"Error": {"Code": entry.error_code, "Message": entry.error_message}}
    error: Exception = ClientError(told, operation)
    return error
