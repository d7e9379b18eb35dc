"""One member of a share group: its client, in a thread of its own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from confluent_kafka import IllegalStateException

from fanout.core.cancellation import finished
from fanout.kafka.share.client_tokens import ClientTokens
from fanout.kafka.share.consumer import Acknowledgement, BlockingShareConsumer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from fanout.core.lending.seam import Settlement
    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.offset_ranges import OffsetRange
    from fanout.kafka.share.poll_columns import PolledRecords

    _T = TypeVar("_T")

PartitionErrors: TypeAlias = "Mapping[Partition, Exception]"
"""Why the broker did not confirm an acknowledgement, by partition."""


@asynccontextmanager
async def open_member(
    config: Mapping[str, Any],
    topics: Sequence[str],
    name: str,
    *,
    token: Callable[[], Awaitable[str]] | None = None,
) -> AsyncIterator[Member]:
    """Join a group. Leaving the context releases unacknowledged records and leaves the group.

    Leaving takes as long as a call that is under way, and a request, even if it is cancelled.

    Raises:
        KafkaConnectionError: If the first token of OAUTHBEARER cannot be had.
        KafkaException: If the client refuses the configuration.
    """
    tokens = None
    if token is not None:
        tokens = ClientTokens(token, timeout=float(config["socket.timeout.ms"]) / 1000)
        await tokens.get_first()
    calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    thread = Thread(target=_serve, args=(calls,), name=f"fanout {name}", daemon=True)
    thread.start()
    member = Member(BlockingShareConsumer(config, topics, tokens), calls)
    try:
        yield member
    finally:
        if tokens is not None:  # the client would wait for a token that is under way
            tokens.close()
        try:
            await finished(member.close())
        finally:
            calls.put(None)
            await finished(asyncio.get_running_loop().run_in_executor(None, thread.join))


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


@final
class Member:
    """Poll and acknowledge in a thread, one call after another; `open_member` makes one."""

    def __init__(
        self, consumer: BlockingShareConsumer, calls: SimpleQueue[Callable[[], None] | None]
    ) -> None:
        self._consumer = consumer
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._unsent: dict[Acknowledgement, asyncio.Future[PartitionErrors]] = {}
        self._left = False

    @property
    def fetching(self) -> bool:
        """Whether a fetch may be under way, so that records may be locked without a poll."""
        return self._consumer.fetching

    async def poll(self) -> PolledRecords | None:
        """Poll for a moment; return None if no records came. See `BlockingShareConsumer.poll`.

        Where it is cancelled, records that arrive are released when the member is closed.
        """
        if not self._consumer.last_poll_full:
            self._send()  # with the poll, the response would wait for records
        return await self._call(self._consumer.poll)

    def acknowledge(
        self, ranges: Sequence[OffsetRange], kind: Settlement
    ) -> asyncio.Future[PartitionErrors]:
        """Acknowledge records of the last poll; the result is what the broker did not confirm.

        The acknowledgement is sent whether or not the result is awaited. It goes with the next poll
        if there are probably more records and that poll begins in this iteration of the loop, and
        else in a request of its own.
        """
        acknowledgement, response = Acknowledgement(ranges, kind), self._loop.create_future()
        if self._left:
            error = IllegalStateException("the member has left its group")
            response.set_result(dict.fromkeys(acknowledgement.errors, error))
            return response
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent[acknowledgement] = response
        return response

    def close(self) -> asyncio.Future[None]:
        """Leave the group."""
        self._left = True
        return self._call(self._consumer.close)

    def _send(self) -> None:
        """Send the acknowledgements that no poll has carried."""
        if self._unsent:
            self._call(self._consumer.commit)

    def _call(self, function: Callable[[Sequence[Acknowledgement]], _T]) -> asyncio.Future[_T]:
        """Call a function in the thread, with the unsent acknowledgements."""
        acknowledgements, self._unsent = self._unsent, {}
        result: asyncio.Future[_T] = self._loop.create_future()

        def call() -> None:
            try:
                value = function([*acknowledgements])
            except Exception as error:  # noqa: BLE001 - the caller that awaits the result gets it
                self._loop.call_soon_threadsafe(finish, partial(result.set_exception, error))
            else:
                self._loop.call_soon_threadsafe(finish, partial(result.set_result, value))

        def finish(set_result: Callable[[], None]) -> None:
            for acknowledgement, response in acknowledgements.items():
                if not response.cancelled():
                    response.set_result(acknowledgement.errors)
            if not result.cancelled():
                set_result()

        self._calls.put(call)
        return result
