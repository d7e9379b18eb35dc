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
from fanout.kafka.share.consumer import Answer, Consumer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from confluent_kafka import AcknowledgeType

    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.poll_columns import PolledRecords
    from fanout.kafka.share.record_sets import Piece

    _T = TypeVar("_T")

__all__ = ("Member", "Refused", "open_member")

Refused: TypeAlias = "Mapping[Partition, Exception]"
"""Why the broker did not take an answer for the records of a partition, by partition."""


@asynccontextmanager
async def open_member(
    config: Mapping[str, Any], topics: Sequence[str], name: str
) -> AsyncIterator[Member]:
    """Join a group; leaving the context gives back what is not acknowledged, and leaves it.

    Args:
        config: The configuration of the client.
        topics: What is subscribed to.
        name: The name of the thread.

    Raises:
        KafkaException: If the client refuses the configuration.

    Cancellation: leaving takes as long as a call that is under way, and a request.
    """
    calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    thread = Thread(target=_serve, args=(calls,), name=f"fanout {name}", daemon=True)
    thread.start()
    member = Member(Consumer(config, topics), calls)
    try:
        yield member
    finally:
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
    """Poll and answer; made by `open_member`. Calls wait for each other.

    Args:
        consumer: The client.
        calls: What the one thread is to do in which it lives.
    """

    def __init__(self, consumer: Consumer, calls: SimpleQueue[Callable[[], None] | None]) -> None:
        self._consumer = consumer
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._unsent: dict[Answer, asyncio.Future[Refused]] = {}
        self._left = False

    @property
    def asking(self) -> bool:
        """Whether a fetch may be under way, so that records get locked without a poll."""
        return self._consumer.asking

    async def poll(self) -> PolledRecords | None:
        """Ask for records for a moment; None where there are none.

        Raises:
            KafkaException: If the client fails.
            IllegalStateException: If a record is not answered for.
            MalformedEventError: If the client could not read a record.

        Cancellation: what comes is given back when the member is closed.
        """
        if not self._consumer.plenty:
            self._send()  # the word would wait for records
        return await self._call(self._consumer.poll)

    def answer(self, pieces: Sequence[Piece], kind: AcknowledgeType) -> asyncio.Future[Refused]:
        """Answer for records, and wait for the broker's word.

        It is on its way when this returns, whether or not the result is awaited: with a poll, where
        there are likely more records and one is begun before the loop has come round, and else by
        itself.

        Args:
            pieces: Which records of the last poll.
            kind: What to say of them.
        """
        answer, told = Answer(pieces, kind), self._loop.create_future()
        if self._left:
            left = IllegalStateException("the member has left its group")
            told.set_result(dict.fromkeys(answer.refused, left))
            return told
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent[answer] = told
        return told

    def close(self) -> asyncio.Future[None]:
        """Leave the group."""
        self._left = True
        return self._call(self._consumer.close)

    def _send(self) -> None:
        """Send the answers that no poll has taken along."""
        if self._unsent:
            self._call(self._consumer.answer)

    def _call(self, function: Callable[[Sequence[Answer]], _T]) -> asyncio.Future[_T]:
        """Call a function in the thread, and give it the answers that are to be sent."""
        answers, self._unsent = self._unsent, {}
        result: asyncio.Future[_T] = self._loop.create_future()

        def call() -> None:
            try:
                value = function([*answers])
            except Exception as error:  # noqa: BLE001 - whoever waits for the result gets it
                self._loop.call_soon_threadsafe(tell, partial(result.set_exception, error))
            else:
                self._loop.call_soon_threadsafe(tell, partial(result.set_result, value))

        def tell(end: Callable[[], None]) -> None:
            for answer, told in answers.items():
                if not told.cancelled():
                    told.set_result(answer.refused)
            if not result.cancelled():
                end()

        self._calls.put(call)
        return result
