"""The blocking calls of librdkafka's share consumer, and its log.

All calls have to come from one thread. How the client behaves, and why it is called as it is
(librdkafka 2.16, confluent-kafka 2.16, Kafka 4.3):

- Only its timeout ends a call that is under way. A close has none.
- The client does not poll again while a record of the last poll is unacknowledged. So a member
  has one such poll, however long its records are processed.
- A poll sends the pending acknowledgements along: one request carries acknowledgements and fetches
  records. The broker responds to both together, so the response waits until there are records, or
  for `fetch.max.wait.ms`. A commit is a request of its own, and gets its response at once.
- A broker responds when it has stored what it was told, which takes as long as the coordinator of
  that state is away. Records that it has locked for the same request wait for that, too.
- The client passes a response to a callback, partition by partition, and only during a poll or a
  commit. That may be a moment after the records that came with it. It calls it, too, for what it
  could not send.
- An acknowledgement that was refused is gone: the client does not send it again, and the record
  cannot be acknowledged again.
- A poll that returns nothing leaves a fetch under way, and so does each poll after it until one
  returns records. Records that arrive between two polls are locked as well, and wait for the next
  poll, past the end of their locks if it takes so long. By then another member may have received
  and acknowledged them; even so, the broker confirms their acknowledgement.
- Closing releases unacknowledged records at once. Once in thousands of times it never returns.
- A deleted topic raises no error.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from confluent_kafka import (
    AcknowledgeType,
    IllegalStateException,
    KafkaError,
    KafkaException,
    Message,
    ShareConsumer,
)

from fanout.errors import MalformedEventError
from fanout.kafka.partitions import Partition
from fanout.kafka.share.poll_columns import to_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from confluent_kafka import TopicPartition

    from fanout.core.lending.seam import Settlement
    from fanout.kafka.share.client_tokens import ClientTokens
    from fanout.kafka.share.offset_ranges import OffsetRange
    from fanout.kafka.share.poll_columns import PolledRecords

log = logging.getLogger(__name__)

# Seconds that one poll takes at most: a close or a pause may have to wait for it.
_POLL_SECONDS: Final = 0.2
# Seconds between two looks for responses: the first wait, and the largest one.
FIRST_WAIT: Final = 0.0005
LONGEST_WAIT: Final = 0.01

_REFUSALS: Final = {
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - a local code
}

_PREVIEW_NOTICE: Final = 'The share consumer is in "Preview"'
_LOG_INTERVAL: Final = 60.0  # seconds
_MAX_MESSAGES: Final = 100  # more than the client logs within that time


@final
@dataclass(frozen=True, slots=True, eq=False)
class Acknowledgement:
    """An acknowledgement of records of the last poll, and the broker's response to it.

    `errors` has why it is not confirmed, by partition; a TimeoutError until the broker responds.
    """

    ranges: Sequence[OffsetRange]
    kind: Settlement
    errors: dict[Partition, Exception] = field(init=False)

    def __post_init__(self) -> None:
        unconfirmed = TimeoutError("the broker has not responded")
        errors = {partition: unconfirmed for partition, _, _ in self.ranges}
        object.__setattr__(self, "errors", errors)

    def set_response(self, partition: Partition, error: Exception | None) -> None:
        """Note the broker's response for the records of a partition; None confirms them."""
        if error is None:
            del self.errors[partition]
        else:
            self.errors[partition] = error


@final
class BlockingShareConsumer:
    """Poll records and acknowledge them. Each call blocks, but no call waits for responses.

    `settle` looks for them, and has to be called again while one is `awaited`.
    """

    def __init__(
        self, config: Mapping[str, Any], topics: Sequence[str], tokens: ClientTokens | None
    ) -> None:
        self._tokens = tokens
        oauth = {} if tokens is None else {"oauth_cb": tokens, "error_cb": self._on_error}
        self._config = {**config, **oauth, "logger": _client_logger()}
        self._topics = list(topics)
        self._timeout = float(config["socket.timeout.ms"]) / 1000
        self._max_records = config["max.poll.records"]
        self._consumer: ShareConsumer | None = None
        self._refusal: KafkaError | None = None
        self._fetching_since: float | None = None
        self._last_poll_full = False
        # What has no response yet: partition, first offset, acknowledgement.
        self._awaiting: list[tuple[Partition, int, Acknowledgement]] = []
        # The acknowledgements that `settle` has not returned, and until when each is awaited.
        self._unsettled: dict[Acknowledgement, float] = {}

    @property
    def fetching(self) -> bool:
        """Whether a fetch may be under way, so that records may be locked without a poll."""
        return self._fetching_since is not None

    @property
    def awaited(self) -> bool:
        """Whether an acknowledgement is not settled."""
        return bool(self._unsettled)

    @property
    def last_poll_full(self) -> bool:
        """Whether the last poll was full, so that there are probably more records."""
        return self._last_poll_full

    def poll(self, acknowledgements: Sequence[Acknowledgement] = ()) -> PolledRecords | None:
        """Acknowledge records, and poll for up to 0.2 s; return None if no records came.

        Raises:
            KafkaException: If the client fails.
            KafkaConnectionError: If its token has expired, and the user's function gives no other.
            RefusedTokenError: If the broker refuses the token.
            IllegalStateException: If a record of the last poll is not acknowledged.
            MalformedEventError: If the client cannot read a record.
        """
        self._add(acknowledgements)
        if self._tokens is not None:
            self._tokens.raise_if_expired()
        if self._consumer is None:
            self._consumer = ShareConsumer(self._config)
            self._consumer.set_acknowledgement_commit_callback(self._on_response)
            self._consumer.subscribe(self._topics)
        try:
            polled = self._poll(self._consumer)
        except KafkaException as error:
            self._on_error(error.args[0])
            self._raise_if_refused()
            raise
        if polled is None:
            self._raise_if_refused()
        return polled

    def commit(self, acknowledgements: Sequence[Acknowledgement]) -> None:
        """Acknowledge records in a request of their own."""
        self._add(acknowledgements)
        self._commit()

    def settle(self) -> list[Acknowledgement]:
        """Return the acknowledgements that have their responses, or had none in time."""
        self._commit()
        now, waiting = time.monotonic(), {acknowledgement for *_, acknowledgement in self._awaiting}
        settled = [
            acknowledgement
            for acknowledgement, deadline in self._unsettled.items()
            if acknowledgement not in waiting or now >= deadline or self._consumer is None
        ]
        for acknowledgement in settled:
            del self._unsettled[acknowledgement]
        self._awaiting = [awaited for awaited in self._awaiting if awaited[2] in self._unsettled]
        return settled

    def close(self, acknowledgements: Sequence[Acknowledgement] = ()) -> None:
        """Acknowledge records, wait for the responses, and leave the group.

        Either takes no longer than a request may.
        """
        self.commit(acknowledgements)
        deadline, pause = time.monotonic() + self._timeout, FIRST_WAIT
        while self._awaiting and self._consumer is not None and time.monotonic() < deadline:
            time.sleep(pause)  # nothing tells that a broker has responded
            self._commit()
            pause = min(2 * pause, LONGEST_WAIT)
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        closing = Thread(target=_leave, args=(consumer,), name="fanout leaving", daemon=True)
        closing.start()
        closing.join(self._timeout)
        if closing.is_alive():
            log.warning(
                "a member has not left its share group within %.0f s, as its client does not "
                "answer; its records come again when their locks have expired",
                self._timeout,
            )

    def _poll(self, consumer: ShareConsumer) -> PolledRecords | None:
        began = time.monotonic()
        if self._fetching_since is None:
            self._fetching_since = began
        messages: Sequence[Message] = list(consumer.poll(_POLL_SECONDS))
        if not messages:
            now = time.monotonic()
            # If the poll took longer, the process was stopped meanwhile, and the client may not
            # have processed what arrived.
            self._fetching_since = now if now - began < 2 * _POLL_SECONDS else began
            return None
        acquired_after, self._fetching_since = self._fetching_since, None
        self._last_poll_full = len(messages) >= self._max_records
        if any(map(Message.error, messages)):
            self._raise_unreadable(consumer, messages)
        return to_columns(messages, acquired_after)

    def _on_error(self, error: KafkaError) -> None:
        """Note that the broker refuses the token; the client calls this, and tries it for ever."""
        if error.code() in _REFUSALS:
            self._refusal = error

    def _raise_if_refused(self) -> None:
        if self._refusal is not None and self._tokens is not None:
            cause = KafkaException(self._refusal)
            raise self._tokens.refusal(cause) from cause

    def _raise_unreadable(self, consumer: ShareConsumer, messages: Sequence[Message]) -> NoReturn:
        """Raise the error of a message, after all records of the poll are released.

        That includes those that the client would reject by itself, so that no record is lost.
        """
        for message in messages:
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
        consumer.commit_sync(self._timeout)
        bad, error = next(
            (message, error) for message in messages if (error := message.error()) is not None
        )
        partition = Partition(bad.topic() or "", bad.partition() or 0)
        raise MalformedEventError(f"{partition} offset {bad.offset()}: {error.str()}")

    def _add(self, acknowledgements: Sequence[Acknowledgement]) -> None:
        """Add acknowledgements to the next request to the broker."""
        for acknowledgement in acknowledgements:
            self._unsettled[acknowledgement] = time.monotonic() + self._timeout
            try:
                self._acknowledge(acknowledgement)
            except (KafkaException, IllegalStateException) as error:
                acknowledgement.errors.update(dict.fromkeys(acknowledgement.errors, error))
            else:
                firsts = {partition: begin for partition, begin, _ in acknowledgement.ranges}
                self._awaiting += [
                    (partition, begin, acknowledgement) for partition, begin in firsts.items()
                ]

    def _acknowledge(self, acknowledgement: Acknowledgement) -> None:
        assert self._consumer is not None, "records are of a poll"
        acknowledge = self._consumer.acknowledge_offset
        kind = AcknowledgeType[acknowledgement.kind.name]
        for partition, begin, end in acknowledgement.ranges:
            topic, number = partition.topic, partition.number
            for offset in range(begin, end):
                acknowledge(topic, number, offset, kind)

    def _commit(self) -> None:
        """Send what is acknowledged, and let the client call the callback for what was sent."""
        if not self._awaiting or self._consumer is None:
            return
        try:
            self._consumer.commit_async()
        except (KafkaException, IllegalStateException) as error:
            for partition, _, acknowledgement in self._awaiting:
                acknowledgement.set_response(partition, error)
            self._awaiting = []

    def _on_response(
        self, offsets: Mapping[TopicPartition, AbstractSet[int]], error: KafkaException | None
    ) -> None:
        """Match a response to its acknowledgement; the client calls this."""
        for at, acknowledged in offsets.items():
            partition = Partition(at.topic, at.partition)
            left = []
            for awaited in self._awaiting:
                if awaited[0] == partition and awaited[1] in acknowledged:
                    awaited[2].set_response(partition, error)
                else:
                    left.append(awaited)
            self._awaiting = left


def _leave(consumer: ShareConsumer) -> None:
    try:
        consumer.close()
    except KafkaException as error:
        # Its records come again when their locks have expired.
        log.warning("a member could not leave its share group: %s", error)


def _client_logger() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.librdkafka")
    if not logger.filters:
        logger.addFilter(_RepetitionFilter())
    return logger


class _RepetitionFilter(logging.Filter):
    """Pass each message of the client once a minute, and its notice of the preview never.

    docs/share-groups.md has that notice.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), time.monotonic()
        _, _, message = text.rpartition(": ")
        if (
            _PREVIEW_NOTICE in text
            or now - self._logged_at.get(message, -_LOG_INTERVAL) < _LOG_INTERVAL
        ):
            return False
        if len(self._logged_at) > _MAX_MESSAGES:
            self._logged_at.clear()
        self._logged_at[message] = now
        return True
