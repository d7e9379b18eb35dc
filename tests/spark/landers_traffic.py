"""What is written to a service while landers read it: numbered records, and changes of splits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

from tests.spark.landers_query_driver import NAME
from tests.support.kafka.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.process import KinesisProcess

SPLITS: Final = 8
RECORDS: Final = 20_000
_WAVE: Final = 240


class Traffic(Protocol):
    """What is written to a service while the query runs."""

    written: int

    def put(self) -> None:
        """Write some records, numbered from 0 on, to all splits."""

    def reshape(self) -> None:
        """Change the splits."""


@final
class KinesisTraffic:
    """Records of 40 partition keys, in a stream of shards that split and merge."""

    def __init__(self, server: KinesisProcess) -> None:
        self.written = 0
        self._server = server
        self._reshards: list[Callable[[], object]] = [
            partial(server.split_shard, NAME, "shardId-000000000000"),
            partial(server.merge_shards, NAME, "shardId-000000000003", "shardId-000000000004"),
        ]
        server.create_stream(NAME, SPLITS)

    def put(self) -> None:
        numbers = range(self.written, self.written + _WAVE)
        self._server.put_records(NAME, [(f"key {n % 40}", b"%d" % n) for n in numbers])
        self.written += _WAVE

    def reshape(self) -> None:
        """Split a shard; the next time, merge two others."""
        if self._reshards:
            self._reshards.pop(0)()


@final
class KafkaTraffic:
    """Records in a topic that gets more partitions."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.written = 0
        self._topic = Topic(broker, partitions=SPLITS, name=NAME)
        self._partitions = SPLITS

    def put(self) -> None:
        for partition in range(self._partitions):
            self._topic.put(_WAVE // SPLITS, partition=partition)
        self.written = self._topic.written

    def reshape(self) -> None:
        """Add a partition."""
        self._partitions += 1
        self._topic.broker.grow_topic(NAME, self._partitions)


@contextmanager
def writing(traffic: Traffic, *, least: int = RECORDS) -> Iterator[None]:
    """Write while the block runs, and until so many records were written in all."""
    done = threading.Event()

    def write() -> None:
        while not done.wait(0.25) or traffic.written < least:
            traffic.put()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
