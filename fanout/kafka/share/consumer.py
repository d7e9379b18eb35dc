"""librdkafka's share consumer, in the one thread that it belongs to.

What it does, and why its calls are used as they are (librdkafka 2.16, confluent-kafka 2.16,
Kafka 4.3):

- A call that is under way is ended by nothing but its timeout.
- It does not poll again while a record of the poll before is unacknowledged. So there is one such
  poll per member, however long somebody takes.
- A poll takes along what is acknowledged: one request tells the broker what became of records, and
  asks for more. The broker answers both together, so its word waits until there are records, or
  until it has waited for them for as long as it may (`fetch.max.wait.ms`). A commit is a request
  of its own, and answered at once.
- The word comes through a callback, which is only called within a poll or a commit, partition by
  partition; it may lie there a moment after the records that it came with.
- An acknowledgement that was refused is gone: neither is it sent again nor can the record be
  acknowledged again.
- A poll that returns nothing leaves a fetch behind, and so do those that follow until one brings
  records. Those that arrive between two polls are locked as well, and wait for the next one for as
  long as it takes, past the end of their locks. Then they may have been delivered to another member
  and be done with; even so, the broker answers that it takes their acknowledgement.
- Closing gives back at once what is not acknowledged. A topic that is deleted is no error at all.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from confluent_kafka import (
    AcknowledgeType,
    IllegalStateException,
    KafkaException,
    Message,
    ShareConsumer,
)

from fanout.errors import MalformedEventError
from fanout.kafka.partitions import Partition
from fanout.kafka.share.log_filter import filtered_logger
from fanout.kafka.share.poll_columns import gather

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from confluent_kafka import TopicPartition

    from fanout.kafka.share.poll_columns import PolledRecords
    from fanout.kafka.share.record_sets import Piece

__all__ = ("Answer", "Consumer")

log = logging.getLogger(__name__)

# How long a poll may hold up a close, or a pause.
_POLL: Final = 0.2
# How often to look whether there is a word of the broker, in seconds: from here, and twice as long
# each time.
_SOON: Final = 0.0005
_SELDOM: Final = 0.01


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What to say of records of the last poll, and what the broker says to that.

    Args:
        pieces: Which records.
        kind: What to say of them.
        refused: Why it was not taken, by partition; before the broker's word, that there is none.
    """

    pieces: Sequence[Piece]
    kind: AcknowledgeType
    refused: dict[Partition, Exception] = field(init=False)

    def __post_init__(self) -> None:
        silence = TimeoutError("there is no word of the broker")
        object.__setattr__(self, "refused", {place: silence for place, _, _ in self.pieces})

    def hear(self, partition: Partition, error: Exception | None) -> None:
        """Take in the broker's word for the records of a partition."""
        if error is None:
            del self.refused[partition]
        else:
            self.refused[partition] = error


@final
class Consumer:
    """Poll and answer; every call blocks, and an answer is told when the call returns.

    Args:
        config: The configuration of the client.
        topics: What is subscribed to.
    """

    def __init__(self, config: Mapping[str, Any], topics: Sequence[str]) -> None:
        self._config = {**config, "logger": filtered_logger(__name__)}
        self._topics = list(topics)
        self._timeout = float(config["socket.timeout.ms"]) / 1000
        self._most = config["max.poll.records"]
        self._consumer: ShareConsumer | None = None
        self._since: float | None = None
        self._plenty = False
        # What the broker is asked: an answer's partition, and an offset of it to tell it by.
        self._asked: list[tuple[Partition, int, Answer]] = []

    @property
    def asking(self) -> bool:
        """Whether a fetch may be under way, so that records get locked without a poll."""
        return self._since is not None

    @property
    def plenty(self) -> bool:
        """Whether the last poll was full, so that there are likely more records."""
        return self._plenty

    def poll(self, answers: Sequence[Answer] = ()) -> PolledRecords | None:
        """Answer for records, and ask for others for a moment; None where there are none.

        Where there are none, the broker's word may take longer than the moment.

        Raises:
            KafkaException: If the client fails.
            IllegalStateException: If a record is not answered for.
            MalformedEventError: If the client could not read a record.
        """
        if self._consumer is None:
            self._consumer = ShareConsumer(self._config)
            self._consumer.set_acknowledgement_commit_callback(self._hear)
            self._consumer.subscribe(self._topics)
        self._acknowledge(answers)
        try:
            return self._poll(self._consumer)
        finally:
            self._await_word(self._consumer)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Answer for records, and wait for the broker's word."""
        self._acknowledge(answers)
        if not self._asked or self._consumer is None:
            return
        errors: dict[Partition, Exception | None] = {}
        try:
            told = self._consumer.commit_sync(self._timeout)
        except KafkaException as error:
            errors = {partition: error for partition, _, _ in self._asked}
        else:
            # The callback was called as well, but not where the request was not even sent.
            errors = {Partition(at.topic, at.partition): error for at, error in told.items()}
        for partition, _, answer in self._asked:
            if partition in errors:
                answer.hear(partition, errors[partition])
        self._asked = []

    def close(self, answers: Sequence[Answer] = ()) -> None:
        """Answer for records, and leave the group."""
        self.answer(answers)
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            consumer.close()
        except KafkaException as error:
            # What it holds comes again when the locks have expired.
            log.warning("a member could not leave its share group: %s", error)

    def _poll(self, consumer: ShareConsumer) -> PolledRecords | None:
        began = time.monotonic()
        if self._since is None:
            self._since = began
        messages: Sequence[Message] = list(consumer.poll(_POLL))
        if not messages:
            now = time.monotonic()
            # A poll that took longer stood still together with the process, and the client may not
            # have looked at what came meanwhile.
            self._since = now if now - began < 2 * _POLL else began
            return None
        since, self._since = self._since, None
        self._plenty = len(messages) >= self._most
        if any(map(Message.error, messages)):
            self._refuse(consumer, messages)
        return gather(messages, since)

    def _refuse(self, consumer: ShareConsumer, messages: Sequence[Message]) -> NoReturn:
        """Release what the client has refused by itself as well, so that no record is lost."""
        for message in messages:
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
        consumer.commit_sync(self._timeout)
        bad, error = next(
            (message, error) for message in messages if (error := message.error()) is not None
        )
        place = Partition(bad.topic() or "", bad.partition() or 0)
        raise MalformedEventError(f"{place} offset {bad.offset()}: {error.str()}")

    def _acknowledge(self, answers: Sequence[Answer]) -> None:
        """Say what the next request to the broker has to tell."""
        for answer in answers:
            try:
                self._say(answer)
            except (KafkaException, IllegalStateException) as error:
                answer.refused.update(dict.fromkeys(answer.refused, error))
            else:
                firsts = {place: begin for place, begin, _ in answer.pieces}
                self._asked += [(place, begin, answer) for place, begin in firsts.items()]

    def _say(self, answer: Answer) -> None:
        assert self._consumer is not None, "records are of a poll"
        acknowledge, kind = self._consumer.acknowledge_offset, answer.kind
        for partition, begin, end in answer.pieces:
            topic, number = partition.topic, partition.number
            for offset in range(begin, end):
                acknowledge(topic, number, offset, kind)

    def _hear(
        self, offsets: Mapping[TopicPartition, AbstractSet[int]], error: KafkaException | None
    ) -> None:
        """Take in the broker's word; the client calls it."""
        for place, of_it in offsets.items():
            partition = Partition(place.topic, place.partition)
            left = []
            for asked in self._asked:
                if asked[0] == partition and asked[1] in of_it:
                    asked[2].hear(partition, error)
                else:
                    left.append(asked)
            self._asked = left

    def _await_word(self, consumer: ShareConsumer) -> None:
        """Wait until the broker has said something to every answer, or is not going to."""
        deadline, pause = time.monotonic() + self._timeout, _SOON
        while self._asked and time.monotonic() < deadline:
            consumer.commit_async()  # it calls the callback, for what was committed before
            if self._asked:
                time.sleep(pause)
                pause = min(2 * pause, _SELDOM)
        self._asked = []
