"""One member of a share group: librdkafka's share consumer in a thread of its own.

What the client does, and why its calls are used as they are (librdkafka 2.16, confluent-kafka 2.16,
Kafka 4.3):

- It belongs to one thread. A call that is under way is ended by nothing but its timeout.
- It does not poll again while a record of the poll before is unacknowledged. So there is one such
  poll per member, however long somebody takes.
- A poll that returns nothing leaves a fetch behind, and so do those that follow until one brings
  records. Those that arrive between two polls are locked as well, and wait for the next one for as
  long as it takes, past the end of their locks. Then they may have been delivered to another member
  and be done with; even so, the broker answers that it takes their acknowledgement.
- An acknowledgement is answered by partition. One that was refused is gone: neither is it sent
  again nor can the record be acknowledged again.
- Closing gives back at once what is not acknowledged. A topic that is deleted is no error at all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from confluent_kafka import (
    AcknowledgeType,
    IllegalStateException,
    KafkaException,
    ShareConsumer,
)

from fanout.core.cancellation import finished
from fanout.errors import MalformedEventError
from fanout.kafka.partitions import Partition
from fanout.kafka.share.polled import gather

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from confluent_kafka import Message

    from fanout.kafka.share.polled import Polled

    _T = TypeVar("_T")

__all__ = ("Member", "Place", "open_member")

log = logging.getLogger(__name__)

# How long a poll may hold up a close, or a pause.
_POLL: Final = 0.2
_PREVIEW: Final = 'The share consumer is in "Preview"'
_QUIET: Final = 60.0

Place = tuple[str, int, int]
"""A topic, the number of a partition, and an offset."""


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
    thread = ThreadPoolExecutor(1, thread_name_prefix=f"fanout {name}")
    member = Member(config, topics, thread)
    try:
        yield member
    finally:
        try:
            await finished(member.close())
        finally:
            await finished(asyncio.get_running_loop().run_in_executor(None, thread.shutdown))


@final
class Member:
    """Poll and answer; made by `open_member`. Calls wait for each other.

    Args:
        config: The configuration of the client.
        topics: What is subscribed to.
        thread: The one thread in which the client lives.
    """

    def __init__(
        self, config: Mapping[str, Any], topics: Sequence[str], thread: ThreadPoolExecutor
    ) -> None:
        self._config = {**config, "logger": _logger()}
        self._topics = list(topics)
        self._thread = thread
        self._timeout = float(config["socket.timeout.ms"]) / 1000
        self._consumer: ShareConsumer | None = None
        self._since: float | None = None
        self._left = False

    @property
    def asking(self) -> bool:
        """Whether a fetch may be under way, so that records get locked without a poll."""
        return self._since is not None

    async def poll(self) -> Polled | None:
        """Ask for records for a moment; None where there are none.

        Raises:
            KafkaException: If the client fails.
            MalformedEventError: If the client could not read a record.

        Cancellation: what comes is given back when the member is closed.
        """
        return await self._call(self._poll)

    def answer(
        self, places: Sequence[Place], answer: AcknowledgeType
    ) -> asyncio.Future[Mapping[Partition, KafkaException]]:
        """Answer for records, and wait for the broker's word.

        It is on its way when this returns, whether or not the result is awaited.

        Args:
            places: Which records of the last poll.
            answer: What to say of them.

        Returns:
            Why it did not take the answer for the records of a partition, by partition.
        """
        if self._left:
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(IllegalStateException("the member has left its group"))
            return refused
        return self._call(lambda: self._answer(places, answer))

    def close(self) -> asyncio.Future[None]:
        """Leave the group."""
        self._left = True
        return self._call(self._close)

    def _call(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _poll(self) -> Polled | None:
        if self._consumer is None:
            self._consumer = ShareConsumer(self._config)
            self._consumer.subscribe(self._topics)
        began = time.monotonic()
        if self._since is None:
            self._since = began
        messages: Sequence[Message] = list(self._consumer.poll(_POLL))
        if not messages:
            now = time.monotonic()
            # A poll that took longer stood still together with the process, and the client may not
            # have looked at what came meanwhile.
            self._since = now if now - began < 2 * _POLL else began
            return None
        since, self._since = self._since, None
        for message in messages:
            if (error := message.error()) is not None:
                self._give_back(messages)
                place = Partition(message.topic() or "", message.partition() or 0)
                raise MalformedEventError(f"{place} offset {message.offset()}: {error.str()}")
        return gather(messages, since)

    def _give_back(self, messages: Sequence[Message]) -> None:
        """Release what the client has refused by itself as well, so that no record is lost."""
        assert self._consumer is not None
        for message in messages:
            self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
        self._consumer.commit_sync(self._timeout)

    def _answer(
        self, places: Sequence[Place], answer: AcknowledgeType
    ) -> Mapping[Partition, KafkaException]:
        assert self._consumer is not None, "records are of a poll"
        for topic, number, offset in places:
            self._consumer.acknowledge_offset(topic, number, offset, answer)
        answered = self._consumer.commit_sync(self._timeout)
        return {
            Partition(place.topic, place.partition): error
            for place, error in answered.items()
            if error is not None
        }

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            consumer.close()
        except KafkaException as error:
            # What it holds comes again when the locks have expired.
            log.warning("a member could not leave its share group: %s", error)


class _Quiet(logging.Filter):
    """Let the same sentence of the client pass once a minute, and its advice about itself never.

    The documentation says that the client is in preview.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), time.monotonic()
        _, _, said = text.rpartition(": ")
        if _PREVIEW in text or now - self._said.get(said, -_QUIET) < _QUIET:
            return False
        if len(self._said) > 100:  # noqa: PLR2004 - enough for whatever it says within a minute
            self._said.clear()
        self._said[said] = now
        return True


def _logger() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.librdkafka")
    if not logger.filters:
        logger.addFilter(_Quiet())
    return logger
