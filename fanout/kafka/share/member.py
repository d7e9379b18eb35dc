"""One member of a share group: its client, in a thread of its own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from confluent_kafka import IllegalStateException

from fanout.core.cancellation import finished
from fanout.kafka.share.client_tokens import ClientTokens
from fanout.kafka.share.consumer import (
    FIRST_WAIT,
    LONGEST_WAIT,
    Acknowledgement,
    BlockingShareConsumer,
)

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
    member = Member(BlockingShareConsumer(config, topics, tokens))
    thread = Thread(target=member.serve, name=f"fanout {name}", daemon=True)
    thread.start()
    try:
        yield member
    finally:
        if tokens is not None:  # the client would wait for a token that is under way
            tokens.close()
        try:
            await finished(member.close())
        finally:
            member.end()
            await finished(asyncio.get_running_loop().run_in_executor(None, thread.join))


@final
class Member:
    """Poll and acknowledge in a thread, one call after another; `open_member` makes one."""

    def __init__(self, consumer: BlockingShareConsumer) -> None:
        self._consumer = consumer
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._unsent: dict[Acknowledgement, asyncio.Future[PartitionErrors]] = {}
        self._sent: dict[Acknowledgement, asyncio.Future[PartitionErrors]] = {}
        self._left = False

    def serve(self) -> None:
        """Make the calls, and look for responses in between; the thread runs this."""
        pause = FIRST_WAIT
        while True:
            try:
                call = self._calls.get(timeout=pause if self._consumer.awaited else None)
            except Empty:
                pause = min(2 * pause, LONGEST_WAIT)  # nothing tells that a broker has responded
            else:
                if call is None:
                    return
                pause = FIRST_WAIT
                call()
            if settled := self._consumer.settle():
                self._loop.call_soon_threadsafe(self._respond, settled)

    def end(self) -> None:
        """End the thread, after the calls before."""
        self._calls.put(None)

    @property
    def fetching(self) -> bool:
        """Whether a fetch may be under way, so that records may be locked without a poll."""
        return self._consumer.fetching

    @property
    def polls_ahead(self) -> bool:
        """Whether the next poll is to carry acknowledgements, and not to wait for their responses.

        With an earlier one that has no response, its records might come when their locks are over.
        """
        return self._consumer.last_poll_full and not self._sent

    async def poll(self) -> PolledRecords | None:
        """Poll for a moment; return None if no records came. See `BlockingShareConsumer.poll`.

        Where it is cancelled, records that arrive are released when the member is closed.
        """
        if not self.polls_ahead:
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
        self._sent |= acknowledgements
        result: asyncio.Future[_T] = self._loop.create_future()

        def call() -> None:
            try:
                value = function([*acknowledgements])
            except Exception as error:  # noqa: BLE001 - the caller that awaits the result gets it
                self._loop.call_soon_threadsafe(finish, partial(result.set_exception, error))
            else:
                self._loop.call_soon_threadsafe(finish, partial(result.set_result, value))

        def finish(set_result: Callable[[], None]) -> None:
            if not result.cancelled():
                set_result()

        self._calls.put(call)
        return result

    def _respond(self, settled: Sequence[Acknowledgement]) -> None:
        for acknowledgement in settled:
            response = self._sent.pop(acknowledgement)
            if not response.cancelled():
                response.set_result(acknowledgement.errors)
