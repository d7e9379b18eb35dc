"""librdkafka beside ours, on the same faults: a consumer, transactions, and a share group."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, final

from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition

from tests.provers.cluster.records import PARTITIONS, Progress, Seen, quiet
from tests.support.kafka.brokers import leave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Message

__all__ = ("ConsumerPeer", "Peer", "SharePeer", "TransactionPeer")

_AT_ONCE: Final = 500
_WAIT: Final = 0.2
_GROUP: Final = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
_COMMITTED: Final = {"isolation.level": "read_committed"}


class Peer:
    """A client in a thread of its own, begun again when it fails, until `stop`."""

    def __init__(self, servers: str, topic: str) -> None:
        self.progress = Progress()
        self.failures: Counter[str] = Counter()
        self.seen = Seen()
        self._servers = servers
        self._topic = topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for that."""
        self._ends.set()
        self._thread.join(60)

    def work(self, ends: Callable[[], bool]) -> None:
        """Read or write until the end."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self.work(self._ends.is_set)
            except KafkaException as error:
                self.failures[str(error.args[0])] += 1
                time.sleep(_WAIT)

    def _consumer(self, group: str, positions: Sequence[int] | None = None) -> Consumer:
        options = {**quiet(self._servers), **_GROUP, **_COMMITTED, "group.id": group}
        consumer = Consumer(options)
        partitions = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        if positions is None:
            committed = consumer.committed(partitions, 60)
            positions = [max(0, one.offset) for one in committed]
        places = zip(partitions, positions, strict=True)
        consumer.assign([TopicPartition(p.topic, p.partition, at) for p, at in places])
        return consumer


@final
class ConsumerPeer(Peer):
    """Read a topic."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(servers, topic)
        self.progress = Progress(f"{number}" for number in range(PARTITIONS))

    def work(self, ends: Callable[[], bool]) -> None:
        """Read."""
        consumer = self._consumer("peer", [0] * PARTITIONS)
        try:
            while not ends():
                for message in _records(consumer.consume(_AT_ONCE, _WAIT)):
                    self.seen.add([message.value() or b""])
                    self.progress.mark(f"{message.partition()}")
        finally:
            consumer.close()


@final
class TransactionPeer(Peer):
    """Copy a topic in transactions that hold the positions as well."""

    def __init__(self, servers: str, topic: str, target: str) -> None:
        super().__init__(servers, topic)
        self._target = target

    def work(self, ends: Callable[[], bool]) -> None:
        """Copy."""
        producer = Producer({**quiet(self._servers), "transactional.id": "peer"})
        producer.init_transactions(60)
        consumer = self._consumer("peer-transactions")
        try:
            while not ends():
                messages = _records(consumer.consume(_AT_ONCE, _WAIT))
                if messages:
                    self._copy(producer, consumer, messages)
        finally:
            consumer.close()

    def _copy(self, producer: Producer, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Copy records in one transaction; after an error that asks for it, abort and rewind."""
        positions = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
        group = consumer.consumer_group_metadata()
        producer.begin_transaction()
        try:
            for message in messages:
                producer.produce(self._target, message.value(), message.key())
                producer.poll(0)
            _again(lambda: producer.send_offsets_to_transaction(positions, group, 30))
            _again(lambda: producer.commit_transaction(30))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.failures[str(error.args[0])] += 1
            _again(lambda: producer.abort_transaction(30))
            first: dict[int, int] = {}
            for message in messages:
                first.setdefault(message.partition() or 0, message.offset() or 0)
            for number, offset in first.items():
                consumer.seek(TopicPartition(self._topic, number, offset))
        else:
            self.progress.mark()


@final
class SharePeer(Peer):
    """Read a topic as a share group."""

    def work(self, ends: Callable[[], bool]) -> None:
        """Read, and acknowledge with the next poll."""
        consumer = ShareConsumer({**quiet(self._servers), "group.id": "peer-share"})
        consumer.subscribe([self._topic])
        try:
            while not ends():
                if _records(list(consumer.poll(_WAIT) or [])):
                    self.progress.mark()
        finally:
            leave(consumer)


def _again(call: Callable[[], None]) -> None:
    """Make a call again after errors for which librdkafka says that it may be."""
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def _records(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.error() is None]
