"""Numbered records that a producer of confluent-kafka puts, and how often each has come."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ("PARTITIONS", "Load", "Progress", "Seen", "count_topic", "quiet")

PARTITIONS: Final = 6
_KEYS: Final = 12
_TICK: Final = 0.1
_FLUSH: Final = 120.0
_GAPS: Final = 20


def quiet(servers: str) -> dict[str, object]:
    """Return the options that all clients of confluent-kafka have."""
    return {"bootstrap.servers": servers, "error_cb": lambda _: None, "log_level": 0}


@final
class Seen:
    """The records that have come, by key, where each has to come once and in order.

    `times` has how often each has come, for who gets them in no order.
    """

    def __init__(self) -> None:
        self.next: defaultdict[str, int] = defaultdict(int)
        self.times: Counter[tuple[str, int]] = Counter()
        self.wrong: Counter[str] = Counter()
        self.gaps: list[str] = []

    def add(self, values: Iterable[bytes | str]) -> None:
        """Compare records with those before."""
        for value in values:
            record = json.loads(value)
            key, number = record["key"], record["number"]
            self.times[key, number] += 1
            due = self.next[key]
            if number < due:
                self.wrong["repeated"] += 1
            elif number > due:
                self.wrong["lost or out of order"] += number - due
                if len(self.gaps) < _GAPS:
                    self.gaps.append(f"key {key}: {number} comes after {due - 1}")
            self.next[key] = max(due, number + 1)

    def missing(self, put: Seen) -> list[str]:
        """Tell some of the records that were put and never came, in any order."""
        lost = sorted(put.times.keys() - self.times.keys())
        return [f"key {key}: {number} never came" for key, number in lost[:_GAPS]]

    def compare(self, counts: Mapping[str, int], known: Mapping[str, int]) -> dict[str, int]:
        """Return how many records there are, and what is wrong about them.

        Args:
            counts: How many records of each key there have to be.
            known: What is wrong about what is read already.
        """
        missing = sum(max(0, count - self.next[key]) for key, count in counts.items())
        wrong = self.wrong + Counter({"lost": missing}) - Counter(known)
        return {"records": sum(self.next.values()), **wrong}


@final
class Progress:
    """When a role has made progress, in each of its parts."""

    def __init__(self, parts: Iterable[str] = ("",)) -> None:
        self._marks: dict[str, list[float]] = {part: [] for part in parts}

    def mark(self, part: str = "") -> None:
        """Note progress; from any thread."""
        self._marks[part].append(time.monotonic())

    def since(self, moment: float) -> bool:
        """Return whether every part has made progress since a moment."""
        return all(marks and marks[-1] > moment for marks in self._marks.values())

    def longest(self, since: float, until: float) -> float:
        """Return the longest time without progress of a part that overlaps a span."""
        longest = 0.0
        for marks in self._marks.values():
            times = [*marks, until]
            pairs = itertools.pairwise(times)
            longest = max([longest, *(b - a for a, b in pairs if b > since and a < until)])
        return longest


@final
class Load:
    """Records of some keys, numbered by key, until it is told to end."""

    def __init__(
        self, servers: str, topic: str, *, keys: int = _KEYS, partitions: int = PARTITIONS
    ) -> None:
        self.confirmed: dict[str, int] = defaultdict(int)
        self.failed = 0
        self._topic = topic
        self._partition_of = {f"{key}": key % partitions for key in range(keys)}
        options = {"acks": "all", "enable.idempotence": True, "message.timeout.ms": 300_000}
        self._producer = Producer({**quiet(servers), **options, "linger.ms": 5})
        self._ends = False

    async def run(self) -> None:
        """Put records."""
        number = 0
        while not self._ends:
            for key, partition in self._partition_of.items():
                body = json.dumps({"key": key, "number": number})
                self._producer.produce(self._topic, body, key, partition, on_delivery=self._confirm)
            self._producer.poll(0)
            number += 1
            await asyncio.sleep(_TICK)
        self.failed += await asyncio.to_thread(self._producer.flush, _FLUSH)

    def end(self) -> None:
        """Put no more."""
        self._ends = True

    def _confirm(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.confirmed[(message.key() or b"").decode()] += 1
        else:
            self.failed += 1


def count_topic(servers: str, topic: str) -> Seen:
    """Read what is committed in a topic, by confluent-kafka."""
    options = {"group.id": "count", "isolation.level": "read_committed"}
    consumer = Consumer({**quiet(servers), **options, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen, ended = Seen(), set[int | None]()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(1000, 1.0):
            if (error := message.error()) is None:
                seen.add([message.value() or b""])
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return seen
