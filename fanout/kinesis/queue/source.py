"""A queue of Kinesis as a source, and the connection of one running stream to it."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, final

from fanout.core.backoff import FullJitter
from fanout.core.events import Split
from fanout.core.lending.acknowledgements import SharedState
from fanout.core.lending.dedup import Dedup
from fanout.core.lending.delivery import MemberDelivery
from fanout.core.lending.member_locks import MemberLocks, delivery_number
from fanout.core.policy import Fatal, Pace, Phase, Retry
from fanout.core.positions import Cursor
from fanout.core.source import Capabilities, Terms
from fanout.core.statistics import Origin
from fanout.core.subscription import Tap
from fanout.errors import OptionError, ServiceError
from fanout.kinesis.aws.credentials import CredentialRefresh
from fanout.kinesis.aws.error_hints import explained, name_of
from fanout.kinesis.control_calls import until_answered
from fanout.kinesis.policy import KinesisRemedy, judge
from fanout.kinesis.queue.client import open_queue_client
from fanout.kinesis.queue.options import QueueOptions
from fanout.kinesis.queue.receivers import Receiving, open_receivers
from fanout.kinesis.queue.records import SCHEMA, IdNaming
from fanout.kinesis.reading.decode import arrival

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import pyarrow as pa

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kinesis.queue.client import QueueClient, QueueDescription

_PREFIX: Final = "receiver-"


@final
class QueueConnection:
    """Connect one running stream to a queue; its splits are members that receive."""

    def __init__(
        self,
        options: QueueOptions,
        client: QueueClient,
        queue: QueueDescription,
        shared: SharedState[str],
    ) -> None:
        self.identity = identity(queue)
        self.pacing: Pacing = options.pacing
        self._options = options
        self._client = client
        self._queue = queue
        self._shared = shared
        self._locks = locks = MemberLocks(shared)
        stream = queue.stream_arn.rpartition("/")[2]
        self._receiving = Receiving(
            client=client,
            queue=queue,
            stream=stream,
            visibility_timeout=options.visibility_timeout,
            max_records=options.max_poll_records,
            max_bytes=max(1, options.max_bytes_in_flight // options.members),
            jitter=shared.jitter,
            counts=shared.counts,
            fetching=shared.fetching,
            dedup=shared.dedup,
        )
        self.capabilities = Capabilities(
            reads=lambda split: split in self._members,
            lending=locks,
            terms=Terms("receiver", lambda _: "", name_of),
            origin=Origin("aws_kinesis", stream, queue.name),
        )
        self._credential_refresh = CredentialRefresh(client.renew_credentials)
        self._succeeded: set[Phase] = {Phase.DISCOVER}

    async def splits(self) -> Sequence[Split]:
        """List the members, and check that the queue still exists."""
        await self._client.describe(self._queue.arn)
        return self._members

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return 0 delivered records for each member; the queue itself knows where it stands."""
        return {split.id: Cursor(0) for split in splits}

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Receive; leaving the context makes the pending records visible again."""
        members = self._members
        number, expired = members.index(split), self._locks.expired(split.id)
        receivers = len(range(number, self._options.receivers, len(members)))
        self._credential_refresh.calling(split.id)
        try:
            async with open_receivers(self._receiving, receivers) as member:
                delivery = MemberDelivery(
                    split, delivery_number(position), member, expired, self._shared
                )
                self._locks.begin_delivery(split.id, delivery)
                self._succeeded.add(Phase.SUBSCRIBE)
                async with aclosing(delivery.batches(reserve)) as batches:
                    yield Tap(batches, lambda _: self._worked(split.id))
        finally:
            self._locks.end_delivery(split.id)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Judge an error by the table in `fanout.kinesis.policy`."""
        del position
        treatment = judge(error, phase, first=phase not in self._succeeded)
        if treatment is KinesisRemedy.REFRESH:
            await self._credential_refresh.refused(None if split is None else split.id)
            return Retry(Pace.SLOW)
        if treatment is KinesisRemedy.FIND_CAUSE:
            return Fatal("the queue is gone: create it again, or name another one")
        if isinstance(treatment, KinesisRemedy):
            return Fatal("the service does not take the call")
        return treatment

    def _worked(self, split_id: str) -> None:
        self._credential_refresh.allowed(split_id)
        self._succeeded.add(Phase.STREAM)

    @property
    def _members(self) -> list[Split]:
        return [Split(f"{_PREFIX}{number}") for number in range(self._options.members)]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisQueueSource(QueueOptions):
    """Read the records that a queue delivers; the arguments are those of QueueOptions.

    Records come in no order. A record is delivered once in a run, although the queue may deliver
    it again; what is not acknowledged when the stream closes is visible to others at once.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns of a queue's records, or those that `decode` returns."""
        decode = self.user_decode
        return SCHEMA if decode is None else decode.schema

    @property
    def event_time(self) -> None:
        """None, as there are no watermarks: a released record comes again, and late."""

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[QueueConnection]:
        """Connect, and find the queue.

        Args:
            available_now: Must be False: a queue has no end to read to.

        Raises:
            OptionError: If an option contradicts the queue, or `available_now` is True.
            SetupError: If credentials or a region are missing.
            ServiceError: If the queue does not exist or may not be used, or the endpoint does not
                answer.
        """
        if available_now:
            raise OptionError(
                "a queue has no end to read to: records that are hidden from this reader may "
                "become visible at any time; read on, and stop when no record has come for a while"
            )
        jitter = FullJitter(self.pacing.backoff, Random())  # noqa: S311 - jitter, no secret
        async with AsyncExitStack() as stack:
            with explained("Kinesis cannot be called"):
                client = await stack.enter_async_context(open_queue_client(self, self.receivers))
            queue = await find_queue(client, self, jitter)
            if self.on_bad_record == "dead_letter" and queue.max_receive_count is None:
                raise OptionError(
                    f"on_bad_record='dead_letter' needs dead letters, which the queue {queue.name} "
                    f"has not: set its MaxReceiveCount, or leave on_bad_record out"
                )
            shared = share_state(self, queue, jitter)
            stack.callback(shared.log_limit.close)
            yield QueueConnection(self, client, queue, shared)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row: the number of records that the member delivered."""
        return Cursor(delivery_number(batch.range.after) + row + 1)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when a row arrived, in milliseconds since the Unix epoch; None if not known."""
        return arrival(records, row)


def share_state(
    options: QueueOptions, queue: QueueDescription, jitter: FullJitter
) -> SharedState[str]:
    """Return what the members of one stream share."""
    naming, seconds = IdNaming(identity(queue)), options.visibility_timeout
    dedup = Dedup(seconds, naming.new_set)
    dedup.enabled = True
    return SharedState(options, seconds, naming, dedup, None, jitter=jitter)


def identity(queue: QueueDescription) -> str:
    """Return the identity of a queue as a source; the ARN is another one if it is created again."""
    return f"kinesis-queue:{queue.arn}"


async def find_queue(
    client: QueueClient, options: QueueOptions, jitter: FullJitter
) -> QueueDescription:
    """Find and describe a queue that can be read."""
    name, arn = options.queue, options.queue if options.queue.startswith("arn:") else None
    with explained(f"the queue {name!r} cannot be found"):
        stream = await until_answered(lambda: client.stream_arn(options.stream), jitter)
        if arn is None:
            arn = await until_answered(lambda: client.find(stream, name), jitter)
        if arn is None:
            raise ServiceError(
                f"the stream {options.stream!r} has no queue {name!r}; create it, on an on-demand "
                f"stream, or check the name"
            )
        queue = await until_answered(lambda: client.describe(arn), jitter)
    if queue.stream_arn != stream:
        raise OptionError(f"the queue {name} is one of {queue.stream_arn}, not of {stream}")
    if queue.status not in {"ACTIVE", "UPDATING"}:
        raise ServiceError(f"the queue {name!r} is {queue.status}; it must be ACTIVE to be read")
    return queue
