"""The records that the tests of the examples send, wave by wave, before each run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer

__all__ = ("committed", "last_of_each_key", "produce_wave", "put_wave", "records_of", "sent")

# Records in a wave, and their keys.
WAVE = 40
KEYS = 7


def records_of(wave: int) -> list[tuple[str, bytes]]:
    """Return the keys and data of a wave."""
    return [(f"customer-{n % KEYS}", b"order %03d-%03d" % (wave, n)) for n in range(WAVE)]


def put_wave(server: KinesisServer, wave: int) -> None:
    """Put a wave into the stream of the examples."""
    server.put_records("orders", records_of(wave))


def produce_wave(broker: KafkaBroker, wave: int) -> None:
    """Write a wave to the topic of the examples, and wait until the broker has it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, data in records_of(wave):
        producer.produce("orders", data, key)
    assert producer.flush(20) == 0


def committed(broker: KafkaBroker, topic: str) -> list[bytes]:
    """Return the values that a reader of committed records finds in a topic, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "examples",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found = []
    partitions = consumer.list_topics(topic, 20).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    open_ = set(partitions)
    try:
        while open_:
            message = consumer.poll(20)
            assert message is not None, "no answer"
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_.discard(message.partition())
    finally:
        consumer.close()
    return sorted(found)


def sent(waves: int) -> list[bytes]:
    """Return the data of all records of the first waves, in order."""
    return sorted(data for wave in range(waves) for _, data in records_of(wave))


def last_of_each_key(waves: int) -> set[bytes]:
    """Return the newest record of each key: who has these has read every split to its end."""
    return set(sent(waves)[-KEYS:])
